"""Plans of buckets: the best ones, given ones, and what they are compared with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ringleader.errors import InvalidArgument
from ringleader.overlap.cost import CostCurve
from ringleader.overlap.programme import Problem, Spans
from ringleader.overlap.simulate import Conditions, Simulated, fixed_buckets, simulate
from ringleader.overlap.timeline import Timeline

__all__ = ["BucketPlan", "plan_buckets", "plan_of"]

KIB, MIB = 1 << 10, 1 << 20
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
        No better plan exists in the model (see `ringleader.overlap.programme`), for costs with the margin.
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
    margin: float = 0.0,
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
    margin
        Choose as if all-reduces cost ``1 + margin`` times as much: of plans that are alike as long as nothing takes
        longer than expected, that leaves one that is still good if something does. The plan says what is expected of
        it at `cost` itself.

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
    if not 0 <= margin < 100:
        raise InvalidArgument(f"margin is {margin}; expected a share of the cost, of at least 0")
    spans, exact = Problem(timeline, cost.scaled(1.0 + margin), conditions).best(_candidates(timeline))
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
    compared = {name: simulate(timeline, theirs, cost, conditions) for name, theirs in _others(timeline).items()}
    simulated = simulate(timeline, [tuple(bucket) for bucket in buckets], cost, conditions)
    return BucketPlan(timeline, cost, conditions, simulated, compared, exact)


def _others(timeline: Timeline) -> dict[str, tuple[tuple[int, ...], ...]]:
    """What plans are compared with."""
    others = {name: fixed_buckets(timeline.nbytes, *caps) for name, caps in _COMPARED.items()}
    others["one a gradient"] = tuple((i,) for i in range(len(timeline)))
    others["a single one"] = (tuple(range(len(timeline))),)
    return others


def _candidates(timeline: Timeline) -> list[Spans]:
    """Plans to begin with: what is compared, and fixed buckets of 4 KiB, 8 KiB, ..."""
    sizes = [fixed_buckets(timeline.nbytes, 1 << bits, min(1 << bits, MIB)) for bits in range(12, 41)]
    found = [
        tuple((bucket[0], bucket[-1] + 1) for bucket in buckets) for buckets in (*_others(timeline).values(), *sizes)
    ]
    return list(dict.fromkeys(found))
