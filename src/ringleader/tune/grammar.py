"""The grammar of RINGLEADER_ALGO and RINGLEADER_PROTO, which is NCCL's with parameters added.

::

    value      = entry *(";" entry)
    entry      = [collective ":"] ["^"] item *("," item)
    item       = name *(":" key "=" value)        (RINGLEADER_ALGO)
               | "push" | "pull" | "auto"         (RINGLEADER_PROTO; auto is either)

``ring,tree;broadcast:binomial;reduce:^chain`` allows two algorithms for all_reduce, one for broadcast and all but one
for reduce. Only the first entry may lack its collective: in RINGLEADER_ALGO it is then about all_reduce, in
RINGLEADER_PROTO about every collective that has no entry of its own. Case does not matter, nor do blanks around items.
Anything unknown is an error that lists the valid words.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ringleader.algorithms import COLLECTIVES, canonical, get, names
from ringleader.errors import InvalidArgument
from ringleader.tune.rules import PROTOCOLS

__all__ = ["ALGO", "PROTO", "Selection", "parse_algo", "parse_proto"]

ALGO = "RINGLEADER_ALGO"
PROTO = "RINGLEADER_PROTO"


@dataclass(frozen=True)
class Selection:
    """What one entry allows: the listed items, or with `exclude` all but these."""

    items: tuple[str, ...]
    exclude: bool = False

    def allows(self, item: str) -> bool:
        """Whether an algorithm's name or a protocol is among those allowed; parameters do not matter."""
        listed = any(item == listed.partition(":")[0] for listed in self.items)
        return listed != self.exclude

    def filter(self, everything: tuple[str, ...]) -> tuple[str, ...]:
        """The allowed items: as they were written, or what an exclusion leaves of `everything`."""
        return tuple(item for item in everything if self.allows(item)) if self.exclude else self.items


def _collective(word: str) -> str | None:
    """The collective that a word means, with or without its underscores (``allreduce``), or None."""
    plain = word.strip().lower().replace("_", "").replace("-", "")
    return next((collective for collective in COLLECTIVES if collective.replace("_", "") == plain), None)


def _entries(variable: str, text: str, unprefixed: str) -> dict[str, tuple[list[str], bool]]:
    """Split a value into entries: collective (or `unprefixed`) -> (items, excluded or not)."""
    entries: dict[str, tuple[list[str], bool]] = {}
    for index, entry in enumerate(text.split(";")):
        head, colon, rest = entry.partition(":")
        collective = _collective(head) if colon else None
        if collective is None and index > 0:
            raise InvalidArgument(
                f"{variable}={text!r}: entry {entry.strip()!r} must begin with a collective and ':' (only the first "
                f"need not); valid collectives: {', '.join(COLLECTIVES)}"
            )
        key = collective or unprefixed
        items = (entry if collective is None else rest).strip()
        exclude = items.startswith("^")
        if key in entries:
            raise InvalidArgument(f"{variable}={text!r} has two entries for {key}; join their items with ','")
        entries[key] = [item.strip() for item in items.removeprefix("^").split(",")], exclude
    return entries


@functools.lru_cache(maxsize=64)
def parse_algo(text: str) -> Mapping[str, Selection]:
    """Parse the value of RINGLEADER_ALGO: what is allowed, per collective. Blank text says nothing.

    Raises
    ------
    InvalidArgument
        A word is unknown, a collective has two entries, or an exclusion leaves nothing.

    Examples
    --------
    >>> parse_algo("ring,tree;broadcast:binomial")["all_reduce"].items
    ('ring', 'double_binary_tree')
    """
    result: dict[str, Selection] = {}
    for collective, (items, exclude) in (_entries(ALGO, text, "all_reduce") if text.strip() else {}).items():
        try:
            if exclude:
                specs = [get(collective, item).name for item in items]
            else:
                specs = [canonical(collective, item) for item in items]
        except InvalidArgument as error:
            also = (
                f"; or begin with a collective and ':' ({', '.join(COLLECTIVES)})"
                if items[0] == text.split(",")[0]
                else ""
            )
            raise InvalidArgument(f"{ALGO}={text!r}: {error}{also}") from None
        result[collective] = Selection(tuple(dict.fromkeys(specs)), exclude)
        if not result[collective].filter(names(collective)):
            raise InvalidArgument(f"{ALGO}={text!r} leaves no algorithm for {collective}; exclude fewer")
    return MappingProxyType(result)


@functools.lru_cache(maxsize=64)
def parse_proto(text: str) -> Mapping[str, Selection]:
    """Parse the value of RINGLEADER_PROTO: what is allowed, per collective. Blank text says nothing.

    Raises
    ------
    InvalidArgument
        A word is unknown, a collective has two entries, or an exclusion leaves nothing.

    Examples
    --------
    >>> chosen = parse_proto("push;broadcast:pull")
    >>> chosen["broadcast"].items, chosen["gather"].items
    (('pull',), ('push',))
    """
    result: dict[str, Selection] = {}
    for key, (items, exclude) in (_entries(PROTO, text, "") if text.strip() else {}).items():
        protocols = PROTOCOLS if [item.lower() for item in items] == ["auto"] else tuple(item.lower() for item in items)
        for protocol in protocols:
            if protocol not in PROTOCOLS:
                raise InvalidArgument(
                    f"{PROTO}={text!r}: unknown word {protocol!r}; valid protocols: {', '.join(PROTOCOLS)}, "
                    f"valid collectives before ':': {', '.join(COLLECTIVES)}"
                )
        selection = Selection(protocols, exclude)
        if not selection.filter(PROTOCOLS):
            raise InvalidArgument(f"{PROTO}={text!r} leaves no protocol; exclude fewer of {', '.join(PROTOCOLS)}")
        for collective in [key] if key else COLLECTIVES:
            result[collective] = selection  # the entry without a collective comes first, so others override it
    return MappingProxyType(result)
