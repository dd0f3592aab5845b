"""Input, output and scratch of another library's algorithm, as places of a schedule.

A schedule has one vector, `data`, in place (an all_to_all has an input and an output). In place, the other library's
input and output are one memory too. Out of place they are two; they share a place of the schedule as long as that makes
no difference, and where it does, the output lives in scratch and is copied to its place at the end. A chunk whose
content has another index within its block than its place (and so perhaps another size) lives in scratch as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, NoReturn, Protocol

from ringleader.schedule import Buffer, Collective, Schedule
from ringleader.schedule.formats.assemble import Assembler, Place, Taken

__all__ = ["Access", "Buffers", "Memory", "Shape", "buffer_size", "label", "memory_of", "overwritten_inputs"]

_SHORT_INPUT = (Collective.ALL_GATHER, Collective.GATHER)  # a rank's input is one block, its output all of them
_SHORT_OUTPUT = (Collective.REDUCE_SCATTER, Collective.SCATTER)  # a rank's output is one block of its input
_AT_ROOT = (Collective.REDUCE, Collective.GATHER)


class Shape(Protocol):
    """What the meaning of a chunk's number depends on."""

    @property
    def collective(self) -> Collective: ...  # noqa: D102
    @property
    def n(self) -> int: ...  # noqa: D102
    @property
    def chunks(self) -> int: ...  # noqa: D102
    @property
    def root(self) -> int: ...  # noqa: D102
    @property
    def in_place(self) -> bool: ...  # noqa: D102


class Memory(NamedTuple):
    """A chunk of the other library: rank, buffer (i, o, s; io: input and output in place), number."""

    rank: int
    buffer: str
    chunk: int


class Access(NamedTuple):
    """What one thing that happens reads and writes, chunk by chunk in its order; `copies`: it is a plain copy."""

    reads: tuple[Memory, ...]
    writes: tuple[Memory, ...]
    copies: bool


def buffer_size(shape: Shape, buffer: str) -> int | None:
    """Chunks that the collective gives to a buffer of one rank; None: as many as one likes."""
    if buffer == "s":
        return None
    short = _SHORT_INPUT if buffer == "i" else _SHORT_OUTPUT
    return shape.chunks // shape.n if shape.collective in short else shape.chunks


def memory_of(shape: Shape, rank: int, buffer: str, chunk: int) -> Memory:
    """The name under which a chunk's memory is known."""
    if not shape.in_place or buffer == "s":
        return Memory(rank, buffer, chunk)
    return Memory(rank, "io", _data_chunk(shape, rank, buffer, chunk))


def label(memory: Memory) -> str:
    """A chunk in words."""
    names = {"i": "the input", "o": "the output", "s": "scratch", "io": "the vector"}
    return f"chunk {memory.chunk} of {names.get(memory.buffer, memory.buffer)} of rank {memory.rank}"


