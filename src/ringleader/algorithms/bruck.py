"""Bruck's algorithms and dissemination: log2(n) rounds, rounded up, for every number of ranks."""

from __future__ import annotations

import functools
from typing import Annotated

import numpy as np

from ringleader.algorithms import references
from ringleader.algorithms.parameter import Range
from ringleader.algorithms.ranks import depth, send_cyclic
from ringleader.algorithms.registry import Terms, algorithm
from ringleader.schedule import Builder, Schedule

__all__ = ["all_gather", "all_to_all", "barrier"]

Radix = Annotated[int, Range(2, 256), "base q of the distances; q - 1 messages per round"]


@algorithm(
    "bruck",
    "all_gather",
    summary="every rank passes all blocks that it has to the ranks 1, 2, 4, ... (powers of q) to its left",
    reference=references.BRUCK,
    cost="log_q n a + (n-1)/n Mb",
    closed=lambda n, radix: Terms(depth(n, radix), (n - 1) / n, 2 * n * depth(n, radix) * (radix - 1)),
)
def all_gather(n: int, radix: Radix = 2) -> Schedule:
    """Bruck's all-gather. Before round k, rank r has the blocks r ... r + q^k - 1, modulo n; in place, no rotation."""
    b = Builder("all_gather", n, chunks=n)
    rank = np.arange(n)
    for k in range(depth(n, radix)):
        for away in range(radix**k, min(radix ** (k + 1), n), radix**k):
            send_cyclic(b, n, k, rank, rank, (rank - away) % n, min(radix**k, n - away))
    return b.build()


def _digits(distance: int, radix: int) -> list[tuple[int, int]]:
    """(k, digit) of each digit of a distance that is not 0, the lowest first."""
    places = [(k, distance // radix**k % radix) for k in range(depth(distance + 1, radix))]
    return [(k, digit) for k, digit in places if digit]


@functools.lru_cache(maxsize=256)
def _hops(n: int, radix: int) -> int:
    """Hops of all the blocks that one rank sends: a block goes one hop for each digit of its distance but zeros."""
    return sum(len(_digits(distance, radix)) for distance in range(n))


@algorithm(
    "bruck",
    "all_to_all",
    summary="in round k, blocks whose distance has a digit d at place k (base q) go d q^k to the right",
    reference=references.BRUCK,
    cost="log_q n a + about (q-1)/q log_q n Mb",
    closed=lambda n, radix: Terms(depth(n, radix), _hops(n, radix) / n, n * (1 + _hops(n, radix))),
)
def all_to_all(n: int, radix: Radix = 2) -> Schedule:
    """Bruck's all-to-all for small blocks.

    A block's distance tells its route: one hop for each digit that is not 0, the lowest first. It starts from the
    input, ends in the output, and rests in between in a scratch chunk, of which there are two per distance, used in
    turn: what a rank passes on is then never what it is receiving in the same step.
    """
    b = Builder("all_to_all", n, chunks=n)
    rank = np.arange(n)
    b.send(0, rank, rank, rank, src_buffer="input", dst_buffer="output")
    for distance in range(1, n):
        digits = _digits(distance, radix)
        place = [distance, n + distance]
        for hop, (k, digit) in enumerate(digits):
            first, last, to = hop == 0, hop == len(digits) - 1, (rank + digit * radix**k) % n
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
)
def barrier(n: int) -> Schedule:
    """Dissemination barrier; what arrives twice does no harm."""
    b = Builder("barrier", n, chunks=1)
    k, rank = np.ogrid[: depth(n), :n]
    b.send(k, rank, 0, (rank + (1 << k)) % n, reduce=True)
    return b.build()
