"""Communication that overlaps the next forward pass: in which order partitions go, how large they are, and what is
hidden.

A parameter's new value is due when the next forward pass uses it. Forward stalls until it is there, and a stall delays
everything after it, so the step is longer by the largest lateness of any parameter. The least largest lateness on one
channel, with release times (gradients become ready) and due times, is what *earliest due first* achieves if transfers
can be interrupted at any moment (Jackson's rule; Horn 1974): front layers first. Partitions can be overtaken at their
borders only: smaller ones are nearer to the optimum, larger ones cost less overhead.

Ranks must start their collectives in one order. So the order is not decided at run time, when each rank would see other
gradients ready, but planned: the order in which the simulation starts the partitions is that of every rank.

What is not in the model: that computing is slower beside communication, and the time of the optimizer.

References
----------
A. Jayarajan, J. Wei, G. Gibson, A. Fedorova, G. Pekhimenko: Priority-based Parameter Propagation for Distributed DNN
Training, MLSys 2019. Y. Peng, Y. Zhu, Y. Chen, Y. Bao, B. Yi, C. Lan, C. Wu, C. Guo: A Generic Communication Scheduler
for Distributed DNN Training Acceleration, SOSP 2019. W. A. Horn: Some Simple Scheduling Algorithms, Naval Research
Logistics Quarterly 21, 1974.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ringleader.errors import InvalidArgument
from ringleader.overlap.cost import CostCurve
from ringleader.overlap.partitions import Launcher, Partition, partition
from ringleader.overlap.timeline import Timeline, nanoseconds

__all__ = ["Played", "PriorityPlan", "plan_priority", "preemptive_bound", "simulate_priority"]

KIB, MIB = 1 << 10, 1 << 20
_SIZES = tuple(int(16 * 2 ** (k / 4)) * 4 * KIB for k in range(35))  # 64 KiB to 23 MiB, four to an octave
_IN_FLIGHT = (1, 2, 4)
_MOST_PARTITIONS = 4096


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
    overtaken. Of the partitions whose tensors are all ready the one with the lowest priority number is started, as long
    as no more than `credit` bytes are started and not done (one always may be). After a transfer that leaves nothing
    started behind it, the channel idles for `gap` seconds: that long it takes to notice and to start the next.

    Parameters
    ----------
    timeline
        When gradients are ready and needed.
    partitions
        Of its tensors.
    cost, overhead
        Of one transfer; `overhead` in seconds of the channel.
    credit
        Bytes; default: one partition at a time.
    gap
        Seconds.
    order
        Start the partitions in this order instead, each when it is ready: what `Launcher` does.

    Examples
    --------
    >>> line = Timeline(["b", "a"], [100, 100], [1.0, 2.0], [1.0, 0.0], backward_end=2.0, forward=2.0)
    >>> parts = partition(line.nbytes, line.needed, 100, align=1)
    >>> played = simulate_priority(line, parts, CostCurve.affine(0.0, 0.01))
    >>> played.order, played.exposed  # b goes first, nothing else is ready; a's second is exposed
    ((1, 0), 1.0)
    """
    ready = nanoseconds(timeline.ready)
    when = [int(ready[list(part.tensors)].max()) for part in partitions]
    lengths = cost.nanoseconds([part.nbytes for part in partitions]) + nanoseconds(overhead)
    ahead = max((part.nbytes for part in partitions), default=0) if credit is None else credit
    next_of = _by_priority(partitions, ahead) if order is None else _by_order(partitions, order, ahead)
    start, end, started = _run(when, lengths, int(nanoseconds(gap)), next_of)
    due = nanoseconds(timeline.backward_end + timeline.needed)
    late = max((int(end[k] - due[list(part.tensors)].min()) for k, part in enumerate(partitions)), default=0)
    return Played(tuple(started), start / 1e9, end / 1e9, max(0, late) / 1e9)


