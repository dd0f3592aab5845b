"""Orders that keep waits, and races: what the readers of other libraries' algorithms share.

Things that happen are numbered; `before[k]` are those that k waits for. Threads are sequences of them, each waiting for
the one before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ringleader.errors import ScheduleError
from ringleader.schedule.formats.buffers import Memory

MAX_THREADS = 1024
"""Threads up to which a clock of `race` has an entry for each of them."""
MAX_KEPT = (1 << 23, 1 << 20)
"""Most entries of clocks that it keeps at one time, with few threads and with more: 32 MiB, and about 80."""
MAX_WORK = 1 << 24
"""Most entries that it goes through, with more threads."""

__all__ = ["MAX_KEPT", "MAX_THREADS", "MAX_WORK", "Uses", "cycle", "race", "sequence"]


class Uses(NamedTuple):
    """The memory that something reads, and that it writes."""

    reads: Sequence[Memory]
    writes: Sequence[Memory]


def sequence(before: Sequence[Sequence[int]]) -> list[int]:
    """An order that keeps all waits, breadth first; shorter than `before` if there is a cycle.

    Examples
    --------
    >>> sequence([[1], [], [0]])
    [1, 0, 2]
    """
    after: list[list[int]] = [[] for _ in before]
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
    return result


def cycle(before: Sequence[Sequence[int]], done: Sequence[int]) -> list[int]:
    """A cycle of waits, each waiting for the next, given what `sequence` could order.

    Examples
    --------
    >>> cycle([[1], [2], [1]], done=[])
    [1, 2]
    """
    left = set(range(len(before))) - set(done)
    number = min(left)
    seen: dict[int, int] = {}
    walk: list[int] = []
    while number not in seen:
        seen[number] = len(walk)
        walk.append(number)
        # What is left waits for something that is left.
        number = next(wait for wait in before[number] if wait in left)
    return walk[seen[number] :]


def race(
    order: Sequence[int],
    before: Sequence[Sequence[int]],
    threads: Sequence[int],
    uses: Callable[[int], Uses],
) -> tuple[int, int] | None:
    """Two uses of one memory, one of them a write, that the waits do not order: (later in `order`, earlier), or None.

    Everything's clock holds for each thread how many of its things are certain to be over. Clocks are dropped as soon
    as nobody needs them any more.

    Parameters
    ----------
    threads
        The thread of each, numbered from 0.

    Raises
    ------
    ScheduleError
        There are so many that following them would take much time or memory.

    References
    ----------
    L. Lamport: Time, clocks, and the ordering of events in a distributed system, CACM 21(7), 1978.
    """
    width = max(threads, default=0) + 1
    few = width <= MAX_THREADS
    counted = [0] * width
    index = []  # of each within its thread, from 1
    for thread in threads:
        counted[thread] += 1
        index.append(counted[thread])
    waiting = [0] * len(before)
    for waits in before:
        for wait in waits:
            waiting[wait] += 1
    clocks: dict[int, _Dense | _Sparse] = {}
    history = _History()
    kept = work = 0
    for number in order:
        clock: _Dense | _Sparse = _Dense(width) if few else _Sparse()
        for wait in before[number]:
            other = clocks[wait]
            clock.merge(other)
            waiting[wait] -= 1
            if not waiting[wait]:
                del clocks[wait]
                kept -= len(other)
        for earlier in history.add(number, uses(number)):
            if clock.of(threads[earlier]) < index[earlier]:
                return number, earlier
        clock.set(threads[number], index[number])
        work += 0 if few else len(clock) * (1 + len(before[number]))
        if waiting[number]:
            clocks[number] = clock
            kept += len(clock)
        if kept > MAX_KEPT[not few] or work > MAX_WORK:
            raise ScheduleError(f"{len(order)} steps in {width} threads wait for each other in too many ways to follow")
    return None


class _Dense:
    """A clock with an entry for every thread."""

    def __init__(self, width: int) -> None:
        self._counts: NDArray[np.int32] = np.zeros(width, np.int32)

    def __len__(self) -> int:
        return len(self._counts)

    def merge(self, other: _Dense | _Sparse) -> None:
        """What is over for the other is over here."""
        assert isinstance(other, _Dense)
        np.maximum(self._counts, other._counts, out=self._counts)

    def of(self, thread: int) -> int:
        """How many things of a thread are over."""
        return int(self._counts[thread])

    def set(self, thread: int, count: int) -> None:
        """So many things of a thread are over."""
        self._counts[thread] = count


class _Sparse:
    """A clock with entries for the threads of which something is over: of thousands, few matter to each."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def merge(self, other: _Dense | _Sparse) -> None:
        """What is over for the other is over here."""
        assert isinstance(other, _Sparse)
        mine = self._counts
        for thread, count in other._counts.items():
            if mine.get(thread, 0) < count:
                mine[thread] = count

    def of(self, thread: int) -> int:
        """How many things of a thread are over."""
        return self._counts.get(thread, 0)

    def set(self, thread: int, count: int) -> None:
        """So many things of a thread are over."""
        self._counts[thread] = count


class _History:
    """Who wrote each memory last, and who has read that since."""

    def __init__(self) -> None:
        self.written: dict[Memory, int] = {}
        self.read: dict[Memory, list[int]] = {}

    def add(self, number: int, uses: Uses) -> list[int]:
        """Note what `number` uses; returns those that it must come after."""
        earlier = []
        for memory in uses.reads:
            if memory in self.written:
                earlier.append(self.written[memory])
            self.read.setdefault(memory, []).append(number)
        for memory in uses.writes:
            if memory in self.written:
                earlier.append(self.written[memory])
            earlier += self.read.pop(memory, ())
            self.written[memory] = number
        return [other for other in earlier if other != number]
