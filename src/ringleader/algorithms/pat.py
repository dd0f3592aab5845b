"""PAT, parallel aggregated trees: every block on a binomial tree of its own, many blocks in one message, for any n."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np

from ringleader.algorithms import references
from ringleader.algorithms.parameter import Range
from ringleader.algorithms.ranks import Indices, depth
from ringleader.algorithms.registry import Terms, algorithm
from ringleader.schedule import Builder, Schedule

__all__ = ["all_gather", "reduce_scatter"]

Aggregation = Annotated[int, Range(0, 1 << 20), "most blocks in a message; 0 is no limit"]


def _rounds(n: int, aggregation: int) -> Iterator[tuple[int, Indices]]:
    """(distance, offsets) of each step: ranks pass the blocks that have come `offsets` ranks far on by `distance`."""
    for level in range(depth(n))[::-1]:
        distance = 1 << level
        offsets = np.arange(0, n - distance, 2 * distance)
        for first in range(0, len(offsets), aggregation or len(offsets)):
            yield distance, offsets[first : first + (aggregation or len(offsets))]


def _steps(n: int, aggregation: int) -> int:
    return sum(1 for _ in _rounds(n, aggregation))


@algorithm(
    "pat",
    "all_gather",
    summary="every block goes down a binomial tree, far branches first; the blocks of a step are one message",
    reference=references.PAT,
    cost="L a, with at most A blocks in a message about (n/A + log2 A) a, + (n-1)/n Mb",
    closed=lambda n, aggregation: Terms(_steps(n, aggregation), (n - 1) / n, n * (n - 1)),
)
def all_gather(n: int, aggregation: Aggregation = 0) -> Schedule:
    """All-gather by parallel aggregated trees: Bruck's algorithm with its distances reversed.

    The long way is gone first, with few blocks; most of the data moves between neighbours. Between a few blocks per
    message and all of them, `aggregation` trades the number of steps against the size of the messages.
    """
    b = Builder("all_gather", n, chunks=n)
    rank = np.arange(n)
    for step, (distance, offsets) in enumerate(_rounds(n, aggregation)):
        b.send(step, rank, (rank - offsets[:, None]) % n, (rank + distance) % n)
    return b.build()


@algorithm(
    "pat",
    "reduce_scatter",
    summary="every block is reduced up a binomial tree, near branches first; the blocks of a step are one message",
    reference=references.PAT,
    cost="L a, with at most A blocks in a message about (n/A + log2 A) a, + (n-1)/n Mb",
    closed=lambda n, aggregation: Terms(_steps(n, aggregation), (n - 1) / n, n * (n - 1)),
)
def reduce_scatter(n: int, aggregation: Aggregation = 0) -> Schedule:
    """Reduce-scatter by parallel aggregated trees: the mirror image of the all-gather."""
    return all_gather(n, aggregation=aggregation).reversed()
