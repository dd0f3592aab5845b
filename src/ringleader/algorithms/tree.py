"""Binomial and double binary trees: logarithmic latency."""

from __future__ import annotations

import numpy as np

from ringleader.algorithms import references
from ringleader.algorithms.parameter import Segments
from ringleader.algorithms.ranks import Indices, depth, lowest_bit
from ringleader.algorithms.registry import algorithm
from ringleader.schedule import Builder, Schedule

__all__ = [
    "all_reduce",
    "barrier",
    "binary_broadcast",
    "binary_reduce",
    "broadcast",
    "double_binary_broadcast",
    "double_binary_reduce",
    "double_binary_tree",
    "gather",
    "reduce",
    "scatter",
]


def _binomial(n: int) -> tuple[Indices, Indices, Indices]:
    """(child, parent, level) of every edge of the binomial tree with root 0; the subtree of a child of level l is the
    ranks child ... child + 2^l - 1, as far as there are."""
    child = np.arange(1, n)
    low = child & -child
    return child, child - low, np.log2(low).astype(np.int64)


@algorithm(
    "binomial",
    "reduce",
    summary="ranks pair up, then pairs, then fours, ... up to the root",
    reference=references.THAKUR,
    cost="L a + L Mb",
)
def reduce(n: int, root: int = 0) -> Schedule:
    """Binomial-tree reduce, leaves first."""
    child, parent, level = _binomial(n)
    b = Builder("reduce", n, chunks=1)
    b.send(level, child, 0, parent, reduce=True)
    return b.build().with_root(root)


@algorithm(
    "binomial",
    "broadcast",
    summary="in every step all ranks that have the data send it to one more",
    reference=references.THAKUR,
    cost="L a + L Mb",
)
def broadcast(n: int, root: int = 0) -> Schedule:
    """Binomial-tree broadcast: the mirror image of the reduce."""
    return reduce(n, root).reversed()


@algorithm(
    "binomial",
    "all_reduce",
    aliases=("nonoverlapping", "2"),
    summary="binomial reduce to rank 0, then binomial broadcast",
    reference=references.THAKUR,
    cost="2L a + 2L Mb",
)
def all_reduce(n: int) -> Schedule:
    """All-reduce up and down one binomial tree."""
    return reduce(n) >> broadcast(n)


@algorithm(
    "tree",
    "barrier",
    summary="up and down a binomial tree",
    reference=references.HENSGEN,
    cost="2L a",
)
def barrier(n: int) -> Schedule:
    """Tree barrier: the fewest messages."""
    return all_reduce(n).as_collective("barrier")


@algorithm(
    "binomial",
    "gather",
    summary="every rank sends the blocks of its subtree to its parent",
    reference=references.THAKUR,
    cost="L a + (n-1)/n Mb",
)
def gather(n: int, root: int = 0) -> Schedule:
    """Binomial-tree gather."""
    child, parent, level = _binomial(n)
    b = Builder("gather", n, chunks=n)
    b.send(level, child, child, parent, count=np.minimum(1 << level, n - child))
    return b.build().with_root(root)


@algorithm(
    "binomial",
    "scatter",
    summary="every rank passes on the blocks of its children's subtrees",
    reference=references.THAKUR,
    cost="L a + (n-1)/n Mb",
)
def scatter(n: int, root: int = 0) -> Schedule:
    """Binomial-tree scatter: the mirror image of the gather."""
    return gather(n, root).reversed()


def _in_order_tree(n: int) -> tuple[Indices, Indices, Indices]:
    """(child, parent, step) of every edge of a binary tree of n ranks whose in-order walk is 0, 1, ..., n - 1.

    A label's lowest set bit is 2^height: odd labels are leaves, and the parent of x is x with that bit cleared and the
    next one set, or merely cleared where that is out of range. For even n the labels are the ranks, and 0 stands above
    the tree with one child; for odd n they are 1 ... n, and there is no 0. So leaves are every second rank, beginning
    with rank 1 for even n and with rank 0 for odd n. A parent hears all its children in one step.
    """
    labels = n + n % 2
    child = np.arange(1, labels)
    low = child & -child
    above = (child ^ low) | (low << 1)
    parent = np.where(above < labels, above, child ^ low)
    step = np.log2(lowest_bit(parent, zero=1 << depth(labels))).astype(np.int64) - 1
    if n % 2 == 0:
        return child, parent, step
    inside = parent > 0
    return child[inside] - 1, parent[inside] - 1, step[inside]


