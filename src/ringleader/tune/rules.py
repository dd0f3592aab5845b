"""Rules: one line says for which requests it is, and what they use. Everybody's choices are written in them.

The built-in defaults (`builtin`), a rules file (`rulefile`), the tuner's table and rules imported from other libraries
are all a `RuleSet`. The first rule that fits a request and says something about an aspect (the algorithm, the
protocol, the wire format) decides that aspect; what a set leaves open, the next set decides. So a choice depends on
the request and the rules only, and all ranks agree without talking.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ringleader.algorithms import COLLECTIVES, canonical, get, names
from ringleader.errors import InvalidArgument

__all__ = [
    "ANY", "LAYOUTS", "MAX_CHANNELS", "PROTOCOLS", "REDUCTIONS", "WIRES", "Range", "Rule", "RuleSet", "Situation",
    "layout_of", "unknown_word",
]  # fmt: skip

LAYOUTS = ("shm", "net", "mixed")
PROTOCOLS = ("push", "pull")
# Bytes that 128 float32 values take on the network, of 512 (docs/wire.md).
WIRES = {"f32": 512, "bf16": 256, "f16": 256, "int8": 129, "onebit": 17}
# Only these take a wire format from a rule: moving data is exact unless the call itself asks for less.
REDUCTIONS = ("all_reduce", "reduce", "reduce_scatter")
MAX_CHANNELS = 64
_MAX = 1 << 62
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def unknown_word(kind: str, word: object, valid: Iterable[str]) -> str:
    """The message for a word that is none of the valid ones, with the nearest of them.

    Examples
    --------
    >>> unknown_word("protocol", "psh", ("push", "pull"))
    "unknown protocol 'psh'; did you mean 'push'? Valid: push, pull"
    """
    words = list(valid)
    near = difflib.get_close_matches(word.lower(), words, n=1) if isinstance(word, str) and len(word) < 80 else []
    hint = f"; did you mean {near[0]!r}? Valid" if near else "; valid"
    shown = repr(word) if len(repr(word)) <= 80 else f"{repr(word)[:77]}..."
    return f"unknown {kind} {shown}{hint}: {', '.join(words)}"


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
        number = r"(\d{1,20})\s*([KMGT]?)(?:i?B)?"
        found = re.fullmatch(rf"{number}\s*(?:(-)\s*(?:{number})?)?", text.strip(), re.IGNORECASE | re.ASCII)
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


@dataclass(frozen=True, slots=True)
class Rule:
    """For which requests, and what they use.

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
    algorithm
        Canonical spec; ``^`` and names joined by commas: none of these, whoever decides; empty: this rule leaves it
        open.
    protocol
        ``push``, ``pull``; empty: left open.
    channels
        Copies of the algorithm side by side on slices of the data, each on a channel (connection) of its own; 0: as
        the algorithm is.
    segment
        If not 0, chunks are cut into segments of about so many bytes (at most 8 segments), so that sending one overlaps
        reducing another: it sets the algorithm's parameter ``segments``. Bytes as they travel.
    wire
        A format of docs/wire.md for float32 between nodes, where neither the call nor RINGLEADER_WIRE says one;
        empty: left open.
    line
        Where it was read; not part of the rule.

    Raises
    ------
    InvalidArgument
        An unknown word (the message lists the valid ones), a number out of range, or nothing is chosen.

    Examples
    --------
    >>> rule = Rule("all_reduce", layouts=("net",), nbytes=Range(0, 32768), algorithm="recursive_doubling")
    >>> print(rule)
    all_reduce[layout=net,bytes=0-32K]: recursive_doubling
    >>> rule.fits(Situation("all_reduce", 8, nodes=(0, 1, 2)))
    True
    """

    collective: str
    layouts: tuple[str, ...] = LAYOUTS
    ranks: Range = ANY
    nodes: Range = ANY
    ranks_per_node: Range = ANY
    even: bool | None = None
    nbytes: Range = ANY
    wire_bytes: Range = ANY
    algorithm: str = ""
    protocol: str = ""
    channels: int = 0
    segment: int = 0
    wire: str = ""
    line: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        if self.collective not in COLLECTIVES:
            raise InvalidArgument(unknown_word("collective", self.collective, COLLECTIVES))
        for layout in self.layouts:
            if layout not in LAYOUTS:
                raise InvalidArgument(unknown_word("layout", layout, LAYOUTS))
        layouts = tuple(layout for layout in LAYOUTS if layout in self.layouts)
        object.__setattr__(self, "layouts", layouts)
        object.__setattr__(self, "algorithm", _algorithm(self.collective, self.algorithm))
        self._check_choices()

    def _check_choices(self) -> None:
        if self.protocol not in ("", *PROTOCOLS):
            raise InvalidArgument(unknown_word("protocol", self.protocol, PROTOCOLS))
        if self.wire not in ("", *WIRES):
            raise InvalidArgument(unknown_word("wire format", self.wire, WIRES))
        if self.wire and self.collective not in REDUCTIONS:
            raise InvalidArgument(
                f"wire={self.wire} for {self.collective}; a rule may set it for {', '.join(REDUCTIONS)} only: moving "
                "data is exact unless the call itself gives wire="
            )
        if not 0 <= self.channels <= MAX_CHANNELS:
            raise InvalidArgument(f"channels={self.channels}; expected 0 (as the algorithm is) to {MAX_CHANNELS}")
        if not 0 <= self.segment <= _MAX:
            raise InvalidArgument(f"segment={self.segment}; expected bytes from 0 (chunks are not cut) to 2^62")
        if not (self.algorithm or self.protocol or self.wire):
            raise InvalidArgument("the rule chooses nothing; give at least one of algorithm, protocol, wire")
        if not self.layouts:
            raise InvalidArgument(f"the rule is for no layout; expected some of {', '.join(LAYOUTS)}")
        chooses = self.algorithm and not self.excluded
        if (self.channels or self.segment) and not chooses:
            raise InvalidArgument("channels and segment are about the algorithm that a rule chooses; name one")
        if self.segment:
            entry = get(self.collective, self.algorithm.partition(":")[0])
            if "segments" not in entry.defaults or "segments=" in self.algorithm:
                why = "is given segments already" if "segments=" in self.algorithm else "has no parameter segments"
                raise InvalidArgument(f"segment={self.segment}: {self.collective} {self.algorithm} {why}; leave it out")

    @property
    def excluded(self) -> tuple[str, ...]:
        """The algorithms that the rule forbids."""
        return tuple(self.algorithm[1:].split(",")) if self.algorithm.startswith("^") else ()

    def fits_job(self, job: tuple[int, ...]) -> bool:
        """Whether the rule is for such a job, given by the node of every rank, whatever is asked of it."""
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
        """Whether the rule is for such a request."""
        return (
            self.collective == situation.collective
            and situation.nbytes in self.nbytes
            and situation.wire_bytes in self.wire_bytes
            and self.fits_job(situation.nodes)
        )

    def conditions(self) -> dict[str, str]:
        """For which requests, by the names of the grammar; what is left out does not matter."""
        found = {} if self.layouts == LAYOUTS else {"layout": " ".join(self.layouts)}
        counted = {"ranks": self.ranks, "nodes": self.nodes, "ranks_per_node": self.ranks_per_node}
        found |= {name: value.text() for name, value in counted.items() if value != ANY}
        if self.even is not None:
            found["even"] = str(self.even).lower()
        sizes = {"bytes": self.nbytes, "wire_bytes": self.wire_bytes}
        return found | {name: value.text(units=True) for name, value in sizes.items() if value != ANY}

    def __str__(self) -> str:
        conditions = ",".join(f"{name}={value}" for name, value in self.conditions().items())
        chosen = [self.algorithm, self.protocol, f"wire={self.wire}" if self.wire else ""]
        chosen += [f"channels={self.channels}" if self.channels else ""]
        chosen += [f"segment={Range(self.segment, self.segment).text(units=True)}" if self.segment else ""]
        return f"{self.collective}{f'[{conditions}]' if conditions else ''}: {' '.join(filter(None, chosen))}"


def _algorithm(collective: str, text: str) -> str:
    """The canonical form of what a rule says about the algorithm."""
    if not text.startswith("^"):
        return canonical(collective, text) if text else ""
    excluded = dict.fromkeys(get(collective, item).name for item in text[1:].split(","))
    if set(excluded) == set(names(collective)):
        raise InvalidArgument(f"{text!r} leaves no algorithm for {collective}; exclude fewer")
    return "^" + ",".join(excluded)


@dataclass(frozen=True, slots=True)
class RuleSet:
    """Rules in order, and where they come from: ``built-in``, a path, ...

    Examples
    --------
    >>> rules = RuleSet((Rule("broadcast", algorithm="binomial"),), "mine.json")
    >>> [rule.algorithm for rule in rules.fitting(Situation("broadcast", 8, (0, 1)))]
    ['binomial']
    """

    rules: tuple[Rule, ...]
    source: str

    def fitting(self, situation: Situation) -> Iterator[Rule]:
        """The rules for such a request, in order."""
        return (rule for rule in self.rules if rule.fits(situation))

    def concerns(self, job: tuple[int, ...]) -> bool:
        """Whether some rule is for such a job, whatever is asked of it."""
        return any(rule.fits_job(job) for rule in self.rules)

    def where(self, rule: Rule) -> str:
        """Where a rule of this set is written.

        Examples
        --------
        >>> rules = RuleSet((Rule("broadcast", algorithm="binomial", line=3),), "mine.json")
        >>> rules.where(rules.rules[0])
        'mine.json, line 3 (rule 1)'
        """
        place = f", line {rule.line}" if rule.line else ""
        return f"{self.source}{place} (rule {self.rules.index(rule) + 1})"
