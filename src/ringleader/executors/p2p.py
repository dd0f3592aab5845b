"""What one rank does to run a schedule over messages: which to send and receive in each step, and how to combine.

Executors over a foreign message layer (MPI, ...) share it. `share_of` is pure and the same on all ranks; `execute` runs
a share over anything that exchanges messages. Chunks are never changed in place: a chunk's state is an array that a
step may replace, so a step reads the state before it without copying any.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ringleader.errors import InvalidArgument, ScheduleError
from ringleader.executors.arithmetic import PREMUL_SUM, dtype_of, fold
from ringleader.schedule import Buffer, Collective, Schedule, check_spec
from ringleader.schedule.algebra import expand
from ringleader.schedule.replay import Places, initial, required

__all__ = ["Message", "Messages", "Operand", "Share", "Step", "Write", "execute", "share_of"]

Array = NDArray[Any]
Index = NDArray[np.int64]

NOBODY = 1 << 40  # lowest contributing rank of an empty chunk
MANY = 1 << 40  # contributions are counted up to here, above every number of ranks
CACHED_TRANSFERS = 200_000  # of all schedules whose shares are kept


@dataclass(frozen=True)
class Message:
    """One message: chunks from `chunk` on in `buffer` of this rank, which sends them or receives into them.

    Attributes
    ----------
    peer
        The other rank.
    order
        Its number among all messages of the schedule from this sender to this receiver, from 0.
    channel
        The channel of the transfer.
    classes
        For each chunk the place within its block of the chunk whose size it has.
    """

    peer: int
    order: int
    channel: int
    buffer: int
    chunk: int
    classes: tuple[int, ...]


class Operand(NamedTuple):
    """A chunk's content: of this rank before the step (`message` is -1), or piece `chunk` of a received message."""

    message: int
    buffer: int
    chunk: int


@dataclass(frozen=True)
class Write:
    """A chunk of this rank becomes the left fold of `operands`.

    Attributes
    ----------
    raw
        Which operands are one rank's untouched contribution.
    complete
        The result holds all contributions.
    """

    buffer: int
    chunk: int
    operands: tuple[Operand, ...]
    raw: tuple[bool, ...]
    complete: bool


@dataclass(frozen=True)
class Step:
    """What a rank does in one step: all messages, then all writes."""

    sends: tuple[Message, ...]
    receives: tuple[Message, ...]
    writes: tuple[Write, ...]


@dataclass(frozen=True)
class Share:
    """A rank's share of a schedule; steps in which it has nothing to do are left out."""

    schedule: Schedule
    rank: int
    steps: tuple[Step, ...]


class Messages(Protocol):
    """What `execute` needs of a message layer."""

    def exchange(self, sends: Sequence[tuple[Message, Array]], receives: Sequence[tuple[Message, Array]]) -> None:
        """Start all messages (arrays are contiguous bytes), and return when all have been sent and received."""


_cache: OrderedDict[tuple[str, int], Share] = OrderedDict()
_lock = threading.Lock()


def share_of(schedule: Schedule, rank: int) -> Share:
    """A rank's share of a schedule, from a bounded cache if it is there.

    Raises
    ------
    InvalidArgument
        If there is no such rank.
    ScheduleError
        If the schedule breaks a rule of its form, a transfer reads a chunk that is not there, or the result lacks one;
        the same on every rank.

    Examples
    --------
    >>> from ringleader.algorithms import build
    >>> step, = share_of(build("all_reduce", "one_shot", 2), 0).steps
    >>> [message.peer for message in step.sends], [write.complete for write in step.writes]
    ([1], [True])
    """
    if not 0 <= rank < schedule.n:
        raise InvalidArgument(f"rank is {rank}; expected 0 to {schedule.n - 1}, as {schedule!r} has {schedule.n} ranks")
    key = (schedule.fingerprint, rank)
    with _lock:
        if key in _cache:
            _cache.move_to_end(key)
            return _cache[key]
    check_spec(schedule)
    share = _Compiler(schedule, rank).share()
    with _lock:
        _cache[key] = share
        while sum(it.schedule.transfers + 1 for it in _cache.values()) > CACHED_TRANSFERS and len(_cache) > 1:
            _cache.popitem(last=False)
    return share