@algorithm(
    "double_binary_tree",
    "all_reduce",
    summary="two trees with half the data each; a rank that is inside one is a leaf of the other",
    reference=references.SANDERS,
    cost="(2L+k-1) a + at most (2+(2L-2)/k) Mb",
    aliases=("tree",),
)
def double_binary_tree(n: int, segments: Segments = 1) -> Schedule:
    """All-reduce up and down two complementary binary trees, with both bandwidth and latency near the optimum."""
    child, parent, step = _in_order_tree(n)
    b = Builder("all_reduce", n, chunks=1)
    b.send(step, child, 0, parent, reduce=True)
    up = b.build()
    first = up >> up.reversed()
    # Mirroring (even n) or shifting by one (odd n) turns every inner rank into a leaf.
    second = first.on(ranks=np.arange(n)[::-1] if n % 2 == 0 else (np.arange(n) + 1) % n)
    both = first.on(chunks=[0], total_chunks=2) | second.on(chunks=[1], total_chunks=2)
    return both.pipelined(segments)


def _up_steps(n: int) -> int:
    """Steps of a reduce up the tree of `_in_order_tree`."""
    return depth(n) - n % 2 if n > 1 else 0


@algorithm(
    "double_binary_tree",
    "reduce",
    summary="segments flow up two trees of all ranks but the root, with half the data each; both end at the root",
    reference=references.SANDERS,
    cost="(L+k) a + at most (1 + L/k) Mb",
    aliases=("tree",),
)
def double_binary_reduce(n: int, root: int = 0, segments: Segments = 8) -> Schedule:
    """Reduce up two complementary trees: every link in use all the time, and logarithmic latency."""
    m = n - 1
    if m == 0:
        return Schedule.empty("reduce", 1, 2 * segments)
    child, parent, step = _in_order_tree(m)
    b = Builder("reduce", n, chunks=2)
    # As in the all_reduce, mirroring or shifting the ranks of the tree makes leaves of the inner ones.
    for half, label in enumerate((np.arange(m), np.arange(m)[::-1] if m % 2 == 0 else (np.arange(m) + 1) % m)):
        top = np.setdiff1d(np.arange(m), child)
        b.send(step, 1 + label[child], half, 1 + label[parent], reduce=True)
        b.send(_up_steps(m), 1 + label[top], half, 0, reduce=True)
    return b.build().pipelined(segments).with_root(root)


@algorithm(
    "double_binary_tree",
    "broadcast",
    summary="segments flow down two trees of all ranks but the root, with half the data each",
    reference=references.SANDERS,
    cost="(L+k) a + at most (1 + L/k) Mb",
    aliases=("tree",),
)
def double_binary_broadcast(n: int, root: int = 0, segments: Segments = 8) -> Schedule:
    """Broadcast down two complementary trees: the mirror image of the reduce."""
    return double_binary_reduce(n, root, segments=1).reversed().pipelined(segments)


@algorithm(
    "binary_tree",
    "broadcast",
    summary="segments flow down a binary tree",
    reference=references.HOEFLER,
    cost="(log2 p + k - 1) a + 2(log2 p + k - 1)/k Mb",
)
def binary_broadcast(n: int, root: int = 0, segments: Segments = 8) -> Schedule:
    """Pipelined broadcast on a complete binary tree: twice the bytes of a chain, but logarithmic latency."""
    child = np.arange(1, n)
    b = Builder("broadcast", n, chunks=1)
    b.send(np.log2(child + 1).astype(np.int64) - 1, (child - 1) // 2, 0, child)
    return b.build().pipelined(segments).with_root(root)


@algorithm(
    "binary_tree",
    "reduce",
    summary="segments flow up a binary tree",
    reference=references.HOEFLER,
    cost="(log2 p + k - 1) a + 2(log2 p + k - 1)/k Mb",
)
def binary_reduce(n: int, root: int = 0, segments: Segments = 8) -> Schedule:
    """Pipelined reduce on a complete binary tree: the mirror image of the broadcast."""
    return binary_broadcast(n, root, segments=1).reversed().pipelined(segments)
