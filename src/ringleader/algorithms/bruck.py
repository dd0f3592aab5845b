"""Bruck's algorithms and dissemination: log2(n) rounds, rounded up, for every number of ranks."""

from __future__ import annotations

import numpy as np

from ringleader.algorithms import references
from ringleader.algorithms.ranks import depth, send_cyclic
from ringleader.algorithms.registry import algorithm
from ringleader.schedule import Builder, Schedule

__all__ = ["all_gather", "all_to_all", "barrier"]


@algorithm(
    "bruck",
    "all_gather",
    summary="every rank passes all blocks that it has to the rank 1, 2, 4, ... to its left",
    reference=references.BRUCK,
    cost="L a + (n-1)/n Mb",
    steps=depth,
    volume=lambda n: (n - 1) / n,
    transfers=lambda n: 2 * n * depth(n),
)
def all_gather(n: int, root: int = 0) -> Schedule:
    """Bruck's all-gather. Before round k, rank r has the blocks r ... r + 2^k - 1, modulo n; in place, no rotation."""
    b = Builder("all_gather", n, chunks=n)
    rank = np.arange(n)
    for k in range(depth(n)):
        send_cyclic(b, n, k, rank, rank, (rank - (1 << k)) % n, min(1 << k, n - (1 << k)))
    return b.build()


def _hops(n: int) -> int:
    """Hops of all the blocks that one rank sends: a block goes one hop for each set bit of its distance."""
    return sum(distance.bit_count() for distance in range(n))


@algorithm(
    "bruck",
    "all_to_all",
    summary="in round k, blocks that are to go a distance with bit k set go 2^k to the right",
    reference=references.BRUCK,
    cost="L a + about L/2 Mb",
    steps=depth,
    volume=lambda n: _hops(n) / n,
    transfers=lambda n: n * (1 + _hops(n)),
)
def all_to_all(n: int, root: int = 0) -> Schedule:
    """Bruck's all-to-all for small blocks.

    A block's distance tells its route: one hop for each set bit, the lowest first. It starts from the input, ends in
    the output, and rests in between in a scratch chunk, of which there are two per distance, used in turn: what a rank
    passes on is then never what it is receiving in the same step.
    """
    b = Builder("all_to_all", n, chunks=n)
    rank = np.arange(n)
    b.send(0, rank, rank, rank, src_buffer="input", dst_buffer="output")
    for distance in range(1, n):
        bits = [k for k in range(depth(n)) if distance >> k & 1]
        place = [distance, n + distance]
        for hop, k in enumerate(bits):
            first, last, to = hop == 0, hop == len(bits) - 1, (rank + (1 << k)) % n
            b.send(
                k,
                rank,
                (rank + distance) % n if first else place[hop % 2],
                to,
                (to - distance) % n if last else place[1 - hop % 2],
                src_buffer="input" if first else "scratch",
                dst_buffer="output" if last else "scratch",
            )
    return b.build()


@algorithm(
    "dissemination",
    "barrier",
    summary="in round k, every rank signals the rank 2^k to its right",
    reference=references.HENSGEN,
    cost="L a",
    steps=depth,
    volume=depth,
    transfers=lambda n: n * depth(n),
)
def barrier(n: int, root: int = 0) -> Schedule:
    """Dissemination barrier; what arrives twice does no harm."""
    b = Builder("barrier", n, chunks=1)
    k, rank = np.ogrid[: depth(n), :n]
    b.send(k, rank, 0, (rank + (1 << k)) % n, reduce=True)
    return b.build()