class _Compiler:
    """Replays a schedule on what decides how chunks are combined, and notes what one rank does.

    Per location (a chunk of a rank's buffer): the lowest contributing rank, the number of contributions (0: empty) and
    the class of its size.
    """

    def __init__(self, schedule: Schedule, rank: int) -> None:
        self.schedule, self.rank = schedule, rank
        self.places = Places(schedule)
        self.low = np.full(self.places.total, NOBODY, np.int64)
        self.weight = np.zeros(self.places.total, np.int64)
        self.size_class = np.zeros(self.places.total, np.int64)
        place, contributor, chunk = initial(schedule, self.places)
        self.low[place], self.weight[place] = contributor, 1
        self.size_class[place] = chunk % schedule.chunks_per_block
        self.order: dict[tuple[int, int], int] = {}

    def share(self) -> Share:
        """Run through all steps."""
        table = self.schedule.table
        starts = np.flatnonzero(np.diff(table["step"], prepend=-1))
        steps = [self._step(table[start:end], int(start)) for start, end in pairwise([*starts, len(table)])]
        needed = required(self.schedule, self.places).place
        absent = needed[self.weight[needed] == 0]
        if len(absent):
            raise ScheduleError(f"{self.schedule!r} ends without {self.places.text(absent[0])}")
        return Share(self.schedule, self.rank, tuple(step for step in steps if step.sends or step.writes))

    def _step(self, rows: NDArray[np.void], first: int) -> Step:
        moves, origin = expand(rows)
        source = self.places.of(moves["src_rank"], moves["src_buffer"], moves["src_chunk"])
        target = self.places.of(moves["dst_rank"], moves["dst_buffer"], moves["dst_chunk"])
        low, weight, size_class = self.low[source], self.weight[source], self.size_class[source]
        if not weight.all():
            row = first + int(origin[np.argmin(weight)])
            raise ScheduleError(f"{self.schedule.describe(row)} reads a chunk that is not there")
        sends, receives, number = self._messages(rows, origin, size_class)
        found = self._operands(moves, origin, source, target, number)
        copies, reduces = moves["reduce"] == 0, moves["reduce"] != 0
        self.low[target[copies]], self.weight[target[copies]] = low[copies], weight[copies]
        np.minimum.at(self.low, target[reduces], low[reduces])
        np.add.at(self.weight, target[reduces], weight[reduces])
        self.weight[target] = np.minimum(self.weight[target], MANY)
        self.size_class[target] = size_class
        writes = []
        for move, operands in found.items():
            operands.sort(key=lambda entry: entry[0])  # stable: equal ones stay in the order of the table
            whole = bool(self.weight[target[move]] == self.schedule.n)
            buffer, chunk = int(moves["dst_buffer"][move]), int(moves["dst_chunk"][move])
            writes.append(Write(buffer, chunk, tuple(o for *_, o in operands), tuple(r for _, r, _ in operands), whole))
        return Step(sends, receives, tuple(writes))

    def _messages(
        self, rows: NDArray[np.void], origin: Index, size_class: Index
    ) -> tuple[tuple[Message, ...], tuple[Message, ...], dict[int, int]]:
        """This rank's messages, and which received one belongs to a row of the step."""
        sends: list[Message] = []
        receives: list[Message] = []
        number: dict[int, int] = {}
        mine = (rows["src_rank"] == self.rank) != (rows["dst_rank"] == self.rank)
        bounds = np.searchsorted(origin, np.arange(len(rows) + 1))
        for index in np.flatnonzero(mine).tolist():
            row = rows[index]
            pair = (int(row["src_rank"]), int(row["dst_rank"]))
            order = self.order.get(pair, 0)
            self.order[pair] = order + 1
            sending = pair[0] == self.rank
            end = "src" if sending else "dst"
            message = Message(
                pair[1] if sending else pair[0],
                order,
                int(row["channel"]),
                int(row[f"{end}_buffer"]),
                int(row[f"{end}_chunk"]),
                tuple(size_class[bounds[index] : bounds[index + 1]].tolist()),
            )
            if not sending:
                number[index] = len(receives)
            (sends if sending else receives).append(message)
        return tuple(sends), tuple(receives), number

    def _operands(
        self, moves: NDArray[np.void], origin: Index, source: Index, target: Index, number: dict[int, int]
    ) -> dict[int, list[tuple[int, bool, Operand]]]:
        """For each chunk of this rank that the step writes, by the first move into it: what goes into it.

        Each operand comes with its lowest contributor and whether it is a single contribution.
        """
        found: dict[int, list[tuple[int, bool, Operand]]] = {}
        first: dict[int, int] = {}  # move that is the first into a place
        for move in np.flatnonzero(moves["dst_rank"] == self.rank).tolist():
            at, place, row = int(source[move]), int(target[move]), int(origin[move])
            if row in number:
                operand = Operand(number[row], -1, move - int(np.searchsorted(origin, row)))
            else:
                operand = Operand(-1, int(moves["src_buffer"][move]), int(moves["src_chunk"][move]))
            operands = found.setdefault(first.setdefault(place, move), [])
            if moves["reduce"][move] and not operands and self.weight[place]:
                own = Operand(-1, int(moves["dst_buffer"][move]), int(moves["dst_chunk"][move]))
                operands.append((int(self.low[place]), bool(self.weight[place] == 1), own))
            operands.append((int(self.low[at]), bool(self.weight[at] == 1), operand))
        return found


