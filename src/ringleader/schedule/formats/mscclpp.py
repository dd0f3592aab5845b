"""MSCCL++ execution plans (JSON) as schedules, where they can be expressed. See docs/formats.md.

A plan is one-sided: a thread block reads and writes memory of other GPUs by itself, and signals tell when it may. Every
operation that moves data is "combine the sources, and put the result into all destinations"; it becomes transfers whose
order is that of signals, waits, barriers and thread blocks. What is more than that (switch channels, packets with
flags, loops, semaphores) is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from ringleader.errors import ScheduleError, VerificationError
from ringleader.schedule import Schedule, check_spec, verify
from ringleader.schedule.formats.buffers import Access, Buffers, Memory, overwritten_inputs
from ringleader.schedule.formats.mscclpp_plan import MAX_TEXT, SIGNALS, WAITS, Channel, Operation, Plan, fail, parse
from ringleader.schedule.formats.order import Uses, cycle, race, sequence

__all__ = ["MAX_BARRIER_WAITS", "load", "loads"]

MAX_BARRIER_WAITS = 1 << 20
"""Most waits of thread blocks for each other in all barriers."""


def load(path: str | os.PathLike[str]) -> Schedule:
    """Read an execution plan from a file and prove it. See `loads`.

    Raises
    ------
    ScheduleError
        As `loads`; OSError if the file cannot be read.
    """
    file = Path(path)
    with file.open("rb") as stream:
        text = stream.read(MAX_TEXT + 1)
    return loads(text, file.name)


def loads(text: str | bytes, source: str = "MSCCL++ plan") -> Schedule:
    """Read an execution plan and prove it.

    Parameters
    ----------
    text
        The JSON.
    source
        What errors call it.

    Returns
    -------
    Schedule
        The same transfers with the same dependencies, verified.

    Raises
    ------
    ScheduleError
        With the path of the element: malformed, an operation that a schedule cannot express, waits in a cycle, a race.
    VerificationError
        With what `ringleader.schedule.verify` found where it does not do what its collective promises.

    Examples
    --------
    >>> loads('{"name": "x", "collective": "allreduce", "gpus": 3}')
    Traceback (most recent call last):
    ...
    ringleader.errors.ScheduleError: MSCCL++ plan: $.gpus is 3; expected an array
    """
    if len(text) > MAX_TEXT:
        raise ScheduleError(f"{source}: the text has {len(text)} characters; at most {MAX_TEXT} are read")
    plan = Plan(parse(text, source), source)
    order = _order(plan)
    accesses = (access for number in order for access in _accesses(plan.operations[number]))
    buffers = Buffers(plan.shape, overwritten_inputs(plan.shape, accesses))
    for number in order:
        _run(buffers, plan.operations[number], source)
    schedule = buffers.finish(plan.name, False, lambda what: fail(source, "$", what))
    try:
        check_spec(schedule)
    except ScheduleError as error:
        raise ScheduleError(f"{source}: {error}") from None
    report = verify(schedule)
    if not report.ok:
        found = "; ".join(report.violations[:5])
        raise VerificationError(f"{source}: it is read, but does not do what {schedule.collective} promises: {found}")
    return schedule


def _order(plan: Plan) -> list[int]:
    """The operations in an order that keeps all waits; refuses cycles and races."""
    operations, before = plan.operations, _waits(plan)
    found = sequence(before)
    if len(found) < len(operations):
        turn = [operations[number] for number in cycle(before, found)]
        shown = " waits for ".join(f"{it.name} at {it.path}" for it in [*turn[:6], turn[0]])
        plan.fail(turn[0].path, f"it hangs: {shown}{' (shortened)' if len(turn) > 6 else ''}")
    blocks: dict[tuple[int, int], int] = {}
    threads = [blocks.setdefault((it.rank, it.block), len(blocks)) for it in operations]
    try:
        clash = race(found, before, threads, lambda number: _uses(operations[number]))
    except ScheduleError as error:
        plan.fail("$", str(error))
    if clash is not None:
        later, earlier = (operations[number] for number in clash)
        plan.fail(later.path, f"it uses the same chunk as {earlier.path}, and nothing says which comes first")
    return found


def _uses(operation: Operation) -> Uses:
    reads, writes = ([it for chunks in ends for it in chunks] for ends in (operation.sources, operation.targets))
    return Uses(reads, writes)


def _waits(plan: Plan) -> list[list[int]]:
    """What each operation waits for: the one before it, the signals that it takes, and barriers."""
    before: list[list[int]] = [[] for _ in plan.operations]
    signals: dict[Channel, list[int]] = {}
    taken: dict[Channel, int] = {}
    rounds: dict[tuple[int, int, int, int], int] = {}
    barriers: dict[tuple[int, int, int], list[int]] = {}
    for number, operation in enumerate(plan.operations):
        last = plan.operations[number - 1] if number else None
        if last is not None and (last.rank, last.block) == (operation.rank, operation.block):
            before[number].append(number - 1)
        if operation.name in SIGNALS:
            for channel in operation.channels:
                signals.setdefault(channel, []).append(number)
        if operation.barrier is not None:
            key = (operation.rank, operation.barrier[0], operation.barrier[1], operation.block)
            turn = rounds[key] = rounds.get(key, -1) + 1
            barriers.setdefault((operation.rank, operation.barrier[0], turn), []).append(number)
    for number, operation in enumerate(plan.operations):
        if operation.name in WAITS:
            for channel in operation.channels:
                turn = taken[channel] = taken.get(channel, -1) + 1
                if turn >= len(signals.get(channel, ())):
                    plan.fail(operation.path, f"nobody gives it: GPU {channel[0]} signals GPU {channel[1]} "
                              f"{len(signals.get(channel, ()))} times on this channel")  # fmt: skip
                before[number].append(signals[channel][turn])
    if sum(len(members) ** 2 for members in barriers.values()) > MAX_BARRIER_WAITS:
        plan.fail("$", f"barriers make more than {MAX_BARRIER_WAITS} waits")
    for members in barriers.values():
        wanted = plan.operations[members[0]].barrier
        if wanted is not None and len(members) != wanted[1]:
            plan.fail(
                plan.operations[members[0]].path,
                f"{len(members)} thread blocks come to this barrier, which is for {wanted[1]}",
            )
        # Nobody leaves before all have come: each waits for what every other one did before.
        for number in members:
            before[number] += [other - 1 for other in members if other != number and before[other][:1] == [other - 1]]
    return before


def _by_chunk(operation: Operation) -> Iterator[tuple[list[Memory], list[Memory]]]:
    """Sources and destinations chunk by chunk."""
    for i in range(len(operation.sources[0]) if operation.sources else 0):
        yield [chunks[i] for chunks in operation.sources], [chunks[i] for chunks in operation.targets]


def _accesses(operation: Operation) -> Iterator[Access]:
    for sources, targets in _by_chunk(operation):
        yield Access(tuple(sources), tuple(targets), len(sources) == 1)


def _run(buffers: Buffers, operation: Operation, source: str) -> None:
    """Combine the sources where one of them stands or in the first destination, then copy to the other destinations."""

    def wrong(what: str) -> NoReturn:
        fail(source, operation.path, what)

    for sources, targets in _by_chunk(operation):
        first = next((memory for memory in targets if memory in sources and memory.rank == operation.rank), None)
        if first is None:
            local = [memory for memory in targets if memory.rank == operation.rank]
            first = (local or targets)[0]
            if first in sources or (len(sources) > 1 and not local):
                first = Memory(operation.rank, f"thread block {operation.block}", 0)
            buffers.copy(sources[0], first, wrong)
            rest = sources[1:]
        else:
            rest = list(sources)
            rest.remove(first)
        for memory in rest:
            buffers.reduce(buffers.out.take(buffers.at(memory, wrong)), first, wrong)
        for memory in targets:
            if memory != first:
                buffers.copy(first, memory, wrong)
