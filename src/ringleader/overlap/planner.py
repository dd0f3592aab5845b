"""From the recordings of single steps to plans that all ranks share, and when to make a new one.

Every decision is made from numbers that all ranks have agreed upon, at steps that all ranks count alike; so all ranks
change their buckets in the same step, and to the same ones, without asking anybody.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ringleader.errors import InvalidArgument
from ringleader.overlap.buckets import BucketPlan, plan_buckets, plan_of
from ringleader.overlap.cost import CostCurve
from ringleader.overlap.simulate import Conditions, simulate
from ringleader.overlap.timeline import Timeline

__all__ = ["Planner", "Recording", "Settings", "measured_slowdown"]

Agree = Callable[[NDArray[np.float64]], NDArray[np.float64]]


@dataclass(frozen=True, eq=False)
class Recording:
    """One step of one rank, entries in the order of the parameters.

    Attributes
    ----------
    ready
        Seconds after the start of the backward pass at which each gradient was complete; NaN: it never was (an unused
        parameter).
    backward_end
        Length of the backward pass.
    needed, forward
        The same of the forward pass: first use of each parameter, and its length. None: not recorded.
    sent
        Bytes and seconds of each all-reduce of the step.
    quiet
        No communication was in flight during the backward pass.
    """

    ready: NDArray[np.float64]
    backward_end: float
    needed: NDArray[np.float64] | None = None
    forward: float | None = None
    sent: Sequence[tuple[int, float]] = ()
    quiet: bool = False


@dataclass(frozen=True)
class Settings:
    """When the planner looks, and what it takes for a change.

    Attributes
    ----------
    warmup
        First steps, and first steps with new buckets, that do not count: they allocate.
    window
        Steps of which the median is taken.
    interval
        Steps between two looks, at most; after a new plan they are a window apart, then twice as far each time.
    threshold
        Relative change of the timings that is a drift; one has ended when the change is below half of it.
    patience
        Looks in a row that must find a drift before a new plan is made.
    gain
        Seconds that a new plan must save per step, as a fraction of the backward pass: new buckets are new memory.
    margin
        See `plan_buckets`.
    """

    warmup: int = 2
    window: int = 5
    interval: int = 100
    threshold: float = 0.15
    patience: int = 2
    gain: float = 0.005
    margin: float = 0.25

    def __post_init__(self) -> None:
        if (
            min(self.warmup, self.threshold, self.gain, self.margin) < 0
            or min(self.window, self.interval, self.patience) < 1
        ):
            raise InvalidArgument(f"{self}; expected window, interval and patience of at least 1 and nothing negative")


class Planner:
    """Plans buckets for one model on one rank.

    Parameters
    ----------
    names, nbytes
        Of the parameters, in an order that is the same on all ranks.
    cost
        Of one all-reduce; the same on all ranks.
    agree
        Element-wise maximum over all ranks: a collective that is called with a float64 array, on every rank at the
        same steps. None: there is one rank.
    conditions
        What sending costs besides; its slowdown is measured where the first recordings were quiet.
    settings
        When to look.

    Examples
    --------
    >>> cost, soon = CostCurve.affine(1e-3, 1e-7), Settings(warmup=0, window=2)
    >>> planner = Planner(["body", "head"], [4000, 4000], cost, settings=soon)
    >>> step = Recording(ready=np.array([0.2, 0.1]), backward_end=0.2, quiet=True)
    >>> planner.record(step), planner.record(step)
    (False, True)
    >>> planner.buckets  # the head's gradient is ready first
    ((1,), (0,))
    """

    def __init__(
        self,
        names: Sequence[str],
        nbytes: ArrayLike,
        cost: CostCurve,
        agree: Agree | None = None,
        conditions: Conditions | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.names = tuple(names)
        self.nbytes = np.array(nbytes, np.int64)
        self.cost, self.conditions = cost, conditions or Conditions()
        self.settings = settings or Settings()
        self.plan: BucketPlan | None = None
        self.order: NDArray[np.int64] = np.arange(len(self.names))
        self.steps = self.plans = 0
        self.why = "no plan yet"
        self._agree: Agree = agree or (lambda values: values)
        self._window: deque[Recording] = deque(maxlen=self.settings.window)
        self._skip, self._pause = self.settings.warmup, self.settings.window
        self._look = self._skip + self._pause
        self._base: _Merged | None = None
        self._reference: _Merged | None = None
        self._drifted = 0
        self._learned = False

    @property
    def buckets(self) -> tuple[tuple[int, ...], ...] | None:
        """The buckets in force, as numbers of parameters, in the order of sending; None before the first plan."""
        if self.plan is None:
            return None
        return tuple(tuple(int(self.order[i]) for i in bucket) for bucket in self.plan.buckets)

    @property
    def looks_next(self) -> bool:
        """Whether the next `record` calls `agree`."""
        return self.steps + 1 >= self._look

    def record(self, recording: Recording) -> bool:
        """Take the recording of a step; every rank must call it for the same steps.

        Returns
        -------
        bool
            There are new buckets.

        Raises
        ------
        InvalidArgument
            A recording of another number of parameters.
        """
        self._check(recording)
        self.steps += 1
        if self._skip:
            self._skip -= 1
        else:
            self._window.append(recording)
        if self.steps < self._look:
            return False
        changed = self._decide(self._merge())
        if changed:
            self._window.clear()
            self._skip, self._pause = self.settings.warmup, self.settings.window
        else:
            self._pause = min(2 * self._pause, self.settings.interval)
        self._look = self.steps + self._skip + self._pause
        return changed

    def _check(self, recording: Recording) -> None:
        if len(recording.ready) != len(self.names):
            raise InvalidArgument(f"a recording of {len(recording.ready)} gradients; expected {len(self.names)}")
        times = [recording.backward_end, recording.forward or 0.0, *(seconds for _, seconds in recording.sent)]
        needed = np.zeros(0) if recording.needed is None else recording.needed
        ready = recording.ready[~np.isnan(recording.ready)]
        if not np.isfinite(np.concatenate([times, ready, needed])).all():
            raise InvalidArgument(f"a recording holds {times[:2]} s or other times that are not finite")

    # ------------------------------------------------------------------------------------------------ agreement

    def _merge(self) -> _Merged:
        """The slowest rank's medians; of the all-reduces the fastest rank's, which waited for nobody."""
        n, window = len(self.names), self._window
        ends = np.array([r.backward_end for r in window])
        ready = np.array([np.where(np.isnan(r.ready), r.backward_end, r.ready) for r in window])
        needed = np.array([np.zeros(n) if r.needed is None else r.needed for r in window])
        forward = np.array([r.forward or 0.0 for r in window])
        overhead = self.conditions.overhead
        ratios = [seconds / max(self.cost(nbytes) + overhead, 1e-9) for r in window for nbytes, seconds in r.sent]
        medians = [np.median(ready, axis=0), np.median(needed, axis=0), [np.median(ends), np.median(forward)]]
        tail = [-float(np.median(ratios)) if ratios else -1.0, 0.0 if all(r.quiet for r in window) else 1.0]
        told = self._agree(np.concatenate([*medians, tail]).astype(np.float64))
        return _Merged(told[:n], told[n : 2 * n], float(told[-4]), float(told[-3]), -float(told[-2]), told[-1] == 0.0)

    # ------------------------------------------------------------------------------------------------ decisions

    def _decide(self, merged: _Merged) -> bool:
        if self.plan is None or self._base is None:
            self._base = merged
            self._correct(merged)
            return self._replan("first plan", always=True)
        if self._reference is None or self._reference.quiet != merged.quiet:
            # Nothing of its kind to compare with: that communication has begun, or ended, beside computing is no drift.
            self._reference = merged
            return False if self._learned else self._learn(merged)
        drift = merged.distance(self._reference)
        limit = self.settings.threshold if self._drifted == 0 else self.settings.threshold / 2
        self._drifted = self._drifted + 1 if drift > limit else 0
        if self._drifted < self.settings.patience:
            return False
        self._drifted = 0
        # Reference and present both contain what communication takes from computing; their ratio does not.
        self._base = self._base.times(merged, self._reference)
        self.cost = self.cost.scaled(merged.cost_ratio / self._reference.cost_ratio)
        self._reference = replace(merged, cost_ratio=self._reference.cost_ratio)  # as it is over the new cost
        return self._replan(f"timings drifted by {drift:.0%}")

    def _learn(self, merged: _Merged) -> bool:
        """The first look at a plan at work: what its all-reduces really cost, and what they take from computing.

        Only once: what is measured depends on the plan, and two plans could take turns for ever.
        """
        assert self.plan is not None and self._base is not None
        self._learned = True
        reasons = []
        if self._correct(merged):
            self._reference = replace(merged, cost_ratio=1.0)
            reasons.append(f"all-reduces take {merged.cost_ratio:.2f} times as long as expected")
        if self._base.quiet and not merged.quiet:
            played = simulate(self.plan.timeline, self.plan.buckets, self.cost, self.conditions)
            slowdown = measured_slowdown(self._base.backward_end, merged.backward_end, played.start, played.end)
            if abs(slowdown - self.conditions.slowdown) > self.settings.threshold:
                self.conditions = replace(self.conditions, slowdown=slowdown)
                reasons.append(f"computing takes {slowdown:.2f} times as long beside them")
        return self._replan("; ".join(reasons)) if reasons else False

    def _correct(self, merged: _Merged) -> bool:
        """Scale the cost to what was measured if that is something else. Whether it was."""
        if abs(merged.cost_ratio - 1) <= self.settings.threshold:
            return False
        self.cost = self.cost.scaled(merged.cost_ratio)
        return True

    def _replan(self, why: str, always: bool = False) -> bool:
        """Make a plan; take it if it changes something that matters."""
        assert self._base is not None
        base = self._base
        line, order = Timeline.sorted(
            self.names,
            self.nbytes,
            base.ready,
            base.needed,
            max(base.backward_end, base.ready.max()),
            max(base.forward, base.needed.max()),
        )
        c = self.conditions
        plan = plan_buckets(
            line, self.cost, c.overhead, launch=c.launch, slowdown=c.slowdown, margin=self.settings.margin
        )
        if not always:
            kept = self._still(line, order)
            if kept is not None and kept.exposed - plan.exposed <= self.settings.gain * line.backward_end:
                self.plan, self.why = kept, f"{why}: the buckets are still good"
                self.order = order
                return False
        # Equal numbers give equal plans; should two machines compute differently all the same, all cut where anyone
        # does.
        cuts = np.zeros(len(line))
        cuts[[bucket[0] for bucket in plan.buckets]] = 1.0
        edges = [*np.flatnonzero(self._agree(cuts.copy()) > 0).tolist(), len(line)]
        told = [tuple(range(i, j)) for i, j in itertools.pairwise(edges)]
        if tuple(told) != plan.buckets:
            plan = plan_of(line, told, self.cost, c)
        self.plan, self.order, self.why = plan, order, why
        self.plans += 1
        self._reference = None
        return True

    def _still(self, line: Timeline, order: NDArray[np.int64]) -> BucketPlan | None:
        """The present buckets under a new timeline."""
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        if self.buckets is None:
            return None
        return plan_of(
            line, [sorted(int(place[i]) for i in bucket) for bucket in self.buckets], self.cost, self.conditions
        )


def measured_slowdown(quiet: float, busy: float, start: ArrayLike, end: ArrayLike) -> float:
    """How many times as long computing takes beside communication, from two backward passes.

    Parameters
    ----------
    quiet, busy
        Seconds of a backward pass without, and with, communication beside it.
    start, end
        When transfers began and ended in the second one.

    Returns
    -------
    float
        From 1 to 10.

    Examples
    --------
    >>> measured_slowdown(1.0, 1.1, [0.2], [0.7])  # 0.1 s lost to 0.5 s of transfers
    1.25
    """
    spans = np.minimum(np.asarray(end, np.float64), busy) - np.minimum(np.asarray(start, np.float64), busy)
    beside = float(spans.sum())
    stolen = (busy - quiet) / beside if beside > 0 else 0.0
    return round(1.0 / (1.0 - float(np.clip(stolen, 0.0, 0.9))), 9)


@dataclass(frozen=True, eq=False)
class _Merged:
    """What all ranks have agreed upon at one look."""

    ready: NDArray[np.float64]
    needed: NDArray[np.float64]
    backward_end: float
    forward: float
    cost_ratio: float
    quiet: bool

    def distance(self, other: _Merged) -> float:
        """Largest relative change of: the backward pass, the median gradient's place in it, the forward pass, the
        cost."""
        pairs = [
            (self.backward_end, other.backward_end),
            (self.forward, other.forward),
            (self.cost_ratio, other.cost_ratio),
        ]
        changes = [abs(now / before - 1) for now, before in pairs if before > 0]
        moved = np.abs(self.ready - other.ready) / max(other.backward_end, 1e-9)
        return float(max([*changes, np.median(moved)]))

    def times(self, now: _Merged, before: _Merged) -> _Merged:
        """This one, with every time changed as it changed between two others."""

        def ratio(a: ArrayLike, b: ArrayLike) -> NDArray[np.float64]:
            a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
            return np.where(b > 0, a / np.where(b > 0, b, 1.0), 1.0)

        return _Merged(
            self.ready * ratio(now.ready, before.ready),
            self.needed * ratio(now.needed, before.needed),
            float(self.backward_end * ratio(now.backward_end, before.backward_end)),
            float(self.forward * ratio(now.forward, before.forward)),
            1.0,
            self.quiet,
        )
