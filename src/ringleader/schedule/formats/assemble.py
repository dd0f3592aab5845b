"""From what happens in some order that an algorithm allows, to the steps of a schedule.

Formats of other libraries say *when* a step may run by what it waits for; a schedule says it by numbered steps, within
which everything reads the state before. `Assembler` is given the takes (a chunk is read) and puts (what was taken
arrives) one after the other, in an order that keeps all waits. Their dependencies are difference constraints between
steps,

- read after write, write after write: at least one step later;
- write after read: not earlier (the reader sees the state before the step);
- a message: taken and put in the same step;

and the least solution is the schedule. Two ranks that exchange chunks make a cycle of the last two kinds, which is a
common step. A cycle with a "later" in it means that a message must be under way while its source changes, as it may be
where messages are buffered: it is then put into scratch of its receiver, and from there into its destination.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ringleader.errors import InternalError, ScheduleError
from ringleader.schedule import TRANSFER_DTYPE, Buffer, Collective, Schedule

__all__ = ["Assembler", "Place", "Taken", "components"]

MAX_CHANNEL = int(np.iinfo(np.int16).max)


class Place(NamedTuple):
    """A chunk of one of a schedule's buffers, on one rank."""

    rank: int
    buffer: int
    chunk: int


class Taken(NamedTuple):
    """What `Assembler.take` read: the transfer that carries it, and which part of its block it is (its index there)."""

    transfer: int
    part: int


@dataclass(slots=True)
class _Cell:
    """What is known of a place: who wrote it last and who has read that, as transfers."""

    part: int  # index of the content within its block; -1: nothing is there
    writer: int = -1  # transfer; -1: there from the start
    reduced: bool = False  # by a reduce
    readers: list[int] = field(default_factory=list)


