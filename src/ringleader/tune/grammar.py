"""The grammar of RINGLEADER_ALGO and RINGLEADER_PROTO: NCCL's, with parameters and conditions added.

::

    value      = entry *(";" entry)
    entry      = [collective ["[" condition *("," condition) "]"] ":"] ["^"] item *("," item)
    condition  = name "=" value                   as in a file of rules: layout, ranks, nodes, ranks_per_node, even,
                                                  bytes, wire_bytes
    item       = name *(":" key "=" value)        (RINGLEADER_ALGO; 0 alone: no say, as in Open MPI)
               | "push" | "pull" | "auto"         (RINGLEADER_PROTO; auto is either)

``ring,tree;broadcast:binomial;reduce:^chain`` allows two algorithms for all_reduce, one for broadcast and all but one
for reduce; ``all_reduce[bytes=0-64K]:one_shot`` one for small data. The first entry of a collective that fits decides.
Only the first entry may lack its collective: in RINGLEADER_ALGO it is then about all_reduce, in RINGLEADER_PROTO about
every collective that has no entry of its own. Case does not matter, nor do blanks around items. Anything unknown is an
error that lists the valid words.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from ringleader._names import nearest, unknown
from ringleader.algorithms import COLLECTIVES, name_of, names
from ringleader.errors import InvalidArgument
from ringleader.tune.conditions import CONDITIONS, Conditions, Situation
from ringleader.tune.rules import PROTOCOLS, known, unparametrised

__all__ = ["ALGO", "OWN_CHOICE", "PROTO", "Selection", "parse_algo", "parse_proto", "selected"]

ALGO = "RINGLEADER_ALGO"
PROTO = "RINGLEADER_PROTO"
OWN_CHOICE = "0"  # as Open MPI's coll_tuned_*_algorithm says that the library decides
_MOST = 1 << 16  # characters: no value that a person writes is longer


@dataclass(frozen=True)
class Selection:
    """What one entry allows: the listed items, or with `exclude` all but these; `where`: for which requests."""

    items: tuple[str, ...]
    exclude: bool = False
    where: Conditions | None = None

    def allows(self, item: str) -> bool:
        """Whether an algorithm's name or a protocol is among those allowed; parameters do not matter."""
        listed = any(item == name_of(listed) for listed in self.items)
        return listed != self.exclude

    def filter(self, everything: tuple[str, ...]) -> tuple[str, ...]:
        """The allowed items: as they were written, or what an exclusion leaves of `everything`."""
        return tuple(item for item in everything if self.allows(item)) if self.exclude else self.items


def selected(parsed: Mapping[str, tuple[Selection, ...]], situation: Situation) -> Selection | None:
    """The first entry for a request, or None.

    Examples
    --------
    >>> parsed = parse_algo("all_reduce[bytes=0-64K]:one_shot;all_reduce:ring")
    >>> [selected(parsed, Situation("all_reduce", size, (0, 1))).items for size in (8, 1 << 20)]
    [('one_shot',), ('ring',)]
    """
    entries = parsed.get(situation.collective, ())
    return next((entry for entry in entries if entry.where is None or entry.where.fits(situation)), None)


# ------------------------------------------------------------------------------------------------ entries


class _Entry(NamedTuple):
    where: Conditions | None
    items: list[str]
    exclude: bool


def _collective(word: str) -> str | None:
    """The collective that a word means, with or without its underscores (``allreduce``), or None."""
    plain = word.strip().lower().replace("_", "").replace("-", "")
    return next((collective for collective in COLLECTIVES if collective.replace("_", "") == plain), None)


def _conditions(collective: str, text: str, whole: str) -> Conditions:
    """What stands between the brackets after a collective."""
    fields = {}
    for condition in text.split(","):
        name, equals, value = (part.strip() for part in condition.partition("="))
        if not equals or name.lower() not in CONDITIONS:
            hint = unknown("condition", name, CONDITIONS) if name else "a condition is name=value"
            raise InvalidArgument(f"{whole}: {condition.strip()!r} in brackets: {hint}")
        field, read = CONDITIONS[name.lower()]
        if field in fields:
            raise InvalidArgument(f"{whole}: condition {name} is given twice; expected once")
        try:
            fields[field] = read(value)
        except InvalidArgument as error:
            raise InvalidArgument(f"{whole}: condition {name}: {error}") from None
    try:
        return Conditions(collective, **fields)
    except InvalidArgument as error:
        raise InvalidArgument(f"{whole}: {error}") from None


