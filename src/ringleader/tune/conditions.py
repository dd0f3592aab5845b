"""For which requests: ranges of numbers, layouts, and the conditions that rules and the environment share."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ringleader._names import unknown
from ringleader.algorithms import COLLECTIVES
from ringleader.errors import InvalidArgument

__all__ = [
    "ANY", "CONDITIONS", "LAYOUTS", "WIRES", "Conditions", "Range", "Situation", "layout_of",
]  # fmt: skip

LAYOUTS: Final = ("shm", "net", "mixed")
# Bytes that 128 float32 values take on the network, of 512 (docs/wire.md).
WIRES: Final = {"f32": 512, "bf16": 256, "f16": 256, "int8": 129, "onebit": 17}
_MAX: Final = 1 << 62
_NUMBER: Final = r"(\d{1,20})\s*([KMGT]?)(?:i?B)?"
_RANGE: Final = re.compile(rf"{_NUMBER}\s*(?:(-)\s*(?:{_NUMBER})?)?", re.IGNORECASE | re.ASCII)
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True, slots=True)
class Range:
    """Whole numbers from `low` to `high`, both included.

    Examples
    --------
    >>> Range.parse("64K-1M"), str(Range(65536, 1 << 20)), 5 in Range(2, 8)
    (Range(low=65536, high=1048576), '65536-1048576', True)
    """

    low: int = 0
    high: int = _MAX

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high <= _MAX:
            raise InvalidArgument(f"range {self.low}-{self.high}: expected 0 <= low <= high <= 2^62")

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and self.low <= number <= self.high

    @classmethod
    def parse(cls, text: str | int) -> Range:
        """Read ``8`` (just that), ``2-8`` or ``64K-`` (from there on); K, M, G, T are powers of 1024.

        Raises
        ------
        InvalidArgument
            Another form, the limits in the wrong order, or above 2^62.
        """
        if isinstance(text, int):
            return cls(text, text)
        found = _RANGE.fullmatch(text.strip())
        if found is None:
            raise InvalidArgument(
                f"{text[:40]!r} is not a range; expected a number (just that one), low-high, or low- (from there on), "
                "with K, M, G or T for powers of 1024"
            )
        low = int(found[1]) * _UNITS[found[2].upper()]
        high = int(found[4]) * _UNITS[found[5].upper()] if found[4] else (_MAX if found[3] else low)
        return cls(low, high)

    def text(self, units: bool = False) -> str:
        """The inverse of `parse`, with K, M, G, T where they are exact if `units`.

        Examples
        --------
        >>> Range(0, 32768).text(units=True), Range(3).text(), Range(4, 4).text()
        ('0-32K', '3-', '4')
        """

        def number(value: int) -> str:
            fitting = [unit for unit in _UNITS if value and value % _UNITS[unit] == 0] if units else []
            return f"{value // _UNITS[fitting[-1]]}{fitting[-1]}" if fitting else str(value)

        if self.low == self.high:
            return number(self.low)
        return f"{number(self.low)}-{'' if self.high == _MAX else number(self.high)}"

    def __str__(self) -> str:
        return self.text()


ANY = Range()


@functools.lru_cache(maxsize=64)
def layout_of(nodes: tuple[int, ...]) -> str:
    """``shm`` if all ranks are on one node, ``net`` if each is on its own, else ``mixed``.

    Examples
    --------
    >>> layout_of((0, 0)), layout_of((0, 1)), layout_of((0, 0, 1, 1))
    ('shm', 'net', 'mixed')
    """
    distinct = len(set(nodes))
    if distinct <= 1:
        return "shm"
    return "net" if distinct == len(nodes) else "mixed"


@functools.lru_cache(maxsize=64)
def _counts(nodes: tuple[int, ...]) -> tuple[int, int, int]:
    """(nodes, fewest, most ranks of a node)."""
    counts = Counter(nodes).values()
    return len(counts), min(counts), max(counts)


@dataclass(frozen=True, slots=True)
class Situation:
    """What a choice depends on.

    Attributes
    ----------
    collective, nbytes
        Name of the collective, and the bytes of the whole data as the call gives them.
    nodes
        Node of every rank: equal means shared memory.
    itemsize
        Bytes of an element; nothing is cut finer.
    wire
        Format between nodes, see `WIRES`.
    """

    collective: str
    nbytes: int
    nodes: tuple[int, ...]
    itemsize: int = 1
    wire: str = "f32"

    @property
    def n(self) -> int:
        """Ranks."""
        return len(self.nodes)

    @property
    def wire_bytes(self) -> int:
        """Bytes of the whole data as they travel between nodes."""
        return self.nbytes * WIRES[self.wire] // 512


@dataclass(frozen=True)
class Conditions:
    """For which requests of a collective something is.

    Attributes
    ----------
    collective
        Name of a `ringleader.schedule.Collective`.
    layouts
        Some of ``shm`` (one node), ``net`` (each rank on a node of its own), ``mixed``.
    ranks, nodes
        How many ranks, and how many nodes.
    ranks_per_node
        Every node's ranks lie within it.
    even
        True: all nodes have equally many ranks; False: they have not.
    nbytes
        Bytes of the whole data (all blocks together), as the call gives them.
    wire_bytes
        The same as they travel between nodes: with wire format int8 about a quarter of `nbytes`.
    """

    collective: str
    layouts: tuple[str, ...] = LAYOUTS
    ranks: Range = ANY
    nodes: Range = ANY
    ranks_per_node: Range = ANY
    even: bool | None = None
    nbytes: Range = ANY
    wire_bytes: Range = ANY

    def __post_init__(self) -> None:
        if self.collective not in COLLECTIVES:
            raise InvalidArgument(unknown("collective", self.collective, COLLECTIVES))
        for layout in self.layouts:
            if layout not in LAYOUTS:
                raise InvalidArgument(unknown("layout", layout, LAYOUTS))
        if not self.layouts:
            raise InvalidArgument(f"for no layout at all; expected some of {', '.join(LAYOUTS)}, with blanks between")
        object.__setattr__(self, "layouts", tuple(layout for layout in LAYOUTS if layout in self.layouts))

    def fits_job(self, job: tuple[int, ...]) -> bool:
        """Whether it is for such a job, given by the node of every rank, whatever is asked of it."""
        nodes, fewest, most = _counts(job)
        return (
            layout_of(job) in self.layouts
            and len(job) in self.ranks
            and nodes in self.nodes
            and fewest in self.ranks_per_node
            and most in self.ranks_per_node
            and self.even in (None, fewest == most)
        )

    def fits(self, situation: Situation) -> bool:
        """Whether it is for such a request."""
        return (
            self.collective == situation.collective
            and situation.nbytes in self.nbytes
            and situation.wire_bytes in self.wire_bytes
            and self.fits_job(situation.nodes)
        )

    def conditions(self) -> dict[str, str]:
        """All but the collective, by the names of the grammar; what does not matter is left out."""
        found = {} if self.layouts == LAYOUTS else {"layout": " ".join(self.layouts)}
        counted = {"ranks": self.ranks, "nodes": self.nodes, "ranks_per_node": self.ranks_per_node}
        found |= {name: value.text() for name, value in counted.items() if value != ANY}
        if self.even is not None:
            found["even"] = str(self.even).lower()
        sizes = {"bytes": self.nbytes, "wire_bytes": self.wire_bytes}
        return found | {name: value.text(units=True) for name, value in sizes.items() if value != ANY}

    @property
    def head(self) -> str:
        """The collective with its conditions, as an entry of the environment begins.

        Examples
        --------
        >>> Conditions("all_reduce", layouts=("net",), nbytes=Range(0, 32768)).head
        'all_reduce[layout=net,bytes=0-32K]'
        """
        conditions = ",".join(f"{name}={value}" for name, value in self.conditions().items())
        return f"{self.collective}[{conditions}]" if conditions else self.collective


def _range(value: object) -> Range:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise InvalidArgument("expected a number or a range as text, for example 2-8 or 64K-")
    return Range.parse(value)


def _layouts(value: object) -> tuple[str, ...]:
    if not isinstance(value, str):
        raise InvalidArgument(f"expected text: some of {', '.join(LAYOUTS)}, with blanks between")
    return tuple(value.lower().split())


def _flag(value: object) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise InvalidArgument("expected true or false")
    return value


CONDITIONS: Final[Mapping[str, tuple[str, Callable[[object], Any]]]] = {
    "layout": ("layouts", _layouts),
    "ranks": ("ranks", _range),
    "nodes": ("nodes", _range),
    "ranks_per_node": ("ranks_per_node", _range),
    "even": ("even", _flag),
    "bytes": ("nbytes", _range),
    "wire_bytes": ("wire_bytes", _range),
}
"""Name in the grammar -> field of `Conditions`, and how a value (text, number, bool) is read."""
