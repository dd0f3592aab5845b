"""How schedules compose. Each function takes schedules and returns a new one; `Schedule` has a method for each.

Composed results may be *fragments*: schedules that do not fulfil their collective alone, only as parts of a larger
one. Nothing here decides that; `verify` does, on the final result.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ringleader.errors import ScheduleError
from ringleader.schedule.table import Schedule
from ringleader.schedule.types import Buffer, Collective

__all__ = ["beside", "expand", "mirror", "pipeline", "relabel", "rotate_to", "split", "then"]

_C = Collective

# What `first >> second` is, where that is a collective; fragments of one collective compose to that collective.
_THEN = {
    (_C.REDUCE_SCATTER, _C.ALL_GATHER): _C.ALL_REDUCE,
    (_C.REDUCE, _C.BROADCAST): _C.ALL_REDUCE,
    (_C.REDUCE_SCATTER, _C.GATHER): _C.REDUCE,
    (_C.REDUCE, _C.SCATTER): _C.REDUCE_SCATTER,
    (_C.SCATTER, _C.ALL_GATHER): _C.BROADCAST,
    (_C.GATHER, _C.BROADCAST): _C.ALL_GATHER,
    # Levels of a hierarchy: the middle one leaves the shape of the first, so that its mirror image can follow.
    (_C.REDUCE_SCATTER, _C.ALL_REDUCE): _C.REDUCE_SCATTER,
    (_C.REDUCE, _C.ALL_REDUCE): _C.REDUCE,
}

_MIRROR = {
    _C.REDUCE_SCATTER: _C.ALL_GATHER,
    _C.ALL_GATHER: _C.REDUCE_SCATTER,
    _C.REDUCE: _C.BROADCAST,
    _C.BROADCAST: _C.REDUCE,
    _C.GATHER: _C.SCATTER,
    _C.SCATTER: _C.GATHER,
    _C.ALL_REDUCE: _C.ALL_REDUCE,
    _C.ALL_TO_ALL: _C.ALL_TO_ALL,
    _C.BARRIER: _C.BARRIER,
}


def _check_same(a: Schedule, b: Schedule, symbol: str) -> None:
    for what in ("n", "chunks"):
        mine, theirs = getattr(a, what), getattr(b, what)
        if mine != theirs:
            raise ScheduleError(
                f"cannot compose {a!r} {symbol} {b!r}: {what} is {mine} and {theirs}; use .on() to make them equal"
            )
    if a.collective.rooted and b.collective.rooted and a.root != b.root:
        raise ScheduleError(f"cannot compose {a!r} {symbol} {b!r}: the roots differ; use .with_root() on one of them")


def _above_scratch(b: Schedule, a: Schedule) -> NDArray[np.void]:
    """A writable copy of b's table whose scratch chunks lie above a's: neither sees what the other left there."""
    table: NDArray[np.void] = b.table.copy()
    if a.scratch_chunks:
        for end in ("src", "dst"):
            table[f"{end}_chunk"][table[f"{end}_buffer"] == Buffer.SCRATCH] += a.scratch_chunks
    return table


def then(a: Schedule, b: Schedule) -> Schedule:
    """`a >> b`: a, then b, with b's steps after a's.

    In execution only true data dependencies order the two; there is no barrier between them.

    Raises
    ------
    ScheduleError
        If ranks, chunks or roots differ, or one collective cannot follow the other. To compose fragments of a larger
        collective, name it first: ``a.as_collective("all_reduce") >> b.as_collective("all_reduce")``.
    """
    _check_same(a, b, ">>")
    result = a.collective if a.collective is b.collective else _THEN.get((a.collective, b.collective))
    if result is None:
        pairs = ", ".join(f"{first} >> {second}" for first, second in _THEN)
        raise ScheduleError(
            f"{a.collective} >> {b.collective} is no collective; those that compose are {pairs}, and equal ones. "
            f"To compose fragments of a larger collective, call .as_collective(...) on both first"
        )
    later = _above_scratch(b, a)
    if len(later) and a.steps + b.steps > np.iinfo(np.int32).max:
        raise ScheduleError(f"cannot compose {a!r} >> {b!r}: more than 2^31 - 1 steps")
    later["step"] += a.steps
    root = a.root if a.collective.rooted else b.root
    return Schedule(result, a.n, a.chunks, _frozen(a.table, later), root if result.rooted else 0, _joined(a, b, ">>"))


def beside(a: Schedule, b: Schedule) -> Schedule:
    """`a | b`: side by side, in the same steps, e.g. two trees on two halves of the chunks.

    Raises
    ------
    ScheduleError
        If collective, ranks, chunks or root differ.
    """
    _check_same(a, b, "|")
    if a.collective is not b.collective:
        raise ScheduleError(
            f"{a.collective} | {b.collective} is no collective; use .as_collective(...) to make them fragments of one"
        )
    return Schedule(a.collective, a.n, a.chunks, _frozen(a.table, _above_scratch(b, a)), a.root, _joined(a, b, "|"))


def relabel(
    schedule: Schedule,
    ranks: ArrayLike | None = None,
    chunks: ArrayLike | None = None,
    n: int | None = None,
    total_chunks: int | None = None,
) -> Schedule:
    """Put a schedule on other ranks and chunks, of a bigger schedule if wanted.

    Parameters
    ----------
    ranks
        New rank of each rank, shape (schedule.n,), all different. Default: unchanged.
    chunks
        New chunk of each chunk of data, input and output, shape (schedule.chunks,), all different. Default: unchanged,
        except that in a collective with one block per rank, whose ranks are permuted, blocks follow their ranks.
        Scratch chunks keep their numbers.
    n, total_chunks
        Ranks and chunks of the result. Default: unchanged.

    Raises
    ------
    ScheduleError
        If a map has the wrong length, repeats a value or leaves its range.

    Examples
    --------
    >>> from ringleader.schedule import Builder
    >>> b = Builder("all_reduce", n=2, chunks=1)
    >>> b.send(0, src=[0, 1], src_chunk=0, dst=[1, 0], reduce=True)
    >>> b.build().on(ranks=[4, 6], chunks=[3], n=8, total_chunks=4).describe(0)
    'transfer 0 (step 0: rank 4 data[3] -> reduce into rank 6 data[3], channel 0)'
    """
    new_n = schedule.n if n is None else n
    new_chunks = schedule.chunks if total_chunks is None else total_chunks
    rank_map = _map("ranks", ranks, schedule.n, new_n)
    if chunks is None and ranks is not None and schedule.collective.blocked and new_n == schedule.n:
        m = schedule.chunks_per_block
        chunks = (rank_map[:, None] * m + np.arange(m)).reshape(-1)
    chunk_map = _map("chunks", chunks, schedule.chunks, new_chunks)
    table = schedule.table if chunks is None else _expand_where_torn(schedule.table, chunk_map)
    table = table.copy()
    for end in ("src", "dst"):
        table[f"{end}_rank"] = rank_map[_checked(table[f"{end}_rank"], schedule.n, "rank")]
        relabelled = table[f"{end}_buffer"] != Buffer.SCRATCH
        old = np.where(relabelled, table[f"{end}_chunk"], 0)
        new = chunk_map[_checked(old, schedule.chunks, "chunk")]
        table[f"{end}_chunk"] = np.where(relabelled, new, table[f"{end}_chunk"])
    root = int(rank_map[schedule.root]) if schedule.collective.rooted else 0
    return Schedule(schedule.collective, new_n, new_chunks, table, root, schedule.name)


def mirror(schedule: Schedule) -> Schedule:
    """The mirror image: steps backwards, sources and destinations exchanged.

    Swaps reduce_scatter and all_gather, reduce and broadcast, gather and scatter; all_to_all, all_reduce and barrier
    stay what they are. Copies become reduces where the result reduces, reduces become copies where it does not; in an
    all_reduce, whose mirror image begins with its end, each becomes the other. An all_to_all's input and output change
    places.
    """
    result = _MIRROR[schedule.collective]
    table = schedule.table[::-1].copy()
    table["step"] = schedule.steps - 1 - table["step"]
    for what in ("rank", "chunk", "buffer"):
        table[f"src_{what}"] = schedule.table[f"dst_{what}"][::-1]
        table[f"dst_{what}"] = schedule.table[f"src_{what}"][::-1]
    if result is Collective.ALL_TO_ALL:
        for end in ("src_buffer", "dst_buffer"):
            places = np.array([Buffer.DATA, Buffer.OUTPUT, Buffer.INPUT, Buffer.SCRATCH], np.uint8)
            table[end] = places[table[end]]
    elif result is Collective.ALL_REDUCE:
        table["reduce"] = 1 - table["reduce"]
    else:
        table["reduce"] = result.reduces
    return Schedule(result, schedule.n, schedule.chunks, table, schedule.root, schedule.name)


def split(schedule: Schedule, k: int, rank_orders: Sequence[ArrayLike] | None = None) -> Schedule:
    """`k` copies of a schedule on k slices of each chunk, each on a channel of its own.

    Chunk c becomes chunks c*k ... c*k + k - 1 of the same block; copy j works on the j-th of them.

    Parameters
    ----------
    k
        Number of copies.
    rank_orders
        For each copy a permutation of the ranks, e.g. to run rings in opposite directions. In collectives with one
        block per rank, blocks follow their ranks; the root stays the root only if the permutation keeps it.

    Raises
    ------
    ScheduleError
        If `k` is below 1, an order is not a permutation, or one moves the root.
    """
    _check_factor("split", k)
    orders = [np.arange(schedule.n)] * k if rank_orders is None else [np.asarray(order) for order in rank_orders]
    if len(orders) != k:
        raise ScheduleError(f"split into {k} copies needs {k} rank orders, not {len(orders)}")
    if k * max(schedule.channels, 1) > np.iinfo(np.int16).max:
        raise ScheduleError(f"split into {k} copies of {schedule.channels} channels makes more than 32767 channels")
    parts = []
    for j, order in enumerate(orders):
        copy = schedule if rank_orders is None else relabel(schedule, ranks=order)
        if copy.root != schedule.root:
            raise ScheduleError(f"rank order {j} moves the root from {schedule.root} to {copy.root}; it must keep it")
        part = _slice(copy, k, j)
        part["channel"] = part["channel"] * k + j
        parts.append(part)
    return Schedule(schedule.collective, schedule.n, schedule.chunks * k, _frozen(*parts), schedule.root, schedule.name)


def pipeline(schedule: Schedule, k: int) -> Schedule:
    """`k` segments per chunk on the same channels, segment j being j steps behind the first: a wavefront.

    Raises
    ------
    ScheduleError
        If `k` is below 1.
    """
    _check_factor("pipelined", k)
    if k == 1:
        return schedule
    parts = []
    for j in range(k):
        part = _slice(schedule, k, j)
        part["step"] += j
        parts.append(part)
    return Schedule(schedule.collective, schedule.n, schedule.chunks * k, _frozen(*parts), schedule.root, schedule.name)


def rotate_to(schedule: Schedule, root: int) -> Schedule:
    """The same algorithm with another root: rank r becomes r + (root - old root), modulo n.

    Raises
    ------
    ScheduleError
        If the collective has no root, or there is no such rank.
    """
    if not schedule.collective.rooted:
        raise ScheduleError(f"{schedule.collective} has no root")
    if not 0 <= root < schedule.n:
        raise ScheduleError(f"root is {root}; expected a rank from 0 to {schedule.n - 1}")
    if root == schedule.root:
        return schedule
    return relabel(schedule, ranks=(np.arange(schedule.n) + root - schedule.root) % schedule.n)


def expand(table: NDArray[np.void]) -> tuple[NDArray[np.void], NDArray[np.intp]]:
    """Every transfer of several chunks as that many transfers of one.

    Returns
    -------
    table
        The expanded table, in the same order.
    index
        For each of its rows the row of the original table.
    """
    counts = table["count"]
    if bool(np.all(counts == 1)):
        return table, np.arange(len(table))
    index = np.repeat(np.arange(len(table)), counts)
    place = np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts, counts)
    result = table[index]
    result["src_chunk"] += place.astype(np.int32)
    result["dst_chunk"] += place.astype(np.int32)
    result["count"] = 1
    return result, index


def _frozen(*parts: NDArray[np.void]) -> NDArray[np.void]:
    table = np.concatenate(parts)
    table.flags.writeable = False
    return table


def _joined(a: Schedule, b: Schedule, symbol: str) -> str:
    return f"{a.name} {symbol} {b.name}" if a.name and b.name and a.name != b.name else a.name or b.name


def _check_factor(what: str, k: int) -> None:
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise ScheduleError(f"{what} needs a factor of at least 1, not {k!r}")


def _slice(schedule: Schedule, k: int, j: int) -> NDArray[np.void]:
    """The table of slice j when every chunk, scratch too, is cut into k slices: writable, of chunks c*k + j."""
    if schedule.chunks * k >= 2**31 or schedule.scratch_chunks * k >= 2**31:
        raise ScheduleError(f"{schedule!r} cut into {k} slices has more than 2^31 - 1 chunks")
    table = expand(schedule.table)[0] if k > 1 else schedule.table
    table = table.copy()
    for end in ("src_chunk", "dst_chunk"):
        table[end] = table[end] * k + j
    return table


def _map(what: str, values: ArrayLike | None, length: int, size: int) -> NDArray[np.int64]:
    if values is None:
        if size < length:
            raise ScheduleError(f"{length} {what} do not fit into {size}; give {what} or a larger total")
        return np.arange(length)
    result = np.asarray(values)
    if result.dtype.kind not in "iu" or result.shape != (length,):
        raise ScheduleError(f"{what} must be {length} integers, one for each, not {result.dtype} {result.shape}")
    if len(np.unique(result)) != length:
        raise ScheduleError(f"{what} repeats a value: {values!r}")
    if int(result.min()) < 0 or int(result.max()) >= size:
        raise ScheduleError(f"{what} runs from {result.min()} to {result.max()}; expected 0 to {size - 1}")
    return result.astype(np.int64)


def _checked(values: NDArray[np.integer], size: int, what: str) -> NDArray[np.integer]:
    if len(values) and (int(values.min()) < 0 or int(values.max()) >= size):
        raise ScheduleError(f"the table names {what}s from {values.min()} to {values.max()}; expected 0 to {size - 1}")
    return values


def _expand_where_torn(table: NDArray[np.void], chunk_map: NDArray[np.int64]) -> NDArray[np.void]:
    """Split transfers of several chunks that the map does not keep side by side into transfers of one chunk."""
    if bool(np.all(table["count"] == 1)):
        return table
    # torn[c] counts the places before chunk c where the map breaks: a range is whole if it does not change within it.
    torn = np.concatenate([[0], np.cumsum(np.diff(chunk_map) != 1)])
    whole = np.ones(len(table), bool)
    for end in ("src", "dst"):
        first = np.where(table[f"{end}_buffer"] == Buffer.SCRATCH, 0, table[f"{end}_chunk"])
        last = np.where(table[f"{end}_buffer"] == Buffer.SCRATCH, 0, first + table["count"] - 1)
        _checked(last, len(chunk_map), "chunk")
        whole &= torn[_checked(first, len(chunk_map), "chunk")] == torn[last]
    counts = np.where(whole, 1, table["count"])
    index = np.repeat(np.arange(len(table)), counts)
    place = (np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts, counts)).astype(np.int32)
    result: NDArray[np.void] = table[index]
    result["src_chunk"] += place
    result["dst_chunk"] += place
    result["count"] = np.where(whole[index], result["count"], 1)
    return result
