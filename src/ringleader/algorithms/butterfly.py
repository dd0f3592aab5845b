"""Swing and Bine: butterflies and trees with partners at distance 1, 1, 3, 5, 11, ... instead of 1, 2, 4, 8, 16, ...

In step s rank r talks to rank r + d (r even) or r - d (r odd), modulo n, where d = 1 - 2 + 4 - ... + (-2)^s. The pairs
are mutual for even n, and log2(n) steps, rounded up, connect any two ranks; on average partners are a third closer to
each other than with powers of two, so that less traffic crosses the upper links of a network. Of an odd number of
ranks the last one stands outside the butterfly.

Where n is not a power of two, a rank may be reached twice: nothing is sent to a rank that has it.
"""

from __future__ import annotations

import functools
import math
from typing import Annotated, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ringleader.algorithms import references
from ringleader.algorithms.parameter import Range, Separator, listed
from ringleader.algorithms.ranks import Indices, depth
from ringleader.algorithms.registry import Terms, algorithm
from ringleader.schedule import Builder, Schedule

__all__ = ["all_gather", "broadcast", "gather", "reduce", "reduce_scatter", "scatter", "swing"]

Dims: TypeAlias = Annotated[
    tuple[int, ...], Range(1, 1 << 20), Separator("x"), "sides of the torus, the last one varying fastest"
]


def _distance(step: int) -> int:
    return sum((-2) ** term for term in range(step + 1))


def _even(n: int) -> int:
    return n - n % 2


def _partners(dims: Dims) -> list[Indices]:
    """The partner of each rank in each step, nearest first; the sides of a torus, all even, take turns."""
    n = math.prod(dims)
    rank = np.arange(n)
    partners = []
    for step in range(max(map(depth, dims))):
        for side, length in enumerate(dims):
            if step >= depth(length):
                continue
            stride = math.prod(dims[side + 1 :])
            place = rank // stride % length
            there = (place + np.where(place % 2, -1, 1) * _distance(step)) % length
            partners.append(rank + (there - place) * stride)
    return partners


