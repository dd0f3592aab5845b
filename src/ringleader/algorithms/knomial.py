"""Radix-k algorithms: k-nomial trees, recursive multiplying and its halving counterpart, BCube. Fewer steps, more
messages in each."""

from __future__ import annotations

import functools
import math
from typing import Annotated

import numpy as np

from ringleader.algorithms import references
from ringleader.algorithms.parameter import Range
from ringleader.algorithms.ranks import Indices, core, depth, fold
from ringleader.algorithms.registry import Terms, algorithm
from ringleader.schedule import Builder, Schedule

__all__ = ["all_reduce", "bcube", "broadcast", "gather", "recursive_multiplying", "reduce", "scatter"]

_WIDEST = 4  # times the radix: larger groups send more messages than folding ranks into the core does
Radix = Annotated[int, Range(2, 256), "k: a step makes k of one"]


# ---------------------------------------------------------------- k-nomial trees


def _edges(n: int, radix: int) -> tuple[Indices, Indices, Indices, Indices]:
    """(child, parent, level, size) of each edge.

    The subtree of a child of level l is the radix^l = `size` ranks from it, as far as there are. A child's parent is
    its number with the lowest digit (base `radix`) that is not 0 cleared, at place l.
    """
    child = np.arange(1, n)
    level, size = np.zeros(n - 1, np.int64), np.ones(n - 1, np.int64)
    for k in range(1, depth(n, radix)):
        divides = child % radix**k == 0
        level[divides], size[divides] = k, radix**k
    return child, child - child // size % radix * size, level, size


@algorithm(
    "knomial",
    "reduce",
    summary="groups of k, then of k groups, ... reduce up to the root",
    reference=references.HOEFLER,
    cost="log_k n a + (k-1) log_k n Mb",
)
def reduce(n: int, root: int = 0, radix: Radix = 4) -> Schedule:
    """Reduce on a k-nomial tree, leaves first; with k = 2 the binomial tree."""
    child, parent, level, _ = _edges(n, radix)
    b = Builder("reduce", n, chunks=1)
    b.send(level, child, 0, parent, reduce=True)
    return b.build().with_root(root)


@algorithm(
    "knomial",
    "broadcast",
    summary="in every step all ranks that have the data send it to k - 1 more",
    reference=references.HOEFLER,
    cost="log_k n a + (k-1) log_k n Mb",
)
def broadcast(n: int, root: int = 0, radix: Radix = 4) -> Schedule:
    """Broadcast on a k-nomial tree: the mirror image of the reduce."""
    return reduce(n, root, radix).reversed()


@algorithm(
    "knomial",
    "all_reduce",
    summary="k-nomial reduce to rank 0, then k-nomial broadcast",
    reference=references.HOEFLER,
    cost="2 log_k n a + 2(k-1) log_k n Mb",
)
def all_reduce(n: int, radix: Radix = 4) -> Schedule:
    """All-reduce up and down one k-nomial tree."""
    return reduce(n, radix=radix) >> broadcast(n, radix=radix)


@algorithm(
    "knomial",
    "gather",
    summary="every rank sends the blocks of its subtree to its parent, which has k - 1 children per level",
    reference=references.HOEFLER,
    cost="log_k n a + (n-1)/n Mb",
)
def gather(n: int, root: int = 0, radix: Radix = 4) -> Schedule:
    """Gather on a k-nomial tree."""
    child, parent, level, size = _edges(n, radix)
    b = Builder("gather", n, chunks=n)
    b.send(level, child, child, parent, count=np.minimum(size, n - child))
    return b.build().with_root(root)


@algorithm(
    "knomial",
    "scatter",
    summary="every rank passes on the blocks of its children's subtrees, k - 1 children per level",
    reference=references.HOEFLER,
    cost="log_k n a + (n-1)/n Mb",
)
def scatter(n: int, root: int = 0, radix: Radix = 4) -> Schedule:
    """Scatter on a k-nomial tree: the mirror image of the gather."""
    return gather(n, root, radix).reversed()


# ---------------------------------------------------------------- groups that exchange


