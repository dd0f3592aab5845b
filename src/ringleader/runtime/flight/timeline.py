"""A job's time line from the recordings of all ranks: clocks aligned, who waited for whom, and a file for Perfetto.

Clocks are aligned by what was recorded anyway. No rank completes an all-reduce before every rank has entered it, so
each one bounds the difference of two hosts' clocks from both sides: with o added to the times of host h,

    end(h) + o >= begin(r)    and    end(r) >= begin(h) + o.

Of the lines o(t) = a + b t within all bounds the one in the middle is taken; what other lines within the bounds differ
from it at most is the uncertainty. (Duda et al., "Estimating global time in distributed systems", 1987, do the same
with messages.) A rank that always comes late leaves much room, so a group of several hosts that is traced begins with
some barriers, between which nobody computes.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringleader.runtime.flight.records import Operation, Recording

__all__ = ["Clock", "RankTime", "align", "summarize", "write_trace"]

# Operations that no rank completes before all have entered.
_SYNCHRONOUS = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
_MOST_DRIFT = 5e-4  # of quartz clocks that nothing disciplines: far below
_ITEMSIZES = {"bfloat16": 2, "bool": 1, "bytes": 1}

Bounds = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True)
class Clock:
    """How to get from a host's times to those of the reference host.

    Attributes
    ----------
    offset, drift
        Seconds to add at time `at`, and by how much that grows with each second.
    at
        A time of the host, seconds since 1970.
    uncertainty
        Seconds by which an aligned time may be off; None: nothing ties this host to the reference, so nothing is added.
    """

    offset: float
    drift: float
    at: float
    uncertainty: float | None

    def __call__(self, time: float) -> float:
        """The time on the reference host."""
        return time + self.offset + self.drift * (time - self.at)


@dataclass(frozen=True)
class RankTime:
    """What one rank did with its time.

    Attributes
    ----------
    rank
        Of the job.
    operations, nbytes
        Collectives, and the bytes of their data.
    span
        Seconds from its first operation to its last.
    inside, waiting
        Seconds in collectives, and of these until the last rank came.
    last, awaited
        How often it was the last to come, and for how many seconds the first to come waited for it then.
    aligned
        Whether its clock was.
    """

    rank: int
    operations: int
    nbytes: int
    span: float
    inside: float
    waiting: float
    last: int
    awaited: float
    aligned: bool


Key = tuple[str, int]  # communicator and number of an operation
Calls = dict[Key, dict[int, tuple[Recording, Operation]]]


def _calls(recordings: Iterable[Recording]) -> Calls:
    """By operation, who called it: rank of the communicator to its recording."""
    calls: Calls = defaultdict(dict)
    for recording in recordings:
        for operation in recording.operations:
            calls[recording.group, operation.number][recording.rank] = (recording, operation)
    return calls


def _bounds(calls: Calls) -> Mapping[tuple[str, str], Bounds]:
    """For each two hosts, at which time of the first how much must and may be added to get to the second."""
    found: dict[tuple[str, str], list[tuple[float, float, float]]] = defaultdict(list)
    for ranks in calls.values():
        times: dict[str, list[float]] = {}  # host: the last to begin, the first to end
        for recording, operation in ranks.values():
            if operation.kind not in _SYNCHRONOUS or operation.state != "done":
                continue
            if operation.begun is None or operation.ended is None:
                continue
            own = times.setdefault(recording.host, [operation.begun, operation.ended])
            own[:] = max(own[0], operation.begun), min(own[1], operation.ended)
        for one, (begun, ended) in times.items():
            for two, (begun2, ended2) in times.items():
                if one != two:
                    found[one, two].append((begun, begun2 - ended, ended2 - begun))
    return {hosts: tuple(np.array(each).T) for hosts, each in found.items()}


def _fit(bounds: Bounds) -> Clock:
    """The line in the middle of the bounds: where it has most room on both sides, and no slope without need."""
    times, least, most = bounds
    at = float(times[0])
    passed = times - at

    def between(drift: float) -> tuple[float, float]:
        """Least and greatest offset that go with a drift."""
        return float((least - drift * passed).max()), float((most - drift * passed).min())

    def room(drift: float) -> float:
        low, high = between(drift)
        return high - low

    # The room is a concave function of the drift: the least of some lines minus the greatest of others.
    low, high = -_MOST_DRIFT, _MOST_DRIFT
    for _ in range(60):
        one, two = low + (high - low) / 3, high - (high - low) / 3
        low, high = (one, high) if room(one) < room(two) else (low, two)
    best = (low + high) / 2
    drift = 0.0 if room(0.0) >= 0.5 * room(best) else best
    offset = sum(between(drift)) / 2
    # What other lines within the bounds say, at both ends.
    possible = [each for each in np.linspace(-_MOST_DRIFT, _MOST_DRIFT, 2001) if room(float(each)) >= 0]
    uncertainty = max(0.0, -room(drift))
    for after in (0.0, float(passed.max())):
        for other in (drift, best, *possible):
            low, high = between(float(other))
            if low <= high:
                at_end = offset + drift * after
                uncertainty = max(uncertainty, high + other * after - at_end, at_end - low - other * after)
    return Clock(offset, drift, at, float(uncertainty))


def align(recordings: Iterable[Recording]) -> dict[str, Clock]:
    """For each host, how its clock differs from that of the host of the lowest rank.

    Examples
    --------
    >>> import ringleader as rl
    >>> from ringleader.runtime.flight.timeline import align
    >>> with rl.init(rank=0, size=1) as comm:
    ...     comm.barrier()
    ...     [clock.uncertainty for clock in align([comm.recorded()]).values()]
    [0.0]
    """
    known = list(recordings)
    if not known:
        return {}
    reference = min(known, key=lambda each: each.members[each.rank]).host
    bounds = _bounds(_calls(known))
    clocks = {reference: Clock(0.0, 0.0, 0.0, 0.0)}
    waiting = deque([reference])
    while waiting:  # hosts that share no communicator with the reference, by way of others
        to = waiting.popleft()
        for one, two in bounds:
            if two != to or one in clocks:
                continue
            near, far = _fit(bounds[one, two]), clocks[to]
            shifted = near(near.at)
            clocks[one] = Clock(
                near.offset + far(shifted) - shifted,
                near.drift + far.drift * (1 + near.drift),
                near.at,
                (near.uncertainty or 0.0) + (far.uncertainty or 0.0),
            )
            waiting.append(one)
    return {host: clocks.get(host, Clock(0.0, 0.0, 0.0, None)) for host in sorted({each.host for each in known})}


@dataclass(frozen=True)
class _Slice:
    """One rank's part in a collective, in aligned times."""

    recording: Recording
    operation: Operation
    begun: float
    ended: float
    last: int  # rank of the communicator that came last
    came: float  # and when

    @property
    def waited(self) -> float:
        return max(0.0, min(self.came, self.ended) - self.begun)


