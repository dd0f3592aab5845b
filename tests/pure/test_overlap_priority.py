"""Partitions, their order, and the bounds of what can be hidden behind the next forward pass."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringleader.errors import InvalidArgument
from ringleader.overlap import (
    CostCurve,
    Launcher,
    Partition,
    Piece,
    Timeline,
    partition,
    plan_priority,
    preemptive_bound,
    simulate_priority,
)

MS = 1e-3
KIB = 1 << 10


@st.composite
def timelines(draw: st.DrawFn, most: int = 6) -> Timeline:
    """Layers: needed in the opposite order of readiness, more or less."""
    n = draw(st.integers(1, most))
    sizes = draw(st.lists(st.integers(1, 40), min_size=n, max_size=n))
    ready = sorted(draw(st.lists(st.integers(0, 30), min_size=n, max_size=n)))
    needed = sorted(draw(st.lists(st.integers(0, 20), min_size=n, max_size=n)), reverse=draw(st.booleans()))
    times, uses = [at * MS for at in ready], [at * MS for at in needed]
    return Timeline([str(i) for i in range(n)], sizes, times, uses, ready[-1] * MS, max(needed) * MS)


# ------------------------------------------------------------------------------------------------ partitions


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 300), max_size=12), st.integers(16, 200), st.sampled_from([1, 4, 16]), st.data())
def test_every_byte_is_in_one_partition(sizes: list[int], size: int, align: int, data: st.DataObject) -> None:
    urgency = data.draw(st.lists(st.integers(0, 5), min_size=len(sizes), max_size=len(sizes)))
    parts = partition(sizes, urgency, size, align)
    held = [np.zeros(n, int) for n in sizes]
    for part in parts:
        assert 0 < part.nbytes <= size
        assert part.priority == min(urgency[t] for t in part.tensors)
        for piece in part.pieces:
            held[piece.tensor][piece.start : piece.stop] += 1
            assert piece.start % align == 0
    assert all((counts == 1).all() for counts in held)
    assert [part.priority for part in parts] == sorted(part.priority for part in parts)
    # Only what is smaller than a cut may leave is left free in a partition that another one follows.
    assert all(part.nbytes > size - align for part in parts[:-1])


def test_partitions_follow_one_another_in_a_buffer_by_priority() -> None:
    sizes, urgency = [100, 1000, 10, 500], [3, 1, 2, 0]
    order = sorted(range(4), key=lambda i: urgency[i])
    place = dict(zip(order, itertools.accumulate([0, *(sizes[i] for i in order[:-1])]), strict=True))
    at = 0
    for part in partition(sizes, urgency, 256):
        for piece in part.pieces:
            assert place[piece.tensor] + piece.start == at
            at += piece.stop - piece.start
    assert at == sum(sizes)


# ------------------------------------------------------------------------------------------------ order


@settings(max_examples=80, deadline=None)
@given(timelines(most=5), st.sampled_from([0.1, 0.5, 1.0]))
def test_no_order_beats_the_bound(line: Timeline, per_byte: float) -> None:
    """Whole tensors, tried in every order: none goes below the bound; tiny partitions come close to it."""
    cost = CostCurve.affine(0.0, per_byte * MS)
    bound = preemptive_bound(line, cost)
    assert bound >= max(0.0, cost(line.total) - line.backward_end - line.forward) - 1e-9
    whole = tuple(Partition((Piece(i, 0, int(size)),), float(line.needed[i])) for i, size in enumerate(line.nbytes))
    for order in itertools.permutations(range(len(line))):
        assert simulate_priority(line, whole, cost, order=order).exposed >= bound - 1e-9
    tiny = simulate_priority(line, partition(line.nbytes, line.needed, 1, align=1), cost)
    # An urgent tensor waits for one byte at most, and a byte is not started early by fractions of itself.
    assert bound - 1e-9 <= tiny.exposed <= bound + 2 * per_byte * MS + 1e-9


@settings(max_examples=80, deadline=None)
@given(timelines(), st.integers(0, 3), st.integers(1, 40), st.integers(1, 4), st.integers(0, 2))
def test_simulation_keeps_the_rules(line: Timeline, latency: int, size: int, ahead: int, gap: int) -> None:
    cost = CostCurve.affine(latency * MS, 0.3 * MS)
    parts = partition(line.nbytes, line.needed, size, align=1)
    played = simulate_priority(line, parts, cost, 1 * MS, credit=ahead * size, gap=gap * MS)
    assert sorted(played.order) == list(range(len(parts)))
    for number, part in enumerate(parts):
        assert played.start[number] >= line.ready[list(part.tensors)].max() - 1e-9
        length = cost(part.nbytes) + 1 * MS
        assert played.end[number] - played.start[number] == pytest.approx(length, abs=2e-9)
    for one, other in itertools.pairwise(played.order):
        assert played.start[other] >= played.end[one] - 1e-9
    again = simulate_priority(line, parts, cost, 1 * MS, credit=ahead * size, gap=gap * MS, order=played.order)
    assert (again.end == played.end).all()  # the order, kept by every rank, gives the same


def test_bound_holds_for_costs_that_rise_faster_than_sizes() -> None:
    """Caches: small all-reduces cost less a byte than a large one."""
    line = layers()
    cost = CostCurve((1 << 16, 1 << 20, 1 << 24), (1e-4, 4e-3, 0.3))
    plan = plan_priority(line, cost)
    assert plan.yardstick <= plan.bound + 1e-9
    assert plan.bound <= plan.exposed + 1e-9
    assert plan.size == 1 << 16


def test_urgent_overtakes_what_is_not_started() -> None:
    line = Timeline(["back", "front"], [100, 10], [1.0, 3.0], [1.0, 0.0], backward_end=3.0, forward=2.0)
    cost = CostCurve.affine(0.0, 0.1)  # the back takes ten seconds
    whole = simulate_priority(line, partition(line.nbytes, line.needed, 200, align=1), cost)
    cut = simulate_priority(line, partition(line.nbytes, line.needed, 10, align=1), cost)
    assert whole.exposed == 11.0  # one partition, ready at 3, done at 14
    assert cut.order[:3] == (1, 2, 0)  # two parts of the back, then the front, then the rest
    assert cut.end[0] == 4.0
    assert cut.exposed == pytest.approx(12.0 - 4.0)
    deep = simulate_priority(line, partition(line.nbytes, line.needed, 10, align=1), cost, credit=50)
    assert deep.end[0] == 8.0  # what was started cannot be overtaken: seven parts by then


def test_credit_hides_the_gap() -> None:
    line = Timeline(["a"], [100], [0.0], [0.0], 0.0, 0.0)
    parts, cost = partition([100], [0.0], 10, align=1), CostCurve.affine(0.0, 0.1)
    one = simulate_priority(line, parts, cost, credit=10, gap=0.5)
    two = simulate_priority(line, parts, cost, credit=20, gap=0.5)
    assert (one.exposed, two.exposed) == (14.5, 10.0)


# ------------------------------------------------------------------------------------------------ plan


def layers(count: int = 12, size: int = 1 << 20, step: float = 0.01) -> Timeline:
    """Layers of equal size: backward takes two steps each, forward one."""
    ready = [2 * step * (i + 1) for i in range(count)]
    needed = [step * (count - 1 - i) for i in range(count)]
    return Timeline(
        [f"layer{count - 1 - i}" for i in range(count)], [size] * count, ready, needed, ready[-1], step * count
    )


@pytest.mark.parametrize("load", [0.3, 1.0, 3.0])
def test_plan_is_near_the_bound(load: float) -> None:
    line = layers()
    computing = line.backward_end + line.forward
    cost = CostCurve.affine(50e-6, load * computing / line.total)
    plan = plan_priority(line, cost, 20e-6)
    assert plan.bound >= plan.yardstick - 1e-9
    assert plan.bound - 1e-9 <= plan.exposed <= 1.3 * plan.bound + 2e-3
    assert plan.exposed <= min(plan.compared.values())
    assert "bound for any order" in plan.table()
    assert plan.yardstick == pytest.approx(max(0.0, (load - 1.0) * computing), abs=1e-4)


def test_overhead_makes_larger_partitions() -> None:
    line = layers()
    cost = CostCurve.affine(10e-6, line.backward_end / line.total)
    assert plan_priority(line, cost, 10e-6).size < plan_priority(line, cost, 20e-3).size


def test_plan_of_many_bytes_does_not_try_tiny_partitions() -> None:
    line = layers(4, 1 << 31)
    plan = plan_priority(line, CostCurve.affine(0.0, 1e-10), sizes=(64 * KIB, 4096 * KIB))
    assert plan.size == 4096 * KIB
    alone = plan_priority(layers(1, 1 << 20), CostCurve.affine(0.0, 1e-10), sizes=(128,))  # nothing else to try
    assert len(alone.partitions) == 8192


# ------------------------------------------------------------------------------------------------ at run time


@settings(max_examples=60, deadline=None)
@given(timelines(), st.integers(1, 30), st.integers(1, 3), st.randoms(use_true_random=False))
def test_launcher_starts_in_the_plan_order_whatever_happens(
    line: Timeline, size: int, ahead: int, random: object
) -> None:
    parts = partition(line.nbytes, line.needed, size, align=1)
    order = simulate_priority(line, parts, CostCurve.affine(1 * MS, 0.1 * MS), credit=ahead * size).order
    launcher = Launcher(parts, order, ahead * size)
    tensors, started, flying = list(range(len(line))), [], []
    random.shuffle(tensors)  # type: ignore[attr-defined]
    ready: set[int] = set()
    while tensors or flying:
        if tensors and (not flying or random.random() < 0.5):  # type: ignore[attr-defined]
            ready.add(tensors[-1])
            now = launcher.ready(tensors.pop())
        else:
            now = launcher.done(flying.pop(random.randrange(len(flying))))  # type: ignore[attr-defined]
        assert all(set(parts[number].tensors) <= ready for number in now)
        started += now
        flying += now
        assert len(flying) == 1 or sum(parts[number].nbytes for number in flying) <= ahead * size
    assert tuple(started) == order
    assert launcher.finished


def test_launcher_hears_of_a_tensor_twice() -> None:
    launcher = Launcher(partition([10, 10], [0, 1], 64), [0], 64)
    assert launcher.ready(0) == []
    assert launcher.ready(0) == []
    assert launcher.ready(1) == [0]


def test_wrong_arguments() -> None:
    with pytest.raises(InvalidArgument, match="at least align"):
        partition([1], [0], 10, align=64)
    with pytest.raises(InvalidArgument, match="1 tensors have 2 priorities"):
        partition([1], [0, 1], 64)
    with pytest.raises(InvalidArgument, match="each of 0 to 0 once"):
        Launcher(partition([1], [0], 64), [0, 0], 64)
    with pytest.raises(InvalidArgument, match="0 sizes"):
        plan_priority(layers(), CostCurve.affine(0.0, 1.0), sizes=())
    with pytest.raises(InvalidArgument, match="0 bytes"):
        plan_priority(Timeline([], [], []), CostCurve.affine(0.0, 1.0))
