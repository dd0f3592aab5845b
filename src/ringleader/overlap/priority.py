"""Communication that overlaps the next forward pass: partitions, their order, and how many bytes are in flight.

A parameter's new value is due when the next forward pass uses it. Forward stalls until it is there; each stall delays
everything after it, so the step is longer by the largest lateness of any parameter. Least largest lateness on one
channel, with release times (gradients become ready) and due times, is what *earliest due first* achieves if transfers
can be interrupted at any moment (Jackson's rule; Horn 1974). Partitions make them interruptible at their borders:
smaller ones are nearer to the optimum, larger ones cost less overhead.

Ranks must start their collectives in one order. So the order is not decided at run time, when each rank would see
other gradients ready, but planned: the order in which the simulation starts the partitions is the order in which every
rank starts them.

References
----------
A. Jayarajan, J. Wei, G. Gibson, A. Fedorova, G. Pekhimenko: Priority-based Parameter Propagation
for Distributed DNN Training, MLSys 2019. Y. Peng, Y. Zhu, Y. Chen, Y. Bao, B. Yi, C. Lan, C. Wu, C. Guo: A Generic
Communication Scheduler for Distributed DNN Training Acceleration, SOSP 2019. W. A. Horn: Some Simple Scheduling
Algorithms, Naval Research Logistics Quarterly 21, 1974.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ringleader.errors import InvalidArgument
from ringleader.overlap.cost import CostCurve
from ringleader.overlap.timeline import Timeline, nanoseconds

__all__ = [
    "Launcher",
    "Partition",
    "Piece",
    "Played",
    "PriorityPlan",
    "partition",
    "plan_priority",
    "preemptive_bound",
    "simulate_priority",
]

KIB, MIB = 1 << 10, 1 << 20
_SIZES = tuple(64 * KIB << k for k in range(9))
_IN_FLIGHT = (1, 2, 4)


@dataclass(frozen=True)
class Piece:
    """Bytes `start` to `stop` of the tensor with this index."""

    tensor: int
    start: int
    stop: int


@dataclass(frozen=True)
class Partition:
    """What one collective carries: pieces of one or more tensors. A lower `priority` number goes first."""

    pieces: tuple[Piece, ...]
    priority: float

    @property
    def nbytes(self) -> int:
        """Bytes of all pieces."""
        return sum(piece.stop - piece.start for piece in self.pieces)

    @property
    def tensors(self) -> tuple[int, ...]:
        """Indices of the tensors that it has pieces of."""
        return tuple(piece.tensor for piece in self.pieces)


def partition(
    nbytes: Sequence[int] | NDArray[np.int64], priorities: ArrayLike, size: int, align: int = 64
) -> tuple[Partition, ...]:
    """Cut tensors, lined up by priority, into partitions of about `size` bytes.

    Large tensors are cut into pieces; small neighbours share a partition, so that none is much smaller than `size`
    only because its tensor is.

    Parameters
    ----------
    nbytes
        Of each tensor.
    priorities
        The lowest goes first; equal ones by index.
    size
        Bytes of a partition; the last may be smaller.
    align
        Cuts within a tensor fall on multiples of so many bytes of it.

    Returns
    -------
    tuple of Partition
        By rising priority; together they hold every byte of every tensor once.

    Raises
    ------
    InvalidArgument
        `size` is less than `align`, or the lengths differ.

    Examples
    --------
    >>> for part in partition([100, 20, 300], [0.0, 1.0, 2.0], size=192):
    ...     print(part.nbytes, part.tensors)
    184 (0, 1, 2)
    192 (2,)
    44 (2,)
    """
    urgency = np.asarray(priorities, np.float64)
    if size < align or align < 1 or len(urgency) != len(nbytes):
        raise InvalidArgument(
            f"size is {size}, align {align}, {len(nbytes)} tensors have {len(urgency)} priorities; expected "
            "a size of at least align and a priority for each"
        )
    result: list[Partition] = []
    pieces: list[Piece] = []
    room = size

    def close() -> None:
        nonlocal room
        if pieces:
            result.append(Partition(tuple(pieces), float(min(urgency[piece.tensor] for piece in pieces))))
            pieces.clear()
        room = size

    for index in np.argsort(urgency, kind="stable").tolist():
        length, start = int(nbytes[index]), 0
        while start < length:
            stop = length if length - start <= room else start + room // align * align
            if stop > start:
                pieces.append(Piece(index, start, stop))
                room -= stop - start
            start = stop
            if start < length or room < align:
                close()
    close()
    return tuple(result)


@dataclass(frozen=True, eq=False)
class Played:
    """What a simulation found.

    Attributes
    ----------
    order
        Numbers of the partitions in the order in which they start.
    start, end
        When each partition's transfer starts and ends, in seconds after the start of backward, by number of partition.
    exposed
        Seconds that backward and next forward pass together take longer than without communication.
    """

    order: tuple[int, ...]
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    exposed: float


def simulate_priority(
    timeline: Timeline,
    partitions: Sequence[Partition],
    cost: CostCurve,
    overhead: float = 0.0,
    *,
    credit: int | None = None,
    gap: float = 0.0,
    order: Sequence[int] | None = None,
) -> Played:
    """Play a backward and the next forward pass.

    The channel sends one partition at a time, in the order in which they were started; a started one cannot be
    overtaken. Partitions are started by rising priority among those whose tensors are all ready, as long as no more
    than `credit` bytes are started and not done (always at least one). After a transfer that leaves nothing started
    behind it, the channel idles for `gap` seconds until the next one comes.

    Parameters
    ----------
    timeline
        When gradients are ready and needed.
    partitions
        Of its tensors.
    cost, overhead
        Of one transfer.
    credit
        Bytes; default: one partition at a time.
    gap
        Seconds to notice that a transfer is done and to start the next.
    order
        Start the partitions in this order instead, each when it is ready.

    Examples
    --------
    >>> line = Timeline(["b", "a"], [100, 100], [1.0, 2.0], [1.0, 0.0], backward_end=2.0, forward=2.0)
    >>> played = simulate_priority(line, partition(line.nbytes, line.needed, 100, align=1), CostCurve.affine(0.0, 0.01))
    >>> played.order, played.exposed  # b goes first, nothing else is ready; a's second is exposed
    ((1, 0), 1.0)
    """
    ready = nanoseconds(timeline.ready)
    due = nanoseconds(timeline.backward_end) + nanoseconds(timeline.needed)
    when = [int(max(ready[t] for t in part.tensors)) for part in partitions]
    lengths = [int(x) for x in cost.nanoseconds([part.nbytes for part in partitions]) + nanoseconds(overhead)]
    limit = max((part.nbytes for part in partitions), default=0) if credit is None else credit
    idle = int(nanoseconds(gap))
    rank = {number: place for place, number in enumerate(order)} if order is not None else {}
    coming = sorted(range(len(partitions)), key=lambda k: (rank.get(k, when[k]), partitions[k].priority, k))
    start, end = np.zeros(len(partitions), np.int64), np.zeros(len(partitions), np.int64)
    waiting: list[tuple[float, int]] = []
    flying: list[int] = []
    started: list[int] = []
    now = channel = at = held = 0
    while len(started) < len(partitions) or flying:
        while at < len(coming) and when[coming[at]] <= now:
            number = coming[at]
            heapq.heappush(waiting, (float(rank[number]) if rank else partitions[number].priority, number))
            at += 1
        while waiting and (not flying or held + partitions[waiting[0][1]].nbytes <= limit):
            number = heapq.heappop(waiting)[1]
            start[number] = max(now, channel)
            end[number] = channel = int(start[number]) + lengths[number]
            held += partitions[number].nbytes
            flying.append(number)
            started.append(number)
        events = [when[coming[at]]] if at < len(coming) and not (rank and flying and waiting) else []
        if flying:
            events.append(int(end[flying[0]]))
        now = max(now, min(events)) if events else now
        while flying and end[flying[0]] <= now:
            held -= partitions[flying.pop(0)].nbytes
            if not flying:
                channel = max(channel, now + idle)
    late = max((int(end[k]) - int(due[t]) for k, part in enumerate(partitions) for t in part.tensors), default=0)
    return Played(tuple(started), start / 1e9, end / 1e9, max(0, late) / 1e9)


def preemptive_bound(timeline: Timeline, cost: CostCurve) -> float:
    """Exposed seconds that no order can go below, if all gradients together cost one all-reduce of their bytes.

    Each tensor is given its share of that time by its bytes, and transfers may be interrupted anywhere: earliest due
    first is then optimal. It is at least ``max(0, communication - computing)`` and may be more: what is ready last is
    due first.

    References
    ----------
    W. A. Horn: Some Simple Scheduling Algorithms, Naval Research Logistics Quarterly 21, 1974.

    Examples
    --------
    >>> line = Timeline(["b", "a"], [100, 100], [1.0, 2.0], [1.0, 0.0], backward_end=2.0, forward=2.0)
    >>> preemptive_bound(line, CostCurve.affine(0.0, 0.01))
    1.0
    """
    if not timeline.total:
        return 0.0
    length = cost(timeline.total) * timeline.nbytes / timeline.total
    due = timeline.backward_end + timeline.needed
    waiting: list[tuple[float, int]] = []
    left, now, late = length.copy(), 0.0, 0.0
    for index in range(len(timeline)):
        now = max(now, float(timeline.ready[index]))
        heapq.heappush(waiting, (float(due[index]), index))
        until = float(timeline.ready[index + 1]) if index + 1 < len(timeline) else np.inf
        while waiting and now < until:
            number = waiting[0][1]
            step = min(float(left[number]), until - now)
            now, left[number] = now + step, left[number] - step
            if left[number] <= 1e-15:
                heapq.heappop(waiting)
                late = max(late, now - float(due[number]))
    return late


@dataclass(frozen=True, eq=False)
class PriorityPlan:
    """Partitions and their order, and what they are expected to do.

    Attributes
    ----------
    partitions
        By rising priority; tensors are indices into the timeline.
    order
        Numbers of the partitions in the order in which every rank starts them.
    size, credit
        Bytes of a partition, and bytes in flight at most.
    exposed
        Seconds that backward and next forward take longer than without communication.
    yardstick
        ``max(0, communication - computing)``: communication is one all-reduce of everything, computing backward and
        forward.
    bound
        `preemptive_bound`.
    """

    timeline: Timeline
    partitions: tuple[Partition, ...]
    order: tuple[int, ...]
    size: int
    credit: int
    exposed: float
    yardstick: float
    bound: float

    def launcher(self) -> Launcher:
        """What says at run time which partitions to start; one for each step."""
        return Launcher(self.partitions, self.order, self.credit)


def plan_priority(
    timeline: Timeline,
    cost: CostCurve,
    overhead: float = 0.0,
    *,
    gap: float = 0.0,
    sizes: Sequence[int] = _SIZES,
    in_flight: Sequence[int] = _IN_FLIGHT,
    align: int = 64,
) -> PriorityPlan:
    """Choose size of partitions and credit by simulation, and fix the order.

    Parameters
    ----------
    timeline, cost, overhead, gap, align
        As in `simulate_priority` and `partition`.
    sizes
        Bytes of a partition to try.
    in_flight
        Credits to try, in partitions.

    Returns
    -------
    PriorityPlan
        The one with the least exposed time; of equals the one with fewer partitions, then the smaller credit.

    Raises
    ------
    InvalidArgument
        An empty timeline, or nothing to try.

    Examples
    --------
    >>> line = Timeline(["b", "a"], [1 << 20, 1 << 16], [0.01, 0.02], [0.01, 0.0], backward_end=0.02, forward=0.02)
    >>> plan = plan_priority(line, CostCurve.affine(1e-4, 1e-8))
    >>> plan.exposed < 2e-3, plan.yardstick
    (True, 0.0)
    """
    if not len(timeline) or not sizes or not in_flight:
        raise InvalidArgument(
            f"{len(timeline)} gradients, {len(sizes)} sizes, {len(in_flight)} credits; expected at least one of each"
        )
    best: tuple[tuple[float, int, int], tuple[Partition, ...], Played, int] | None = None
    for size in sizes:
        parts = partition(timeline.nbytes, timeline.needed, size, align)
        for number in in_flight:
            played = simulate_priority(timeline, parts, cost, overhead, credit=number * size, gap=gap)
            key = (played.exposed, len(parts), number)
            if best is None or key < best[0]:
                best = (key, parts, played, size)
        if size >= timeline.total:
            break
    assert best is not None
    key, parts, played, size = best
    yardstick = max(0.0, cost(timeline.total) - timeline.backward_end - timeline.forward)
    return PriorityPlan(
        timeline, parts, played.order, size, key[2] * size, played.exposed, yardstick, preemptive_bound(timeline, cost)
    )


class Launcher:
    """Which partitions to start now: a plan's order, held to what is ready and to the credit.

    Nothing in it locks: one thread at a time may call it.

    Examples
    --------
    >>> parts = partition([100, 100], [0.0, 1.0], 100, align=1)
    >>> launcher = Launcher(parts, order=[1, 0], credit=100)
    >>> launcher.ready(0), launcher.ready(1)  # partition 1 comes first, 0 has to wait for credit
    ([], [1])
    >>> launcher.done(1), launcher.done(0), launcher.finished
    ([0], [], True)
    """

    def __init__(self, partitions: Sequence[Partition], order: Sequence[int], credit: int) -> None:
        self._partitions, self._order, self._credit = partitions, tuple(order), credit
        self._sizes = [part.nbytes for part in partitions]
        self._missing = [len(part.pieces) for part in partitions]
        self._of: dict[int, list[int]] = {}
        for number, part in enumerate(partitions):
            for tensor in part.tensors:
                self._of.setdefault(tensor, []).append(number)
        self._next = self._held = self._done = 0

    @property
    def finished(self) -> bool:
        """Whether all partitions are done."""
        return self._done == len(self._order)

    def ready(self, tensor: int) -> list[int]:
        """A tensor is ready: the partitions to start now, in order."""
        for number in self._of.pop(tensor, ()):
            self._missing[number] -= 1
        return self._start()

    def done(self, number: int) -> list[int]:
        """A partition is done: the partitions to start now, in order."""
        self._held -= self._sizes[number]
        self._done += 1
        return self._start()

    def _start(self) -> list[int]:
        started = []
        while self._next < len(self._order):
            number = self._order[self._next]
            if self._missing[number] or (self._held and self._held + self._sizes[number] > self._credit):
                break
            self._held += self._sizes[number]
            self._next += 1
            started.append(number)
        return started