def _data_chunk(shape: Shape, rank: int, buffer: str, chunk: int) -> int:
    """The chunk of the schedule's vector that a chunk of the input or output is."""
    short = {"i": _SHORT_INPUT, "o": _SHORT_OUTPUT}.get(buffer, ())
    return chunk + (rank * (shape.chunks // shape.n) if shape.collective in short else 0)


class Buffers:
    """Where each chunk is at the moment, on an `Assembler` that is told of every move.

    Parameters
    ----------
    apart
        (rank, chunk of the vector) of outputs that cannot share the place of their input; see `overwritten_inputs`.
    """

    def __init__(self, shape: Shape, apart: Iterable[tuple[int, int]] = ()) -> None:
        self.shape = shape
        self.m = shape.chunks // (shape.n if shape.collective.blocked else 1)
        self.out = Assembler(shape.collective, shape.n, shape.chunks, shape.root)
        self.apart = frozenset(apart)
        self._where: dict[Memory, Place] = {}
        self._rooms: dict[tuple[Memory, int], Place] = {}  # scratch by memory and index within the block
        self._fill()

    def _fill(self) -> None:
        shape, collective = self.shape, self.shape.collective
        buffer = int(Buffer.INPUT if collective is Collective.ALL_TO_ALL else Buffer.DATA)
        for rank in range(shape.n):
            if collective in (Collective.BROADCAST, Collective.SCATTER) and rank != shape.root:
                continue
            for chunk in range(self.m if collective in _SHORT_INPUT else shape.chunks):
                place = Place(rank, buffer, _data_chunk(shape, rank, "i", chunk))
                self.out.fill(place, chunk % self.m)
                self._where[memory_of(shape, rank, "i", chunk)] = place

    def _home(self, memory: Memory) -> Place | None:
        """Where a chunk belongs; None: in scratch."""
        rank, buffer, chunk = memory
        if buffer not in ("i", "o", "io"):
            return None
        if self.shape.collective is Collective.ALL_TO_ALL:
            return Place(rank, int(Buffer.INPUT if buffer == "i" else Buffer.OUTPUT), chunk)
        chunk = _data_chunk(self.shape, rank, buffer, chunk)
        return None if buffer == "o" and (rank, chunk) in self.apart else Place(rank, int(Buffer.DATA), chunk)

    def at(self, memory: Memory, fail: Callable[[str], NoReturn]) -> Place:
        """Where a chunk is; `fail` is called with what is wrong if nothing has been put there."""
        place = self._where.get(memory)
        return fail(f"it reads {label(memory)}, which holds nothing yet") if place is None else place

    def put(self, taken: Taken, memory: Memory, channel: int = 0) -> None:
        """Let something arrive that replaces what the memory holds."""
        home = self._home(memory)
        if home is None or home.chunk % self.m != taken.part:
            key = (memory, taken.part)
            if key not in self._rooms:
                self._rooms[key] = self.out.scratch(memory.rank)
            home = self._rooms[key]
        self._where[memory] = home
        self.out.put(taken, home, channel=channel)

    def copy(self, source: Memory, target: Memory, fail: Callable[[str], NoReturn], channel: int = 0) -> None:
        """A copy; none if both names are the same place."""
        place = self.at(source, fail)
        if source == target:
            return
        if place == self._home(target):
            self._where[target] = place
        else:
            self.put(self.out.take(place), target, channel)

    def reduce(self, taken: Taken, memory: Memory, fail: Callable[[str], NoReturn], channel: int = 0) -> None:
        """Let something arrive that is combined with what the memory holds."""
        place = self.at(memory, fail)
        part = self.out.part(place)
        if part != taken.part:
            fail(f"it combines chunk {taken.part} of a block with chunk {part}, in {label(memory)}")
        self.out.put(taken, place, reduce=True, channel=channel)

    def finish(self, name: str, together: bool, fail: Callable[[str], NoReturn]) -> Schedule:
        """Copy results that are elsewhere to where the schedule promises them, and make the schedule."""
        shape, collective = self.shape, self.shape.collective
        buffer = int(Buffer.OUTPUT if collective is Collective.ALL_TO_ALL else Buffer.DATA)
        for rank in range(shape.n):
            if collective in _AT_ROOT and rank != shape.root:
                continue
            for chunk in range(self.m if collective in _SHORT_OUTPUT else shape.chunks):
                memory = memory_of(shape, rank, "o", chunk)
                home = Place(rank, buffer, _data_chunk(shape, rank, "o", chunk))
                place = self._where.get(memory)
                if place is None:
                    fail(f"{label(memory)} is never written")
                if place != home:
                    if self.out.part(place) != home.chunk % self.m:
                        fail(f"{label(memory)} ends with chunk {self.out.part(place)} of a block")
                    self.out.put(self.out.take(place), home)
        return self.out.build(name, together)


def overwritten_inputs(shape: Shape, accesses: Iterable[Access]) -> set[tuple[int, int]]:
    """(rank, chunk of the vector) of outputs that cannot share the place of their input.

    They can in place, and as long as the output holds a copy of the input, or the input is no longer used.
    """
    if shape.in_place or shape.collective is Collective.ALL_TO_ALL:
        return set()
    shared, changed = 1, 2  # what the output holds: the input's content, something else
    state: dict[tuple[int, int], int] = {}
    apart = set()

    def vector(memory: Memory) -> tuple[int, int]:
        return memory.rank, _data_chunk(shape, *memory)

    for reads, writes, copies in accesses:
        inputs = {vector(memory) for memory in (*reads, *writes) if memory.buffer == "i"}
        apart |= {key for key in inputs if state.get(key) == changed}
        for memory in writes:
            key = vector(memory)
            if memory.buffer == "i" and state.get(key) == shared:
                apart.add(key)
            elif memory.buffer == "o":
                same = copies and reads[0].buffer == "i" and key in inputs
                state[key] = shared if same and state.get(key, shared) == shared else changed
    return apart