def _slices(recordings: Sequence[Recording], clocks: Mapping[str, Clock]) -> Iterator[_Slice]:
    for (_, _), ranks in sorted(_calls(recordings).items()):
        begun = {
            rank: clocks[recording.host](operation.begun)
            for rank, (recording, operation) in ranks.items()
            if operation.begun is not None
        }
        if not begun:
            continue
        last = max(begun, key=lambda rank: begun[rank])
        for rank in begun:
            recording, operation = ranks[rank]
            ended = clocks[recording.host](recording.read if operation.ended is None else operation.ended)
            yield _Slice(recording, operation, begun[rank], ended, last, begun[last])


def _nbytes(operation: Operation, size: int) -> int:
    item = _ITEMSIZES.get(operation.dtype) or np.dtype(operation.dtype).itemsize
    blocks = size if operation.kind in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter") else 1
    return operation.count * item * blocks


def summarize(recordings: Iterable[Recording]) -> list[RankTime]:
    """What each rank did with its time, by rank of the job."""
    known = list(recordings)
    clocks = align(known)
    by_rank: dict[int, list[_Slice]] = defaultdict(list)
    last: dict[int, int] = defaultdict(int)
    awaited: dict[int, float] = defaultdict(float)
    longest: dict[tuple[str, int], _Slice] = {}
    for part in _slices(known, clocks):
        by_rank[part.recording.members[part.recording.rank]].append(part)
        key = part.recording.group, part.operation.number
        if key not in longest or part.waited > longest[key].waited:
            longest[key] = part
    for part in longest.values():
        late = part.recording.members[part.last]
        last[late] += 1
        awaited[late] += part.waited
    return [
        RankTime(
            rank=rank,
            operations=len(own),
            nbytes=sum(_nbytes(each.operation, each.recording.size) for each in own),
            span=max(each.ended for each in own) - min(each.begun for each in own),
            inside=sum(each.ended - each.begun for each in own),
            waiting=sum(each.waited for each in own),
            last=last[rank],
            awaited=awaited[rank],
            aligned=clocks[own[0].recording.host].uncertainty is not None,
        )
        for rank, own in sorted(by_rank.items())
    ]


