"""Recursive doubling and halving: partners at distance 1, 2, 4, ...; optimal latency for powers of two.

Other numbers of ranks are folded into a power-of-two core first (see `ranks.core`).
"""

from __future__ import annotations

import numpy as np

from ringleader.algorithms import references, tree
from ringleader.algorithms.ranks import core, core_size, fold, send_cyclic
from ringleader.algorithms.registry import algorithm
from ringleader.schedule import Builder, Schedule

__all__ = ["all_gather", "all_reduce_doubling", "rabenseifner", "reduce_rabenseifner", "reduce_scatter"]


def _folds(n: int) -> int:
    return int(n > core_size(n))


def _rounds(n: int) -> int:
    return core_size(n).bit_length() - 1


@algorithm(
    "recursive_doubling",
    "all_reduce",
    aliases=("3",),
    summary="partners at distance 1, 2, 4, ... exchange and reduce all data",
    reference=references.THAKUR,
    cost="(log2 p + 2f) a + (log2 p + 2f) Mb",
)
def all_reduce_doubling(n: int) -> Schedule:
    """All-reduce by recursive doubling; both partners fold in rank order, so all ranks get the same bits."""
    p = core_size(n)
    b = Builder("all_reduce", p, chunks=1)
    step, rank = np.ogrid[: _rounds(n), :p]
    b.send(step, rank, 0, rank ^ (1 << step), reduce=True)
    return fold(n, 1) >> b.build().on(ranks=core(n)[:p], n=n) >> fold(n, 1).reversed()


@algorithm(
    "recursive_halving",
    "reduce_scatter",
    summary="partners exchange and reduce the half, the quarter, ... that the other is to have",
    reference=references.THAKUR,
    cost="(log2 p + 2f) a + (n-1)/n Mb, with f at most (1 + 2(p-1)/n) Mb",
)
def reduce_scatter(n: int) -> Schedule:
    """Reduce-scatter by recursive halving. Core member j works on the blocks of all the ranks that it stands for."""
    p, first = core_size(n), core(n)
    b = Builder("reduce_scatter", n, chunks=n)
    kept = 2 * np.arange(n - p)
    # A folded rank keeps its own contribution to its own block: that is reduced into it at the end.
    send_cyclic(b, n, 0, kept + 1, (kept + 2) % n, kept, n - 1, reduce=True)
    member = np.arange(p)
    for k in range(_rounds(n)):
        half = p >> (k + 1)
        partner = member ^ half
        theirs = partner // half * half  # the members that the partner's half of the group consists of
        blocks = first[theirs + half] - first[theirs]
        b.send(_folds(n) + k, first[member], first[theirs], first[partner], count=blocks, reduce=True)
    b.send(_folds(n) + _rounds(n), kept, kept + 1, kept + 1, reduce=True)
    return b.build()


@algorithm(
    "recursive_doubling",
    "all_gather",
    summary="partners at distance 1, 2, 4, ... exchange all blocks that they have",
    reference=references.THAKUR,
    cost="(log2 p + 2f) a + (n-1)/n Mb, with f at most (1 + 2(p-1)/n) Mb",
)
def all_gather(n: int) -> Schedule:
    """All-gather by recursive doubling: the mirror image of recursive halving."""
    return reduce_scatter(n).reversed()


@algorithm(
    "rabenseifner",
    "all_reduce",
    aliases=("6",),
    summary="recursive halving, then recursive doubling",
    reference=references.RABENSEIFNER,
    cost="(2 log2 p + 2f) a + (2(p-1)/p + 2f) Mb",
)
def rabenseifner(n: int) -> Schedule:
    """Rabenseifner's all-reduce: reduce-scatter and all-gather in the core, which has p chunks."""
    p = core_size(n)
    inner = (reduce_scatter(p) >> all_gather(p)).on(ranks=core(n)[:p], chunks=np.arange(p), n=n)
    return fold(n, p) >> inner >> fold(n, p).reversed()


@algorithm(
    "rabenseifner",
    "reduce",
    summary="recursive halving, then a binomial gather",
    reference=references.RABENSEIFNER,
    cost="(2 log2 p + f) a + (2(p-1)/p + f) Mb",
)
def reduce_rabenseifner(n: int, root: int = 0) -> Schedule:
    """Rabenseifner's reduce; rank 0, then turned to the root, is always in the core."""
    p = core_size(n)
    inner = (reduce_scatter(p) >> tree.gather(p)).on(ranks=core(n)[:p], chunks=np.arange(p), n=n)
    return (fold(n, p).as_collective("reduce") >> inner).with_root(root)