class Assembler:
    """Collects takes and puts and makes a `Schedule` of them.

    Examples
    --------
    Two ranks exchange their data, each message being taken before the other arrives:

    >>> a = Assembler("all_reduce", n=2, chunks=1)
    >>> a.fill(Place(0, 0, 0), 0); a.fill(Place(1, 0, 0), 0)
    >>> to_right, to_left = a.take(Place(0, 0, 0)), a.take(Place(1, 0, 0))
    >>> a.put(to_right, Place(1, 0, 0), reduce=True)
    >>> a.put(to_left, Place(0, 0, 0), reduce=True)
    >>> a.build()
    <Schedule: all_reduce, n=2, chunks=1, steps=1, transfers=2, channels=1>
    """

    def __init__(self, collective: Collective | str, n: int, chunks: int, root: int = 0) -> None:
        self._empty = Schedule.empty(collective, n, chunks, root)
        self._cells: dict[Place, _Cell] = {}
        self._source: list[Place] = []
        self._target: list[Place | None] = []
        self._reduce: list[bool] = []
        self._channel: list[int] = []
        self._edges: list[tuple[int, int, int]] = []  # of nodes: 2 t is transfer t taken, 2 t + 1 is it put
        self._runs: list[tuple[int, int]] = []  # puts that reduce into one place, one directly after the other
        self._scratch = [0] * n

    def scratch(self, rank: int) -> Place:
        """A scratch chunk of `rank` that nothing else uses."""
        self._scratch[rank] += 1
        return Place(rank, int(Buffer.SCRATCH), self._scratch[rank] - 1)

    def fill(self, place: Place, part: int) -> None:
        """Say that a place holds something from the start, with this index within its block."""
        self._cells[place] = _Cell(part)

    def part(self, place: Place) -> int:
        """The index within its block of what a place holds; -1 if it holds nothing."""
        cell = self._cell(place)
        return -1 if cell is None else cell.part

    def take(self, place: Place) -> Taken:
        """Read a place that holds something."""
        cell = self._cell(place)
        assert cell is not None
        transfer = len(self._source)
        self._source.append(place)
        self._target.append(None)
        self._reduce.append(False)
        self._channel.append(0)
        if cell.writer >= 0:
            self._edges.append((2 * cell.writer + 1, 2 * transfer, 1))
        cell.readers.append(transfer)
        return Taken(transfer, cell.part)

    def put(self, taken: Taken, place: Place, reduce: bool = False, channel: int = 0) -> None:
        """Let what was taken arrive at a place: replacing what is there, or (`reduce`) combined with it."""
        transfer = taken.transfer
        assert self._target[transfer] is None
        self._target[transfer], self._reduce[transfer], self._channel[transfer] = place, reduce, channel
        cell = self._cell(place)
        if cell is None:
            cell = _Cell(-1)
        put = 2 * transfer + 1
        # Reduces that follow each other with nobody reading in between may share a step.
        together = reduce and cell.reduced and not cell.readers
        if cell.writer >= 0:
            self._edges.append((2 * cell.writer + 1, put, 0 if together else 1))
            if together:
                self._runs.append((2 * cell.writer + 1, put))
        self._edges += [(2 * reader, put, 0) for reader in cell.readers if reader != transfer]
        self._cells[place] = _Cell(cell.part if reduce and cell.part >= 0 else taken.part, transfer, reduce)

    def _cell(self, place: Place) -> _Cell | None:
        return self._cells.get(place)

    # ------------------------------------------------------------------------------------------------------- steps

    def build(self, name: str = "", together: bool = False) -> Schedule:
        """The schedule of all that was taken and put.

        Parameters
        ----------
        together
            Reduces that follow each other into one place without anybody reading it in between share a step, wherever
            that is possible: their fold then is in the order of ranks, on all ranks alike. Otherwise each happens as
            early as it can.

        Raises
        ------
        ScheduleError
            If there are too many channels.
        """
        count = len(self._source)
        if max(self._channel, default=0) > MAX_CHANNEL:
            raise ScheduleError(f"channel {max(self._channel)} is used; a schedule has at most {MAX_CHANNEL + 1}")
        buffered = bytearray(count)  # 1: through scratch of the receiver
        runs = self._runs if together else []
        while True:
            levels, component, impossible = self._levels(buffered, runs)
            if not impossible:
                break
            kept = [(a, b) for a, b in runs if component[a] != component[b] or component[a] not in impossible]
            if len(kept) == len(runs):
                for t in self._hasty(buffered, component, impossible):
                    buffered[t] = 1
            runs = kept
        rows = []
        for t, (source, target) in enumerate(zip(self._source, self._target, strict=True)):
            assert target is not None  # whatever is taken is put
            first, second = levels[2 * t], levels[2 * t + 1]
            if buffered[t]:
                between = self.scratch(target.rank)
                rows.append(_row(first, source, between, False, self._channel[t]))
                rows.append(_row(second, between, target, self._reduce[t], 0))
            else:
                rows.append(_row(first, source, target, self._reduce[t], self._channel[t]))
        base = self._empty
        table = _joined(np.array(rows, TRANSFER_DTYPE))
        return Schedule(base.collective, base.n, base.chunks, table, base.root, name)

    def _hasty(self, buffered: bytearray, component: list[int], impossible: set[int]) -> set[int]:
        """Messages of impossible components whose source is overwritten there: those cannot be taken when they are put.

        Takes and puts come in an order that is possible with all messages buffered, so there always are some.
        """
        found = set()
        for u, v, _ in self._edges:
            t = u // 2
            inside = component[u] == component[v] and component[u] in impossible
            if inside and u == 2 * t and not buffered[t] and self._is_message(t):
                found.add(t)
        if not found:
            raise InternalError(f"{self._empty!r}: the order of transfers contradicts itself")
        return found

    def _levels(self, buffered: bytearray, runs: list[tuple[int, int]]) -> tuple[list[int], list[int], set[int]]:
        """Step and component of each node, and the components whose constraints contradict each other."""
        count = len(self._source)
        ahead: list[list[tuple[int, int]]] = [[] for _ in range(2 * count)]
        for u, v, weight in self._edges:
            ahead[u].append((v, weight))
        for earlier, later in runs:
            ahead[later].append((earlier, 0))
        for t in range(count):
            ahead[2 * t].append((2 * t + 1, int(buffered[t])))
            if not buffered[t]:
                ahead[2 * t + 1].append((2 * t, 0))
        order = components(2 * count, lambda node: [v for v, _ in ahead[node]])
        component = [0] * (2 * count)
        for index, nodes in enumerate(order):
            for node in nodes:
                component[node] = index
        impossible: set[int] = set()
        levels = [0] * (2 * count)
        for nodes in reversed(order):  # sources first
            here = component[nodes[0]]
            if any(weight and component[v] == here for u in nodes for v, weight in ahead[u]):
                impossible.add(here)
            level = max(levels[node] for node in nodes)
            for u in nodes:
                levels[u] = level
                for v, weight in ahead[u]:
                    levels[v] = max(levels[v], level + weight)
        return levels, component, impossible

    def _is_message(self, transfer: int) -> bool:
        target = self._target[transfer]
        return target is not None and target.rank != self._source[transfer].rank


