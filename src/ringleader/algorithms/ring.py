"""Rings and chains: every rank talks to its neighbours only. Bandwidth optimal, with a step per rank."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from ringleader.algorithms import references
from ringleader.algorithms.parameter import Range, Segments, Separator, listed
from ringleader.algorithms.registry import Terms, algorithm
from ringleader.schedule import Builder, Schedule

__all__ = ["all_gather", "all_reduce", "broadcast_chain", "reduce_chain", "reduce_scatter"]

Order = Annotated[
    tuple[int, ...], Range(0, 1 << 20), Separator("+"), "ranks in the order of the ring; default: 0, 1, 2, ..."
]


def _order_limit(n: int, segments: int, order: tuple[int, ...]) -> str:
    wrong = order and sorted(order) != list(range(n))
    return f"order={listed(order, '+')} must name each of the ranks 0..{n - 1} once" if wrong else ""


def _along(schedule: Schedule, order: tuple[int, ...]) -> Schedule:
    """A schedule of the ring 0, 1, 2, ... on another ring."""
    return schedule.on(ranks=order) if order else schedule


@algorithm(
    "ring",
    "reduce_scatter",
    summary="every block goes once round, collecting contributions, and ends at its rank",
    reference=references.PATARASUK,
    cost="(n+k-2) a + (n-1)/n Mb",
    limit=_order_limit,
    closed=lambda n, segments, order: Terms(n - 2 + segments, (n - 1) / n, n * (n - 1) * segments),
)
def reduce_scatter(n: int, segments: Segments = 1, order: Order = ()) -> Schedule:
    """Ring reduce-scatter: block b sets out at rank b + 1 and reaches rank b after n - 1 steps."""
    b = Builder("reduce_scatter", n, chunks=n)
    step, rank = np.ogrid[: n - 1, :n]
    b.send(step, rank, (rank - step - 1) % n, (rank + 1) % n, reduce=True)
    return _along(b.build(), order).pipelined(segments)


@algorithm(
    "ring",
    "all_gather",
    summary="every block goes once round and is copied on the way",
    reference=references.PATARASUK,
    cost="(n+k-2) a + (n-1)/n Mb",
    limit=_order_limit,
    closed=lambda n, segments, order: Terms(n - 2 + segments, (n - 1) / n, n * (n - 1) * segments),
)
def all_gather(n: int, segments: Segments = 1, order: Order = ()) -> Schedule:
    """Ring all-gather, in the same direction as the reduce-scatter, so that both use the same links."""
    backwards = -np.arange(n) % n
    return _along(reduce_scatter(n).reversed().on(ranks=backwards), order).pipelined(segments)


@algorithm(
    "ring",
    "all_reduce",
    summary="ring reduce_scatter, then ring all_gather; k segments make it the segmented (pipelined) ring",
    reference=references.PATARASUK,
    cost="(2n+k-3) a + 2(n-1)/n Mb",
    limit=_order_limit,
    aliases=("segmented_ring:segments=8", "4", "5:segments=8"),
    closed=lambda n, segments, order: Terms(2 * n - 3 + segments, 2 * (n - 1) / n, 2 * n * (n - 1) * segments),
)
def all_reduce(n: int, segments: Segments = 1, order: Order = ()) -> Schedule:
    """Ring all-reduce; with segments, reducing one overlaps sending another.

    `ringleader.algorithms.orders.ring_order` finds the order whose slowest link is the fastest.
    """
    return _along(reduce_scatter(n) >> all_gather(n), order).pipelined(segments)


@algorithm(
    "chain",
    "reduce",
    summary="segments flow along the ranks to the root, collecting contributions",
    reference=references.WATTS,
    cost="(n+k-2) a + (n+k-2)/k Mb",
)
def reduce_chain(n: int, root: int = 0, segments: Segments = 8) -> Schedule:
    """Pipelined chain from the root's left neighbour round to the root."""
    b = Builder("reduce", n, chunks=1)
    src = np.arange(n - 1, 0, -1)
    b.send(n - 1 - src, src, 0, src - 1, reduce=True)
    return b.build().pipelined(segments).with_root(root)


@algorithm(
    "chain",
    "broadcast",
    summary="segments flow from the root along the ranks",
    reference=references.WATTS,
    cost="(n+k-2) a + (n+k-2)/k Mb",
)
def broadcast_chain(n: int, root: int = 0, segments: Segments = 8) -> Schedule:
    """Pipelined chain: the mirror image of the reduce along a chain."""
    return reduce_chain(n, root, segments=1).reversed().pipelined(segments)
