"""What an MSCCL program promises about time: messages matched, an order that keeps every wait, and no races.

A step waits for the step before it in its thread block, for the step it names (``depid``, ``deps``), and a receiving
step for its message. The k-th receive of a connection (sender, receiver, channel) gets the k-th message sent. Messages
are buffered on their way, so a send waits for nobody. Where these waits form a cycle the program hangs; where two
accesses to one chunk, one of them a write, are not ordered by them, its result is a matter of luck. Both are refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ringleader.formats.msccl_program import RECEIVING, SENDING, Program, Step, ThreadBlock, fail
from ringleader.schedule import Collective

__all__ = ["SHORT_INPUT", "SHORT_OUTPUT", "Ordered", "data_chunk", "locations", "order", "same_memory"]

SHORT_INPUT = (Collective.ALL_GATHER, Collective.GATHER)
"""Where a GPU's input is one block; its output is all of them."""
SHORT_OUTPUT = (Collective.REDUCE_SCATTER, Collective.SCATTER)
"""Where a GPU's output is one block of its input."""


class Ordered(NamedTuple):
    """Steps in an order that keeps all waits; `sender[k]` is the place in it of the message that step k receives."""

    steps: list[Step]
    sender: list[int]  # -1 where nothing is received
    channels: list[int]


def order(program: Program) -> Ordered:
    """Order the steps of all GPUs.

    Raises
    ------
    ScheduleError
        With line and element: a message without receive or the other way round, of unequal sizes, two thread blocks on
        one connection, waits in a cycle, or a race.
    """
    blocks = [block for rank in range(program.n) for block in program.gpus[rank]]
    first: dict[tuple[int, int], int] = {}  # (gpu, block) -> number of its first step
    steps: list[Step] = []
    channels: list[int] = []
    for block in blocks:
        first[block.gpu, block.index] = len(steps)
        steps += block.steps
        channels += [block.channel] * len(block.steps)
    sender = _match(program, blocks, first)
    before: list[list[int]] = []
    for number, step in enumerate(steps):
        waits = [number - 1] if step.index else []
        if step.depends is not None:
            waits.append(first[step.gpu, step.depends[0]] + step.depends[1])
        if sender[number] >= 0:
            waits.append(sender[number])
        before.append(waits)
    sequence = _sequence(program, steps, before)
    owner = np.repeat(np.arange(len(blocks)), [len(block.steps) for block in blocks])
    _check_races(program, steps, before, sequence, owner, len(blocks))
    place = {number: k for k, number in enumerate(sequence)}
    return Ordered(
        [steps[number] for number in sequence],
        [place[sender[number]] if sender[number] >= 0 else -1 for number in sequence],
        [channels[number] for number in sequence],
    )


def _match(program: Program, blocks: list[ThreadBlock], first: dict[tuple[int, int], int]) -> list[int]:
    """For each step the number of the step that sends what it receives, or -1."""
    ends: tuple[dict[tuple[int, int, int], ThreadBlock], ...] = ({}, {})
    for block in blocks:
        for which, peer, kinds in ((0, block.send, SENDING), (1, block.recv, RECEIVING)):
            if peer < 0 or not any(step.type in kinds for step in block.steps):
                continue
            key = (block.gpu, peer, block.channel) if which == 0 else (peer, block.gpu, block.channel)
            other = ends[which].setdefault(key, block)
            if other is not block:
                what = "sends to" if which == 0 else "receives from"
                fail(
                    program.source, block.line,
                    f"<tb> {block.index} of <gpu> {block.gpu} {what} {peer} on channel {block.channel}, as <tb> "
                    f"{other.index} in line {other.line} does; expected one thread block for each connection",
                )  # fmt: skip
    sender = [-1] * sum(len(block.steps) for block in blocks)
    for key in sorted(ends[0].keys() | ends[1].keys()):
        source, target = ends[0].get(key), ends[1].get(key)
        sent = [step for step in source.steps if step.type in SENDING] if source else []
        received = [step for step in target.steps if step.type in RECEIVING] if target else []
        for a, b in zip(sent, received, strict=False):
            if a.count != b.count:
                fail(
                    program.source,
                    b.line,
                    f"{b}: it receives {b.count} chunks, but {a} in line {a.line} sends {a.count}",
                )
            sender[first[b.gpu, b.block] + b.index] = first[a.gpu, a.block] + a.index
        if len(sent) > len(received):
            step = sent[len(received)]
            counts = f"takes {len(received)} messages from {key[0]} on channel {key[2]}, which sends {len(sent)}"
            fail(program.source, step.line, f"{step}: nobody receives it: <gpu> {key[1]} {counts}")
        if len(received) > len(sent):
            step = received[len(sent)]
            counts = f"sends {len(sent)} messages to {key[1]} on channel {key[2]}, which receives {len(received)}"
            fail(program.source, step.line, f"{step}: nobody sends it: <gpu> {key[0]} {counts}")
    return sender


