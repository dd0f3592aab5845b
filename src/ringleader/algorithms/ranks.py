"""Arithmetic on ranks that several families of algorithms share."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ringleader.schedule import Buffer, Builder, Schedule

__all__ = ["core", "core_size", "depth", "fold", "lowest_bit", "send_cyclic"]

Indices = NDArray[np.int64]


def depth(n: int, radix: int = 2) -> int:
    """Rounds in which one rank can reach n ranks, each round `radix` times as many: the logarithm of n, rounded up."""
    if radix == 2:
        return (n - 1).bit_length()
    rounds, reached = 0, 1
    while reached < n:
        rounds, reached = rounds + 1, reached * radix
    return rounds


def core_size(n: int) -> int:
    """The largest power of two that is at most n."""
    return 1 << (n.bit_length() - 1)


def lowest_bit(values: Indices, zero: int) -> Indices:
    """The lowest set bit of each value, and `zero` for 0: how far a binomial subtree reaches."""
    return np.where(values == 0, zero, values & -values)


def core(n: int, p: int | None = None) -> Indices:
    """Ranks that take part in the core of p of n ranks (default: `core_size`), and n behind them; shape (p + 1,).

    With e = n - p ranks too many, at most p, each of the first e core ranks stands for itself and its right neighbour:
    core member j stands for the ranks from ``core(n)[j]`` up to ``core(n)[j + 1]``, itself being the first.

    Examples
    --------
    >>> core(6)
    array([0, 2, 4, 5, 6])
    """
    p = core_size(n) if p is None else p
    member = np.arange(p + 1)
    return member + np.minimum(member, n - p)


def fold(n: int, chunks: int, p: int | None = None) -> Schedule:
    """Ranks outside the core reduce all their data into their left neighbours; a fragment of an all_reduce.

    The core is that of `core`. Mirrored, it is the unfolding: they get the result back.
    """
    b = Builder("all_reduce", n, chunks)
    kept = 2 * np.arange(n - (core_size(n) if p is None else p))
    b.send(0, src=kept + 1, src_chunk=0, dst=kept, count=chunks, reduce=True)
    return b.build()


def send_cyclic(
    b: Builder,
    n: int,
    step: ArrayLike,
    src: ArrayLike,
    first: ArrayLike,
    dst: ArrayLike,
    count: ArrayLike,
    reduce: bool = False,
    src_buffer: Buffer | str = "data",
    dst_buffer: Buffer | str = "data",
) -> None:
    """Send `count` blocks of n, beginning at block `first` and going on at block 0 after block n - 1."""
    step, src, first, dst, count = np.broadcast_arrays(step, src, first, dst, count)
    before = np.minimum(count, n - first)  # blocks before the wrap
    for start, size in ((first, before), (np.zeros_like(first), count - before)):
        some = size > 0
        b.send(
            step[some],
            src[some],
            start[some],
            dst[some],
            count=size[some],
            reduce=reduce,
            src_buffer=src_buffer,
            dst_buffer=dst_buffer,
        )
