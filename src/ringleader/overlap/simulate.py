"""What happens when buckets are sent in their order, one after another, while the backward pass goes on.

The model
---------
One channel sends the buckets in order, one at a time. A bucket's transfer takes ``cost(its bytes)
+ overhead`` and starts when the channel is free and the bucket's last gradient is ready. Two things may take time away
from the backward pass: each bucket's launch on the computing thread (`launch` seconds), and a transfer in flight,
beside which computing needs `slowdown` times as long (ranks that compute on the cores that also communicate). Both
delay every gradient that is not ready yet. The step's backward part ends when the backward pass and the last transfer
have ended; what that is beyond the backward pass alone is *exposed*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ringleader.errors import InvalidArgument
from ringleader.overlap.cost import CostCurve
from ringleader.overlap.timeline import Timeline, nanoseconds

__all__ = ["Conditions", "Simulated", "fixed_buckets", "simulate"]

MIB = 1 << 20
Buckets = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Conditions:
    """What sending costs besides the transfer itself.

    Attributes
    ----------
    overhead
        Seconds that each bucket occupies the channel in addition to its cost.
    launch
        Seconds of the computing thread that starting a bucket takes.
    slowdown
        How many times as long computing takes while a bucket is in flight; 1: communication takes nothing from it.

    Examples
    --------
    >>> round(Conditions(slowdown=1.25).stolen, 3)
    0.2
    """

    overhead: float = 0.0
    launch: float = 0.0
    slowdown: float = 1.0

    def __post_init__(self) -> None:
        if not (0 <= self.overhead < 1e3 and 0 <= self.launch < 1e3 and 1 <= self.slowdown < 1e3):
            raise InvalidArgument(
                f"{self}; expected an overhead and a launch of 0 s or more and a slowdown of 1 or more"
            )

    @property
    def stolen(self) -> float:
        """Seconds that the backward pass loses per second of a transfer beside it."""
        return 1.0 - 1.0 / self.slowdown

    @property
    def free(self) -> bool:
        """Whether communication takes no time from computing."""
        return self.launch == 0 and self.slowdown == 1


@dataclass(frozen=True, eq=False)
class Simulated:
    """A step's backward part.

    Attributes
    ----------
    buckets
        Indices into the timeline.
    start, end
        When each bucket's transfer starts and ends, in seconds after the start of backward.
    backward
        When the backward pass ends; later than the timeline's where communication takes time from it.
    finish
        When both have ended.
    exposed
        `finish` minus the timeline's `backward_end`: what the step is longer than without communication.
    """

    buckets: tuple[tuple[int, ...], ...]
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    backward: float
    finish: float
    exposed: float

    @property
    def communication(self) -> float:
        """Seconds during which the channel is busy."""
        return float((self.end - self.start).sum())


def simulate(timeline: Timeline, buckets: Buckets, cost: CostCurve, conditions: Conditions | None = None) -> Simulated:
    """Play one backward pass.

    Parameters
    ----------
    timeline
        When gradients are ready.
    buckets
        Indices into the timeline, each exactly once; buckets are sent in this order.
    cost
        Of one all-reduce.
    conditions
        Default: nothing but the transfers costs anything.

    Raises
    ------
    InvalidArgument
        The buckets are no partition of the gradients.

    Examples
    --------
    >>> line = Timeline(["c", "b", "a"], [100, 100, 100], [1.0, 2.0, 3.0])
    >>> played = simulate(line, [[0], [1, 2]], CostCurve.affine(0.5, 0.01))
    >>> played.start.tolist(), played.end.tolist(), played.exposed
    ([1.0, 3.0], [2.5, 5.5], 2.5)
    """
    given = tuple(tuple(int(i) for i in bucket) for bucket in buckets)
    if sorted(i for bucket in given for i in bucket) != list(range(len(timeline))) or not all(given):
        raise InvalidArgument(
            f"buckets {str(given)[:80]} are no partition of 0 to {len(timeline) - 1}; expected each index once"
        )
    conditions = conditions or Conditions()
    ready, end_of_compute = nanoseconds(timeline.ready), int(nanoseconds(timeline.backward_end))
    overhead, launch = int(nanoseconds(conditions.overhead)), int(nanoseconds(conditions.launch))
    free = delay = 0
    spans = []
    for bucket in given:
        length = int(cost.nanoseconds(int(timeline.nbytes[list(bucket)].sum()))) + overhead
        delay += launch
        start = max(free, int(ready[list(bucket)].max()) + delay)
        free = start + length
        delay += round(length * conditions.stolen)
        spans.append((start, free))
    # All transfers are over before the backward pass ends: it is as late as they made it. Else the last transfer ends
    # the step.
    finish = max(free, end_of_compute + delay)
    backward = min(_backward_end(end_of_compute + launch * len(given), spans, conditions.slowdown), finish)
    times = np.array(spans, np.float64).reshape(-1, 2) / 1e9
    return Simulated(given, times[:, 0], times[:, 1], backward / 1e9, finish / 1e9, (finish - end_of_compute) / 1e9)


def _backward_end(end: int, spans: list[tuple[int, int]], slowdown: float) -> int:
    """When a backward pass ends that would end at `end` beside no transfer."""
    for start, stop in spans:
        if start >= end:
            break
        stretched = start + round((end - start) * slowdown)
        if stretched <= stop:
            return stretched
        end += round((stop - start) * (1 - 1 / slowdown))
    return end


def fixed_buckets(
    nbytes: Sequence[int] | NDArray[np.int64], cap_bytes: int = 25 * MIB, first_cap_bytes: int = MIB
) -> tuple[tuple[int, ...], ...]:
    """Buckets of a fixed size, as DistributedDataParallel makes them: a bucket is closed by the gradient that brings
    it to the cap.

    Parameters
    ----------
    nbytes
        Sizes in order of readiness.
    cap_bytes, first_cap_bytes
        The cap of all buckets but the first, and of the first.

    References
    ----------
    S. Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 13(12), 2020.

    Examples
    --------
    >>> fixed_buckets([10, 10, 10, 10, 10], cap_bytes=20, first_cap_bytes=10)
    ((0,), (1, 2), (3, 4))
    """
    if cap_bytes < 1 or first_cap_bytes < 1:
        raise InvalidArgument(f"caps are {cap_bytes} and {first_cap_bytes} bytes; expected at least 1")
    buckets: list[tuple[int, ...]] = []
    bucket: list[int] = []
    held = 0
    for index, size in enumerate(nbytes):
        bucket.append(index)
        held += int(size)
        if held >= (cap_bytes if buckets else first_cap_bytes):
            buckets.append(tuple(bucket))
            bucket, held = [], 0
    return (*buckets, tuple(bucket)) if bucket else tuple(buckets)