@functools.lru_cache(maxsize=1024)
def _factors(n: int, radix: int) -> tuple[int, ...]:
    """Sizes of the groups in each phase: k, k, ..., then smaller and larger ones, up to 4 k, if so they divide n.

    Their product is the core. If no such groups divide n, the core is the next smaller number that they do divide, and
    the other ranks are folded into it.
    """
    for p in range(n, 0, -1):
        factors, left = [], p
        while left % radix == 0:
            factors.append(radix)
            left //= radix
        rest: list[int] = []
        for prime in range(2, _WIDEST * radix + 1):
            while left % prime == 0:
                if rest and rest[-1] * prime <= radix:
                    rest[-1] *= prime
                else:
                    rest.append(prime)
                left //= prime
        if left == 1 and 2 * p >= n:
            return (*factors, *reversed(rest))
    raise AssertionError("unreachable: a power of two is always found")


def _core(n: int, radix: int) -> int:
    return math.prod(_factors(n, radix))


def _fold_steps(n: int, radix: int) -> int:
    return 2 * (n > _core(n, radix))


def _multiplying_terms(n: int, radix: int) -> Terms:
    factors, folds = _factors(n, radix), _fold_steps(n, radix)
    return Terms(len(factors) + folds, sum(factor - 1 for factor in factors) + folds, n * (sum(factors) + 2))


def _bcube_terms(n: int, radix: int) -> Terms:
    factors, folds, p = _factors(n, radix), _fold_steps(n, radix), _core(n, radix)
    return Terms(2 * len(factors) + folds, 2 * (p - 1) / p + folds, 2 * n * (sum(factors) + 1))


@algorithm(
    "recursive_multiplying",
    "all_reduce",
    summary="groups of k ranks exchange and reduce all data; then groups of ranks k apart, k^2 apart, ...",
    reference=references.RUEFENACHT,
    cost="(log_k p + 2f) a + ((k-1) log_k p + 2f) Mb",
    closed=_multiplying_terms,
)
def recursive_multiplying(n: int, radix: Radix = 4) -> Schedule:
    """All-reduce by recursive multiplying, of which recursive doubling is the case k = 2.

    The core is what `_factors` makes of n: n itself, unless it has large prime factors. All of a group
    fold the same operands in the same order, so all ranks get
    the same bits.
    """
    p = _core(n, radix)
    b = Builder("all_reduce", p, chunks=1)
    rank, apart = np.arange(p), 1
    for phase, factor in enumerate(_factors(n, radix)):
        digit = rank // apart % factor
        for away in range(1, factor):
            b.send(phase, rank, 0, rank + ((digit + away) % factor - digit) * apart, reduce=True)
        apart *= factor
    return fold(n, 1, p) >> b.build().on(ranks=core(n, p)[:p], n=n) >> fold(n, 1, p).reversed()


@algorithm(
    "bcube",
    "all_reduce",
    summary="groups of k ranks reduce_scatter among themselves, level by level of a BCube, then gather back",
    reference=references.BCUBE,
    cost="(2 log_k p + 2f) a + (2(p-1)/p + 2f) Mb",
    closed=_bcube_terms,
)
def bcube(n: int, radix: Radix = 4) -> Schedule:
    """All-reduce on a BCube: recursive halving and doubling with k parts instead of two.

    The core is what `_factors` makes of n: n itself, unless it has large prime factors.
    """
    p = _core(n, radix)
    b = Builder("reduce_scatter", p, chunks=p)
    rank, within = np.arange(p), p
    for phase, factor in enumerate(_factors(n, radix)):
        part = within // factor
        digit = rank // part % factor
        for away in range(1, factor):
            to = rank + ((digit + away) % factor - digit) * part
            b.send(phase, rank, to // part * part, to, count=part, reduce=True)
        within = part
    scatter = b.build()
    inner = (scatter >> scatter.reversed()).on(ranks=core(n, p)[:p], chunks=np.arange(p), n=n)
    return fold(n, p, p) >> inner >> fold(n, p, p).reversed()
