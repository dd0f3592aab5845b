"""MSCCL algorithm XML as schedules, and schedules as MSCCL algorithm XML. See docs/formats.md.

A file's steps become transfers: what a step waits for decides the order, and `assemble` finds the numbered steps of the
schedule. Input, output and scratch become the schedule's buffers; where that is impossible (an output that is written
while the input is still needed) the chunk lives in scratch and is copied to its place at the end.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ringleader.errors import ScheduleError
from ringleader.formats.assemble import Assembler, Place, Taken
from ringleader.formats.msccl_order import (
    SHORT_INPUT,
    SHORT_OUTPUT,
    Ordered,
    data_chunk,
    locations,
    order,
    same_memory,
)
from ringleader.formats.msccl_program import MAX_TEXT, Program, Step, fail, parse
from ringleader.formats.msccl_write import dumps
from ringleader.schedule import Buffer, Collective, Schedule, check_spec, verify

__all__ = ["dumps", "load", "loads", "translate"]

_AT_ROOT = (Collective.REDUCE, Collective.GATHER)


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
        With line and element where the file is malformed, hangs, races, or reads what is not there; with what
        `ringleader.schedule.verify` found where it does not do what its collective promises.

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
    schedule = translate(parse(text, source))
    report = verify(schedule)
    if not report.ok:
        raise ScheduleError(f"{source}: it is read, but does not do what {schedule.collective} promises: "
                            + "; ".join(report.violations[:5]))  # fmt: skip
    return schedule


def translate(program: Program) -> Schedule:
    """The schedule of a program that is read; it keeps the spec, but nothing is proved yet.

    Raises
    ------
    ScheduleError
        As `loads`, but for the proof.
    """
    ordered = order(program)
    schedule = _Translation(program, ordered).run()
    try:
        check_spec(schedule)
    except ScheduleError as error:
        raise ScheduleError(f"{program.source}: {error}") from None
    return schedule


class _Translation:
    """Runs a program's steps in order, on an assembler.

    `where` says at which place of the schedule each chunk of the file's memory is at the moment.
    """

    def __init__(self, program: Program, ordered: Ordered) -> None:
        self.program = program
        self.ordered = ordered
        self.blocks = program.n if program.collective.blocked else 1
        self.m = program.chunks // self.blocks
        self.out = Assembler(program.collective, program.n, program.chunks, program.root)
        self.where: dict[tuple[int, str, int], Place] = {}
        self.rooms: dict[tuple[int, str, int, int], Place] = {}  # scratch by memory and index within the block
        self.apart = set() if program.in_place else _overwritten_inputs(program, ordered)
        self.dead = _dead_after(program, ordered)
        self._fill()

    def run(self) -> Schedule:
        """All steps, then what has yet to be copied to its place."""
        sent: dict[int, list[Taken]] = {}
        for k, step in enumerate(self.ordered.steps):
            received = sent.pop(self.ordered.sender[k], [])
            outgoing = self._step(k, step, received, self.ordered.channels[self.ordered.sender[k]])
            if outgoing:
                sent[k] = outgoing
        self._finish()
        return self.out.build(self.program.name)

    def _step(self, k: int, step: Step, received: list[Taken], channel: int) -> list[Taken]:
        """One step; returns what it sends."""
        outgoing = []
        for i in range(step.count):
            source = self._memory(step, step.src, i)
            target = self._memory(step, step.dst, i)
            if step.type == "nop":
                continue
            if step.type in ("r", "rcs"):
                self._put(step, received[i], target, channel)
            elif step.type == "cpy":
                self._copy(step, source, target)
            elif step.type == "re":
                self._reduce(step, self.out.take(self._at(step, source)), target, 0)
            elif step.type in ("rrc", "rrcs"):
                self._copy(step, source, target)
                self._reduce(step, received[i], target, channel)
            elif step.type == "rrs":
                outgoing.append(self.out.take(self._combined(k, step, i, source, received[i], channel)))
            if step.type == "s":
                outgoing.append(self.out.take(self._at(step, source)))
            elif step.type in ("rcs", "rrcs"):
                outgoing.append(self.out.take(self._at(step, target)))
        return outgoing

    # ------------------------------------------------------------------------------------------------------- places

    def _memory(self, step: Step, end: tuple[str, int], i: int) -> tuple[int, str, int]:
        return (step.gpu, *same_memory(self.program, step.gpu, end[0], end[1] + i))

    def _home(self, memory: tuple[int, str, int]) -> Place | None:
        """Where a chunk of the file's memory belongs; None: in scratch."""
        gpu, buffer, chunk = memory
        if buffer == "s":
            return None
        if self.program.collective is Collective.ALL_TO_ALL:
            return Place(gpu, int(Buffer.INPUT if buffer == "i" else Buffer.OUTPUT), chunk)
        chunk = data_chunk(self.program, gpu, buffer, chunk)
        return None if buffer == "o" and (gpu, chunk) in self.apart else Place(gpu, int(Buffer.DATA), chunk)

    def _fill(self) -> None:
        """What is there at the start."""
        program, m = self.program, self.m
        collective = program.collective
        buffer = int(Buffer.INPUT if collective is Collective.ALL_TO_ALL else Buffer.DATA)
        for gpu in range(program.n):
            if collective in (Collective.BROADCAST, Collective.SCATTER) and gpu != program.root:
                continue
            for chunk in range(m if collective in SHORT_INPUT else program.chunks):
                place = Place(gpu, buffer, data_chunk(self.program, gpu, "i", chunk))
                self.out.fill(place, chunk % m)
                self.where[(gpu, *same_memory(program, gpu, "i", chunk))] = place

    def _at(self, step: Step, memory: tuple[int, str, int]) -> Place:
        place = self.where.get(memory)
        if place is None:
            return fail(
                self.program.source,
                step.line,
                f"{step}: it reads chunk {memory[2]} of {_label(memory)}, which holds nothing yet",
            )
        return place

    def _put(self, step: Step, taken: Taken, memory: tuple[int, str, int], channel: int) -> None:
        """Let something arrive that replaces what the memory holds."""
        home = self._home(memory)
        if home is None or home.chunk % self.m != taken.part:
            # A chunk of another index within its block may be of another size: it cannot stay in this place.
            key = (*memory, taken.part)
            if key not in self.rooms:
                self.rooms[key] = self.out.scratch(step.gpu)
            home = self.rooms[key]
        self.where[memory] = home
        self.out.put(taken, home, channel=channel)

    def _copy(self, step: Step, source: tuple[int, str, int], target: tuple[int, str, int]) -> None:
        """A copy within a GPU; none if both names are the same place."""
        place, home = self._at(step, source), self._home(target)
        if source == target:
            return
        if place == home:
            self.where[target] = place
            return
        self._put(step, self.out.take(place), target, 0)

    def _reduce(self, step: Step, taken: Taken, memory: tuple[int, str, int], channel: int) -> None:
        place = self._at(step, memory)
        if self.out.part(place) != taken.part:
            fail(
                self.program.source, step.line,
                f"{step}: it combines chunk {taken.part} of a block with chunk {self.out.part(place)}, in chunk "
                f"{memory[2]} of {_label(memory)}",
            )  # fmt: skip
        self.out.put(taken, place, reduce=True, channel=channel)

    def _combined(
        self, k: int, step: Step, i: int, source: tuple[int, str, int], received: Taken, channel: int
    ) -> Place:
        """Where received and own chunk are combined to be sent on, without being kept (rrs).

        In the own chunk itself, if nobody reads that any more.
        """
        if (k, i) not in self.dead:
            key = (step.gpu, f"tb{step.block}", i, received.part)
            place = self._at(step, source)
            if key not in self.rooms:
                self.rooms[key] = self.out.scratch(step.gpu)
            room = (step.gpu, f"tb{step.block}", i)
            self.where[room] = self.rooms[key]
            self.out.put(self.out.take(place), self.rooms[key])
            source = room
        self._reduce(step, received, source, channel)
        return self.where[source]

    def _finish(self) -> None:
        """Copy results that are elsewhere to where the schedule promises them."""
        program, m = self.program, self.m
        collective = program.collective
        buffer = int(Buffer.OUTPUT if collective is Collective.ALL_TO_ALL else Buffer.DATA)
        for gpu in range(program.n):
            if collective in _AT_ROOT and gpu != program.root:
                continue
            for chunk in range(m if collective in SHORT_OUTPUT else program.chunks):
                memory = (gpu, *same_memory(program, gpu, "o", chunk))
                home = Place(gpu, buffer, data_chunk(self.program, gpu, "o", chunk))
                place = self.where.get(memory)
                if place is None:
                    fail(program.source, program.line, f"<gpu> {gpu}: chunk {chunk} of its output is never written")
                if place != home:
                    if self.out.part(place) != home.chunk % m:
                        fail(program.source, program.line, f"<gpu> {gpu}: chunk {chunk} of its output ends with chunk "
                             f"{self.out.part(place)} of a block")  # fmt: skip
                    self.out.put(self.out.take(place), home)


