"""What an MSCCL program promises about time: messages matched, an order that keeps every wait, and no races.

A step waits for the step before it in its thread block, for the step it names (``depid``, ``deps``), and a receiving
step for its message. The k-th receive of a connection (sender, receiver, channel) gets the k-th message sent. Messages
are buffered on their way, so a send waits for nobody. Where these waits form a cycle the program hangs; where two
accesses to one chunk, one of them a write, are not ordered by them, its result is a matter of luck. Both are refused.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ringleader.errors import ScheduleError
from ringleader.schedule.formats.buffers import Memory, memory_of
from ringleader.schedule.formats.msccl_program import RECEIVING, SENDING, Program, Step, ThreadBlock, fail
from ringleader.schedule.formats.order import Uses, cycle, race, sequence

__all__ = ["Ordered", "locations", "order"]


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
    found = sequence(before)
    if len(found) < len(steps):
        turn = cycle(before, found)
        shown = " waits for ".join(f"{steps[k]} in line {steps[k].line}" for k in [*turn[:6], turn[0]])
        fail(program.source, steps[turn[0]].line, f"it hangs: {shown}{' (shortened)' if len(turn) > 6 else ''}")
    threads = np.repeat(np.arange(len(blocks)), [len(block.steps) for block in blocks]).tolist()
    try:
        clash = race(found, before, threads, lambda number: locations(program, steps[number]))
    except ScheduleError as error:
        fail(program.source, program.line, f"<algo>: {error}")
    if clash is not None:
        step, earlier = (steps[number] for number in clash)
        fail(
            program.source, step.line,
            f"{step}: it uses the same chunk as {earlier} in line {earlier.line}, and nothing says which comes first; "
            f"one must wait for the other (depid, deps)",
        )  # fmt: skip
    place = {number: k for k, number in enumerate(found)}
    return Ordered(
        [steps[number] for number in found],
        [place[sender[number]] if sender[number] >= 0 else -1 for number in found],
        [channels[number] for number in found],
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


def locations(program: Program, step: Step) -> Uses:
    """The memory that a step reads, and that it writes."""

    def chunks(end: tuple[str, int]) -> list[Memory]:
        return [memory_of(program, step.gpu, end[0], end[1] + i) for i in range(step.count)]

    reads: list[Memory] = []
    writes: list[Memory] = []
    if step.type in ("s", "cpy", "re", "rrc", "rrs", "rrcs"):
        reads = chunks(step.src)
    if step.type in ("r", "rcs", "cpy", "re", "rrc", "rrcs"):
        writes = chunks(step.dst)
    if step.type == "re":  # dst = dst + src
        reads = reads + writes
    return Uses(reads, writes)
