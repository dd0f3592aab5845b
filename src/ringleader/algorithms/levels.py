"""Algorithms made of others: copies of a schedule on groups of ranks and on parts of the data, and what they cost.

A *part* is a schedule over the ranks of one host, or over one rank of each host, by any algorithm of the registry.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ringleader.algorithms.layout import Hosts, Nodes, hosts_limit, sizes
from ringleader.algorithms.registry import build, check, parse_spec
from ringleader.errors import InvalidArgument
from ringleader.schedule import TRANSFER_DTYPE, Buffer, Schedule
from ringleader.schedule.algebra import expand

__all__ = [
    "assemble", "busiest", "common", "copies", "cut", "inside", "loads", "part", "part_rows", "parts_limit",
    "two_level_limit",
]  # fmt: skip

Indices = NDArray[np.int64]
Loads = NDArray[np.float64]
Table = NDArray[np.void]

FINER = 8
"""At most so many times the largest number of chunks are made to let different divisions of the data meet."""


def inside(n: int, local: bool) -> Sequence[int]:
    """The node layout that a part sees: its n ranks share a node, or each has its own."""
    return [0] * n if local else range(n)


def part(collective: str, spec: str, n: int, local: bool, root: int = 0) -> Schedule:
    """The schedule of a part over n ranks."""
    return build(collective, spec, n, root, inside(n, local))


def part_rows(collective: str, spec: str, n: int, local: bool) -> int:
    """At most how many transfers the part has."""
    entry, values = parse_spec(collective, spec)
    return int(entry.transfers(n, values, inside(n, local)))


def parts_limit(parts: Iterable[tuple[str, str, int, bool]]) -> str:
    """Why one of the parts (collective, spec, n, local) cannot be built, or nothing."""
    for collective, spec, n, local in parts:
        try:
            check(collective, spec, n, 0, inside(n, local))
        except InvalidArgument as error:
            return str(error)
    return ""


def two_level_limit(inside_of: str, between_of: str) -> Callable[..., str]:
    """The `limit` of an algorithm with a part for one collective inside each host, and one for another between them."""

    def limit(n: int, hosts: Hosts, inner: str, outer: str, nodes: Nodes) -> str:
        layout = sizes(n, hosts, nodes)
        parts = [(inside_of, inner, size, True) for size in sorted(set(layout))]
        return hosts_limit(n, hosts) or parts_limit([*parts, (between_of, outer, len(layout), False)])

    return limit


def common(counts: Iterable[int]) -> int:
    """A number of chunks that can be divided evenly, or nearly so, into each of `counts` pieces.

    Examples
    --------
    >>> common([4, 3]), common([8, 7, 5])
    (12, 64)
    """
    found = sorted(set(counts))
    return min(math.lcm(*found), FINER * found[-1])


def cut(bounds: ArrayLike, k: int) -> Indices:
    """Cut each range between neighbouring bounds into k, as evenly as can be; all bounds, shape (ranges * k + 1,).

    Examples
    --------
    >>> cut([0, 4, 10], 2)
    array([ 0,  2,  4,  7, 10])
    """
    ends = np.asarray(bounds, np.int64)
    inner = ends[:-1, None] + np.diff(ends)[:, None] * np.arange(k) // k
    return np.append(inner.reshape(-1), ends[-1])


def copies(schedule: Schedule, ranks: ArrayLike, bounds: ArrayLike, ends: ArrayLike | None = None) -> Table:
    """The transfers of several copies of a schedule, each on other ranks and other chunks of a bigger one.

    Parameters
    ----------
    schedule
        What is copied; it moves each chunk to the same chunk of another rank, or to scratch and back.
    ranks
        For each copy the new rank of each rank, shape (copies, schedule.n).
    bounds
        For each copy the first new chunk of each chunk, shape (copies, schedule.chunks); without `ends` one column
        more: a chunk then ends where the next one begins.
    ends
        For each copy the end (last + 1) of each chunk. A chunk may be empty: its transfers are left out.

    Raises
    ------
    InvalidArgument
        The schedule moves a chunk elsewhere, or needs scratch for chunks of different sizes.
    """
    ranks, bounds = np.atleast_2d(np.asarray(ranks)), np.atleast_2d(np.asarray(bounds))
    contiguous = ends is None
    starts = bounds[:, :-1] if ends is None else bounds
    ends = bounds[:, 1:] if ends is None else np.atleast_2d(np.asarray(ends))
    table = schedule.table if contiguous else expand(schedule.table)[0]
    scratch = {end: table[f"{end}_buffer"] == Buffer.SCRATCH for end in ("src", "dst")}
    moved = (table["src_chunk"] != table["dst_chunk"]) & ~scratch["src"] & ~scratch["dst"]
    if bool(moved.any()):
        raise InvalidArgument(f"{schedule!r} moves data between places and cannot be part of another algorithm")
    rows = np.empty((len(ranks), len(table)), TRANSFER_DTYPE)
    rows[:] = table
    widths = ends - starts
    size = widths[:, :1]  # of every chunk, where there is scratch
    if schedule.scratch_chunks and bool((widths != size).any()):
        raise InvalidArgument(f"{schedule!r} needs scratch and cannot work on parts of different sizes")
    # Copies that share ranks must not share scratch.
    room = size * schedule.scratch_chunks
    base = np.cumsum(room, axis=0) - room if len(np.unique(ranks)) < ranks.size else 0
    for end in ("src", "dst"):
        rows[f"{end}_rank"] = ranks[:, table[f"{end}_rank"]]
        chunk, in_data = table[f"{end}_chunk"], ~scratch[end]
        rows[f"{end}_chunk"] = base + chunk * size if schedule.scratch_chunks else 0
        rows[f"{end}_chunk"][:, in_data] = starts[:, chunk[in_data]]
    # The size of what moves, measured at an end that is in the data, or by the size of the scratch chunks.
    rows["count"] = table["count"] * size
    for end in ("src", "dst"):
        first, in_data = table[f"{end}_chunk"], ~scratch[end]
        last = (first + table["count"] - 1)[in_data]
        rows["count"][:, in_data] = ends[:, last] - starts[:, first[in_data]]
    flat = rows.reshape(-1)
    return flat[flat["count"] > 0]


def assemble(collective: str, n: int, chunks: int, phases: Iterable[Iterable[Table]], root: int = 0) -> Schedule:
    """One phase after the other; the tables of a phase run side by side.

    Scratch chunks of different tables are the same: at most one table of a phase may have any where ranks are shared.
    """
    tables, done = [np.empty(0, TRANSFER_DTYPE)], 0
    for phase in phases:
        steps = 0
        for table in phase:
            if len(table):
                steps = max(steps, int(table["step"].max()) + 1)
                table["step"] += done
                tables.append(table)
        done += steps
    table = np.concatenate(tables)
    return Schedule(collective, n, chunks, table, root)


def loads(schedule: Schedule, weights: ArrayLike | None = None) -> Loads:
    """What each rank sends and what it receives in each step; shape (2, n, steps).

    Parameters
    ----------
    schedule
        A schedule whose transfers move a chunk to the same chunk, see `copies`.
    weights
        Size of each chunk, shape (chunks,). Default: 1 / chunks each, so that loads are fractions of the data.
    """
    table = schedule.table[schedule.table["src_rank"] != schedule.table["dst_rank"]]
    n, steps = schedule.n, schedule.steps
    if weights is None:
        sizes = table["count"] / schedule.chunks
    else:
        # A scratch chunk is taken to be of the first chunk's size: there is scratch only where all have one size.
        before = np.concatenate([[0.0], np.cumsum(np.asarray(weights, float))])
        first = np.where(table["src_buffer"] == Buffer.SCRATCH, 0, table["src_chunk"])
        sizes = before[first + table["count"]] - before[first]
    directions = [
        np.bincount(table[end].astype(np.int64) * steps + table["step"], sizes, minlength=n * steps)
        for end in ("src_rank", "dst_rank")
    ]
    return np.stack(directions).astype(np.float64).reshape(2, n, steps)


def busiest(parts: Iterable[Loads]) -> float:
    """The volume of one phase: the loads of the busiest rank in each step, summed; parts run side by side."""
    total = np.zeros(0)
    for one in parts:
        peak = one.max(axis=(0, 1), initial=0.0)
        if len(peak) > len(total):
            total, peak = peak.copy(), total
        total[: len(peak)] = np.maximum(total[: len(peak)], peak)
    return float(total.sum())
