"""The reference executor: runs a schedule's semantics, step by step, on arrays of all ranks in one process.

It is slow and plain on purpose: it follows docs/schedule.md sentence by sentence, shares no code with the verifier,
the lowering or the engine, and so is what they are compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringleader.errors import InvalidArgument, ScheduleError
from ringleader.executors.arithmetic import NONE, PREMUL_SUM, dtype_of, fold
from ringleader.schedule import Buffer, Collective, Schedule

__all__ = ["run"]

Array = NDArray[Any]
Place = tuple[int, int, int]  # rank, buffer, chunk


@dataclass
class _Value:
    """What a chunk holds: elements, and how many contributions of which ranks they combine."""

    elements: Array
    weight: int  # contributions, with repetition
    lowest: int  # lowest contributing rank


def run(
    schedule: Schedule,
    inputs: Sequence[Array | None],
    dtype_code: int,
    op_code: int = NONE,
    factor: float = 1.0,
    *,
    native: bool | None = None,
) -> list[Array | None]:
    """Run a collective on the inputs of all ranks.

    Parameters
    ----------
    schedule
        Any schedule; it is not checked first, but reading a chunk that is not there is an error.
    inputs
        One flat array for each rank: ``count`` elements for all_reduce, broadcast and reduce; ``n * count`` for
        reduce_scatter, all_to_all and scatter; ``count`` for all_gather and gather. For broadcast and scatter only the
        root's is read, others may be None. For barrier all may be None. Never written to.
    dtype_code, op_code
        Codes of `DType` and `ReduceOp` in native/base/types.hpp. bf16 arrays have NumPy type uint16.
    factor
        What premul_sum multiplies each contribution by.
    native
        Use the native reduction kernels (True) or NumPy (False). Default: the kernels where they are built.

    Returns
    -------
    list
        One flat array for each rank: ``count`` elements for all_reduce, broadcast, reduce, reduce_scatter and scatter;
        ``n * count`` for all_gather, gather and all_to_all; none for barrier. None where a rank has no output, as
        away from the root of a reduce or gather.

    Raises
    ------
    InvalidArgument
        If an input is missing or has the wrong type or size.
    ScheduleError
        If a transfer reads, or the result needs, a chunk that is not there, or copies collide.

    Examples
    --------
    >>> from ringleader.schedule import Builder
    >>> b = Builder("all_reduce", n=2, chunks=1)
    >>> b.send(0, src=[0, 1], src_chunk=0, dst=[1, 0], reduce=True)
    >>> run(b.build(), [np.array([1.0, 2.0]), np.array([10.0, 20.0])], dtype_code=1, op_code=0, native=False)
    [array([11., 22.]), array([11., 22.])]
    """
    dtype = dtype_of(dtype_code)
    count = _count(schedule, inputs, dtype)
    state = _initial(schedule, inputs, count)

    def combine(operands: list[_Value]) -> _Value:
        if len(operands) == 1:
            return operands[0]  # into an empty chunk: a copy, in which nothing is multiplied or divided
        operands = sorted(operands, key=lambda value: value.lowest)
        weight = sum(value.weight for value in operands)
        if schedule.collective is Collective.BARRIER:  # nothing is in its chunk but that it arrived
            return _Value(operands[0].elements, weight, operands[0].lowest)
        arrays = [value.elements for value in operands]
        raw = [value.weight == 1 for value in operands]
        divide_by = schedule.n if weight == schedule.n else 0
        elements = fold(arrays, raw, dtype_code, op_code, factor, divide_by, native)
        return _Value(elements, weight, operands[0].lowest)

    table = schedule.table
    starts = np.flatnonzero(np.diff(table["step"], prepend=-1))
    for start, end in pairwise([*starts, len(table)]):
        _step(schedule, int(start), int(end), state, combine)
    if schedule.n == 1 and op_code == PREMUL_SUM:  # no fold has multiplied the only contribution
        for value in state.values():
            value.elements = fold([value.elements], [True], dtype_code, op_code, factor, 0, native)
    return _outputs(schedule, state, count, dtype)


def _step(
    schedule: Schedule,
    start: int,
    end: int,
    state: dict[Place, _Value],
    combine: Callable[[list[_Value]], _Value],
) -> None:
    """One step: everything is read from the state before it."""
    copies: dict[Place, _Value] = {}
    reduces: dict[Place, list[_Value]] = {}
    for index in range(start, end):
        row = schedule.table[index]
        for i in range(int(row["count"])):
            source = (int(row["src_rank"]), int(row["src_buffer"]), int(row["src_chunk"]) + i)
            target = (int(row["dst_rank"]), int(row["dst_buffer"]), int(row["dst_chunk"]) + i)
            if source not in state:
                raise ScheduleError(f"{schedule.describe(index)} reads a chunk that is not there")
            if row["reduce"]:
                reduces.setdefault(target, []).append(state[source])
            elif target in copies:
                raise ScheduleError(f"{schedule.describe(index)} writes a chunk that is written in the same step")
            else:
                copies[target] = state[source]
    for target, operands in reduces.items():
        if target in copies:
            raise ScheduleError(f"{target} is written and reduced into in one step")
        own = [state[target]] if target in state else []
        copies[target] = combine(own + operands)
    state.update(copies)


def _chunk_bounds(schedule: Schedule, count: int) -> list[slice]:
    """Where each chunk lies within a vector of `blocks * count` elements."""
    m = schedule.chunks_per_block
    size, longer = divmod(count, m)
    bounds = []
    for block in range(schedule.blocks):
        start = block * count
        for index in range(m):
            stop = start + size + (index < longer)
            bounds.append(slice(start, stop))
            start = stop
    return bounds


def _count(schedule: Schedule, inputs: Sequence[Array | None], dtype: np.dtype[Any]) -> int:
    """Elements in one block (in the whole vector, if it is one block), after checking all inputs."""
    if len(inputs) != schedule.n:
        raise InvalidArgument(f"inputs has {len(inputs)} arrays; expected one for each of {schedule.n} ranks")
    collective = schedule.collective
    if collective is Collective.BARRIER:
        return 0
    divide = collective in (Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL, Collective.SCATTER)
    sizes = {}
    for rank, array in enumerate(inputs):
        if collective in (Collective.BROADCAST, Collective.SCATTER) and rank != schedule.root:
            continue
        if array is None or array.dtype != dtype or array.ndim != 1:
            shown = "None" if array is None else f"{array.dtype} of shape {array.shape}"
            raise InvalidArgument(f"input of rank {rank} is {shown}; expected a flat array of {dtype}")
        sizes[rank] = array.size
    if len(set(sizes.values())) > 1:
        raise InvalidArgument(f"inputs differ in size: {sizes}")
    size = next(iter(sizes.values()))
    if divide and size % schedule.n:
        raise InvalidArgument(f"inputs have {size} elements, which is no multiple of {schedule.n} ranks")
    return size // schedule.n if divide else size


def _initial(schedule: Schedule, inputs: Sequence[Array | None], count: int) -> dict[Place, _Value]:
    """The chunks that are valid at the start (the table in docs/schedule.md)."""
    collective, m = schedule.collective, schedule.chunks_per_block
    state: dict[Place, _Value] = {}
    bounds = _chunk_bounds(schedule, count)
    for rank, array in enumerate(inputs):
        if collective is Collective.BARRIER:
            state[rank, Buffer.DATA, 0] = _Value(np.zeros(0, np.uint8), 1, rank)
            continue
        if collective in (Collective.BROADCAST, Collective.SCATTER) and rank != schedule.root:
            continue
        assert array is not None  # _count has checked it
        own_block = collective in (Collective.ALL_GATHER, Collective.GATHER)
        buffer = Buffer.INPUT if collective is Collective.ALL_TO_ALL else Buffer.DATA
        for chunk in range(rank * m, (rank + 1) * m) if own_block else range(schedule.chunks):
            place = bounds[chunk]
            shift = rank * count if own_block else 0
            elements = array[place.start - shift : place.stop - shift]
            state[rank, buffer, chunk] = _Value(elements, 1, rank)
    return state


def _outputs(schedule: Schedule, state: dict[Place, _Value], count: int, dtype: np.dtype[Any]) -> list[Array | None]:
    """The results, collected from the final state."""
    collective, m = schedule.collective, schedule.chunks_per_block
    bounds = _chunk_bounds(schedule, count)
    buffer = Buffer.OUTPUT if collective is Collective.ALL_TO_ALL else Buffer.DATA
    outputs: list[Array | None] = []
    for rank in range(schedule.n):
        if collective is Collective.BARRIER or (
            collective in (Collective.REDUCE, Collective.GATHER) and rank != schedule.root
        ):
            outputs.append(None)
            continue
        own_block = collective in (Collective.REDUCE_SCATTER, Collective.SCATTER)
        shift = rank * count if own_block else 0
        result = np.empty(count if own_block else schedule.blocks * count, dtype)
        for chunk in range(rank * m, (rank + 1) * m) if own_block else range(schedule.chunks):
            value = state.get((rank, int(buffer), chunk))
            if value is None:
                raise ScheduleError(f"rank {rank} ends without {buffer.name.lower()}[{chunk}]")
            result[bounds[chunk].start - shift : bounds[chunk].stop - shift] = value.elements
        outputs.append(result)
    return outputs
