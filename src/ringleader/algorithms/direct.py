"""Direct algorithms: every rank talks to every other at once. Fewest steps; the best where links are plentiful."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from ringleader.algorithms import references
from ringleader.algorithms.parameter import Range, Segments, Separator, listed
from ringleader.algorithms.registry import Terms, algorithm
from ringleader.schedule import Builder, Schedule

__all__ = ["all_gather", "all_to_all", "barrier", "one_shot", "reduce_scatter", "two_shot", "unequal_two_shot"]


@algorithm(
    "one_shot",
    "all_reduce",
    summary="every rank reads the data of all others and reduces it itself",
    reference=references.MSCCLPP,
    cost="1 a + (n-1) Mb",
    closed=lambda n: Terms(1, n - 1, n * (n - 1)),
)
def one_shot(n: int) -> Schedule:
    """All-reduce in one step: the least latency, n - 1 times the data."""
    b = Builder("all_reduce", n, chunks=1)
    away, src = np.ogrid[1:n, :n]
    b.send(0, src, 0, (src + away) % n, reduce=True)
    return b.build()


@algorithm(
    "direct",
    "reduce_scatter",
    summary="every rank reads its block from all others",
    reference=references.THAKUR,
    cost="k a + (n-1)/n Mb",
    closed=lambda n, segments: Terms(segments, (n - 1) / n, n * (n - 1) * segments),
)
def reduce_scatter(n: int, segments: Segments = 1) -> Schedule:
    """Reduce-scatter in one step: block b is reduced by rank b, in rank order."""
    b = Builder("reduce_scatter", n, chunks=n)
    away, src = np.ogrid[1:n, :n]
    dst = (src + away) % n
    b.send(0, src, dst, dst, reduce=True)
    return b.build().pipelined(segments)


@algorithm(
    "direct",
    "all_gather",
    summary="every rank sends its block to all others",
    reference=references.CHAN,
    cost="k a + (n-1)/n Mb",
    closed=lambda n, segments: Terms(segments, (n - 1) / n, n * (n - 1) * segments),
)
def all_gather(n: int, segments: Segments = 1) -> Schedule:
    """All-gather in one step: the mirror image of the direct reduce-scatter."""
    return reduce_scatter(n).reversed().pipelined(segments)


@algorithm(
    "two_shot",
    "all_reduce",
    summary="direct reduce_scatter, then direct all_gather",
    reference=references.CHAN,
    cost="(k+1) a + 2(n-1)/n Mb",
    closed=lambda n, segments: Terms(1 + segments, 2 * (n - 1) / n, 2 * n * (n - 1) * segments),
)
def two_shot(n: int, segments: Segments = 1) -> Schedule:
    """All-reduce in two steps that moves no more than it must; with segments the two overlap."""
    return (reduce_scatter(n) >> all_gather(n)).pipelined(segments)


_MAX_PARTS = 1 << 16
Shares = Annotated[
    tuple[int, ...], Range(0, 1024), Separator("+"), "parts of the data that each rank reduces; default: equal"
]


def _shares_limit(n: int, shares: tuple[int, ...], segments: int) -> str:
    if shares and len(shares) != n:
        return f"shares={listed(shares, '+')} are for {len(shares)} ranks"
    if shares and not 1 <= sum(shares) <= _MAX_PARTS:
        return f"shares={listed(shares, '+')} are {sum(shares)} parts in all; expected 1..{_MAX_PARTS}"
    return ""


def _unequal_terms(n: int, shares: tuple[int, ...], segments: int) -> Terms:
    parts = np.array(shares or [1] * n)
    volume = 2 * int(np.maximum(parts * (n - 1), parts.sum() - parts).max()) / int(parts.sum())
    return Terms(1 + segments, volume, 2 * n * (n - 1) * segments)


@algorithm(
    "unequal_two_shot",
    "all_reduce",
    summary="as two_shot, but each rank reduces a share of its own of the data, as its links allow",
    reference=references.BYTEPS,
    cost="(k+1) a + 2 max(s(n-1), 1-s) Mb for the worst share s; with many segments (1+(n-2)s) Mb",
    limit=_shares_limit,
    closed=_unequal_terms,
)
def unequal_two_shot(n: int, shares: Shares = (), segments: Segments = 1) -> Schedule:
    """Direct all-reduce with unequal shards; a share may be 0.

    A rank without a share sends everything in the first step and receives everything in the second, so its line is used
    one way at a time, unless there are segments: then both go on at once.
    `ringleader.algorithms.orders.bandwidth_shares` computes shares from the bandwidths of the ranks, for many segments.
    """
    parts = np.array(shares or [1] * n)
    owner = np.flatnonzero(parts)
    first = np.cumsum(parts) - parts
    b = Builder("all_reduce", n, chunks=int(parts.sum()))
    away, place = np.ogrid[1:n, : len(owner)]
    to = owner[place]
    b.send(0, (to + away) % n, first[to], to, count=parts[to], reduce=True)
    b.send(1, to, first[to], (to + away) % n, count=parts[to])
    return b.build().pipelined(segments)


@algorithm(
    "direct",
    "all_to_all",
    summary="all blocks at once",
    reference=references.THAKUR,
    cost="1 a + (n-1)/n Mb",
    closed=lambda n: Terms(1, (n - 1) / n, n * n),
)
def all_to_all(n: int) -> Schedule:
    """All-to-all in one step; each rank starts with its own block and goes on to its right."""
    b = Builder("all_to_all", n, chunks=n)
    away, src = np.ogrid[:n, :n]
    dst = (src + away) % n
    b.send(0, src, dst, dst, src, src_buffer="input", dst_buffer="output")
    return b.build()


@algorithm(
    "direct",
    "barrier",
    summary="every rank tells all others that it has come",
    reference=references.CHAN,
    cost="1 a",
    closed=lambda n: Terms(1, n - 1, n * (n - 1)),
)
def barrier(n: int) -> Schedule:
    """Barrier in one step: the one-shot all-reduce."""
    return one_shot(n).as_collective("barrier")