def execute(
    share: Share,
    array: Array | None,
    count: int,
    dtype_code: int,
    op_code: int,
    factor: float,
    messages: Messages,
) -> Array | None:
    """Run one rank's share.

    Parameters
    ----------
    array
        This rank's input, flat, of NumPy type ``dtype_of(dtype_code)``, with sizes as in `reference.run`; None where
        the rank puts nothing in. Never written to.
    count
        Elements in one block (in the whole vector, if it is one block).
    messages
        Exchanges them with the other ranks, which run their shares.

    Returns
    -------
    numpy.ndarray or None
        The rank's result as `reference.run` returns it, in memory of its own.
    """
    memory = _Memory(share, array, count, dtype_code, op_code, factor)
    for step in share.steps:
        memory.step(step, messages)
    return memory.result()


class _Memory:
    """The chunks of one rank: (buffer, chunk) -> array; none is ever changed in place."""

    def __init__(
        self, share: Share, array: Array | None, count: int, dtype_code: int, op_code: int, factor: float
    ) -> None:
        self.schedule, self.rank, self.count = share.schedule, share.rank, count
        self.dtype, self.dtype_code, self.op_code, self.factor = dtype_of(dtype_code), dtype_code, op_code, factor
        m = self.schedule.chunks_per_block
        size, longer = divmod(count, m)
        self.sizes = [size + (index < longer) for index in range(m)]  # by class
        self.bounds = np.concatenate([[0], np.cumsum(self.sizes * self.schedule.blocks)]).tolist()
        self.chunks: dict[tuple[int, int], Array] = {}
        collective = self.schedule.collective
        if collective is Collective.BARRIER:
            self.chunks[Buffer.DATA, 0] = np.zeros(0, self.dtype)
        elif collective not in (Collective.BROADCAST, Collective.SCATTER) or self.rank == self.schedule.root:
            assert array is not None
            buffer = Buffer.INPUT if collective is Collective.ALL_TO_ALL else Buffer.DATA
            own = collective in (Collective.ALL_GATHER, Collective.GATHER)
            for chunk, place in self._layout(own):
                self.chunks[buffer, chunk] = array[place]
        if self.schedule.n == 1 and op_code == PREMUL_SUM:  # no fold will multiply the only contribution
            for at, value in self.chunks.items():
                self.chunks[at] = fold([value], [True], dtype_code, op_code, factor)

    def _layout(self, own_block: bool) -> list[tuple[int, slice]]:
        """Chunks of a vector of all blocks, or of this rank's block alone, and where they lie in it."""
        m = self.schedule.chunks_per_block
        first = self.rank * m if own_block else 0
        chunks = range(first, first + m) if own_block else range(self.schedule.chunks)
        shift = self.bounds[first]
        return [(chunk, slice(self.bounds[chunk] - shift, self.bounds[chunk + 1] - shift)) for chunk in chunks]

    def step(self, step: Step, messages: Messages) -> None:
        """All messages, then all writes, from the state before the step."""
        sends = [(message, self._packed(message)) for message in step.sends]
        receives = [
            (message, np.empty(sum(self.sizes[k] for k in message.classes), self.dtype)) for message in step.receives
        ]
        if sends or receives:
            messages.exchange(sends, receives)
        pieces = [self._pieces(message, received) for message, received in receives]
        new = {}
        for write in step.writes:
            values = [
                self.chunks[it.buffer, it.chunk] if it.message < 0 else pieces[it.message][it.chunk]
                for it in write.operands
            ]
            if len(values) > 1 and self.schedule.collective is not Collective.BARRIER:
                divide_by = self.schedule.n if write.complete else 0
                values = [fold(values, write.raw, self.dtype_code, self.op_code, self.factor, divide_by)]
            new[write.buffer, write.chunk] = values[0]
        self.chunks.update(new)

    def _packed(self, message: Message) -> Array:
        chunks = range(message.chunk, message.chunk + len(message.classes))
        values = [self.chunks[message.buffer, chunk] for chunk in chunks]
        return np.ascontiguousarray(values[0]) if len(values) == 1 else np.concatenate(values)

    def _pieces(self, message: Message, received: Array) -> list[Array]:
        return np.split(received, np.cumsum([self.sizes[k] for k in message.classes])[:-1])

    def result(self) -> Array | None:
        """The rank's output, collected from its chunks."""
        collective = self.schedule.collective
        rooted = collective in (Collective.REDUCE, Collective.GATHER)
        if collective is Collective.BARRIER or (rooted and self.rank != self.schedule.root):
            return None
        own = collective in (Collective.REDUCE_SCATTER, Collective.SCATTER)
        buffer = Buffer.OUTPUT if collective is Collective.ALL_TO_ALL else Buffer.DATA
        result: Array = np.empty(self.count * (1 if own else self.schedule.blocks), self.dtype)
        for chunk, place in self._layout(own):
            result[place] = self.chunks[buffer, chunk]
        return result
