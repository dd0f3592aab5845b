"""Rules: one line says for which requests it is, and what they use. Everybody's choices are written in them.

The built-in defaults (`builtin`), a rules file (`rulefile`), the tuner's table and rules imported from other libraries
are all a `RuleSet`. The first rule that fits a request and says something about an aspect (the algorithm, the
protocol, the wire format) decides that aspect; what a set leaves open, the next set decides. So a choice depends on
the request and the rules only, and all ranks agree without talking.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from ringleader._names import match, unknown
from ringleader.algorithms import canonical, get, names, parse_spec
from ringleader.errors import InvalidArgument
from ringleader.tune.conditions import (
    ANY,
    LAYOUTS,
    WIRES,
    Conditions,
    Range,
    Situation,
    layout_of,
)  # fmt: skip

__all__ = [
    "ANY", "LAYOUTS", "MAX_CHANNELS", "PROTOCOLS", "REDUCTIONS", "WIRES", "Conditions", "Range", "Rule", "RuleSet",
    "Situation", "known", "layout_of", "unparametrised",
]  # fmt: skip

PROTOCOLS: Final = ("push", "pull")
# Only these take a wire format from a rule: moving data is exact unless the call itself asks for less.
REDUCTIONS: Final = ("all_reduce", "reduce", "reduce_scatter")
MAX_CHANNELS: Final = 64


@dataclass(frozen=True)
class Rule(Conditions):
    """For which requests, and what they use.

    Attributes
    ----------
    collective, layouts, ranks, nodes, ranks_per_node, even, nbytes, wire_bytes
        For which requests, see `Conditions`.
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

    algorithm: str = ""
    protocol: str = ""
    channels: int = 0
    segment: int = 0
    wire: str = ""
    line: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        text = self.algorithm
        if self.segment and text and ":" not in text and not text.startswith("^"):
            text = get(self.collective, text).name  # segments that an alias means give way
        object.__setattr__(self, "algorithm", _algorithm(self.collective, text))
        self._check_choices()

    def _check_choices(self) -> None:
        if self.protocol not in ("", *PROTOCOLS):
            raise InvalidArgument(unknown("protocol", self.protocol, PROTOCOLS))
        if self.wire:
            wire = match(self.wire, WIRES)
            if wire is None:
                raise InvalidArgument(unknown("wire format", self.wire, WIRES))
            object.__setattr__(self, "wire", wire)
        if self.wire and self.collective not in REDUCTIONS:
            raise InvalidArgument(
                f"wire={self.wire} for {self.collective}; a rule may set it for {', '.join(REDUCTIONS)} only: moving "
                "data is exact unless the call itself gives wire="
            )
        if not 0 <= self.channels <= MAX_CHANNELS:
            raise InvalidArgument(f"channels={self.channels}; expected 0 (as the algorithm is) to {MAX_CHANNELS}")
        if not 0 <= self.segment <= ANY.high:
            raise InvalidArgument(f"segment={self.segment}; expected bytes from 0 (chunks are not cut) to 2^62")
        if not (self.algorithm or self.protocol or self.wire):
            raise InvalidArgument("the rule chooses nothing; give at least one of algorithm, protocol, wire")
        chooses = self.algorithm and not self.excluded
        if (self.channels or self.segment) and not chooses:
            raise InvalidArgument("channels and segment are about the algorithm that a rule chooses; name one")
        if self.segment:
            entry = parse_spec(self.collective, self.algorithm).algorithm
            if "segments" not in entry.defaults or "segments=" in self.algorithm:
                why = "is given segments already" if "segments=" in self.algorithm else "has no parameter segments"
                raise InvalidArgument(f"segment={self.segment}: {self.collective} {self.algorithm} {why}; leave it out")

    @property
    def excluded(self) -> tuple[str, ...]:
        """The algorithms that the rule forbids."""
        return tuple(self.algorithm[1:].split(",")) if self.algorithm.startswith("^") else ()

    def __str__(self) -> str:
        chosen = [self.algorithm, self.protocol, f"wire={self.wire}" if self.wire else ""]
        chosen += [f"channels={self.channels}" if self.channels else ""]
        chosen += [f"segment={Range(self.segment, self.segment).text(units=True)}" if self.segment else ""]
        return f"{self.head}: {' '.join(filter(None, chosen))}"


def known(collective: str, spec: str) -> str:
    """The canonical form of a spec; the error for an unknown name suggests the nearest.

    Raises
    ------
    InvalidArgument
        As `ringleader.algorithms.canonical`.
    """
    return canonical(collective, spec)


def _algorithm(collective: str, text: str) -> str:
    """The canonical form of what a rule says about the algorithm."""
    if not text.startswith("^"):
        return known(collective, text) if text else ""
    excluded = dict.fromkeys(unparametrised(collective, item) for item in text[1:].split(","))
    if set(excluded) == set(names(collective)):
        raise InvalidArgument(f"{text!r} leaves no algorithm for {collective}; exclude fewer")
    return "^" + ",".join(excluded)


def unparametrised(collective: str, name: str) -> str:
    """An algorithm's own name from one without parameters: those of an exclusion.

    Raises
    ------
    InvalidArgument
        Unknown, or with parameters.
    """
    if ":" in name:
        raise InvalidArgument(f"{name!r} is excluded with parameters; expected a name, which excludes them all")
    return parse_spec(collective, name).name


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
        number = next(number for number, mine in enumerate(self.rules, 1) if mine is rule)
        return f"{self.source}{place} (rule {number})"