def _sequence(program: Program, steps: list[Step], before: list[list[int]]) -> list[int]:
    """An order of the steps that keeps all waits, breadth first."""
    after: list[list[int]] = [[] for _ in steps]
    missing = [len(waits) for waits in before]
    for number, waits in enumerate(before):
        for wait in waits:
            after[wait].append(number)
    ready = deque(number for number, count in enumerate(missing) if not count)
    result: list[int] = []
    while ready:
        number = ready.popleft()
        result.append(number)
        for other in after[number]:
            missing[other] -= 1
            if not missing[other]:
                ready.append(other)
    if len(result) < len(steps):
        # Every step that is left waits for one that is left: going back leads round a cycle.
        number, seen = next(k for k, count in enumerate(missing) if count), []
        while number not in seen:
            seen.append(number)
            number = next(wait for wait in before[number] if missing[wait])
        cycle = seen[seen.index(number) :]
        shown = " waits for ".join(f"{steps[k]} in line {steps[k].line}" for k in [*cycle[:6], cycle[0]])
        fail(program.source, steps[cycle[0]].line, f"it hangs: {shown}{' (shortened)' if len(cycle) > 6 else ''}")
    return result


def same_memory(program: Program, gpu: int, buffer: str, chunk: int) -> tuple[str, int]:
    """The name under which a chunk's memory is known: in place, input and output are the same memory.

    Where the input is one block, that block of the output; where the output is one, that of the input.
    """
    if not program.in_place or buffer == "s":
        return buffer, chunk
    return "io", data_chunk(program, gpu, buffer, chunk)


def data_chunk(program: Program, gpu: int, buffer: str, chunk: int) -> int:
    """The chunk of the schedule's vector that a chunk of the file's input or output is."""
    short = {"i": SHORT_INPUT, "o": SHORT_OUTPUT}.get(buffer, ())
    return chunk + (gpu * (program.chunks // program.n) if program.collective in short else 0)


def locations(program: Program, step: Step) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """The memory that a step reads, and that it writes."""

    def chunks(end: tuple[str, int]) -> list[tuple[str, int]]:
        return [same_memory(program, step.gpu, end[0], end[1] + i) for i in range(step.count)]

    reads, writes = [], []
    if step.type in ("s", "cpy", "re", "rrc", "rrs", "rrcs"):
        reads = chunks(step.src)
    if step.type in ("r", "rcs", "cpy", "re", "rrc", "rrcs"):
        writes = chunks(step.dst)
    if step.type == "re":  # dst = dst + src
        reads = reads + writes
    return reads, writes


def _check_races(
    program: Program,
    steps: list[Step],
    before: list[list[int]],
    sequence: list[int],
    owner: NDArray[np.int64],
    width: int,
) -> None:
    """Refuse two accesses to one chunk, one of them a write, that the waits do not order.

    A step's clock holds for each thread block how many of its steps are certain to be over. Clocks are dropped as soon
    as nobody needs them any more.
    """
    waiting = [0] * len(steps)
    for waits in before:
        for wait in waits:
            waiting[wait] += 1
    clocks: dict[int, NDArray[np.int32]] = {}
    written: dict[tuple[int, str, int], int] = {}
    read: dict[tuple[int, str, int], list[int]] = {}
    for number in sequence:
        step = steps[number]
        clock = np.zeros(width, np.int32)
        for wait in before[number]:
            np.maximum(clock, clocks[wait], out=clock)
            waiting[wait] -= 1
            if not waiting[wait]:
                del clocks[wait]
        for earlier in _conflicts(program, step, number, written, read):
            if clock[owner[earlier]] <= steps[earlier].index:
                fail(
                    program.source, step.line,
                    f"{step}: it uses the same chunk as {steps[earlier]} in line {steps[earlier].line}, and nothing "
                    f"says which comes first; one must wait for the other (depid, deps)",
                )  # fmt: skip
        clock[owner[number]] = step.index + 1
        if waiting[number]:
            clocks[number] = clock


def _conflicts(
    program: Program,
    step: Step,
    number: int,
    written: dict[tuple[int, str, int], int],
    read: dict[tuple[int, str, int], list[int]],
) -> Iterator[int]:
    """Earlier steps that this one must come after; notes its own accesses."""
    reads, writes = locations(program, step)
    for buffer, chunk in reads:
        key = (step.gpu, buffer, chunk)
        if key in written:
            yield written[key]
        read.setdefault(key, []).append(number)
    for buffer, chunk in writes:
        key = (step.gpu, buffer, chunk)
        if key in written:
            yield written[key]
        yield from (earlier for earlier in read.pop(key, ()) if earlier != number)
        written[key] = number
