"""Which rules a group uses: those of its rank 0, so that nothing that differs between ranks can make them disagree.

Rank 0 reads its rules file and its tuner's table, and tells their text, with what its environment says about the
choice, in the first round of the start (see `bootstrap`). All ranks read the same text. A rank whose own settings say
something else is told so in its log. In the last round every rank says what it has understood; a difference (another
version of Ringleader) is an error.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ringleader import _core, tune
from ringleader.errors import InvalidArgument
from ringleader.runtime.config import PREFIX, Config, logger
from ringleader.tune import rulefile, table
from ringleader.tune.fingerprint import Fingerprint, machine
from ringleader.tune.model import DEFAULT, Model
from ringleader.tune.rules import RuleSet
from ringleader.tune.table import Table

__all__ = [
    "NO_FILE",
    "TUNER",
    "Guide",
    "check_agreement",
    "fingerprint",
    "own_guide",
    "table_path",
    "tell",
    "understand",
]

NO_FILE = "none"
TUNER = "tuner"
"""What reasons and explanations call the rules of the tuner's table."""
_SPOKEN = ("algo", "proto", "wire")  # fields of Config that decide a choice, besides files
_SILENT: tuple[tuple[str, object], ...] = (("algo", None), ("proto", None), ("proto", "auto"), ("wire", None))

log = logger("TUNE")


@dataclass(frozen=True)
class Guide:
    """By what a group chooses.

    Attributes
    ----------
    rules
        Sets of rules that come before the built-in ones.
    model
        Decides where no rule does.
    config
        The rank's own settings, with rank 0's where they are about the choice.
    told
        What rank 0 has told, for groups that are made of this one.
    digest
        Equal on ranks that choose alike.
    """

    rules: tuple[RuleSet, ...]
    model: Model
    config: Config
    told: Mapping[str, Any]
    digest: str


def fingerprint() -> Fingerprint:
    """The machine's, with the version of Ringleader and what its engine was built as."""
    from ringleader import __version__  # not at the top: the package imports this module

    info = _core.build_info()
    return {**machine(), "ringleader": __version__, "engine": f"{info['version']} {info['build_type']} {info['isa']}"}


def table_path(config: Config) -> Path | None:
    """Where the tuner's table is looked for; None if RINGLEADER_TUNING_FILE says none."""
    if config.tuning_file is None:
        return table.default_path(fingerprint())
    return None if config.tuning_file.lower() == NO_FILE else Path(config.tuning_file)


def tell(config: Config) -> dict[str, Any]:
    """What rank 0 tells the others, of JSON's types.

    Raises
    ------
    InvalidArgument
        The rules file cannot be read or is wrong. A tuner's table that cannot be used is only a warning.
    """
    told: dict[str, Any] = {name: getattr(config, name) for name in _SPOKEN}
    told["rules"] = None
    if config.rules is not None:
        text = rulefile.read_text(config.rules)
        rulefile.loads(text, config.rules)
        told["rules"] = {"source": config.rules, "text": text}
    found = _usable_table(config)
    told["table"] = None if found is None else {"source": str(found[0]), **_essence(found[1])}
    told["traced"] = config.trace is not None
    told["cores"], told["slot_bytes"] = _core.usable_cores(), config.buffsize
    return told


def _usable_table(config: Config) -> tuple[Path, Table] | None:
    """The table for this machine, if there is one that can be used; else a warning says why not."""
    path = table_path(config)
    if path is None or (config.tuning_file is None and not path.exists()):
        return None
    try:
        found = table.load(path)
    except InvalidArgument as error:
        log.warning("the tuner's table is not used, the built-in rules are: %s", error)
        return None
    mine = fingerprint()
    if dict(found.fingerprint) != dict(mine):
        differing = [key for key in mine if found.fingerprint.get(key) != mine[key]]
        log.warning(
            "the tuner's table %s is not used, the built-in rules are: it was made where %s (here: %s); run "
            "`ringleader tune`",
            path,
            ", ".join(f"{key} is {found.fingerprint.get(key)!r}" for key in differing) or "more was known",
            ", ".join(f"{key} is {mine[key]!r}" for key in differing) or "less is",
        )
        return None
    log.info("the tuner's table %s is used: made %s, %s", path, found.created, ", ".join(found.rules))
    return path, found


def _essence(found: Table) -> dict[str, Any]:
    return {
        "model": found.model.to_json(),
        "rules": {key: rulefile.dumps(rules) for key, rules in found.rules.items()},
    }


def understand(told: Mapping[str, Any], config: Config, hosts: int) -> Guide:
    """What a rank makes of what rank 0 has told.

    Parameters
    ----------
    told
        What `tell` returned on rank 0.
    config
        The rank's own settings.
    hosts
        Number of machines that the group is on: the tuner's rules are those for so many, and for this rank's
        RINGLEADER_NET, in which all agree.

    Raises
    ------
    InvalidArgument
        This rank cannot read rank 0's rules.
    """
    sets = []
    if told["rules"] is not None:
        sets.append(rulefile.loads(told["rules"]["text"], told["rules"]["source"]))
    found = told["table"]
    if found is None:
        model = replace(DEFAULT, cores=told["cores"], slot_bytes=told["slot_bytes"])
    else:
        model = Model.from_json(found["model"], found["source"])
        if (text := found["rules"].get(table.link(hosts, config.network))) is not None:
            sets.append(_tuned(text, found["source"]))
    model = replace(model, one_host=hosts == 1)
    _warn_of_differences(told, config)
    common = replace(config, **{name: told[name] for name in _SPOKEN})
    return Guide(tuple(sets), model, common, told, _digest(sets, model, told))


@functools.lru_cache(maxsize=4)  # every group that is made of this one reads the same
def _tuned(text: str, source: str) -> RuleSet:
    # Their lines would be those of this text, not of the file.
    return RuleSet(tuple(replace(rule, line=0) for rule in rulefile.loads(text, source).rules), TUNER)


def _digest(sets: list[RuleSet], model: Model, told: Mapping[str, Any]) -> str:
    from ringleader import __version__

    parts = [__version__, *map(rulefile.dumps, [*sets, tune.BUILT_IN]), model.to_json(), model.one_host]
    text = json.dumps([*parts, [told[name] for name in _SPOKEN]])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _warn_of_differences(told: Mapping[str, Any], config: Config) -> None:
    for name in _SPOKEN:
        mine = getattr(config, name)
        if (name, mine) not in _SILENT and mine != told[name]:
            theirs = "is not set there" if told[name] is None else f"says {told[name]!r}"
            log.warning(
                "%s%s=%s of this rank is ignored: rank 0's counts, which %s", PREFIX, name.upper(), mine, theirs
            )
    file = None if told["rules"] is None else told["rules"]["source"]
    if config.rules is not None and config.rules != file:
        log.warning("%sRULES=%s of this rank is ignored: rank 0 has %s", PREFIX, config.rules, file or "none")


def check_agreement(digests: Sequence[str], names: Sequence[str]) -> None:
    """All ranks have understood rank 0's rules alike.

    Raises
    ------
    InvalidArgument
        One has not: it would choose other algorithms.
    """
    for digest, name in zip(digests, names, strict=True):
        if digest != digests[0]:
            raise InvalidArgument(
                f"{name} reads the rules of {names[0]} otherwise than that does; expected the same version of "
                "Ringleader, and the same algorithms of users, on all ranks"
            )


def own_guide(config: Config, hosts: int = 1) -> Guide:
    """What a job with this rank 0 would use: for explanations without a job.

    Raises
    ------
    InvalidArgument
        The rules file cannot be read or is wrong.
    """
    return understand(tell(config), config, hosts)