def _runs(mask: NDArray[np.bool_]) -> tuple[Indices, Indices, Indices]:
    """(row, first, count) of each run of True in the rows of a matrix."""
    edges = np.diff(np.pad(mask, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    row, first = np.nonzero(edges == 1)
    last = np.nonzero(edges == -1)[1]
    return row, first, last - first


def _gathering(n: int, dims: Dims) -> Schedule:
    """All-gather along the butterfly, the farthest partners first, when there is least to send.

    The last of an odd number of ranks exchanges blocks with each other rank, in each step with as many as the others
    exchange blocks.
    """
    b = Builder("all_gather", n, chunks=n)
    inside = _even(n)
    have = np.eye(inside, dtype=bool)
    partners = _partners(dims or (inside,))[::-1] if inside else []
    served = 0
    for step, partner in enumerate(partners):
        new = have[partner] & ~have
        to, first, count = _runs(new)
        b.send(step, partner[to], first, to, count=count)
        have |= new
        if n % 2:
            others = np.arange(served, served + int(new[0].sum()) + (step == len(partners) - 1))
            b.send(step, others, others, n - 1)
            b.send(step, n - 1, n - 1, others)
            served += len(others)
    return b.build()


def _gathering_volume(n: int) -> float:
    return (n - 1) / n if n % 2 == 0 else (n - 2 + depth(_even(n))) / n


def _dims_limit(n: int, dims: Dims) -> str:
    if dims and math.prod(dims) != n:
        return f"dims={listed(dims, 'x')} are {math.prod(dims)} ranks"
    if len(dims) > 1 and any(side % 2 for side in dims):
        return f"dims={listed(dims, 'x')}: in a torus of several dimensions each side must be even"
    return ""


def _steps(n: int, dims: Dims = ()) -> int:
    return sum(map(depth, dims)) if len(dims) > 1 else depth(_even(n)) if n > 1 else 0


@algorithm(
    "bine",
    "all_gather",
    summary="Bine butterfly, the farthest partners first; each rank sends all that its partner lacks",
    reference=references.BINE,
    cost="L a + (n-1)/n Mb, for odd n (n-2+L)/n Mb with L of n-1",
    closed=lambda n: Terms(_steps(n), _gathering_volume(n), n * n),
)
def all_gather(n: int) -> Schedule:
    """All-gather along a butterfly of negabinary distances."""
    return _gathering(n, ())


@algorithm(
    "bine",
    "reduce_scatter",
    summary="Bine butterfly, the nearest partners first, when there is most to send",
    reference=references.BINE,
    cost="L a + (n-1)/n Mb, for odd n (n-2+L)/n Mb with L of n-1",
    closed=lambda n: Terms(_steps(n), _gathering_volume(n), n * n),
)
def reduce_scatter(n: int) -> Schedule:
    """Reduce-scatter along a butterfly: the mirror image of the all-gather."""
    return _gathering(n, ()).reversed()


@algorithm(
    "swing",
    "all_reduce",
    summary="reduce_scatter and all_gather on a butterfly with distances 1, 1, 3, 5, 11, ..., in each side of a torus",
    reference=references.SWING,
    cost="2L a + 2(n-1)/n Mb, for odd n 2(n-2+L)/n Mb with L of n-1",
    limit=_dims_limit,
    closed=lambda n, dims: Terms(2 * _steps(n, dims), 2 * _gathering_volume(n), 2 * n * n),
)
def swing(n: int, dims: Dims = ()) -> Schedule:
    """Swing, the variant with the least bytes; on a ring the same as an all-reduce by Bine butterflies.

    The paper's other variant, in which partners exchange all data, is left out: ranks would combine the contributions
    in different associations, and get different bits.
    """
    gather = _gathering(n, dims if len(dims) > 1 else ())
    return gather.reversed() >> gather


# ---------------------------------------------------------------- trees


class _Tree(NamedTuple):
    """Edges of a tree with root 0, in the order in which a broadcast uses them."""

    step: Indices
    parent: Indices
    child: Indices


@functools.lru_cache(maxsize=128)
def _tree(n: int) -> _Tree:
    """The Bine tree, the farthest partners first.

    The last of an odd number of ranks hears from a rank that has nothing else to send in the last step, or if there is
    none, from the root in a step of its own.
    """
    inside = _even(n) or n
    have = np.zeros(inside, bool)
    have[0] = True
    edges: list[tuple[Indices, Indices, Indices]] = []
    idle = np.zeros(0, np.int64)
    for step, partner in enumerate(_partners((inside,))[::-1]):
        parent = np.flatnonzero(have & ~have[partner])
        idle = np.flatnonzero(have & have[partner])
        edges.append((np.full(len(parent), step), parent, partner[parent]))
        have[partner[parent]] = True
    if n > inside:
        last = len(edges) - 1 if len(idle) else len(edges)
        edges.append((np.array([last]), idle[:1] if len(idle) else np.zeros(1, np.int64), np.array([inside])))
    columns = [np.concatenate([edge[i] for edge in edges]) if edges else np.zeros(0, np.int64) for i in range(3)]
    return _Tree(*columns)


@functools.lru_cache(maxsize=16)
def _below(n: int) -> NDArray[np.bool_]:
    """Which ranks are in the subtree of each rank, itself included; shape (n, n)."""
    below = np.eye(n, dtype=bool)
    for parent, child in zip(_tree(n).parent[::-1], _tree(n).child[::-1], strict=True):
        below[parent] |= below[child]
    return below


@algorithm(
    "bine",
    "broadcast",
    summary="Bine tree, the farthest partners first",
    reference=references.BINE,
    cost="L a + L Mb, for odd n at most one step more",
)
def broadcast(n: int, root: int = 0) -> Schedule:
    """Broadcast on a tree of negabinary distances."""
    b = Builder("broadcast", n, chunks=1)
    b.send(_tree(n).step, _tree(n).parent, 0, _tree(n).child)
    return b.build().with_root(root)


@algorithm(
    "bine",
    "reduce",
    summary="Bine tree, the nearest partners first",
    reference=references.BINE,
    cost="L a + L Mb, for odd n at most one step more",
)
def reduce(n: int, root: int = 0) -> Schedule:
    """Reduce on a tree of negabinary distances: the mirror image of the broadcast."""
    return broadcast(n, root).reversed()


@algorithm(
    "bine",
    "scatter",
    summary="Bine tree; every rank passes on the blocks of its subtrees, which are neighbours on the circle of ranks",
    reference=references.BINE,
    cost="L a + (n-1)/n Mb, for odd n at most one step more",
)
def scatter(n: int, root: int = 0) -> Schedule:
    """Scatter on a tree of negabinary distances."""
    tree = _tree(n)
    edge, first, count = _runs(_below(n)[tree.child])
    b = Builder("scatter", n, chunks=n)
    b.send(tree.step[edge], tree.parent[edge], first, tree.child[edge], count=count)
    return b.build().with_root(root)


@algorithm(
    "bine",
    "gather",
    summary="Bine tree; every rank sends the blocks of its subtree to its parent",
    reference=references.BINE,
    cost="L a + (n-1)/n Mb, for odd n at most one step more",
)
def gather(n: int, root: int = 0) -> Schedule:
    """Gather on a tree of negabinary distances: the mirror image of the scatter."""
    return scatter(n, root).reversed()