Next = Callable[[list[int], list[int]], list[int]]
"""Given the partitions that have become ready and those that are done: the ones to start, in order."""


def _by_priority(partitions: Sequence[Partition], credit: int) -> Next:
    waiting: list[tuple[float, int]] = []
    held = 0

    def choose(ready: list[int], done: list[int]) -> list[int]:
        nonlocal held
        held -= sum(partitions[number].nbytes for number in done)
        for number in ready:
            heapq.heappush(waiting, (partitions[number].priority, number))
        chosen = []
        while waiting and (not held or held + partitions[waiting[0][1]].nbytes <= credit):
            chosen.append(heapq.heappop(waiting)[1])
            held += partitions[chosen[-1]].nbytes
        return chosen

    return choose


def _by_order(partitions: Sequence[Partition], order: Sequence[int], credit: int) -> Next:
    pending, arrived, held = deque(order), set[int](), 0

    def choose(ready: list[int], done: list[int]) -> list[int]:
        nonlocal held
        held -= sum(partitions[number].nbytes for number in done)
        arrived.update(ready)
        chosen = []
        while pending and pending[0] in arrived and (not held or held + partitions[pending[0]].nbytes <= credit):
            chosen.append(pending.popleft())
            held += partitions[chosen[-1]].nbytes
        return chosen

    return choose


def _run(
    when: Sequence[int], lengths: NDArray[np.int64], gap: int, choose: Next
) -> tuple[NDArray[np.int64], NDArray[np.int64], list[int]]:
    """The events: partitions become ready (`when`), transfers end; start and end of each, and the order of starts."""
    start, end = np.zeros(len(when), np.int64), np.zeros(len(when), np.int64)
    coming = deque(sorted(range(len(when)), key=lambda number: (when[number], number)))
    flying: deque[int] = deque()
    started: list[int] = []
    free = 0  # when the channel can begin the next transfer
    while coming or flying:
        now = min(([when[coming[0]]] if coming else []) + ([int(end[flying[0]])] if flying else []))
        ready, done = [], []
        while coming and when[coming[0]] <= now:
            ready.append(coming.popleft())
        while flying and end[flying[0]] <= now:
            done.append(flying.popleft())
            if not flying:
                free = now + gap
        for number in choose(ready, done):
            start[number] = max(now, free)
            end[number] = free = int(start[number] + lengths[number])
            flying.append(number)
            started.append(number)
    return start, end, started


