"""The dynamic programmes: which buckets, in the order of readiness, end the step first.

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
time one with the fewest buckets is found.

Labels that cannot lead to a step as short as the best one known are dropped. Two bounds are computed backwards, like f:
when the channel must be free of the first i gradients at the latest (`latest`), and how much the rest adds at least to
a delay (`delayed`). The programme is run with narrow fronts first (a wide front is thinned, its ends are kept): what it
finds is the next run's best known plan. A run that thinned nothing has found the best of all; if even the last run
thinned, or became too long, `BucketPlan.exact` is false. Without costs to computing the exposed time is least even
then, only the number of buckets may not be.

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

import numpy as np
from numpy.typing import NDArray

from ringleader.overlap.cost import CostCurve
from ringleader.overlap.simulate import Conditions
from ringleader.overlap.timeline import Timeline, nanoseconds

__all__ = ["Problem", "Spans"]

Spans = tuple[tuple[int, int], ...]
"""Buckets as first gradient, and the one after the last."""

_WIDTHS = (4, 64, 512)
_MOST_LABELS = 60_000_000  # looked at in one run that is not the first: some seconds
_NEVER = np.int64(-(1 << 62))


class Problem:
    """A timeline and costs in nanoseconds, and the programmes over them.

    Examples
    --------
    >>> line = Timeline(["b", "a"], [1000, 1000], [1.0, 2.0])
    >>> problem = Problem(line, CostCurve.affine(0.1, 1e-4), Conditions())
    >>> problem.best([((0, 2),)])
    (((0, 1), (1, 2)), True)
    """

    def __init__(self, timeline: Timeline, cost: CostCurve, conditions: Conditions) -> None:
        self.n = len(timeline)
        self.ready = np.concatenate(([0], nanoseconds(timeline.ready)))  # ready[j]: gradients 0..j-1
        self.end = int(nanoseconds(timeline.backward_end))
        self.before = np.concatenate(([0], np.cumsum(timeline.nbytes)))
        self.curve, self.stolen, self.free = cost, conditions.stolen, conditions.free
        self.overhead, self.launch = int(nanoseconds(conditions.overhead)), int(nanoseconds(conditions.launch))

    def best(self, candidates: list[Spans]) -> tuple[Spans, bool]:
        """The plan that ends first, never later than the best candidate, and whether none can end earlier."""
        known, exact = min([self.soonest(), *candidates], key=self.step), False
        for width in _WIDTHS:
            known, exact = self.labels(known, width)
            if exact:
                break
        return known, exact

    def cost(self, first: NDArray[np.int64] | slice | int, last: NDArray[np.int64] | slice | int) -> NDArray[np.int64]:
        """c(i, j) for many i, or many j."""
        return self.curve.nanoseconds(self.before[last] - self.before[first]) + self.overhead

    def taken(self, length: NDArray[np.int64]) -> NDArray[np.int64]:
        """What a bucket takes from computing, given what it costs on the channel."""
        taken: NDArray[np.int64] = self.launch + np.rint(length * self.stolen).astype(np.int64)
        return taken

    def step(self, spans: Spans) -> int:
        """When the step ends with these buckets."""
        first, last = (np.array(side) for side in zip(*spans, strict=True))
        length = self.cost(first, last)
        free = delay = 0
        for transfer, taken, ready in zip(
            length.tolist(), self.taken(length).tolist(), self.ready[last].tolist(), strict=True
        ):
            free = max(free, ready + delay + self.launch) + transfer
            delay += taken
        return max(free, self.end + delay)

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

    def latest(self, limit: int) -> NDArray[np.int64]:
        """When the channel must be free of gradients 0..i-1 for the step to end at `limit`, if nothing is delayed."""
        late = np.full(self.n + 1, _NEVER)
        late[self.n] = limit
        for i in range(self.n - 1, -1, -1):
            start = late[i + 1 :] - self.cost(i, slice(i + 1, None))
            possible = start >= self.ready[i + 1 :]
            late[i] = start[possible].max(initial=_NEVER)
        return late

    def delayed(self) -> NDArray[np.int64]:
        """Adding the delay d that gradients 0..i-1 have brought gives a time before which the step cannot end.

        It is the later of two: the backward pass with the least that the rest can take from it, and the last gradient's
        bucket after the least that the buckets before it can take.
        """
        rest = np.zeros(self.n + 1, np.int64)  # least sum of what buckets of gradients i.. take
        last = np.zeros(self.n + 1, np.int64)  # least sum of that before the last bucket, its launch, and its transfer
        for i in range(self.n - 1, -1, -1):
            length = self.cost(i, slice(i + 1, None))
            takes = self.taken(length)
            rest[i] = (takes + rest[i + 1 :]).min()
            last[i] = (takes[:-1] + last[i + 1 : self.n]).min(initial=self.launch + length[-1])
        bound: NDArray[np.int64] = np.maximum(self.end + rest, np.where(rest > 0, self.ready[self.n] + last, 0))
        return bound

    def labels(self, known: Spans, width: int) -> tuple[Spans, bool]:
        """The best plan with fronts of at most `width` labels, at least as good as `known`; whether none was thinned.

        Labels of all prefixes lie in flat arrays, prefix after prefix: `free` (t), `second` (d, or the number of
        buckets), `count`, `prefix` (i) and `parent` (the label it was made from). Label 0 is the empty plan.
        """
        limit, exact, looked = self.step(known), True, 0
        late = self.latest(limit)
        bound = (np.arange(self.n + 1) < self.n).astype(np.int64) if self.free else self.delayed()
        most = len(known) if self.free else limit
        free, second, count, prefix, parent = (np.zeros((self.n + 1) * width + 1, np.int64) for _ in range(5))
        used = 1
        for j in range(1, self.n + 1):
            if late[j] == _NEVER:
                continue
            looked += used
            if looked > _MOST_LABELS and width > _WIDTHS[0]:
                return known, False
            length = self.cost(prefix[:used], j)
            delay = 0 if self.free else second[:used] + self.launch
            ends = np.maximum(free[:used], self.ready[j] + delay) + length
            its_second = second[:used] + (1 if self.free else self.taken(length))
            source = np.flatnonzero((ends <= late[j]) & (its_second + bound[j] <= most))
            kept = _front(ends[source], its_second[source], count[source])
            if len(kept) > width:
                exact = False
                kept = kept[np.unique(np.linspace(0, len(kept) - 1, width).astype(np.int64))]
            source = source[kept]
            place = slice(used, used + len(source))
            free[place], second[place], parent[place] = ends[source], its_second[source], source
            count[place], prefix[place] = count[source] + 1, j
            used += len(source)
        last = np.flatnonzero(prefix[:used] == self.n)
        if not len(last):  # thinning has lost all that are as good
            return known, False
        steps = np.maximum(free[last], self.end + (0 if self.free else second[last]))
        label = int(last[np.lexsort((free[last], count[last], steps))[0]])
        spans = []
        while label:
            spans.append((int(prefix[parent[label]]), int(prefix[label])))
            label = int(parent[label])
        return tuple(reversed(spans)), exact


def _front(ends: NDArray[np.int64], second: NDArray[np.int64], count: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which labels no other one beats in both numbers, by rising `ends`; of equals the one with the fewest buckets."""
    if not len(ends):
        return np.zeros(0, np.int64)
    # Most labels are beaten by the one that ends first, or by the one with the least second number: sort only the rest.
    first = second[ends == ends.min()].min()
    least = ends[second == second.min()].min()
    left = np.flatnonzero((second <= first) & (ends <= least))
    order = left[np.lexsort((count[left], second[left], ends[left]))]
    sorted_second = second[order]
    before = np.minimum.accumulate(sorted_second)[:-1]
    return order[np.concatenate(([True], sorted_second[1:] < before))]
