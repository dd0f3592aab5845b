"""Algorithms put together from several families, and the pairwise exchange."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np

from ringleader.algorithms import direct, linear, references, tree
from ringleader.algorithms.ranks import depth, lowest_bit, send_cyclic
from ringleader.algorithms.registry import Terms, algorithm
from ringleader.schedule import Builder, Schedule

__all__ = ["allgather_reduce", "pairwise", "reduce_two_shot", "scatter_allgather"]

Exchange = Annotated[Literal["bruck", "ring"], "how the data is gathered"]


def _gather_raw(b: Builder, n: int, exchange: str) -> int:
    """Every rank's data, one chunk, into scratch chunk r of all other ranks; returns the number of steps."""
    rank = np.arange(n)
    rounds = n - 1 if exchange == "ring" else depth(n)
    for k in range(rounds):
        if exchange == "ring":  # pass on what came last
            to, first, count = (rank + 1) % n, (rank - k) % n, int(k > 0)
        else:  # pass on one's own and all that came from the ranks to the right
            to, first, count = (rank - (1 << k)) % n, (rank + 1) % n, min(1 << k, n - (1 << k)) - 1
        if exchange == "bruck" or k == 0:
            b.send(k, rank, 0, to, rank, dst_buffer="scratch")
        send_cyclic(b, n, k, rank, first, to, count, src_buffer="scratch", dst_buffer="scratch")
    return rounds


@algorithm(
    "allgather_reduce",
    "all_reduce",
    summary="all data is gathered everywhere, then every rank reduces it by itself in rank order",
    reference=references.OPEN_MPI,
    aliases=("7",),
    cost="(L+1) a, by ring n a, + (n-1) Mb",
    closed=lambda n, exchange: Terms(n if exchange == "ring" else depth(n) + 1, n - 1, 2 * n * n),
)
def allgather_reduce(n: int, exchange: Exchange = "bruck") -> Schedule:
    """All-reduce whose association is the plain rank order, for every n."""
    b = Builder("all_reduce", n, chunks=1)
    step = _gather_raw(b, n, exchange)
    away, rank = np.ogrid[1:n, :n]
    b.send(step, rank, (rank + away) % n, rank, 0, reduce=True, src_buffer="scratch")
    return b.build()


@algorithm(
    "two_shot",
    "reduce",
    summary="direct reduce_scatter, then linear gather",
    reference=references.CHAN,
    cost="2 a + 2(n-1)/n Mb",
    closed=lambda n: Terms(2, 2 * (n - 1) / n, n * n),
)
def reduce_two_shot(n: int, root: int = 0) -> Schedule:
    """Reduce whose work is shared by all ranks."""
    return (direct.reduce_scatter(n) >> linear.gather(n)).with_root(root)


@algorithm(
    "scatter_allgather",
    "broadcast",
    summary="binomial scatter, then ring all_gather of what a rank does not have yet",
    reference=references.INTERCOM,
    cost="(L+n-1) a + 2(n-1)/n Mb",
    closed=lambda n: Terms(depth(n) + n - 1, 2 * (n - 1) / n, n * n),
)
def scatter_allgather(n: int, root: int = 0) -> Schedule:
    """Van de Geijn's broadcast, without the transfers whose receiver has the chunk from the scatter."""
    b = Builder("broadcast", n, chunks=n)
    step, rank = np.ogrid[: n - 1, :n]
    chunk, to = np.broadcast_arrays((rank - step) % n, (rank + 1) % n)
    # After the scatter, a rank has the chunks of its whole subtree.
    missing = (chunk < to) | (chunk >= to + lowest_bit(to, zero=n))
    step, rank = np.broadcast_arrays(step, rank)
    b.send(step[missing], rank[missing], chunk[missing], to[missing])
    return (tree.scatter(n).as_collective("broadcast") >> b.build()).with_root(root)


@algorithm(
    "pairwise",
    "all_to_all",
    summary="n - 1 rounds; in each, every rank exchanges one block with one other",
    reference=references.THAKUR,
    cost="(n-1) a + (n-1)/n Mb",
    closed=lambda n: Terms(n - 1, (n - 1) / n, n * n),
)
def pairwise(n: int) -> Schedule:
    """Pairwise exchange: the partner is rank XOR round for powers of two, else the ranks to the right and left."""
    b = Builder("all_to_all", n, chunks=n)
    distance, rank = np.ogrid[:n, :n]
    to = rank ^ distance if n & (n - 1) == 0 else (rank + distance) % n
    # A rank's own block does not travel: it goes along with the first round.
    b.send(np.maximum(distance - 1, 0), rank, to, to, rank, src_buffer="input", dst_buffer="output")
    return b.build()
