"""Workers: a large operation cut into slices that proceed side by side, each on a thread of its own.

One thread moves at most what one core can. Where ranks have more cores than one each, a communicator therefore has
further native communicators beside its own, one per further worker: a large all_reduce, reduce or broadcast is cut
into one contiguous slice per worker, and their threads run the slices at the same time. Collectives over blocks
(all_gather, ...) are not cut: a slice of every block would not be contiguous.

Invariants: all ranks have the same number of workers (the least that any of them wants) and cut at the same places,
and every worker sees the same operations in the same order, because an operation is not complete before all its slices
are. So a worker's communicator is an ordinary one, with all its checks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Final

from ringleader import _core
from ringleader.schedule import Collective, Schedule

__all__ = ["MIN_SLICE", "SLICED", "Workers", "rank_order", "workers_for"]

AUTOMATIC_WORKERS: Final = 4  # more share the same memory channels
MIN_SLICE: Final = 1 << 20  # bytes; below, waking a thread costs more than it brings

SLICED: Final = frozenset({Collective.ALL_REDUCE, Collective.REDUCE, Collective.BROADCAST})


def workers_for(asked: int | None, cores: int) -> int:
    """How many workers a rank wants: what was asked for, else as many as it has cores for itself, at most 4.

    Examples
    --------
    >>> workers_for(None, cores=8), workers_for(None, cores=0), workers_for(3, cores=1)
    (4, 1, 3)
    """
    return asked if asked is not None else max(1, min(AUTOMATIC_WORKERS, cores))


def rank_order(n: int, worker: int, nodes: Sequence[int]) -> list[int]:
    """Which rank plays which part in a worker's schedule: part ``i`` is played by rank ``order[i]``.

    Neighbours differ from worker to worker - the second goes the other way round, further ones in other strides - so
    that workers load different links and different ranks. Where some ranks share a node and others do not, the order
    stays: the schedule was built for that layout.

    Examples
    --------
    >>> rank_order(5, 0, [0] * 5), rank_order(5, 1, [0] * 5), rank_order(5, 2, [0] * 5)
    ([0, 1, 2, 3, 4], [0, 4, 3, 2, 1], [0, 2, 4, 1, 3])
    """
    distinct = len(set(nodes))
    if n < 3 or distinct not in (1, n):
        return list(range(n))
    strides = [1, n - 1, *(s for s in range(2, n - 1) if math.gcd(s, n) == 1)]
    stride = strides[worker % len(strides)]
    return [i * stride % n for i in range(n)]


class Workers:
    """A communicator's workers and how operations are divided among them.

    Parameters
    ----------
    cores
        The native communicator of each worker but the first, whose is the communicator's own.
    nodes
        Node number of every rank.
    """

    def __init__(self, cores: Sequence[_core.Communicator] = (), nodes: Sequence[int] = ()) -> None:
        self.cores = tuple(cores)
        self._nodes = tuple(nodes)

    def slices(self, collective: Collective, count: int, itemsize: int) -> list[tuple[int, int]]:
        """First element and number of elements of each slice; a single one if cutting does not pay.

        Slices begin at multiples of 64 bytes. They are at most as many as there are workers, and of about `MIN_SLICE`
        bytes or more.

        Examples
        --------
        >>> Workers().slices(Collective.ALL_REDUCE, 1 << 24, 4)
        [(0, 16777216)]
        """
        wanted = min(1 + len(self.cores), count * itemsize // MIN_SLICE)
        if collective not in SLICED or wanted < 2:
            return [(0, count)]
        grain = max(1, 64 // itemsize)
        bounds = [count // grain * i // wanted * grain for i in range(wanted)] + [count]
        return [(low, high - low) for low, high in itertools.pairwise(bounds)]

    def schedule(self, schedule: Schedule, worker: int) -> Schedule:
        """A worker's variant of a schedule: the same algorithm over another order of ranks, where that is possible."""
        order = rank_order(schedule.n, worker, self._nodes)
        if schedule.collective.rooted or order == list(range(schedule.n)):
            return schedule
        return schedule.on(ranks=order)