def preemptive_bound(timeline: Timeline, cost: CostCurve) -> float:
    """Exposed seconds that no partitions in any order can go below.

    Every byte is given the least time that a byte takes in an all-reduce of any size up to all of them, and transfers
    may be interrupted anywhere: earliest due first is then optimal. It is at least ``max(0, communication -
    computing)``, and usually more: what is ready last is due first.

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
    left = (_seconds_per_byte(timeline, cost) * timeline.nbytes).tolist()
    due = (timeline.backward_end + timeline.needed).tolist()
    waiting: list[tuple[float, int]] = []
    now = late = 0.0
    for index, ready in enumerate(timeline.ready.tolist()):
        now = max(now, ready)
        heapq.heappush(waiting, (due[index], index))
        until = float(timeline.ready[index + 1]) if index + 1 < len(timeline) else np.inf
        while waiting and now < until:
            number = waiting[0][1]
            step = min(left[number], until - now)
            now, left[number] = now + step, left[number] - step
            if left[number] <= 1e-15:
                heapq.heappop(waiting)
                late = max(late, now - due[number])
    return late


def _seconds_per_byte(timeline: Timeline, cost: CostCurve) -> float:
    """The least over all sizes. Between knots the cost is linear, so time per byte has no minimum inside."""
    sizes = [size for size in cost.sizes if 0 < size < timeline.total] + [timeline.total]
    return min(cost(size) / size for size in sizes)


@dataclass(frozen=True, eq=False)
class PriorityPlan:
    """Partitions and their order, and what they are expected to do.

    Attributes
    ----------
    timeline
        What the plan was made from.
    partitions
        By rising priority; tensors are indices into the timeline.
    order
        Numbers of the partitions in the order in which every rank starts them.
    size, credit
        Bytes of a partition, and bytes in flight, at most.
    exposed
        Seconds that backward and next forward take longer than without communication.
    yardstick
        ``max(0, communication - computing)``: all bytes in all-reduces of the best size, against backward and forward.
    bound
        See `preemptive_bound`.
    compared
        Exposed seconds of other ways: the same partitions in the order of readiness, and forward waiting for all.
    """

    timeline: Timeline
    partitions: tuple[Partition, ...]
    order: tuple[int, ...]
    size: int
    credit: int
    exposed: float
    yardstick: float
    bound: float
    compared: dict[str, float]

    def launcher(self) -> Launcher:
        """What says at run time which partitions to start; one for each step.

        Examples
        --------
        >>> line = Timeline(["b", "a"], [1 << 20, 1 << 16], [0.01, 0.02], [0.01, 0.0], backward_end=0.02, forward=0.02)
        >>> launcher = plan_priority(line, CostCurve.affine(1e-4, 1e-8)).launcher()
        >>> len(launcher.ready(0)) + len(launcher.ready(1)) > 0, launcher.finished
        (True, False)
        """
        return Launcher(self.partitions, self.order, self.credit)

    def table(self) -> str:
        """The plan in a few lines of text.

        Examples
        --------
        >>> line = Timeline(["b", "a"], [1 << 20, 1 << 16], [0.01, 0.02], [0.01, 0.0], backward_end=0.02, forward=0.02)
        >>> print(plan_priority(line, CostCurve.affine(1e-4, 1e-8)).table().splitlines()[0].partition(":")[0])
        13 partitions of at most 88.0 KiB, 1 in flight
        """
        from ringleader.overlap.render import priority_table

        return priority_table(self)


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
        Bytes of a partition to try. Those that make more than 4096 partitions are left out, unless it is the only one.
    in_flight
        Credits to try, in partitions.

    Returns
    -------
    PriorityPlan
        The one with the least exposed time; of equals the one with fewest partitions, then the smallest credit.

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
    if not timeline.total or not sizes or not in_flight:
        raise InvalidArgument(
            f"{timeline.total} bytes of gradients, {len(sizes)} sizes, {len(in_flight)} credits; expected at least one "
            "of each"
        )
    sizes = sorted(set(sizes))
    few = [size for size in sizes if timeline.total / size <= _MOST_PARTITIONS] or sizes[-1:]
    best: tuple[tuple[float, int, int], tuple[Partition, ...], Played, int] | None = None
    for number, size in enumerate(few):
        if number and few[number - 1] >= timeline.total:
            break
        parts = partition(timeline.nbytes, timeline.needed, size, align)
        for ahead in in_flight:
            played = simulate_priority(timeline, parts, cost, overhead, credit=ahead * size, gap=gap)
            key = (played.exposed, len(parts), ahead)
            if best is None or key < best[0]:
                best = (key, parts, played, size)
    assert best is not None
    key, parts, played, size = best
    by_readiness = sorted(range(len(parts)), key=lambda k: (max(parts[k].tensors), k))
    fifo = simulate_priority(timeline, parts, cost, overhead, credit=key[2] * size, gap=gap, order=by_readiness)
    compared = {
        "in the order of readiness": fifo.exposed,
        "forward waits for all": max(0.0, float(fifo.end.max()) - timeline.backward_end),
    }
    communication = timeline.total * _seconds_per_byte(timeline, cost)
    yardstick = max(0.0, communication - timeline.backward_end - timeline.forward)
    bound = preemptive_bound(timeline, cost)
    return PriorityPlan(timeline, parts, played.order, size, key[2] * size, played.exposed, yardstick, bound, compared)
