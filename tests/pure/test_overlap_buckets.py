"""The dynamic programmes against trying everything, and against the simulation."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringleader.errors import InvalidArgument
from ringleader.overlap import (
    BucketPlan,
    Conditions,
    CostCurve,
    Timeline,
    fixed_buckets,
    plan_buckets,
    plan_of,
    simulate,
)

MIB = 1 << 20
MS = 1e-3


@st.composite
def timelines(draw: st.DrawFn, most: int = 9) -> Timeline:
    """A few gradients, in whole milliseconds so that there are many ties."""
    n = draw(st.integers(1, most))
    sizes = draw(st.lists(st.integers(0, 40), min_size=n, max_size=n))
    ready = sorted(draw(st.lists(st.integers(0, 30), min_size=n, max_size=n)))
    after = draw(st.integers(0, 5))
    times = [at * MS for at in ready]
    return Timeline([f"p{i}" for i in range(n)], sizes, times, backward_end=(ready[-1] + after) * MS)


@st.composite
def curves(draw: st.DrawFn) -> CostCurve:
    """Affine ones, and ones with flat parts and jumps."""
    if draw(st.booleans()):
        return CostCurve.affine(draw(st.integers(0, 8)) * MS, draw(st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0])) * MS)
    sizes = sorted(draw(st.sets(st.integers(0, 200), min_size=1, max_size=6)))
    times = sorted(draw(st.lists(st.integers(0, 40), min_size=len(sizes), max_size=len(sizes))))
    return CostCurve(tuple(sizes), tuple(t * MS for t in times))


conditions = st.builds(
    Conditions,
    st.sampled_from([0.0, 1 * MS, 3 * MS]),
    st.sampled_from([0.0, 0.0, 0.5 * MS, 2 * MS]),
    st.sampled_from([1.0, 1.0, 1.25, 2.0, 4.0]),
)


def planned(line: Timeline, cost: CostCurve, with_: Conditions) -> BucketPlan:
    return plan_buckets(line, cost, with_.overhead, launch=with_.launch, slowdown=with_.slowdown)


def brute_force(line: Timeline, cost: CostCurve, with_: Conditions) -> BucketPlan:
    """What `plan_buckets` finds, by simulating all ``2**(n-1)`` ways to cut."""
    n = len(line)
    found = []
    for mask in range(1 << (n - 1)):
        edges = [0, *(i + 1 for i in range(n - 1) if mask >> i & 1), n]
        found.append(simulate(line, [range(i, j) for i, j in itertools.pairwise(edges)], cost, with_))
    best = min(found, key=lambda played: (played.finish, len(played.buckets)))
    return plan_of(line, best.buckets, cost, with_, exact=True)


# ------------------------------------------------------------------------------------------------ optimality


@settings(max_examples=150, deadline=None)
@given(timelines(), curves(), conditions)
def test_no_cut_is_better(line: Timeline, cost: CostCurve, with_: Conditions) -> None:
    plan = planned(line, cost, with_)
    best = brute_force(line, cost, with_)
    assert plan.exact
    assert plan.simulated.finish == best.simulated.finish
    if with_.free:
        assert len(plan.buckets) == len(best.buckets)  # of equals the fewest


@settings(max_examples=40, deadline=None)
@given(timelines(most=6), st.integers(0, 8), st.sampled_from([0.1, 0.25, 1.0]))
def test_with_affine_costs_no_other_buckets_are_better(line: Timeline, latency: int, per_byte: float) -> None:
    """Not even those that are no neighbours, in whatever order they are sent."""
    cost = CostCurve.affine(latency * MS, per_byte * MS)
    best = plan_buckets(line, cost).simulated.finish
    for buckets in set_partitions(list(range(len(line)))):
        in_order = sorted(buckets, key=max)
        assert simulate(line, in_order, cost).finish >= best
        for order in itertools.permutations(buckets) if len(buckets) <= 3 else ():
            assert simulate(line, order, cost).finish >= best


def set_partitions(items: list[int]) -> list[list[list[int]]]:
    if not items:
        return [[]]
    first, *rest = items
    found = []
    for parts in set_partitions(rest):
        found.append([[first], *parts])
        found += [[*parts[:i], [first, *parts[i]], *parts[i + 1 :]] for i in range(len(parts))]
    return found


@settings(max_examples=60, deadline=None)
@given(timelines(most=14), curves(), conditions)
def test_never_worse_than_any_fixed_size(line: Timeline, cost: CostCurve, with_: Conditions) -> None:
    plan = planned(line, cost, with_)
    ends = [0, *np.cumsum(line.nbytes).tolist()]
    caps = {max(b - a, 1) for a, b in itertools.combinations(ends, 2)}  # every cap that can make a difference
    for cap, first in itertools.product(caps, (1, None)):
        buckets = fixed_buckets(line.nbytes, cap, first or cap)
        assert simulate(line, buckets, cost, with_).finish >= plan.simulated.finish
    for other in plan.compared.values():
        assert other.finish >= plan.simulated.finish


def random_line(n: int, seed: int) -> Timeline:
    random = np.random.default_rng(seed)
    sizes = random.choice([1000, 4000, 100_000, 1_000_000], n)
    return Timeline([str(i) for i in range(n)], sizes, np.cumsum(random.uniform(0, 2e-4, n)))


@pytest.mark.parametrize("slowdown", [1.0, 1.3])
def test_thousand_gradients(slowdown: float) -> None:
    line = random_line(1000, 1)
    cost = CostCurve.affine(5e-5, 0.9 * line.backward_end / line.total)
    plan = plan_buckets(line, cost, 1e-5, slowdown=slowdown)
    assert plan.exact
    assert plan.exposed < 0.9 * min(other.exposed for other in plan.compared.values())


@settings(max_examples=60, deadline=None)
@given(timelines(), curves(), conditions, st.sampled_from([0.1, 0.5, 2.0]))
def test_margin_is_the_best_plan_for_higher_costs(
    line: Timeline, cost: CostCurve, with_: Conditions, margin: float
) -> None:
    kinds = {"launch": with_.launch, "slowdown": with_.slowdown}
    plan = plan_buckets(line, cost, with_.overhead, margin=margin, **kinds)
    dearer = cost.scaled(1 + margin)
    assert simulate(line, plan.buckets, dearer, with_).finish == planned(line, dearer, with_).simulated.finish
    assert plan.simulated.finish == simulate(line, plan.buckets, cost, with_).finish


def test_margin_keeps_a_distance() -> None:
    """Three buckets fit exactly between their neighbours; with a margin the middle one is sent earlier, in parts."""
    line = Timeline(["c", "b", "a"], [10, 10, 1], [0.0, 1.0, 2.0], backward_end=2.0)
    cost = CostCurve.affine(0.0, 0.05)
    assert plan_buckets(line, cost).buckets == ((0, 1), (2,))
    assert plan_buckets(line, cost, margin=0.2).buckets == ((0,), (1,), (2,))


def test_same_numbers_same_plan() -> None:
    line = random_line(300, 7)
    cost = CostCurve.fit([(1 << k, 3e-5 + (1 << k) * 1.1e-9) for k in range(10, 25)])
    one, other = (plan_buckets(line, cost, 2.5e-5, launch=5e-6, slowdown=1.2) for _ in range(2))
    assert one.buckets == other.buckets
    assert one.simulated.finish == other.simulated.finish


# ------------------------------------------------------------------------------------------------ the model


def in_small_steps(line: Timeline, buckets: list[range], cost: CostCurve, with_: Conditions) -> float:
    """The same model, written as a clock that ticks: where computing stands, what is in flight, what waits."""
    tick = 20e-6
    now = progress = 0.0
    launching = 0.0
    queue: list[float] = []
    coming = [(max(line.ready[list(b)]), cost(int(line.nbytes[list(b)].sum())) + with_.overhead) for b in buckets]
    while coming or queue or progress < line.backward_end - 1e-9 or launching > 1e-9:
        while coming and progress >= coming[0][0] - 1e-9 and launching <= 1e-9:
            launching = with_.launch
            queue.append(coming.pop(0)[1])
            if with_.launch:
                break
        # A bucket joins the channel when its launch is over; until then only those before it are in flight.
        flying = queue[:-1] if launching > 1e-9 else queue
        if launching > 1e-9:
            launching -= tick / (with_.slowdown if flying else 1.0)
        elif progress < line.backward_end:
            progress += tick / (with_.slowdown if flying else 1.0)
        if flying:
            queue[0] -= tick
            if queue[0] <= 1e-9:
                queue.pop(0)
        now += tick
    return now


@settings(max_examples=40, deadline=None)
@given(timelines(most=5), st.integers(1, 6), st.integers(0, 2), st.sampled_from([1.0, 1.25, 2.0]), st.data())
def test_simulation_agrees_with_a_ticking_clock(
    line: Timeline, latency: int, launch: int, slowdown: float, data: st.DataObject
) -> None:
    with_ = Conditions(launch=launch * MS if slowdown == 1.0 else 0.0, slowdown=slowdown)
    cost = CostCurve.affine(latency * MS, 0.25 * MS)
    inner = data.draw(st.sets(st.integers(1, len(line) - 1))) if len(line) > 1 else set()
    edges = [0, *sorted(inner), len(line)]
    buckets = [range(i, j) for i, j in itertools.pairwise(edges)]
    # Each of the few events may be up to a tick late.
    assert simulate(line, buckets, cost, with_).finish == pytest.approx(
        in_small_steps(line, buckets, cost, with_), abs=1e-3
    )


def test_backward_is_stretched_only_by_what_is_beside_it() -> None:
    line = Timeline(["b", "a"], [10, 10], [1.0, 2.0], backward_end=2.0)
    played = simulate(line, [[0], [1]], CostCurve.affine(0.5, 0.0), Conditions(slowdown=2.0))
    assert played.start.tolist() == [1.0, 2.25]  # a half of half a second lost
    assert played.backward == 2.25  # nothing is computed beside the second transfer
    assert played.finish == 2.75
    straddling = simulate(line, [[0], [1]], CostCurve.affine(4.0, 0.0), Conditions(slowdown=2.0))
    assert straddling.backward == 3.0  # the last second of computing takes two
    assert straddling.finish == 9.0


@settings(max_examples=100, deadline=None)
@given(timelines(), curves(), conditions)
def test_what_a_simulation_says_fits_together(line: Timeline, cost: CostCurve, with_: Conditions) -> None:
    plan = planned(line, cost, with_)
    played = plan.simulated
    assert (played.start[1:] >= played.end[:-1]).all()
    for bucket, start in zip(played.buckets, played.start, strict=True):
        assert start >= line.ready[list(bucket)].max() - 1e-9
    assert line.backward_end - 1e-9 <= played.backward <= played.finish + 1e-9
    assert played.finish == pytest.approx(line.backward_end + played.exposed)
    assert sorted(itertools.chain(*plan.buckets)) == list(range(len(line)))


# ------------------------------------------------------------------------------------------------ errors, text, files


def test_wrong_arguments() -> None:
    line = Timeline(["b", "a"], [1, 1], [1.0, 2.0])
    cost = CostCurve.affine(0.1, 0.1)
    with pytest.raises(InvalidArgument, match="no gradients"):
        plan_buckets(Timeline([], [], []), cost)
    with pytest.raises(InvalidArgument, match="no partition of 0 to 1"):
        simulate(line, [[0]], cost)
    with pytest.raises(InvalidArgument, match="no partition"):
        plan_of(line, [[0, 1], [1]], cost)
    with pytest.raises(InvalidArgument, match="slowdown of 1 or more"):
        plan_buckets(line, cost, slowdown=0.5)
    with pytest.raises(InvalidArgument, match="margin is -1"):
        plan_buckets(line, cost, margin=-1)
    with pytest.raises(InvalidArgument, match="at least 1"):
        fixed_buckets([1, 2], 0)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((["a"], [1, 2], [0.0]), "nbytes has 2 entries"),
        ((["a", "b"], [1, 2], [1.0, 0.5]), "Timeline.sorted"),
        ((["a"], [-1], [0.0]), "none negative"),
        ((["a"], [1], [float("nan")]), "finite"),
        ((["a"], ["many"], [1.0]), "not the numbers"),
        ((["a"], [1], [1.0], None, [1]), "not the numbers"),
        ((["a"], [1], [1.0], [0.0], 0.5), "at least the last ready"),
        ((["a"], [1], [1.0], [2.0], 1.0, 1.0), "at least the last needed"),
    ],
)
def test_wrong_timelines(arguments: tuple[object, ...], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        Timeline(*arguments)  # type: ignore[arg-type]


def test_timeline_through_json() -> None:
    line = random_line(20, 5)
    again = Timeline.from_json(json.loads(json.dumps(line.to_json())))
    assert (again.names, again.backward_end, again.forward) == (line.names, line.backward_end, line.forward)
    assert (again.ready == line.ready).all()
    assert (again.nbytes == line.nbytes).all()
    with pytest.raises(InvalidArgument, match=r"\['ready'\] missing, \['when'\] unknown"):
        Timeline.from_json({"names": [], "nbytes": [], "when": []})


def test_sorted_keeps_the_order_of_equals() -> None:
    line, order = Timeline.sorted(["a", "b", "c", "d"], [1, 2, 3, 4], [0.2, 0.1, 0.2, 0.1], [0.0, 0.1, 0.2, 0.3])
    assert order.tolist() == [1, 3, 0, 2]
    assert line.names == ("b", "d", "a", "c")
    assert line.needed.tolist() == [0.1, 0.3, 0.0, 0.2]


def test_table_lists_every_bucket_and_the_comparison() -> None:
    line = random_line(60, 2)
    plan = plan_buckets(line, CostCurve.affine(1e-4, 0.5 * line.backward_end / line.total))
    text = plan.table()
    assert f"{len(plan.buckets)} buckets of 60 gradients" in text
    for number in range(len(plan.buckets)):
        assert any(row.split()[:1] == [str(number)] for row in text.splitlines())
    for name in ("this plan", "fixed 25 MiB", "one a gradient", "a single one"):
        assert name in text
    many = plan_of(line, [[i] for i in range(60)], plan.cost)
    assert "and 20 more" in many.table()


def test_picture(tmp_path: object) -> None:
    pytest.importorskip("matplotlib")
    from pathlib import Path

    folder = Path(str(tmp_path))
    line = random_line(30, 2)
    plan = plan_buckets(line, CostCurve.affine(1e-4, 0.5 * line.backward_end / line.total))
    plan.picture(folder / "plan.png")
    assert (folder / "plan.png").read_bytes().startswith(b"\x89PNG")
    plan.picture(str(folder / "plan.svg"))
    with pytest.raises(InvalidArgument, match=r"unknown kind of picture '\.doc'"):
        plan.picture(folder / "plan.doc")
