"""From recorded rounds to buckets that all ranks agree upon."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from ringleader.overlap import BucketPlan, Conditions, CostCurve, Planner, Recording, Settings
from ringleader.torch.data_parallel import layout
from ringleader.torch.data_parallel.reducer import Reducer
from ringleader.torch.data_parallel.transport import Transport

__all__ = ["FixedBuckets", "PlannedBuckets", "measure_cost"]

KIB, MIB = 1 << 10, 1 << 20
WINDOW: Final = 5
"""Rounds of which the median counts."""
INTERVAL: Final = 100
"""Rounds between two times at which a window of them is recorded, once the plan has settled."""
_SIZES: Final = (KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB)
_REPEATS: Final = 5
_QUICK: Final = 5e-3  # seconds: all-reduces that take longer are not measured at larger sizes
# Networks take the first bytes after a pause faster than they go on: buffers are empty, rate limits have saved up.
# What counts is the rate that lasts, so as many bytes go before as fill them.
_BURST: Final = MIB
_MOST_BEFORE: Final = 32  # all-reduces; small ones are about latency anyway


class FixedBuckets:
    """Fills buckets in the order in which the first rank's gradients came in the first round, which is then over."""

    def __init__(self, reducer: Reducer, cap_bytes: int) -> None:
        self._reducer = reducer
        self._cap_bytes = cap_bytes
        self.frozen = False

    @property
    def plan(self) -> None:
        """There is none."""
        return None

    def after_round(self) -> None:
        """Make the buckets anew; collective, after the first round."""
        reducer = self._reducer
        if not reducer.recording or self.frozen:
            return
        order = torch.tensor(_complete(list(dict.fromkeys(reducer.fired)), len(reducer.slots)))
        order = order.to(reducer.slots[0].parameter.device)
        reducer.transport.broadcast(order)
        reducer.recording = False
        reducer.install(layout.fixed(reducer.slots, order.tolist(), self._cap_bytes))


def _complete(order: list[int], n: int) -> list[int]:
    """`order` with what is missing in it: parameters that had no gradient."""
    return order + sorted(set(range(n)) - set(order), reverse=True)


class PlannedBuckets:
    """Records rounds, lets a `Planner` find the buckets, and checks by the clock that they are worth it.

    In the first rounds everything is sent at the end of the backward pass: so the times of the gradients are those
    without communication, and there is a measure that a plan has to beat. A plan that takes longer is not used.

    Parameters
    ----------
    cost
        Of one all-reduce, the same on all ranks.
    conditions
        What sending takes besides.

    Attributes
    ----------
    frozen
        The buckets are to stay as they are.
    """

    def __init__(self, reducer: Reducer, cost: CostCurve, conditions: Conditions) -> None:
        self._reducer = reducer
        self._transport: Transport = reducer.transport
        reducer.at_the_end = True
        slots = reducer.slots
        self.planner = Planner(
            [slot.name for slot in slots],
            [slot.parameter.nbytes for slot in slots],
            cost,
            self._agree,
            conditions,
            Settings(warmup=2, window=WINDOW, interval=WINDOW),
        )
        self._rounds = 0
        self._lengths: list[float] = []
        self._quiet_length = 0.0
        self.frozen = False
        self._settled = 0  # looks since the plan last changed

    @property
    def plan(self) -> BucketPlan | None:
        """The plan in force or, where none is faster than no overlap, the one that was rejected."""
        return self.planner.plan

    def after_round(self) -> None:
        """Take a round into account; on every rank after the same rounds."""
        if self.frozen:
            return
        reducer = self._reducer
        self._rounds += 1
        if not reducer.recording:
            if self._rounds % INTERVAL == 0:
                reducer.set_hooks(True)
            return
        self._lengths.append(reducer.closed - reducer.began)
        looks = self.planner.looks_next
        if self.planner.record(self._recording()):
            self._adopt()
        elif looks and self.planner.plan is not None:
            self._judge()
        if looks:
            self._lengths.clear()

    def _recording(self) -> Recording:
        reducer = self._reducer
        ready = np.full(len(reducer.slots), np.nan)
        for index, when in zip(reducer.fired, reducer.times, strict=True):
            ready[index] = when - reducer.began
        return Recording(ready, reducer.ended - reducer.began, sent=tuple(reducer.sent), quiet=reducer.at_the_end)

    def _adopt(self) -> None:
        """There are new buckets."""
        reducer = self._reducer
        if reducer.at_the_end:
            self._quiet_length = self._slowest(self._lengths)
        assert self.planner.buckets is not None
        self._settled = 0
        reducer.at_the_end = False
        reducer.install(layout.by_kind(reducer.slots, self.planner.buckets))

    def _judge(self) -> None:
        """A plan has been at work for a window of rounds: keep it if it is faster than sending at the end."""
        reducer = self._reducer
        if not reducer.at_the_end and self._slowest(self._lengths) > self._quiet_length:
            reducer.at_the_end = True
        self._settled += 1
        if self._settled >= 2:
            reducer.set_hooks(False)

    def _slowest(self, lengths: list[float]) -> float:
        """The median of the slowest rank; collective."""
        return float(self._agree(np.array([median(lengths)]))[0])

    def _agree(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        told = torch.from_numpy(np.array(values, np.float64)).to(self._reducer.slots[0].parameter.device)
        self._transport.maximum(told)
        return np.asarray(told.cpu().numpy())


def measure_cost(transport: Transport, total: int, device: torch.device) -> tuple[CostCurve, Conditions]:
    """The time of all-reduces of up to `total` bytes, and what starting them takes besides; equal on all ranks.

    A collective that takes some milliseconds; on slow networks, where the larger sizes are left out, about half a
    second.

    Examples
    --------
    >>> import torch.distributed as dist
    >>> from ringleader.torch.data_parallel.transport import transport_for
    >>> dist.init_process_group("ringleader", store=dist.HashStore(), rank=0, world_size=1)
    >>> device = torch.device("cpu")
    >>> measure_cost(transport_for(dist.group.WORLD, device), 4096, device)[0].sizes
    (1024, 4096)
    >>> dist.destroy_process_group()
    """
    limit = max(total // 4 * 4, KIB)
    sizes = sorted({min(size, limit) for size in _SIZES})
    flat = transport.empty(sizes[-1] // 4, torch.float32, device)
    flat.zero_()
    samples: list[tuple[int, float]] = []
    conditions = Conditions()
    for size in sizes:
        reduction = transport.reduction(flat[: size // 4], True)
        for _ in range(min(_BURST // size, _MOST_BEFORE) + 1):
            reduction.run()
        run = median([_timed(reduction.run) for _ in range(_REPEATS)])
        launch, whole = 0.0, run
        if size == sizes[0]:
            starts = [(_timed(reduction.start), _timed(reduction.wait)) for _ in range(4 * _REPEATS)]
            launch = median(start for start, _ in starts)
            whole = median(start + wait for start, wait in starts)
        told = torch.tensor([run, launch, max(0.0, whole - run - launch)], dtype=torch.float64, device=device)
        transport.maximum(told)
        slowest, launch, overhead = told.tolist()
        samples.append((size, slowest))
        if size == sizes[0]:
            conditions = Conditions(overhead=overhead, launch=launch)
        if slowest > _QUICK:
            break
    return CostCurve.fit(samples), conditions


def _timed(action: Callable[[], None]) -> float:
    began = perf_counter()
    action()
    return perf_counter() - began
