"""Rings in every dimension of a torus: rank r stands at the place whose coordinates are the digits of r, the last
dimension varying fastest."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ringleader.algorithms import references
from ringleader.algorithms.butterfly import Dims
from ringleader.algorithms.layout import Nodes, groups, sizes
from ringleader.algorithms.parameter import listed
from ringleader.algorithms.ranks import Indices
from ringleader.algorithms.registry import Terms, algorithm
from ringleader.schedule import Builder, Schedule

__all__ = ["bucket_all_gather", "bucket_all_reduce", "bucket_reduce_scatter", "torus"]


def _dims(n: int, dims: Dims, nodes: Nodes = None) -> Dims:
    """The sides: as given, or hosts x ranks of a host if all have as many, or as square as can be."""
    if dims:
        return dims
    layout = sizes(n, (), nodes) if nodes is not None else ()
    if len(set(layout)) == 1 and 1 < len(layout) < n:
        return len(layout), layout[0]
    side = next(side for side in range(math.isqrt(n), 0, -1) if n % side == 0)
    return (n // side, side) if side > 1 else (n,)


def _dims_limit(n: int, dims: Dims, nodes: Nodes = None) -> str:
    return f"dims={listed(dims, 'x')} are {math.prod(dims)} ranks" if dims and math.prod(dims) != n else ""


def _steps(n: int, dims: Dims, nodes: Nodes = None) -> int:
    return sum(side - 1 for side in _dims(n, dims, nodes))


def _ring_phases(b: Builder, dims: Dims, order: Sequence[int], place: Indices | None = None) -> None:
    """A reduce-scatter: rings along the dimensions, in order; each leaves a rank with one part of what it had.

    Parameters
    ----------
    b
        Where to send.
    dims, order
        The sides, and the order in which dimensions are used.
    place
        Chunk of the rank at each place, shape (n,). Default: chunks are numbered like places, but with the dimension
        used first as the most significant, so that what a rank sends is always a range of chunks.
    """
    n = math.prod(dims)
    rank = np.arange(n)
    coordinate = np.unravel_index(rank, dims)
    # ranks in the order of `order`'s coordinates: number of a rank = its chunk
    number = np.ravel_multi_index([coordinate[side] for side in order], [dims[side] for side in order])
    at = np.argsort(number)
    begun, within, stride = 0, n, [math.prod(dims[side + 1 :]) for side in range(len(dims))]
    for side in order:
        length = dims[side]
        part = within // length
        step, me = np.ogrid[: length - 1, :n]
        to = rank + ((coordinate[side] + 1) % length - coordinate[side]) * stride[side]
        first = number // within * within + (coordinate[side] - step - 1) % length * part
        if place is None:
            b.send(begun + step, me, first, to, count=part, reduce=True)
        else:
            chunks = place[at[first[..., None] + np.arange(part)]]
            b.send(begun + step[..., None], me[..., None], chunks, to[:, None], reduce=True)
        begun, within = begun + length - 1, part


@algorithm(
    "torus",
    "all_reduce",
    summary="ring reduce_scatter along each dimension of a torus, the last one first, then ring all_gather back",
    reference=references.MIKAMI,
    cost="2 (d1-1 + d2-1 + ...) a + 2(n-1)/n Mb",
    aliases=("2d_torus", "3d_torus"),
    limit=_dims_limit,
    closed=lambda n, dims, nodes: Terms(2 * _steps(n, dims, nodes), 2 * (n - 1) / n, 2 * n * _steps(n, dims, nodes)),
)
def torus(n: int, dims: Dims = (), nodes: Nodes = None) -> Schedule:
    """All-reduce by rings in one dimension after the other; by default within the hosts first, then between them.

    Where sides are not given and hosts are uneven, the torus is as square as can be; a prime number of ranks is a ring.
    """
    sides = _dims(n, dims, nodes)
    b = Builder("all_reduce", n, chunks=n)
    _ring_phases(b, sides, range(len(sides))[::-1])
    scatter = b.build().as_collective("reduce_scatter")
    both = scatter.as_collective("all_reduce") >> scatter.reversed().as_collective("all_reduce")
    if dims or nodes is None or len(sides) == 1:
        return both
    order = np.concatenate(groups(n, (), nodes))
    return both.on(ranks=order) if len(set(sizes(n, (), nodes))) == 1 else both


@algorithm(
    "bucket",
    "reduce_scatter",
    summary="rings along each dimension of a torus; one part of the data per dimension begins there, so all links work",
    reference=references.JAIN,
    cost="(d1-1 + d2-1 + ...) a + (n-1)/n Mb",
    limit=_dims_limit,
    closed=lambda n, dims: Terms(_steps(n, dims), (n - 1) / n, n * (n - 1) * len(_dims(n, dims))),
)
def bucket_reduce_scatter(n: int, dims: Dims = ()) -> Schedule:
    """Bucket reduce-scatter, with as many buckets on their way at once as there are dimensions."""
    sides = _dims(n, dims)
    count = len(sides)
    b = Builder("reduce_scatter", n, chunks=n * count)
    for first in range(count):
        order = [(first + side) % count for side in range(count)]
        _ring_phases(b, sides, order, place=np.arange(n) * count + first)
    return b.build()


@algorithm(
    "bucket",
    "all_gather",
    summary="rings along each dimension of a torus; one part of the data per dimension begins there, so all links work",
    reference=references.JAIN,
    cost="(d1-1 + d2-1 + ...) a + (n-1)/n Mb",
    limit=_dims_limit,
    closed=lambda n, dims: Terms(_steps(n, dims), (n - 1) / n, n * (n - 1) * len(_dims(n, dims))),
)
def bucket_all_gather(n: int, dims: Dims = ()) -> Schedule:
    """Bucket all-gather: the mirror image of the reduce-scatter."""
    return bucket_reduce_scatter(n, dims=dims).reversed()


@algorithm(
    "bucket",
    "all_reduce",
    summary="bucket reduce_scatter, then bucket all_gather: multi-dimensional rings in all dimensions at once",
    reference=references.SACK,
    cost="2 (d1-1 + d2-1 + ...) a + 2(n-1)/n Mb",
    limit=_dims_limit,
    closed=lambda n, dims: Terms(2 * _steps(n, dims), 2 * (n - 1) / n, 2 * n * (n - 1) * len(_dims(n, dims))),
)
def bucket_all_reduce(n: int, dims: Dims = ()) -> Schedule:
    """All-reduce by buckets; unlike `torus` it keeps the links of every dimension busy all the time."""
    scatter = bucket_reduce_scatter(n, dims=dims)
    return scatter >> scatter.reversed()