def components(count: int, successors: Callable[[int], list[int]]) -> list[list[int]]:
    """Strongly connected components of a graph, those that lead to others after them in the list (Tarjan 1972).

    Examples
    --------
    >>> components(3, lambda node: [[1], [0, 2], []][node])
    [[2], [1, 0]]
    """
    number = [0] * count  # in order of discovery, from 1
    low = [0] * count
    on_stack = bytearray(count)
    stack: list[int] = []
    found: list[list[int]] = []
    clock = 0
    for start in range(count):
        if number[start]:
            continue
        work: list[tuple[int, list[int]]] = []
        node = start
        while True:
            if not number[node]:
                clock += 1
                number[node] = low[node] = clock
                stack.append(node)
                on_stack[node] = 1
                work.append((node, list(successors(node))))
            node, rest = work[-1]
            if rest:
                following = rest.pop()
                if not number[following]:
                    node = following
                elif on_stack[following]:
                    low[node] = min(low[node], number[following])
                continue
            work.pop()
            if low[node] == number[node]:
                members = []
                while True:
                    member = stack.pop()
                    on_stack[member] = 0
                    members.append(member)
                    if member == node:
                        break
                found.append(members)
            if not work:
                break
            parent = work[-1][0]
            low[parent] = min(low[parent], low[node])
            node = parent
    return found


def _row(step: int, source: Place, target: Place, reduce: bool, channel: int) -> tuple[int, ...]:
    """One transfer, in the order of the table's fields."""
    return (
        step, source.rank, source.chunk, target.rank, target.chunk, 1, channel, source.buffer, target.buffer,
        int(reduce),
    )  # fmt: skip


_SORT = ("src_chunk", "reduce", "src_buffer", "dst_buffer", "channel", "dst_rank", "src_rank", "step")
_SAME = ("reduce", "src_buffer", "dst_buffer", "channel", "dst_rank", "src_rank", "step")


def _joined(table: NDArray[np.void]) -> NDArray[np.void]:
    """Transfers of neighbouring chunks put together into transfers of several."""
    if len(table) < 2:
        return table
    table = table[np.lexsort([table[name] for name in _SORT])]
    new = np.ones(len(table), bool)
    new[1:] = np.logical_or.reduce([table[name][1:] != table[name][:-1] for name in _SAME])
    for end in ("src_chunk", "dst_chunk"):
        new[1:] |= table[end][1:] != table[end][:-1] + 1
    starts = np.flatnonzero(new)
    result: NDArray[np.void] = table[starts]
    result["count"] = np.diff(starts, append=len(table))
    return result
