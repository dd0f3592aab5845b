"""What the readers of other libraries' rules have in common: reports, and the arithmetic of ranges."""

from __future__ import annotations

import bisect
from dataclasses import dataclass

from ringleader.tune.rules import Range, RuleSet

__all__ = ["Cover", "Imported", "Note"]


@dataclass(frozen=True)
class Note:
    """What could not be taken over as it is written; `line` is 0 where it is about no line."""

    line: int
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}" if self.line else self.text


@dataclass(frozen=True)
class Imported:
    """Rules that were read, and everything of the file that they do not say."""

    rules: RuleSet
    notes: tuple[Note, ...]


class Cover:
    """Which numbers are taken: where the first fitting rule decides, a later one decides only what is left.

    Examples
    --------
    >>> cover = Cover()
    >>> [str(part) for part in cover.claim(Range(4, 8))]
    ['4-8']
    >>> [str(part) for part in cover.claim(Range(0, 10))]
    ['0-3', '9-10']
    >>> cover.claim(Range(2, 9))
    []
    """

    def __init__(self) -> None:
        # Disjoint ranges that do not touch, in order.
        self._lows: list[int] = []
        self._highs: list[int] = []

    def claim(self, wanted: Range) -> list[Range]:
        """The parts of a range that are not taken yet, in order; they are taken now."""
        first = bisect.bisect_left(self._highs, wanted.low)
        last = bisect.bisect_right(self._lows, wanted.high)
        free, start = [], wanted.low
        for index in range(first, last):
            if start < self._lows[index]:
                free.append(Range(start, self._lows[index] - 1))
            start = self._highs[index] + 1
        if start <= wanted.high:
            free.append(Range(start, wanted.high))
        # What is taken and touches the range becomes one with it.
        first = bisect.bisect_left(self._highs, wanted.low - 1)
        last = bisect.bisect_right(self._lows, wanted.high + 1)
        low = min([wanted.low, *self._lows[first : first + 1]]) if first < last else wanted.low
        high = max(wanted.high, self._highs[last - 1]) if first < last else wanted.high
        self._lows[first:last], self._highs[first:last] = [low], [high]
        return free
