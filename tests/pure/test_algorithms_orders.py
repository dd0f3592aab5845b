"""Ring orders and shares from bandwidths."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ringleader.algorithms import build
from ringleader.algorithms.orders import EXACT_RING, bandwidth_shares, bottleneck, ring_order
from ringleader.errors import InvalidArgument
from ringleader.schedule import verify

matrices = st.integers(2, 6).flatmap(lambda n: arrays(np.float64, (n, n), elements=st.integers(0, 9).map(float)))


@given(matrices)
@settings(max_examples=80, deadline=None)
def test_no_ring_has_a_faster_slowest_link(matrix: np.ndarray) -> None:
    n = len(matrix)
    order = ring_order(matrix)
    assert sorted(order) == list(range(n))
    assert order[0] == 0
    best = max(bottleneck(matrix, (0, *rest)) for rest in itertools.permutations(range(1, n)))
    assert bottleneck(matrix, order) == best


@pytest.mark.parametrize("n", [EXACT_RING, 24, 40])
def test_a_hidden_fast_ring_is_found(n: int) -> None:
    """Links of one ring are fast, and a few others; all the rest is slow."""
    rng = np.random.default_rng(n)
    ring = rng.permutation(n)
    matrix = rng.uniform(1, 2, (n, n))
    matrix[ring, np.roll(ring, -1)] = 10 + rng.uniform(0, 1, n)
    order = ring_order(matrix)
    assert sorted(order) == list(range(n))
    assert bottleneck(matrix, order) >= 10


def test_two_hosts_are_crossed_twice() -> None:
    home = np.arange(8) % 2
    matrix = np.where(home[:, None] == home, 100.0, 3.0)
    matrix[0, 1] = matrix[1, 0] = 12.0  # only these two, and 2 and 3, have fast cards
    matrix[2, 3] = matrix[3, 2] = 12.0
    order = ring_order(matrix)
    assert bottleneck(matrix, order) == 12.0
    verify(build("all_reduce", f"ring:order={'+'.join(map(str, order))}", 8)).raise_if_failed()


@pytest.mark.parametrize("wrong", [[[1.0, 2.0]], [1.0, 2.0], [[0, -1], [1, 0]], [[0, float("nan")], [1, 0]], [[]]])
def test_wrong_matrices_are_refused(wrong: list) -> None:
    with pytest.raises(InvalidArgument, match="bandwidth has"):
        ring_order(wrong)


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=9), st.integers(1, 300))
def test_shares_add_up_and_follow_the_bandwidth(bandwidth: list[float], parts: int) -> None:
    shares = bandwidth_shares(bandwidth, parts)
    assert sum(shares) == parts
    order = np.argsort(bandwidth)
    sorted_shares = np.array(shares)[order]
    assert np.all(np.diff(sorted_shares) >= -1)  # rounding may turn equals round by one part
    assert min(shares) >= 0


@given(st.lists(st.integers(1, 8), min_size=3, max_size=7))
@settings(max_examples=60, deadline=None)
def test_no_other_shares_finish_earlier(bandwidth: list[int]) -> None:
    """Moving a hundredth of the data from any rank to any other does not shorten the longest time."""
    n, parts = len(bandwidth), 10000

    def longest(shares: np.ndarray) -> float:
        return float(((1 + shares / parts * (n - 2)) / np.array(bandwidth)).max())

    shares = np.array(bandwidth_shares(bandwidth, parts))
    best = longest(shares)
    for giver, taker in itertools.permutations(range(n), 2):
        other = shares.copy()
        moved = min(100, other[giver])
        other[giver] -= moved
        other[taker] += moved
        assert longest(other) >= best - 1e-3


def test_wrong_bandwidths_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="expected one positive number for each rank"):
        bandwidth_shares([1.0, 0.0])
    with pytest.raises(InvalidArgument, match="parts is 0"):
        bandwidth_shares([1.0, 1.0], parts=0)
