"""Workers: a large operation cut into slices that proceed side by side, each on a thread of its own.

One thread moves at most what one core can. Where ranks have more cores than one each, a communicator therefore has
further native communicators beside its own, its *lanes*: a large all_reduce, reduce or broadcast is cut into one
contiguous slice per lane, and the lanes' threads run the slices at the same time. Collectives over blocks (all_gather,
...) are not cut: a slice of every block would not be contiguous.

Invariants: all ranks have the same number of lanes (the least that any of them wants), cut at the same places, and
each lane sees the same operations in the same order, because the operation that owns them is not complete before all
of them are. So a lane is an ordinary communicator, with all its checks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from ringleader import _core
from ringleader.schedule import Collective, Schedule

__all__ = ["MAX_WORKERS", "MIN_SLICE", "SLICED", "Lanes", "rank_order", "workers_for"]

MAX_WORKERS: Final = 16
AUTOMATIC_WORKERS: Final = 4  # more share the same memory channels
MIN_SLICE: Final = 1 << 20  # bytes; below, waking a thread costs more than it brings

SLICED: Final = frozenset({Collective.ALL_REDUCE, Collective.REDUCE, Collective.BROADCAST})


def workers_for(asked: int | None, cores: int, local_ranks: int) -> int:
    """How many workers a rank wants: what was asked for, else its share of the host's cores, at most 4.

    Examples
    --------
    >>> workers_for(None, cores=8, local_ranks=2), workers_for(None, cores=2, local_ranks=4), workers_for(3, 1, 1)
    (4, 1, 3)
    """
    return asked if asked is not None else max(1, min(AUTOMATIC_WORKERS, cores // max(1, local_ranks)))


def rank_order(n: int, lane: int, nodes: Sequence[int]) -> list[int]:
    """Which rank plays which part in a lane's schedule: part ``i`` is played by rank ``order[i]``.

    Neighbours differ from lane to lane - the second goes the other way round, further ones in other strides - so that
    lanes load different links and different ranks. Where some ranks share a node and others do not, the order stays:
    the schedule was built for that layout.

    Examples
    --------
    >>> rank_order(5, 0, [0] * 5), rank_order(5, 1, [0] * 5), rank_order(5, 2, [0] * 5)
    ([0, 1, 2, 3, 4], [0, 4, 3, 2, 1], [0, 2, 4, 1, 3])
    """
    distinct = len(set(nodes))
    if n < 3 or distinct not in (1, n):
        return list(range(n))
    strides = [1, n - 1, *(s for s in range(2, n - 1) if math.gcd(s, n) == 1)]
    stride = strides[lane % len(strides)]
    return [i * stride % n for i in range(n)]


class Lanes:
    """The native communicators beside a communicator's own, and how operations are divided among them.

    Parameters
    ----------
    cores
        One native communicator per lane, without the first, which is the communicator's own.
    nodes
        Node number of every rank.
    """

    def __init__(self, cores: Sequence[_core.Communicator] = (), nodes: Sequence[int] = ()) -> None:
        self.cores = tuple(cores)
        self._nodes = tuple(nodes)

    def slices(self, collective: Collective, count: int, itemsize: int) -> list[tuple[int, int]]:
        """First element and number of elements of each slice; a single one if cutting does not pay.

        Slices begin at multiples of 64 bytes, and differ by no more than that. At most as many as there are lanes, of
        at least `MIN_SLICE` bytes.
        """
        wanted = min(1 + len(self.cores), count * itemsize // MIN_SLICE)
        if collective not in SLICED or wanted < 2:
            return [(0, count)]
        grain = max(1, 64 // itemsize)
        grains = -(-count // grain)
        bounds = [min(count, grains * i // wanted * grain) for i in range(wanted)] + [count]
        return [(low, high - low) for low, high in zip(bounds, bounds[1:], strict=False)]

    def schedule(self, schedule: Schedule, lane: int) -> Schedule:
        """A lane's variant of a schedule: the same algorithm over another order of ranks, where that is possible."""
        order = rank_order(schedule.n, lane, self._nodes)
        if order == list(range(schedule.n)) or schedule.collective.rooted:
            return schedule
        return schedule.on(ranks=order)

    def close(self, limit: float) -> None:
        """Leave all lanes, within `limit` seconds each."""
        for core in self.cores:
            core.close(limit)
