"""From what all ranks measured to what each candidate would take.

Everything here is plain arithmetic on Python's floats, in one order: ranks on different machines that feed in the same
numbers get the same bits, and so take the same decisions without talking about them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ringleader.adapt.loads import Load

__all__ = ["Estimates", "Row", "rows_of"]

_CALM = 0.3  # weight of a new measurement that is near the old value
_JUMP = 1.4  # a factor from which on the network has changed: the new value counts alone
_SLOW_HOST = 0.7  # of the median: a host below that makes unequal shares worthwhile
_MEMORY = 5  # measurements of a line, the best of which tells what it can do
_STEPS = (1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # ratios of lines are rounded to these


@dataclass(frozen=True)
class Row:
    """What one rank tells the others about a call. Times in seconds, rates in bytes per second; 0: not known.

    Attributes
    ----------
    seconds
        From this rank's entry into the collective to its end.
    outside
        Time since the end of the previous call.
    window
        Time that the collective has before somebody waits for it.
    rate
        What came in from all others together.
    links
        What came in from each rank; empty in large groups.
    """

    seconds: float
    outside: float
    window: float
    rate: float
    links: tuple[float, ...] = ()

    def values(self) -> list[float]:
        """As numbers in a row; `rows_of` reads them."""
        return [self.seconds, self.outside, self.window, self.rate, *self.links]


def rows_of(table: Sequence[Sequence[float]]) -> list[Row]:
    """The rows of all ranks.

    Examples
    --------
    >>> rows_of([Row(1.0, 2.0, 0.0, 3.0, (0.0, 5.0)).values()])[0].links
    (0.0, 5.0)
    """
    return [Row(a, b, c, d, tuple(links)) for a, b, c, d, *links in table]


@dataclass
class Estimates:
    """The bandwidths of a group, as measured by the way.

    Attributes
    ----------
    into, out
        Bytes per second that each rank's line takes in and gives.
    links
        From (source, destination) to bytes per second, if the line were theirs alone; only what was seen.
    age
        Calls since anything was measured.

    Examples
    --------
    >>> estimates = Estimates.initial(2, 1e9)
    >>> estimates.learn([Row(1, 0, 0, 5e7), Row(1, 0, 0, 2e8)], fan=1)
    True
    >>> estimates.into
    [50000000.0, 200000000.0]
    """

    into: list[float]
    out: list[float]
    links: dict[tuple[int, int], float] = field(default_factory=dict)
    age: int = 0
    _best: list[list[float]] = field(default_factory=list)  # the latest measurements of each line

    @classmethod
    def initial(cls, n: int, rate: float) -> Estimates:
        """Before anything was measured: every line has this rate."""
        return cls([rate] * n, [rate] * n)

    def learn(self, rows: Sequence[Row], fan: int) -> bool:
        """Take in what all ranks measured in a call in which `fan` ranks share a line; whether there was anything."""
        known = False
        for rank, row in enumerate(rows):
            from_it = [other.links[rank] for other in rows if other.links and other.links[rank] > 0]
            largest = max((rate for rate in row.links if rate > 0), default=0.0)
            # Each is a lower bound of what the line can do: a sender may have been the slower one.
            into = max(row.rate, largest)
            out = min(sum(from_it), fan * max(from_it)) if from_it else (into if not row.links else 0.0)
            known |= into > 0 or out > 0
            self.into[rank] = _blend(self.into[rank], into)
            self.out[rank] = _blend(self.out[rank], out)
            for source in range(len(row.links)):
                if row.links[source] > 0:
                    was = self.links.get((source, rank))
                    rate = row.links[source] * fan
                    self.links[source, rank] = rate if was is None else _blend(was, rate)
        self._best = self._best or [[] for _ in rows]
        for rank, rate in enumerate(self.lines()):
            self._best[rank] = [*self._best[rank], rate][-_MEMORY:]
        self.age = 0 if known else self.age + 1
        return known

    def at_least(self, load: Load, seconds: float) -> None:
        """A load was moved in this time: so no line is slower than that.

        Examples
        --------
        >>> estimates = Estimates.initial(2, 10.0)
        >>> estimates.at_least(Load(((1, ((0, 1, 50.0),)),), 0.0, 1), 1.0)
        >>> estimates.into, estimates.out
        ([50.0, 50.0], [50.0, 50.0])
        """
        took = self.wire_seconds(load)
        if took <= seconds:
            return
        factor = took / seconds
        self.into = [rate * factor for rate in self.into]
        self.out = [rate * factor for rate in self.out]
        self.links = {ends: rate * factor for ends, rate in self.links.items()}

    def wire_seconds(self, load: Load) -> float:
        """What the bytes of a load take on these lines: each step as long as its slowest line.

        Examples
        --------
        >>> Estimates.initial(2, 100.0).wire_seconds(Load(((3, ((0, 1, 50.0), (1, 0, 20.0))),), 0.0, 1))
        1.5
        """
        total = 0.0
        for times, messages in load.steps:
            into: dict[int, float] = {}
            out: dict[int, float] = {}
            slowest = 0.0
            for src, dst, nbytes in messages:
                into[dst] = into.get(dst, 0.0) + nbytes
                out[src] = out.get(src, 0.0) + nbytes
                link = self.links.get((src, dst))
                if link is not None:
                    slowest = max(slowest, nbytes / link)
            for rank, nbytes in into.items():
                slowest = max(slowest, nbytes / self.into[rank])
            for rank, nbytes in out.items():
                slowest = max(slowest, nbytes / self.out[rank])
            total += times * slowest
        return total

    def lines(self) -> list[float]:
        """The rate of each rank's line, both ways."""
        return [min(a, b) for a, b in zip(self.into, self.out, strict=True)]

    def slowest(self) -> float:
        """The rate of the slowest line."""
        return min(self.lines())

    def uneven(self) -> tuple[int, ...] | None:
        """The rates of the lines relative to the slowest one, in halves and roughly, if one is much slower than most.

        None if that is not so, or was not seen often enough: a line that is slow for a moment, because its rank was
        busy, is no slow line.

        Examples
        --------
        >>> estimates = Estimates([1e8, 1e8, 1e8, 2e7], [1e8] * 4)
        >>> calls = [estimates.learn([Row(1, 0, 0, rate) for rate in estimates.into], 1) for _ in range(5)]
        >>> estimates.uneven(), Estimates.initial(4, 1e8).uneven()
        ((12, 12, 12, 2), None)
        """
        if len(self.into) < 3 or len(self._best[0] if self._best else ()) < _MEMORY:
            return None
        lines = [max(rates) for rates in self._best]
        if min(lines) >= _SLOW_HOST * sorted(lines)[len(lines) // 2]:
            return None
        return tuple(int(2 * _nearest(rate / min(lines))) for rate in lines)


def _nearest(ratio: float) -> float:
    return min(_STEPS, key=lambda step: max(step / ratio, ratio / step))


def _blend(old: float, new: float) -> float:
    if new <= 0:
        return old
    if not 1 / _JUMP < new / old < _JUMP:
        return new
    return old + _CALM * (new - old)
