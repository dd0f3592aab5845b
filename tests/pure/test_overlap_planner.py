"""The planner: all ranks agree, drifts are noticed, noise is not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from ringleader.errors import InvalidArgument
from ringleader.overlap import Conditions, CostCurve, Planner, Recording, Settings, measured_slowdown, simulate

N = 24
NAMES = [f"layer{i}" for i in range(N)]
SIZES = np.array([200_000 + 7919 * (i % 5) for i in range(N)])
QUICK = Settings(warmup=1, window=3, interval=12)
COST = CostCurve.affine(2e-4, 8e-10)


def step(
    rank: int = 0, scale: float = 1.0, noise: float = 0.0, seed: int = 0, quiet: bool = True, cost: float = 1.0
) -> Recording:
    """Backward goes from the last layer to the first, a millisecond and a bit each; higher ranks are slower."""
    random = np.random.default_rng(1000 * seed + rank)
    lengths = scale * 1e-3 * (1 + 0.1 * rank) * (1 + noise * random.uniform(-1, 1, N))
    ready = np.cumsum(lengths)[::-1].copy()
    needed = np.arange(N) * 4e-4 * scale
    sent = [(int(SIZES[0]), cost * COST(int(SIZES[0])))]
    return Recording(ready, float(ready.max()), needed, N * 4e-4 * scale, sent, quiet)


class World:
    """Ranks as threads, and the element-wise maximum over them."""

    def __init__(self, ranks: int) -> None:
        self.ranks, self.calls = ranks, 0
        self._barrier = threading.Barrier(ranks, timeout=30)
        self._given: list[NDArray[np.float64]] = [np.zeros(0)] * ranks

    def agree(self, rank: int) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
        def maximum(values: NDArray[np.float64]) -> NDArray[np.float64]:
            self._given[rank] = values
            self._barrier.wait()
            result: NDArray[np.float64] = np.max(self._given, axis=0)
            self.calls += rank == 0
            self._barrier.wait()
            return result

        return maximum

    def run(self, body: Callable[[int], object]) -> list[object]:
        results: list[object] = [None] * self.ranks

        def rank_body(rank: int) -> None:
            try:
                results[rank] = body(rank)
            except BaseException as error:
                results[rank] = error
                self._barrier.abort()

        threads = [threading.Thread(target=rank_body, args=(rank,)) for rank in range(self.ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results


def single(settings: Settings = QUICK, cost: CostCurve = COST, conditions: Conditions | None = None) -> Planner:
    return Planner(NAMES, SIZES, cost, conditions=conditions, settings=settings)


def feed(planner: Planner, count: int, **how: object) -> list[int]:
    """Record so many steps; those after which there were new buckets."""
    changed = []
    for _ in range(count):
        if planner.record(step(seed=planner.steps, **how)):  # type: ignore[arg-type]
            changed.append(planner.steps)
    return changed


# ------------------------------------------------------------------------------------------------ agreement


def test_all_ranks_get_the_plan_of_the_slowest() -> None:
    world = World(4)

    def body(rank: int) -> object:
        planner = Planner(NAMES, SIZES, COST, world.agree(rank), settings=QUICK)
        for number in range(4):
            planner.record(step(rank, noise=0.3, seed=number))
        assert planner.plan is not None
        return planner.buckets, planner.plan.timeline.ready.tolist(), planner.order.tolist()

    results = world.run(body)
    assert all(result == results[0] for result in results)
    own = [step(3, noise=0.3, seed=number).backward_end for number in range(1, 4)]  # the first one does not count
    assert results[0][1][-1] == np.median(own)  # type: ignore[index]


def test_ranks_that_see_different_orders_agree_on_one() -> None:
    world = World(2)

    def body(rank: int) -> object:
        planner = Planner(["a", "b", "c"], [4000] * 3, COST, world.agree(rank), settings=Settings(0, 1))
        order = [[0.1, 0.2, 0.3], [0.15, 0.12, 0.3]][rank]
        planner.record(Recording(np.array(order), 0.3))
        return planner.order.tolist(), planner.buckets

    results = world.run(body)
    assert results[0] == results[1]
    assert results[0][0] == [0, 1, 2]  # type: ignore[index]


def test_if_ranks_compute_different_plans_all_cut_where_anyone_does() -> None:
    """As could be with machines whose arithmetic differs: here, with costs that do."""
    world = World(2)

    def body(rank: int) -> object:
        cost = CostCurve.affine([1e-5, 5e-3][rank], 8e-10)
        planner = Planner(NAMES, SIZES, cost, world.agree(rank), settings=Settings(0, 1))
        planner.record(replace(step(), sent=()))
        alone = Planner(NAMES, SIZES, cost, settings=Settings(0, 1))
        alone.record(replace(step(), sent=()))
        return planner.buckets, alone.buckets

    (together, mine), (also, theirs) = world.run(body)  # type: ignore[misc]
    assert together == also
    assert mine != theirs
    cuts = [{bucket[-1] for bucket in buckets} for buckets in (together, mine, theirs)]
    assert cuts[0] == cuts[1] | cuts[2]


def test_agree_is_called_at_steps_that_can_be_told_before() -> None:
    calls = []

    def agree(values: NDArray[np.float64]) -> NDArray[np.float64]:
        calls.append(len(values))
        return values

    planner = Planner(NAMES, SIZES, COST, agree, settings=QUICK)
    for number in range(60):
        expected, before = planner.looks_next, len(calls)
        planner.record(step(seed=number, noise=0.02))
        assert (len(calls) > before) == expected
    assert 6 <= len(calls) <= 10  # after the first plan (two calls): 3, 6, 12, 12, ... steps apart
    assert set(calls) == {2 * N + 4, N}


# ------------------------------------------------------------------------------------------------ decisions


def test_first_plan_comes_after_warmup_and_window() -> None:
    planner = single()
    assert planner.buckets is None
    assert feed(planner, 4) == [4]
    assert planner.plan is not None
    assert planner.plan.exposed < planner.plan.compared["fixed 25 MiB"].exposed
    assert planner.buckets is not None
    assert planner.buckets[0][0] == N - 1  # the last layer's gradient is ready first
    assert sorted(i for bucket in planner.buckets for i in bucket) == list(range(N))


def test_noise_and_single_slow_steps_are_no_drift() -> None:
    planner = single()
    feed(planner, 4)
    for _ in range(12):
        feed(planner, 4, noise=0.2, quiet=False)
        feed(planner, 1, scale=5.0, quiet=False)
    assert planner.plans == 1


def test_drift_needs_patience_and_makes_a_new_plan() -> None:
    planner = single()
    feed(planner, 30, quiet=False)
    assert planner.plans == 1
    looks = []
    changed = []
    while not changed and planner.steps < 100:
        looks.append(planner.looks_next)
        changed = feed(planner, 1, scale=0.25, quiet=False)
    assert sum(looks) == QUICK.patience
    assert "drifted by 75%" in planner.why
    assert planner.plan is not None
    assert planner.plan.timeline.backward_end == pytest.approx(0.25 * N * 1e-3)


def test_drift_that_ends_in_time_is_forgotten() -> None:
    planner = single(Settings(warmup=0, window=3, interval=6, patience=3))
    feed(planner, 30, quiet=False)
    for _ in range(5):
        feed(planner, 9, scale=2.0, quiet=False)
        feed(planner, 12, scale=1.0, quiet=False)
    assert planner.plans == 1


def test_quiet_and_busy_steps_are_not_compared() -> None:
    planner = single()
    feed(planner, 4)
    feed(planner, 40, scale=1.4, quiet=False)
    plans = planner.plans
    feed(planner, 40, scale=1.0, quiet=True)  # the program has stopped sending beside computing
    feed(planner, 40, scale=1.4, quiet=False)
    assert planner.plans == plans


def test_drift_that_changes_nothing_keeps_the_buckets() -> None:
    planner = single(cost=CostCurve.affine(1e-6, 1e-13))  # one bucket a layer or so costs nothing
    feed(planner, 30, quiet=False)
    before = planner.buckets
    feed(planner, 40, scale=1.5, quiet=False)
    assert planner.plans == 1
    assert planner.buckets == before
    assert "still good" in planner.why
    assert planner.plan is not None
    assert planner.plan.timeline.backward_end == pytest.approx(1.5 * N * 1e-3)


def test_costs_are_corrected_by_what_was_sent() -> None:
    planner = single()
    feed(planner, 4)
    assert planner.plan is not None
    assumed = planner.plan.exposed
    assert feed(planner, 4, quiet=False, cost=6.0) == [8]
    assert "6.00 times as long" in planner.why
    assert planner.cost(100_000) == pytest.approx(6 * COST(100_000))
    assert planner.plan.exposed > assumed
    assert feed(planner, 60, quiet=False, cost=6.0) == []


def test_costs_are_corrected_before_the_first_plan() -> None:
    planner = single()
    assert feed(planner, 4, cost=3.0) == [4]
    assert planner.plan is not None
    assert planner.plan.cost(100_000) == pytest.approx(3 * COST(100_000))
    assert feed(planner, 40, cost=3.0, quiet=False) == []


def test_of_costs_the_fastest_rank_counts() -> None:
    """The others have waited for it."""
    world = World(2)

    def body(rank: int) -> object:
        planner = Planner(NAMES, SIZES, COST, world.agree(rank), settings=QUICK)
        for number in range(8):
            planner.record(step(seed=number, cost=[9.0, 2.0][rank], quiet=number < 4))
        return planner.cost(100_000) / COST(100_000)

    assert world.run(body) == [pytest.approx(2.0)] * 2


def test_slowdown_is_measured_and_planned_with() -> None:
    truth = Conditions(slowdown=1.6)
    planner = single()
    feed(planner, 4)
    assert planner.plan is not None

    def busy() -> Recording:
        assert planner.plan is not None
        quiet = step()
        played = simulate(planner.plan.timeline, planner.plan.buckets, planner.cost, truth)
        stretch = played.backward / quiet.backward_end
        return Recording(quiet.ready * stretch, played.backward, quiet.needed, quiet.forward, quiet.sent)

    before = planner.buckets
    for _ in range(8):
        planner.record(busy())
    assert planner.conditions.slowdown == pytest.approx(1.6, abs=0.15)
    assert planner.plan.conditions.slowdown == planner.conditions.slowdown
    assert before is not None
    assert planner.buckets is not None
    assert len(planner.buckets) <= len(before)


def test_measured_slowdown() -> None:
    assert measured_slowdown(1.0, 0.9, [0.0], [1.0]) == 1.0  # faster: noise
    assert measured_slowdown(1.0, 1.5, [], []) == 1.0
    assert measured_slowdown(1.0, 3.0, [0.0], [1.0]) == 10.0  # no more than that is believed
    assert measured_slowdown(1.0, 1.2, [0.8], [2.0]) == pytest.approx(2.0)  # only what was beside: 0.4 s


def test_unused_parameters_come_last() -> None:
    planner = single(Settings(warmup=0, window=1))
    recording = step()
    recording.ready[N - 1] = np.nan
    planner.record(recording)
    assert planner.plan is not None
    assert planner.buckets is not None
    assert N - 1 in planner.buckets[-1]
    assert planner.plan.timeline.ready[-1] == planner.plan.timeline.backward_end


def test_wrong_arguments() -> None:
    planner = single()
    with pytest.raises(InvalidArgument, match="recording of 2 gradients; expected 24"):
        planner.record(Recording(np.zeros(2), 1.0))
    with pytest.raises(InvalidArgument, match="not finite"):
        planner.record(Recording(np.zeros(N), float("nan")))
    assert planner.steps == 0
    with pytest.raises(InvalidArgument, match="at least 1"):
        Settings(window=0)
