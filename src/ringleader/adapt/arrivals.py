"""Who comes late: from how long each rank was in a collective.

All ranks leave an all-reduce at about the same time, so a rank that was in it for less time than another came later by
the difference. No clocks are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["Arrival", "Arrivals"]


@dataclass(frozen=True)
class Arrival:
    """How a rank came: in how many calls as the last one, and seconds after the first one (mean, and the most)."""

    rank: int
    last: int
    mean_late: float
    most_late: float


@dataclass
class Arrivals:
    """Counts arrivals.

    Examples
    --------
    >>> seen = Arrivals(2)
    >>> seen.add([3.0, 1.0]); seen.add([3.0, 2.0])
    >>> seen.worst()
    Arrival(rank=1, last=2, mean_late=1.5, most_late=2.0)
    """

    size: int
    calls: int = 0
    _last: list[int] = field(default_factory=list)
    _late: list[float] = field(default_factory=list)
    _most: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._last, self._late, self._most = [0] * self.size, [0.0] * self.size, [0.0] * self.size

    def add(self, seconds: Sequence[float]) -> None:
        """How long each rank was in a call."""
        longest = max(seconds)
        self.calls += 1
        self._last[min(range(self.size), key=lambda rank: seconds[rank])] += 1
        for rank, each in enumerate(seconds):
            self._late[rank] += longest - each
            self._most[rank] = max(self._most[rank], longest - each)

    def table(self) -> tuple[Arrival, ...]:
        """One entry per rank."""
        calls = max(self.calls, 1)
        return tuple(
            Arrival(rank, self._last[rank], self._late[rank] / calls, self._most[rank]) for rank in range(self.size)
        )

    def worst(self) -> Arrival:
        """The rank that comes latest on average."""
        return max(self.table(), key=lambda each: each.mean_late)

    def __str__(self) -> str:
        lines = [f"{self.calls} calls: rank, how often last, mean and most seconds after the first"]
        lines += [f"{a.rank:>5} {a.last:>6} {a.mean_late:10.6f} {a.most_late:10.6f}" for a in self.table()]
        return "\n".join(lines)
