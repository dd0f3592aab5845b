"""MSCCL algorithm XML as schedules, and schedules as MSCCL algorithm XML. See docs/formats.md.

A file's steps become transfers: what a step waits for decides the order, and `assemble` finds the numbered steps of the
schedule; `buffers` finds the places.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from ringleader.errors import ScheduleError, VerificationError
from ringleader.schedule import Collective, Schedule, check_spec, verify
from ringleader.schedule.formats.assemble import Taken
from ringleader.schedule.formats.buffers import Access, Buffers, Memory, memory_of, overwritten_inputs
from ringleader.schedule.formats.msccl_order import Ordered, locations, order
from ringleader.schedule.formats.msccl_program import MAX_TEXT, SENDING, Program, Step, fail, parse
from ringleader.schedule.formats.msccl_write import PROTOCOLS, dumps

__all__ = ["PROTOCOLS", "dumps", "load", "loads", "parse", "translate"]


def load(path: str | os.PathLike[str]) -> Schedule:
    """Read an MSCCL algorithm from a file and prove it. See `loads`.

    Raises
    ------
    ScheduleError
        As `loads`; OSError if the file cannot be read.
    """
    file = Path(path)
    with file.open("rb") as stream:
        text = stream.read(MAX_TEXT + 1)
    return loads(text, file.name)


def loads(text: str | bytes, source: str = "MSCCL XML") -> Schedule:
    """Read an MSCCL algorithm and prove it.

    Parameters
    ----------
    text
        The XML.
    source
        What errors call it.

    Returns
    -------
    Schedule
        The same transfers with the same dependencies, verified. Its name is the file's.

    Raises
    ------
    ScheduleError
        With line and element where the file is malformed, hangs, races, or reads what is not there.
    VerificationError
        With what `ringleader.schedule.verify` found where it does not do what its collective promises.

    References
    ----------
    Cowan et al., "MSCCLang: Microsoft Collective Communication Language", ASPLOS 2023.

    Examples
    --------
    >>> schedule = loads('''
    ... <algo name="pass_on" nchunksperloop="1" ngpus="2" coll="broadcast" inplace="1">
    ...   <gpu id="0" i_chunks="1" o_chunks="1" s_chunks="0"><tb id="0" send="1" recv="-1" chan="0">
    ...     <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    ...   </tb></gpu>
    ...   <gpu id="1" i_chunks="1" o_chunks="1" s_chunks="0"><tb id="0" send="-1" recv="0" chan="0">
    ...     <step s="0" type="r" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    ...   </tb></gpu>
    ... </algo>''')
    >>> schedule.describe(0)
    'transfer 0 (step 0: rank 0 data[0] -> rank 1 data[0], channel 0)'
    """
    program = parse(text, source)
    report = verify(translate(program))
    if not report.ok and program.collective is Collective.ALL_REDUCE:
        # Where every rank adds up everything by itself, sums have the same bits only if they are added in one order.
        report = verify(translate(program, together=True))
    if not report.ok:
        found = "; ".join(report.violations[:5])
        raise VerificationError(f"{source}: it is read, but does not do what {program.collective} promises: {found}")
    return report.schedule


def translate(program: Program, together: bool = False) -> Schedule:
    """The schedule of a program that is read; it keeps the spec, but nothing is proved yet.

    `together` as in `Assembler.build`.

    Raises
    ------
    ScheduleError
        As `loads`, but for the proof.
    """
    ordered = order(program)
    schedule = _Translation(program, ordered).run(together)
    try:
        check_spec(schedule)
    except ScheduleError as error:
        raise ScheduleError(f"{program.source}: {error}") from None
    return schedule


class _Translation:
    """Runs a program's steps in order, on an assembler."""

    def __init__(self, program: Program, ordered: Ordered) -> None:
        self.program = program
        self.ordered = ordered
        self.dead = _dead_after(program, ordered)
        self.memory = Buffers(program, overwritten_inputs(program, _accesses(program, ordered)))

    def run(self, together: bool) -> Schedule:
        """All steps, then what has yet to be copied to its place."""
        sent: dict[int, list[Taken]] = {}
        for k, step in enumerate(self.ordered.steps):
            received = sent.pop(self.ordered.sender[k], [])
            outgoing = self._step(k, step, received, self.ordered.channels[self.ordered.sender[k]])
            if outgoing:
                sent[k] = outgoing
        program = self.program
        return self.memory.finish(program.name, together, lambda what: fail(program.source, program.line, what))

    def _step(self, k: int, step: Step, received: list[Taken], channel: int) -> list[Taken]:
        """One step; returns what it sends."""
        memory, outgoing = self.memory, []

        def wrong(what: str) -> NoReturn:
            fail(self.program.source, step.line, f"{step}: {what}")

        for i in range(step.count):
            source = memory_of(self.program, step.gpu, step.src[0], step.src[1] + i)
            target = memory_of(self.program, step.gpu, step.dst[0], step.dst[1] + i)
            if step.type in ("r", "rcs"):
                memory.put(received[i], target, channel)
            elif step.type == "cpy":
                memory.copy(source, target, wrong)
            elif step.type == "re":
                memory.reduce(memory.out.take(memory.at(source, wrong)), target, wrong)
            elif step.type in ("rrc", "rrcs"):
                memory.copy(source, target, wrong)
                memory.reduce(received[i], target, wrong, channel)
            elif step.type == "rrs":
                # What is sent on is not kept: it is made in the own chunk only if nobody reads that any more.
                target = source if (k, i) in self.dead else Memory(step.gpu, f"thread block {step.block}", i)
                memory.copy(source, target, wrong)
                memory.reduce(received[i], target, wrong, channel)
            if step.type in SENDING:
                outgoing.append(memory.out.take(memory.at(source if step.type == "s" else target, wrong)))
        return outgoing


def _accesses(program: Program, ordered: Ordered) -> Iterator[Access]:
    """What happens to memory, chunk by chunk."""
    for step in ordered.steps:
        for _, reads, writes in _by_chunk(program, step):
            # rrs may combine in its own chunk
            yield Access(tuple(reads), tuple(reads if step.type == "rrs" else writes), step.type == "cpy")


def _by_chunk(program: Program, step: Step) -> Iterator[tuple[int, list[Memory], list[Memory]]]:
    """A step chunk by chunk: index, memory read, memory written."""
    reads, writes = locations(program, step)
    for i in range(step.count):
        yield i, list(reads[i :: step.count]), list(writes[i :: step.count])


def _dead_after(program: Program, ordered: Ordered) -> set[tuple[int, int]]:
    """(place in the order, index) of the chunks that ``rrs`` steps read for the last time before they are replaced."""
    at_end = {"s"} if program.in_place or program.collective is Collective.ALL_TO_ALL else {"s", "i"}
    following: dict[Memory, str] = {}
    dead = set()
    for k in range(len(ordered.steps) - 1, -1, -1):
        step = ordered.steps[k]
        for i, reads, writes in reversed(list(_by_chunk(program, step))):
            following.update(dict.fromkeys(writes, "write"))
            for memory in reads:
                use = following.get(memory, "write" if memory.buffer in at_end else "read")
                if step.type == "rrs" and use == "write":
                    dead.add((k, i))
                following[memory] = "read"
    return dead
