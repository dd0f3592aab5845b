"""Linear (flat) algorithms: the root talks to every rank itself. The simplest; the yardstick for the others."""

from __future__ import annotations

import numpy as np

from ringleader.algorithms import references
from ringleader.algorithms.registry import algorithm
from ringleader.schedule import Builder, Schedule

__all__ = ["all_reduce", "broadcast", "gather", "reduce", "scatter"]


@algorithm(
    "linear",
    "reduce",
    summary="the root reads the data of all others",
    reference=references.MPI,
    cost="1 a + (n-1) Mb",
)
def reduce(n: int, root: int = 0) -> Schedule:
    """Reduce in one step, in rank order at the root."""
    b = Builder("reduce", n, chunks=1)
    b.send(0, np.arange(1, n), 0, 0, reduce=True)
    return b.build().with_root(root)


@algorithm(
    "linear",
    "broadcast",
    summary="the root sends to all others",
    reference=references.MPI,
    cost="1 a + (n-1) Mb",
)
def broadcast(n: int, root: int = 0) -> Schedule:
    """Broadcast in one step: the mirror image of the linear reduce."""
    return reduce(n, root).reversed()


@algorithm(
    "linear",
    "all_reduce",
    aliases=("basic_linear", "1"),
    summary="linear reduce to rank 0, then linear broadcast from it",
    reference=references.MPI,
    cost="2 a + 2(n-1) Mb",
)
def all_reduce(n: int) -> Schedule:
    """All-reduce through rank 0."""
    return reduce(n) >> broadcast(n)


@algorithm(
    "linear",
    "gather",
    summary="every rank sends its block to the root",
    reference=references.MPI,
    cost="1 a + (n-1)/n Mb",
)
def gather(n: int, root: int = 0) -> Schedule:
    """Gather in one step."""
    b = Builder("gather", n, chunks=n)
    src = np.arange(1, n)
    b.send(0, src, src, 0)
    return b.build().with_root(root)


@algorithm(
    "linear",
    "scatter",
    summary="the root sends every rank its block",
    reference=references.MPI,
    cost="1 a + (n-1)/n Mb",
)
def scatter(n: int, root: int = 0) -> Schedule:
    """Scatter in one step: the mirror image of the linear gather."""
    return gather(n, root).reversed()
