"""The tuner's table: what was found on a machine, as versioned JSON, and where it lies.

::

    {
      "format": "ringleader-tuning",
      "version": 1,
      "fingerprint": {"cpu": ..., "cores": ..., "ringleader": ..., "engine": ...},
      "created": "2026-01-31T12:00:00+00:00",
      "model": {"parameters": {...}, "corrections": {...}, ...},
      "errors": {"median": ..., "p90": ..., "points": ...},
      "rules": {"1:tcp": {"format": "ringleader-rules", ...}}
    }

``rules`` has one document of rules (see `rulefile`) per link: number of hosts, and what connects those that do not
share memory. TCP within a host is no network. A reader must survive any file; whatever is wrong is an InvalidArgument
that names the file.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NoReturn

from ringleader.errors import InvalidArgument
from ringleader.tune import rulefile
from ringleader.tune.fingerprint import Fingerprint, digest
from ringleader.tune.fit import Errors
from ringleader.tune.model import Model
from ringleader.tune.rules import RuleSet

__all__ = ["FORMAT", "NETS", "VERSION", "Table", "default_path", "dumps", "link", "load", "loads", "merge", "save"]

FORMAT: Final = "ringleader-tuning"
NETS: Final = ("tcp", "ucx")
VERSION: Final = 1
_MAX_BYTES: Final = 4 << 20
_MAX_HOSTS: Final = 1 << 20
_MEMBERS = ("format", "version", "fingerprint", "created", "model", "errors", "rules")


@dataclass(frozen=True)
class Table:
    """What was found on a machine.

    Attributes
    ----------
    fingerprint
        The machine (see `fingerprint.machine`), Ringleader's version and its engine.
    model
        The fitted cost model.
    errors
        How far it is off where it was not fitted.
    rules
        Link (see `link`) to the rules for jobs over it.
    created
        When, in ISO 8601.
    """

    fingerprint: Fingerprint
    model: Model
    errors: Errors
    rules: Mapping[str, RuleSet] = field(default_factory=dict)
    created: str = ""


def link(hosts: int, net: str) -> str:
    """The name of what a job communicates over: its number of hosts, and what connects ranks without shared memory.

    Examples
    --------
    >>> link(2, "tcp")
    '2:tcp'
    """
    return f"{hosts}:{net}"


def default_path(fingerprint: Fingerprint, environ: Mapping[str, str] | None = None) -> Path:
    """Where the table for a fingerprint lies if nothing else is said: below XDG_CONFIG_HOME, else ~/.config.

    Examples
    --------
    >>> default_path({"cores": 2}, {"XDG_CONFIG_HOME": "/home/me/.config"}).parent
    PosixPath('/home/me/.config/ringleader/tuning')
    """
    env = os.environ if environ is None else environ
    configured = env.get("XDG_CONFIG_HOME", "")
    # The specification says to ignore paths that are not absolute.
    base = (
        Path(configured) if os.path.isabs(configured) else Path(env.get("HOME") or os.path.expanduser("~")) / ".config"
    )
    return base / "ringleader" / "tuning" / f"{digest(fingerprint)}.json"


def dumps(table: Table) -> str:
    """The table as text; `loads` reads it."""
    raw = {
        "format": FORMAT,
        "version": VERSION,
        "fingerprint": dict(table.fingerprint),
        "created": table.created,
        "model": table.model.to_json(),
        "errors": {"median": table.errors.median, "p90": table.errors.p90, "points": table.errors.points},
        "rules": {key: json.loads(rulefile.dumps(rules)) for key, rules in table.rules.items()},
    }
    return json.dumps(raw, indent=1) + "\n"


def loads(text: str, source: str) -> Table:
    """Read what `dumps` wrote; `source` names the file in messages.

    Raises
    ------
    InvalidArgument
        It is no such table, of a newer version, or damaged; the message says where.
    """
    if len(text) > _MAX_BYTES:
        raise InvalidArgument(f"{source}: {len(text)} characters are more than a tuning table has ({_MAX_BYTES})")
    raw = _parse(text, source)
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise InvalidArgument(f'{source}: no tuning table; expected a JSON object with "format": "{FORMAT}"')
    if raw.get("version") != VERSION or isinstance(raw["version"], bool):
        raise InvalidArgument(
            f"{source}: version {str(raw.get('version'))[:20]} of the format; this Ringleader reads version {VERSION}: "
            "run `ringleader tune` again"
        )
    if set(raw) != set(_MEMBERS):
        odd = sorted(set(raw) ^ set(_MEMBERS))
        raise InvalidArgument(f"{source}: members missing or unknown: {', '.join(odd)[:200]}")
    rules = raw["rules"]
    if not isinstance(rules, dict):
        raise InvalidArgument(f'{source}: rules: expected an object with links as keys, for example "1:tcp"')
    return Table(
        _fingerprint(raw["fingerprint"], source),
        Model.from_json(raw["model"], source),
        _errors(raw["errors"], source),
        {_link(key, source): _rules(document, source) for key, document in rules.items()},
        _text(raw["created"], f"{source}: created"),
    )


def _parse(text: str, source: str) -> Any:
    def refuse(word: str) -> NoReturn:
        raise InvalidArgument(f"{source}: {word} is not JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise InvalidArgument(f"{source}, line {error.lineno}, column {error.colno}: {error.msg}") from None
    except (RecursionError, ValueError) as error:  # nested too deeply; a number of thousands of digits
        raise InvalidArgument(f"{source}: {str(error)[:100]}") from None


def _text(raw: Any, where: str) -> str:
    if not isinstance(raw, str) or len(raw) > 200:
        raise InvalidArgument(f"{where}: expected text of at most 200 characters")
    return raw


def _fingerprint(raw: Any, source: str) -> Fingerprint:
    if not isinstance(raw, dict) or len(raw) > 20:
        raise InvalidArgument(f"{source}: fingerprint: expected an object with at most 20 members")
    for key, value in raw.items():
        if isinstance(value, bool) or not isinstance(value, str | int) or len(str(value)) > 200 or len(key) > 40:
            raise InvalidArgument(f"{source}: fingerprint.{key[:40]}: expected text or a whole number")
    return dict(raw)


def _errors(raw: Any, source: str) -> Errors:
    names = ("median", "p90", "points")
    if not isinstance(raw, dict) or set(raw) != set(names):
        raise InvalidArgument(f"{source}: errors: expected an object with exactly {', '.join(names)}")
    for name in names:
        value = raw[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e18:
            raise InvalidArgument(f"{source}: errors.{name}: expected a number from 0")
    return Errors(float(raw["median"]), float(raw["p90"]), int(raw["points"]))


def _link(key: str, source: str) -> str:
    hosts, _, net = key.partition(":")
    if not (hosts.isascii() and hosts.isdigit() and len(hosts) < 8 and 1 <= int(hosts) <= _MAX_HOSTS and net in NETS):
        raise InvalidArgument(
            f"{source}: rules: {key[:40]!r} is no link; expected hosts:net with 1 to {_MAX_HOSTS} hosts and a net of "
            f"{', '.join(NETS)}"
        )
    return link(int(hosts), net)


def _rules(document: Any, source: str) -> RuleSet:
    return rulefile.loads(json.dumps(document), source)


def merge(new: Table, old: Table) -> Table:
    """`new`, with the rules of `old` for jobs that `new` has none for; only of the same machine and engine.

    A rule of `old` stays if `new` has no rule for its collective, layout and number of ranks.
    """
    if dict(new.fingerprint) != dict(old.fingerprint):
        return new
    merged = dict(new.rules)
    for key, rules in old.rules.items():
        mine = merged.get(key, RuleSet((), rules.source))
        known = {(r.collective, r.layouts, r.ranks, r.nodes, r.ranks_per_node) for r in mine.rules}
        kept = tuple(
            r for r in rules.rules if (r.collective, r.layouts, r.ranks, r.nodes, r.ranks_per_node) not in known
        )
        merged[key] = RuleSet(mine.rules + kept, mine.source)
    return replace(new, rules=merged)


def load(path: Path) -> Table:
    """Read a file.

    Raises
    ------
    InvalidArgument
        It cannot be read, or as `loads`.
    """
    return loads(rulefile.read_text(path, _MAX_BYTES), str(path))


def save(table: Table, path: Path) -> None:
    """Write a file, all or nothing: a process that starts meanwhile reads the old or the new one.

    Raises
    ------
    OSError
        It cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(dumps(table))
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