def _entries(variable: str, text: str, unprefixed: str) -> dict[str, list[_Entry]]:
    """Split a value into entries: collective (or `unprefixed`) -> its entries in order."""
    if len(text) > _MOST:
        raise InvalidArgument(f"{variable} has {len(text)} characters; expected at most {_MOST}: use a file of rules")
    entries: dict[str, list[_Entry]] = {}
    for index, entry in enumerate(text.split(";")):
        head, colon, rest = entry.partition(":")
        word, conditions = head, None
        if bracketed := re.fullmatch(r"\s*([\w\s-]*)\[([^\[\]]*)\]\s*", head):
            word, conditions = bracketed[1], bracketed[2]
        collective = _collective(word) if colon else None
        if collective is None and (index > 0 or conditions is not None):
            raise InvalidArgument(
                f"{variable}={text!r}: entry {entry.strip()!r} must begin with a collective and ':' (only the first "
                f"need not); valid collectives: {', '.join(COLLECTIVES)}"
            )
        key = collective or unprefixed
        where = None if conditions is None else _conditions(key, conditions, f"{variable}={text!r}")
        items = (entry if collective is None else rest).strip()
        exclude = items.startswith("^")
        if any(earlier.where in (None, where) for earlier in entries.get(key, ())):
            raise InvalidArgument(
                f"{variable}={text!r} has two entries for {key if where is None else where.head}; join their items "
                "with ',', and put entries with conditions before the one without"
            )
        words = [item.strip() for item in items.removeprefix("^").split(",")]
        entries.setdefault(key, []).append(_Entry(where, words, exclude))
    return entries


# ------------------------------------------------------------------------------------------------ the two variables


@functools.lru_cache(maxsize=64)
def parse_algo(text: str) -> Mapping[str, tuple[Selection, ...]]:
    """Parse the value of RINGLEADER_ALGO: what is allowed, per collective. Blank text says nothing.

    Raises
    ------
    InvalidArgument
        A word is unknown, an entry can never be reached, or an exclusion leaves nothing.

    Examples
    --------
    >>> parse_algo("ring,tree;broadcast:binomial")["all_reduce"][0].items
    ('ring', 'double_binary_tree')
    """
    result: dict[str, tuple[Selection, ...]] = {}
    for collective, entries in (_entries(ALGO, text, "all_reduce") if text.strip() else {}).items():
        result[collective] = tuple(_algorithms(collective, entry, text) for entry in entries)
    return MappingProxyType(result)


def _algorithms(collective: str, entry: _Entry, text: str) -> Selection:
    if entry.items == [OWN_CHOICE]:
        return Selection((), exclude=True, where=entry.where)
    try:
        if entry.exclude:
            specs = [unparametrised(collective, item) for item in entry.items]
        else:
            specs = [known(collective, item) for item in entry.items]
    except InvalidArgument as error:
        first = entry.items[0] == text.split(",")[0]
        also = f"; or begin with a collective and ':' ({', '.join(COLLECTIVES)})" if first else ""
        if first and (meant := nearest(name_of(entry.items[0]), COLLECTIVES)):
            also += f"; did you mean the collective {meant!r}?"
        raise InvalidArgument(f"{ALGO}={text!r}: {error}{also}") from None
    selection = Selection(tuple(dict.fromkeys(specs)), entry.exclude, entry.where)
    if not selection.filter(names(collective)):
        raise InvalidArgument(f"{ALGO}={text!r} leaves no algorithm for {collective}; exclude fewer")
    return selection


@functools.lru_cache(maxsize=64)
def parse_proto(text: str) -> Mapping[str, tuple[Selection, ...]]:
    """Parse the value of RINGLEADER_PROTO: what is allowed, per collective. Blank text says nothing.

    Raises
    ------
    InvalidArgument
        A word is unknown, an entry can never be reached, or an exclusion leaves nothing.

    Examples
    --------
    >>> chosen = parse_proto("push;broadcast:pull")
    >>> chosen["broadcast"][0].items, chosen["gather"][0].items
    (('pull',), ('push',))
    """
    result: dict[str, tuple[Selection, ...]] = {}
    for key, entries in (_entries(PROTO, text, "") if text.strip() else {}).items():
        selections = tuple(_protocols(entry, text) for entry in entries)
        for collective in [key] if key else COLLECTIVES:
            result[collective] = selections  # the entry without a collective comes first, so others override it
    return MappingProxyType(result)


def _protocols(entry: _Entry, text: str) -> Selection:
    words = tuple(item.lower() for item in entry.items)
    protocols = PROTOCOLS if words == ("auto",) else words
    for protocol in protocols:
        if protocol not in PROTOCOLS:
            raise InvalidArgument(
                f"{PROTO}={text!r}: {unknown('protocol', protocol, PROTOCOLS, also=COLLECTIVES)}; "
                f"before ':': {', '.join(COLLECTIVES)}"
            )
    selection = Selection(protocols, entry.exclude, entry.where)
    if not selection.filter(PROTOCOLS):
        raise InvalidArgument(f"{PROTO}={text!r} leaves no protocol; exclude fewer of {', '.join(PROTOCOLS)}")
    return selection