def _label(memory: tuple[int, str, int]) -> str:
    names = {"i": "the input", "o": "the output", "s": "scratch", "io": "the vector"}
    return f"{names.get(memory[1], memory[1])} of <gpu> {memory[0]}"


def _by_chunk(program: Program, step: Step) -> Iterator[tuple[int, list[tuple[str, int]], list[tuple[str, int]]]]:
    """A step chunk by chunk: index, memory read, memory written."""
    reads, writes = locations(program, step)
    for i in range(step.count):
        yield i, reads[i :: step.count], writes[i :: step.count]


def _overwritten_inputs(program: Program, ordered: Ordered) -> set[tuple[int, int]]:
    """(gpu, chunk of the vector) of outputs that cannot share the place of their input, out of place.

    They can as long as the output holds a copy of the input, or the input is no longer used.
    """
    if program.collective is Collective.ALL_TO_ALL:
        return set()
    shared, changed = 1, 2  # what the output holds: the input's content, something else
    state: dict[tuple[int, int], int] = {}
    apart = set()
    for step in ordered.steps:
        for _, reads, writes in _by_chunk(program, step):
            if step.type == "rrs":  # it may be combined in its own place
                writes = reads
            inputs = {(step.gpu, data_chunk(program, step.gpu, *end)) for end in reads + writes if end[0] == "i"}
            apart |= {key for key in inputs if state.get(key) == changed}
            for end in writes:
                key = (step.gpu, data_chunk(program, step.gpu, *end))
                if end[0] == "i" and state.get(key) == shared:
                    apart.add(key)
                elif end[0] == "o":
                    same = step.type == "cpy" and reads[0][0] == "i" and key in inputs
                    state[key] = shared if same and state.get(key, shared) == shared else changed
    return apart


def _dead_after(program: Program, ordered: Ordered) -> set[tuple[int, int]]:
    """(place in the order, index) of the chunks that ``rrs`` steps read for the last time before they are replaced."""
    at_end = {"s"} if program.in_place or program.collective is Collective.ALL_TO_ALL else {"s", "i"}
    following: dict[tuple[int, str, int], str] = {}
    dead = set()
    for k in range(len(ordered.steps) - 1, -1, -1):
        step = ordered.steps[k]
        for i, reads, writes in reversed(list(_by_chunk(program, step))):
            following.update({(step.gpu, *end): "write" for end in writes})
            for end in reads:
                use = following.get((step.gpu, *end), "write" if end[0] in at_end else "read")
                if step.type == "rrs" and use == "write":
                    dead.add((k, i))
                following[(step.gpu, *end)] = "read"
    return dead