def _events(recordings: Sequence[Recording], clocks: Mapping[str, Clock]) -> Iterator[dict[str, Any]]:
    """Chrome's trace events: a process for each rank of the job, a thread for each communicator."""
    start = min(
        (clocks[each.host](o.begun) for each in recordings for o in (*each.operations, *each.messages) if o.begun),
        default=0.0,
    )
    threads: dict[str, int] = {}
    for each in recordings:
        rank = each.members[each.rank]
        clock = clocks[each.host]
        about = "clock not aligned" if clock.uncertainty is None else f"clock within {clock.uncertainty * 1e6:.0f} us"
        name = f"rank {rank} (host {each.host}, pid {each.pid}; {about})"
        yield {"ph": "M", "pid": rank, "name": "process_name", "args": {"name": name}}
        yield {"ph": "M", "pid": rank, "name": "process_sort_index", "args": {"sort_index": rank}}
        thread = threads.setdefault(each.group, len(threads))
        yield {"ph": "M", "pid": rank, "tid": thread, "name": "thread_name", "args": {"name": each.group}}
        for number, message in enumerate(each.messages):
            if message.begun is None:
                continue
            ended = each.read if message.ended is None else message.ended
            common = {"cat": "message", "id": f"{rank}.{thread}.{number}", "pid": rank, "tid": thread}
            details = {"tag": message.tag, "bytes": message.count, "state": message.state, "site": message.site}
            title = f"{message.kind} {message.peer}"
            yield {**common, "ph": "b", "name": title, "ts": (clock(message.begun) - start) * 1e6, "args": details}
            yield {**common, "ph": "e", "name": title, "ts": (clock(ended) - start) * 1e6}
    for part in _slices(recordings, clocks):
        rank, operation = part.recording.members[part.recording.rank], part.operation
        place = {"ph": "X", "pid": rank, "tid": threads[part.recording.group]}
        facts: dict[str, Any] = {
            "number": operation.number, "type": operation.dtype, "shape": operation.shape, "op": operation.op,
            "bytes": _nbytes(operation, part.recording.size), "algorithm": operation.algorithm,
            "wire": operation.wire, "state": operation.state, "site": operation.site,
        }  # fmt: skip
        if operation.queued is not None and operation.begun is not None:
            facts["queued_us"] = (operation.begun - operation.queued) * 1e6
        begun = (part.begun - start) * 1e6
        took = (part.ended - part.begun) * 1e6
        yield {**place, "name": operation.kind, "cat": "collective", "ts": begun, "dur": took, "args": facts}
        if part.waited > 0:
            late = part.recording.members[part.last]
            title = f"waiting for rank {late}"
            yield {**place, "name": title, "cat": "waiting", "ts": begun, "dur": part.waited * 1e6}


def write_trace(recordings: Iterable[Recording], path: str | Path) -> int:
    """Write a file for ui.perfetto.dev (Chrome's JSON) of all ranks; returns how many events it has.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    known = list(recordings)
    clocks = align(known)
    count = 0
    with Path(path).open("w") as file:
        file.write('{"displayTimeUnit": "ns", "traceEvents": [\n')
        for count, event in enumerate(_events(known, clocks), 1):
            file.write((",\n" if count > 1 else "") + json.dumps(event))
        file.write("\n]}\n")
    return count
