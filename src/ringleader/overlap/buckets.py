"""The best buckets: dynamic programmes over the order of readiness.

Notation: gradients 0..n-1 in order of readiness, ``c(i, j)`` what a bucket of gradients i..j-1 costs on the channel
(overhead included), ``r[j]`` when gradient j - 1 is ready, E the end of the backward pass. A *prefix plan* of i is a
way to cut gradients 0..i-1 into buckets.

Without costs to computing (`Conditions.free`)
----------------------------------------------
Let ``f(j)`` be the earliest time at which the channel can be free after sending gradients 0..j-1. Then ``f(0) = 0`` and

    f(j) = min over i < j of  max(f(i), r[j]) + c(i, j).

Why it is optimal: the last bucket i..j-1 ends at ``max(t, r[j]) + c(i, j)``, where t is when the channel is free after
the prefix plan of i. This never falls when t rises, so among all prefix plans of i one with the least t, which is
f(i), is as good as any. Nothing else of the prefix plan matters: costs depend on the bucket alone. The minimum runs
over all last buckets, so f(j) is the optimum by induction.

Fewest buckets among equals, and costs to computing
---------------------------------------------------
Where a bucket's launch or a transfer in flight delays the backward pass, a prefix plan leaves behind two numbers: t,
and the *delay* d that it has brought upon all later gradients. The last bucket then ends at
``max(t, r[j] + d + launch) + c``, and the step at ``max(t, E + d)``; both never fall when t or d rises. So it suffices
to keep, for each prefix, the plans that no other plan beats in both numbers (labels, their Pareto front). Without costs
to computing the same is done with the number of buckets in the place of d, so that of all plans with the least exposed
time one with the fewest buckets is found. A label that cannot lead to a step as short as the best one known is dropped:
``latest(i)``, when the channel must be free of the first i gradients at the latest, is computed backwards, like f.

A front of more than `_WIDEST` labels is thinned (its ends are kept). Only then may the result be worse than the best:
`BucketPlan.exact` says whether that happened. Without costs to computing the exposed time is least even then, only the
number of buckets may not be.

Contiguous buckets
------------------
Only buckets of neighbours in the order of readiness are considered. For costs ``a + b * bytes`` nothing is lost: given
any buckets, sort them by the time at which they are complete, and cut the order of readiness at these times. There are
no more buckets than before, each is complete when its predecessor in number was, and what remains to be sent after each
cut is no more than before. For other curves this is an assumption: with a curve that jumps, filling a bucket with a far
gradient could pay.

References
----------
S. Shi, X. Chu, B. Li: MG-WFBP: Efficient Data Communication for Distributed Synchronous SGD
Algorithms, INFOCOM 2019 (merging for costs ``a + b * bytes``).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ringleader.errors import InvalidArgument
from ringleader.overlap.cost import CostCurve
from ringleader.overlap.simulate import Conditions, Simulated, fixed_buckets, simulate
from ringleader.overlap.timeline import Timeline, nanoseconds

__all__ = ["BucketPlan", "brute_force", "plan_buckets", "plan_of"]

KIB, MIB = 1 << 10, 1 << 20
_WIDEST = 48
_NEVER = np.int64(-(1 << 62))
_COMPARED = {"fixed 25 MiB": (25 * MIB, MIB), "fixed 1 MiB": (MIB, MIB)}


@dataclass(frozen=True, eq=False)
class BucketPlan:
    """Buckets, and what they are expected to do.

    Attributes
    ----------
    timeline, cost, conditions
        What the plan was made from.
    simulated
        The step with these buckets.
    compared
        The step with other buckets, by their name: those of fixed sizes, one for each gradient, a single one.
    exact
        No better plan exists in the model (see `ringleader.overlap.buckets`).
    """

    timeline: Timeline
    cost: CostCurve
    conditions: Conditions
    simulated: Simulated
    compared: dict[str, Simulated] = field(repr=False)
    exact: bool = True

    @property
    def buckets(self) -> tuple[tuple[int, ...], ...]:
        """Indices into the timeline, in the order of sending."""
        return self.simulated.buckets

    @property
    def exposed(self) -> float:
        """Seconds that the step is longer than without communication."""
        return self.simulated.exposed

    def table(self) -> str:
        """The plan as text: a line a bucket, and the comparison.

        Examples
        --------
        >>> line = Timeline(["c", "b", "a"], [1 << 20, 1 << 10, 1 << 10], [1e-3, 2e-3, 3e-3])
        >>> print(plan_buckets(line, CostCurve.affine(1e-4, 5e-10)).table().splitlines()[0])
        2 buckets of 3 gradients, 1.0 MiB: exposed 0.10 ms of a 3.00 ms backward pass
        """
        from ringleader.overlap.render import table

        return table(self)

    def picture(self, path: str | Path) -> None:
        """Draw backward pass and transfers over time, these buckets above fixed ones, into a file of any kind that
        matplotlib writes.

        Raises
        ------
        InvalidArgument
            matplotlib is missing or cannot write such a file.
        """
        from ringleader.overlap.render import picture

        picture(self, Path(path))


def plan_buckets(
    timeline: Timeline,
    cost: CostCurve,
    overhead: float = 0.0,
    *,
    launch: float = 0.0,
    slowdown: float = 1.0,
) -> BucketPlan:
    """The buckets with the least exposed time, and of those the fewest.

    Parameters
    ----------
    timeline
        When gradients are ready.
    cost
        Of one all-reduce.
    overhead, launch, slowdown
        See `Conditions`.

    Returns
    -------
    BucketPlan
        Equal numbers give an equal plan on every rank.

    Raises
    ------
    InvalidArgument
        An empty timeline, or conditions that cannot be.

    References
    ----------
    S. Shi, X. Chu, B. Li: MG-WFBP: Efficient Data Communication for Distributed Synchronous SGD
    Algorithms, INFOCOM 2019.

    Examples
    --------
    >>> line = Timeline(["d", "c", "b", "a"], [1000] * 4, [1.0, 2.0, 3.0, 4.0])
    >>> plan_buckets(line, CostCurve.affine(0.25, 5e-4)).buckets  # each hides behind the next
    ((0, 1), (2,), (3,))
    >>> plan_buckets(line, CostCurve.affine(2.0, 5e-4)).buckets  # latency counts more: fewer
    ((0,), (1, 2, 3))
    """
    if not len(timeline):
        raise InvalidArgument("the timeline has no gradients; expected at least one")
    conditions = Conditions(overhead, launch, slowdown)
    problem = _Problem(timeline, cost, conditions)
    candidates = [problem.soonest(), ((0, len(timeline)),), *_distinct_fixed(timeline)]
    spans, exact = problem.best(min(candidates, key=problem.step))
    return plan_of(timeline, [range(i, j) for i, j in spans], cost, conditions, exact)


def plan_of(
    timeline: Timeline,
    buckets: Iterable[Iterable[int]],
    cost: CostCurve,
    conditions: Conditions | None = None,
    exact: bool = False,
) -> BucketPlan:
    """A plan of given buckets, simulated and compared.

    Raises
    ------
    InvalidArgument
        The buckets are no partition of the gradients.

    Examples
    --------
    >>> line = Timeline(["b", "a"], [1000, 1000], [1.0, 2.0])
    >>> plan_of(line, [[0, 1]], CostCurve.affine(0.5, 0.0)).exposed
    0.5
    """
    conditions = conditions or Conditions()
    others = {name: fixed_buckets(timeline.nbytes, *caps) for name, caps in _COMPARED.items()}
    others["one a gradient"] = tuple((i,) for i in range(len(timeline)))
    others["a single one"] = (tuple(range(len(timeline))),)
    compared = {name: simulate(timeline, theirs, cost, conditions) for name, theirs in others.items()}
    simulated = simulate(timeline, [tuple(bucket) for bucket in buckets], cost, conditions)
    return BucketPlan(timeline, cost, conditions, simulated, compared, exact)


def brute_force(
    timeline: Timeline, cost: CostCurve, overhead: float = 0.0, *, launch: float = 0.0, slowdown: float = 1.0
) -> BucketPlan:
    """What `plan_buckets` finds, by simulating all ``2**(n-1)`` ways to cut: for tests.

    Examples
    --------
    >>> line = Timeline(["b", "a"], [1000, 1000], [1.0, 2.0])
    >>> brute_force(line, CostCurve.affine(0.1, 1e-4)).buckets
    ((0,), (1,))
    """
    n = len(timeline)
    if not 1 <= n <= 16:
        raise InvalidArgument(f"{n} gradients; expected 1 to 16, everything is tried")
    conditions = Conditions(overhead, launch, slowdown)
    best: Simulated | None = None
    for mask in range(1 << (n - 1)):
        edges = [0, *(i + 1 for i in range(n - 1) if mask >> i & 1), n]
        played = simulate(timeline, [range(i, j) for i, j in itertools.pairwise(edges)], cost, conditions)
        if best is None or (played.finish, len(played.buckets)) < (best.finish, len(best.buckets)):
            best = played
    assert best is not None
    return plan_of(timeline, best.buckets, cost, conditions, exact=True)


Spans = tuple[tuple[int, int], ...]


def _distinct_fixed(timeline: Timeline) -> list[Spans]:
    """Fixed buckets of all sizes: 4 KiB, 8 KiB, ..."""
    found: dict[Spans, None] = {}
    for bits in range(12, 41):
        buckets = fixed_buckets(timeline.nbytes, 1 << bits, min(1 << bits, MIB))
        found[tuple((bucket[0], bucket[-1] + 1) for bucket in buckets)] = None
    return list(found)


class _Problem:
    """A timeline and costs in nanoseconds, and the programmes over them."""

    def __init__(self, timeline: Timeline, cost: CostCurve, conditions: Conditions) -> None:
        self.n = len(timeline)
        self.ready = np.concatenate(([0], nanoseconds(timeline.ready)))  # ready[j]: gradients 0..j-1
        self.end = int(nanoseconds(timeline.backward_end))
        self.before = np.concatenate(([0], np.cumsum(timeline.nbytes)))
        self.curve, self.stolen, self.free = cost, conditions.stolen, conditions.free
        self.overhead, self.launch = int(nanoseconds(conditions.overhead)), int(nanoseconds(conditions.launch))

    def cost(self, first: NDArray[np.int64] | slice | int, last: NDArray[np.int64] | slice | int) -> NDArray[np.int64]:
        """c(i, j) for many i, or many j."""
        return self.curve.nanoseconds(self.before[last] - self.before[first]) + self.overhead

    def soonest(self) -> Spans:
        """The plan of f(n): the channel is free as early as it can be if nothing delays the backward pass."""
        f = np.zeros(self.n + 1, np.int64)
        last = np.zeros(self.n + 1, np.int64)
        for j in range(1, self.n + 1):
            ends = np.maximum(f[:j], self.ready[j]) + self.cost(slice(0, j), j)
            last[j] = np.argmin(ends)
            f[j] = ends[last[j]]
        spans, j = [], self.n
        while j:
            spans.append((int(last[j]), j))
            j = int(last[j])
        return tuple(reversed(spans))

    def step(self, spans: Spans) -> int:
        """When the step ends with these buckets."""
        free = delay = 0
        for i, j in spans:
            length = int(self.curve.nanoseconds(int(self.before[j] - self.before[i]))) + self.overhead
            delay += self.launch
            free = max(free, int(self.ready[j]) + delay) + length
            delay += round(length * self.stolen)
        return max(free, self.end + delay)

    def latest(self, step: int) -> NDArray[np.int64]:
        """When the channel must be free of gradients 0..i-1 for the step to end at `step` at the latest, if nothing is
        delayed."""
        late = np.full(self.n + 1, _NEVER)
        late[self.n] = step
        for i in range(self.n - 1, -1, -1):
            start = late[i + 1 :] - self.cost(i, slice(i + 1, None))
            possible = start >= self.ready[i + 1 :]
            late[i] = start[possible].max(initial=_NEVER)
        return late

    def best(self, known: Spans) -> tuple[Spans, bool]:
        """The plan that ends first, not after `known` does, and whether it is certainly the best.

        Labels of all prefixes lie in flat arrays, prefix after prefix: `free` (t), `second` (d, or the number of
        buckets), `count`, `prefix` (i) and `parent` (the label it was made from).
        """
        limit, exact = self.step(known), True
        late = self.latest(limit)
        capacity = (self.n + 1) * (_WIDEST + 1)
        free, second, count, prefix, parent = (np.zeros(capacity, np.int64) for _ in range(5))
        used = 1
        for j in range(1, self.n + 1):
            if late[j] == _NEVER:
                continue
            source = np.arange(used)
            length = self.cost(prefix[:used], j)
            delay = 0 if self.free else second[:used] + self.launch
            ends = np.maximum(free[:used], self.ready[j] + delay) + length
            more = 1 if self.free else self.launch + np.rint(length * self.stolen).astype(np.int64)
            its_second = second[:used] + more
            possible = ends <= late[j]
            if not self.free:
                possible &= self.end + its_second <= limit
            source, ends, its_second = source[possible], ends[possible], its_second[possible]
            kept = _front(ends, its_second, count[source] + 1)
            if len(kept) > _WIDEST:
                exact = False
                kept = kept[np.unique(np.linspace(0, len(kept) - 1, _WIDEST).astype(np.int64))]
            place = slice(used, used + len(kept))
            free[place], second[place], parent[place] = ends[kept], its_second[kept], source[kept]
            count[place], prefix[place] = count[source[kept]] + 1, j
            used += len(kept)
        last = np.flatnonzero(prefix[:used] == self.n)
        if not len(last):  # thinning has lost all that are as good
            return known, False
        delays = 0 if self.free else second[last]
        steps = np.maximum(free[last], self.end + delays)
        label = int(last[np.lexsort((free[last], count[last], steps))[0]])
        spans = []
        while label:
            spans.append((int(prefix[parent[label]]), int(prefix[label])))
            label = int(parent[label])
        return tuple(reversed(spans)), exact


def _front(ends: NDArray[np.int64], second: NDArray[np.int64], count: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which labels no other one beats in both numbers, by rising `ends`; of equals the one with the fewest buckets."""
    order = np.lexsort((count, second, ends))
    sorted_second = second[order]
    least = np.minimum.accumulate(sorted_second)
    better = np.concatenate(([True], sorted_second[1:] < least[:-1])) if len(order) else np.zeros(0, bool)
    return order[better]
