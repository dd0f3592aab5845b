"""Cost curves: fitted, robust, never falling."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringleader.errors import InvalidArgument
from ringleader.overlap import CostCurve

MIB = 1 << 20
samples = st.lists(st.tuples(st.integers(0, 1000), st.floats(0, 10)), min_size=1, max_size=20)


@settings(max_examples=100, deadline=None)
@given(samples)
def test_fit_never_falls_and_stays_among_the_samples(pairs: list[tuple[int, float]]) -> None:
    curve = CostCurve.fit(pairs)
    values = curve(np.arange(0, 3000, 7))
    assert (np.diff(values) >= -1e-9).all()
    times = [seconds for _, seconds in pairs]
    assert min(times) - 1e-9 <= curve.seconds[0] <= curve.seconds[-1] <= max(times) + 1e-9
    assert curve == CostCurve.fit(reversed(pairs))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 20), min_size=2, max_size=5))
def test_fit_is_the_nearest_that_never_falls(times: list[int]) -> None:
    """Against all ways to merge neighbours into blocks of equal value, of which the nearest is one."""
    best = min(
        sum((block_mean - t) ** 2 for block, block_mean in blocks for t in block)
        for cut in itertools.product([False, True], repeat=len(times) - 1)
        if is_rising(blocks := blocks_of(times, cut))
    )
    fitted = CostCurve.fit(enumerate(map(float, times))).seconds
    assert sum((a - b) ** 2 for a, b in zip(fitted, times, strict=True)) == pytest.approx(best, abs=1e-9)


def blocks_of(times: list[int], cut: tuple[bool, ...]) -> list[tuple[list[int], float]]:
    edges = [0, *(i + 1 for i, here in enumerate(cut) if here), len(times)]
    return [(times[i:j], sum(times[i:j]) / (j - i)) for i, j in itertools.pairwise(edges)]


def is_rising(blocks: list[tuple[list[int], float]]) -> bool:
    return all(one[1] <= other[1] for one, other in itertools.pairwise(blocks))


def test_outliers_do_not_count() -> None:
    random = np.random.default_rng(1)
    pairs = []
    for bits in range(10, 25):
        for _ in range(9):
            slow = 50.0 if random.random() < 0.1 else random.uniform(0.98, 1.02)
            pairs.append((1 << bits, slow * (3e-5 + 1e-9 * (1 << bits))))
    curve = CostCurve.fit(pairs)
    for size in (3000, 100_000, 5 * MIB, 64 * MIB):  # the last lies beyond what was measured
        assert curve(size) == pytest.approx(3e-5 + 1e-9 * size, rel=0.1)


def test_one_knot_goes_on_in_proportion() -> None:
    curve = CostCurve((1000,), (1e-3,))
    assert curve([0, 1000, 3000]).tolist() == pytest.approx([1e-3, 1e-3, 3e-3])  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("sizes", "seconds"),
    [((), ()), ((1, 2), (1.0,)), ((2, 1), (1.0, 2.0)), ((1, 1), (1.0, 2.0)), ((1, 2), (2.0, 1.0)), ((1,), (-1.0,))],
)
def test_wrong_knots(sizes: tuple[int, ...], seconds: tuple[float, ...]) -> None:
    with pytest.raises(InvalidArgument, match="expected"):
        CostCurve(sizes, seconds)


def test_wrong_samples() -> None:
    with pytest.raises(InvalidArgument, match="-1 bytes in"):
        CostCurve.fit([(-1, 1.0)])
    with pytest.raises(InvalidArgument, match="4 bytes in nan"):
        CostCurve.fit([(4, float("nan"))])
    with pytest.raises(InvalidArgument, match="at least one"):
        CostCurve.fit([])
