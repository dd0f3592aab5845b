"""Every algorithm does what its collective promises, at the cost that the literature gives for it."""

from __future__ import annotations

import importlib.util
from fractions import Fraction
from math import ceil, log2

import numpy as np
import pytest
from variants import variants

from ringleader.algorithms import Algorithm, all_algorithms, build, get, parse_spec, terms
from ringleader.algorithms.registry import PER_RANK
from ringleader.schedule import Collective, Schedule, verify
from ringleader.schedule.algebra import expand

ENTRIES = all_algorithms()
IDS = [entry.full_name for entry in ENTRIES]
DENSE = range(1, 25)
SPARSE = (31, 32, 33, 48, 63, 64, 100, 128)
NATIVE = importlib.util.find_spec("ringleader._core") is not None

each = pytest.mark.parametrize("entry", ENTRIES, ids=IDS)


def roots(entry: Algorithm, n: int) -> range:
    return range(n) if Collective(entry.collective).rooted else range(1)


# ---------------------------------------------------------------- correctness


@each
def test_proved_for_dense_and_sparse_n(entry: Algorithm) -> None:
    for n in (*DENSE, *SPARSE):
        verify(build(entry.collective, entry.name, n), lowered=False).raise_if_failed()


@each
def test_proved_for_every_root_and_parameter(entry: Algorithm) -> None:
    for n in range(1, 9):
        for spec in variants(entry, n):
            for root in roots(entry, n):
                schedule = build(entry.collective, spec, n, root)
                verify(schedule, lowered=False).raise_if_failed()
                assert schedule.root == root
                assert schedule.n == n
                assert schedule.collective == entry.collective


@each
@pytest.mark.skipif(not NATIVE, reason="the native core is not built")
def test_lowered_programs_are_proved(entry: Algorithm) -> None:
    for n in (1, 2, 3, 4, 5, 8):
        for spec in variants(entry, n):
            verify(build(entry.collective, spec, n, root=n - 1 if roots(entry, n)[-1] else 0)).raise_if_failed()
    for layout in ([0, 0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1], [0, 0, 1, 1, 2], [0, 1, 0, 1]):
        verify(build(entry.collective, entry.name, len(layout), nodes=layout), nodes=layout).raise_if_failed()


@each
def test_one_rank_talks_to_nobody(entry: Algorithm) -> None:
    schedule = build(entry.collective, entry.name, 1)
    # Only an all_to_all has anything to do: its output is another buffer than its input.
    assert schedule.transfers == (entry.collective == "all_to_all")


@each
def test_nobody_gets_what_he_has_from_the_start(entry: Algorithm) -> None:
    """Data that a rank begins with and that is its result is never written: it may be a buffer one must not touch."""
    for n in (2, 3, 5, 6, 8, 13):
        for root in {0, roots(entry, n)[-1]}:
            table = expand(build(entry.collective, entry.name, n, root).table)[0]
            if entry.collective in ("broadcast", "scatter"):
                assert not np.any(table["dst_rank"] == root)
            elif entry.collective in ("all_gather", "gather"):
                per_block = build(entry.collective, entry.name, n, root).chunks_per_block
                assert not np.any(table["dst_chunk"] // per_block == table["dst_rank"])
            elif entry.collective == "all_to_all":
                assert not np.any(table["dst_buffer"] == 1)


# ---------------------------------------------------------------- cost, against the literature


def measured(schedule: Schedule) -> tuple[int, Fraction]:
    """(steps, bytes through the busiest rank in its busier direction, summed over the steps, as part of the data)."""
    table = expand(schedule.table)[0]
    table = table[table["src_rank"] != table["dst_rank"]]
    chunks = 0
    for step in range(schedule.steps):
        now = table[table["step"] == step]
        if len(now):
            chunks += max(np.bincount(now["src_rank"]).max(), np.bincount(now["dst_rank"]).max())
    return schedule.steps, Fraction(int(chunks), schedule.chunks)


def chan_bound(n: int) -> Fraction:
    return Fraction(n - 1, n)


def power(n: int) -> int:
    return 2 ** int(log2(n))


def logarithm(n: int, base: int) -> int:
    """Rounded up, in integers."""
    return next(k for k in range(64) if base**k >= n)


def star(n: int, base: int) -> int:
    """Children of the root of a tree with base - 1 children per level: the copies that it sends."""
    return sum(1 for level in range(64) for digit in range(1, base) if digit * base**level < n)


def square(n: int) -> tuple[int, int]:
    """The factors of n that are closest to each other."""
    side = max(k for k in range(1, n + 1) if n % k == 0 and k * k <= n)
    return side, n // side


# (collective, spec) -> (steps, volume) for n ranks, written down from the papers, not from the code.
KNOWN = {
    ("all_reduce", "linear"): lambda n: (2, 2 * (n - 1)),
    ("all_reduce", "binomial"): lambda n: (2 * ceil(log2(n)), 2 * ceil(log2(n))),
    ("all_reduce", "one_shot"): lambda n: (1, n - 1),
    ("all_reduce", "two_shot"): lambda n: (2, 2 * chan_bound(n)),
    ("all_reduce", "two_shot:segments=4"): lambda n: (5, 2 * chan_bound(n)),
    ("all_reduce", "ring"): lambda n: (2 * (n - 1), 2 * chan_bound(n)),
    ("all_reduce", "ring:segments=4"): lambda n: (2 * (n - 1) + 3, 2 * chan_bound(n)),
    ("all_reduce", "allgather_reduce"): lambda n: (ceil(log2(n)) + 1, n - 1),
    ("all_reduce", "allgather_reduce:exchange=ring"): lambda n: (n, n - 1),
    ("reduce_scatter", "direct"): lambda n: (1, chan_bound(n)),
    ("reduce_scatter", "ring"): lambda n: (n - 1, chan_bound(n)),
    ("all_gather", "direct"): lambda n: (1, chan_bound(n)),
    ("all_gather", "ring"): lambda n: (n - 1, chan_bound(n)),
    ("all_gather", "ring:segments=3"): lambda n: (n + 1, chan_bound(n)),
    ("all_gather", "bruck"): lambda n: (ceil(log2(n)), chan_bound(n)),
    ("broadcast", "linear"): lambda n: (1, n - 1),
    ("broadcast", "binomial"): lambda n: (ceil(log2(n)), ceil(log2(n))),
    ("broadcast", "chain:segments=1"): lambda n: (n - 1, n - 1),
    ("broadcast", "chain:segments=16"): lambda n: (n + 14, Fraction(n + 14, 16)),
    ("broadcast", "scatter_allgather"): lambda n: (ceil(log2(n)) + n - 1, 2 * chan_bound(n)),
    ("reduce", "linear"): lambda n: (1, n - 1),
    ("reduce", "binomial"): lambda n: (ceil(log2(n)), ceil(log2(n))),
    ("reduce", "chain:segments=16"): lambda n: (n + 14, Fraction(n + 14, 16)),
    ("reduce", "two_shot"): lambda n: (2, 2 * chan_bound(n)),
    ("gather", "linear"): lambda n: (1, chan_bound(n)),
    ("gather", "binomial"): lambda n: (ceil(log2(n)), chan_bound(n)),
    ("scatter", "linear"): lambda n: (1, chan_bound(n)),
    ("scatter", "binomial"): lambda n: (ceil(log2(n)), chan_bound(n)),
    ("all_to_all", "direct"): lambda n: (1, chan_bound(n)),
    ("all_to_all", "pairwise"): lambda n: (n - 1, chan_bound(n)),
    ("all_reduce", "unequal_two_shot"): lambda n: (2, 2 * chan_bound(n)),
    ("all_reduce", "knomial:radix=3"): lambda n: (2 * logarithm(n, 3), 2 * star(n, 3)),
    ("all_reduce", "bucket"): lambda n: (2 * sum(side - 1 for side in square(n)), 2 * chan_bound(n)),
    ("all_reduce", "torus"): lambda n: (2 * sum(side - 1 for side in square(n)), 2 * chan_bound(n)),
    ("reduce_scatter", "bucket"): lambda n: (sum(side - 1 for side in square(n)), chan_bound(n)),
    ("all_gather", "bucket"): lambda n: (sum(side - 1 for side in square(n)), chan_bound(n)),
    ("all_gather", "bruck:radix=4"): lambda n: (logarithm(n, 4), chan_bound(n)),
    ("all_gather", "pat"): lambda n: (ceil(log2(n)), chan_bound(n)),
    ("reduce_scatter", "pat"): lambda n: (ceil(log2(n)), chan_bound(n)),
    ("broadcast", "knomial:radix=4"): lambda n: (logarithm(n, 4), star(n, 4)),
    ("reduce", "knomial:radix=4"): lambda n: (logarithm(n, 4), star(n, 4)),
    ("gather", "knomial:radix=4"): lambda n: (logarithm(n, 4), chan_bound(n)),
    ("scatter", "knomial:radix=4"): lambda n: (logarithm(n, 4), chan_bound(n)),
    ("barrier", "direct"): lambda n: (1, n - 1),
    ("barrier", "dissemination"): lambda n: (ceil(log2(n)), ceil(log2(n))),
    ("barrier", "tree"): lambda n: (2 * ceil(log2(n)), 2 * ceil(log2(n))),
}
# For powers of two.
KNOWN_POWER = {
    ("all_reduce", "recursive_doubling"): lambda n: (log2(n), log2(n)),
    ("all_reduce", "rabenseifner"): lambda n: (2 * log2(n), 2 * chan_bound(n)),
    ("reduce", "rabenseifner"): lambda n: (2 * log2(n), 2 * chan_bound(n)),
    ("reduce_scatter", "recursive_halving"): lambda n: (log2(n), chan_bound(n)),
    ("all_gather", "recursive_doubling"): lambda n: (log2(n), chan_bound(n)),
    ("all_to_all", "bruck"): lambda n: (log2(n), Fraction(int(log2(n)), 2)),
    ("all_reduce", "swing"): lambda n: (2 * log2(n), 2 * chan_bound(n)),
    ("all_reduce", "recursive_multiplying:radix=2"): lambda n: (log2(n), log2(n)),
    ("all_reduce", "bcube:radix=2"): lambda n: (2 * log2(n), 2 * chan_bound(n)),
    ("reduce_scatter", "bine"): lambda n: (log2(n), chan_bound(n)),
    ("all_gather", "bine"): lambda n: (log2(n), chan_bound(n)),
    ("broadcast", "bine"): lambda n: (log2(n), log2(n)),
    ("reduce", "bine"): lambda n: (log2(n), log2(n)),
    ("gather", "bine"): lambda n: (log2(n), chan_bound(n)),
    ("scatter", "bine"): lambda n: (log2(n), chan_bound(n)),
    # With one segment, a level of the tree is a step in which somebody sends to two children.
    ("broadcast", "binary_tree:segments=1"): lambda n: (log2(n), 2 * log2(n) - 1),
    ("reduce", "binary_tree:segments=1"): lambda n: (log2(n), 2 * log2(n) - 1),
}
# For other numbers of ranks: one step more for folding, and one for unfolding where all get the result.
KNOWN_FOLDED = {
    ("all_reduce", "recursive_doubling"): lambda n: (log2(power(n)) + 2, log2(power(n)) + 2),
    ("all_reduce", "rabenseifner"): lambda n: (2 * log2(power(n)) + 2, 2 * chan_bound(power(n)) + 2),
    ("reduce", "rabenseifner"): lambda n: (2 * log2(power(n)) + 1, 2 * chan_bound(power(n)) + 1),
}


@pytest.mark.parametrize(("collective", "spec"), KNOWN, ids=str)
def test_known_cost(collective: str, spec: str) -> None:
    for n in (2, 3, 4, 5, 7, 8, 12, 17, 32):
        assert measured(build(collective, spec, n)) == KNOWN[collective, spec](n), n


@pytest.mark.parametrize(("collective", "spec"), KNOWN_POWER, ids=str)
def test_known_cost_for_powers_of_two(collective: str, spec: str) -> None:
    for n in (2, 4, 8, 16, 32):
        assert measured(build(collective, spec, n)) == KNOWN_POWER[collective, spec](n), n


@pytest.mark.parametrize(("collective", "spec"), KNOWN_FOLDED, ids=str)
def test_known_cost_with_folding(collective: str, spec: str) -> None:
    for n in (3, 5, 6, 7, 9, 12, 31):
        assert measured(build(collective, spec, n)) == KNOWN_FOLDED[collective, spec](n), n


@each
def test_the_registry_tells_the_cost(entry: Algorithm) -> None:
    """What the cost model is given is what the schedule has."""
    for n in (2, 3, 4, 6, 8, 11, 16, 23):
        for spec in variants(entry, n):
            steps, volume = measured(build(entry.collective, spec, n))
            values = parse_spec(entry.collective, spec).values
            told = entry.terms(n, values)
            assert (told.steps, told.volume) == (steps, pytest.approx(float(volume))), (spec, n)
            assert told.transfers == build(entry.collective, spec, n).transfers <= entry.transfers(n, values), (spec, n)


@pytest.mark.parametrize("entry", [entry for entry in ENTRIES if entry.closed is not None], ids=lambda e: e.full_name)
def test_closed_forms_are_what_the_schedules_have(entry: Algorithm) -> None:
    """They stand for schedules that are too large to be made, so they are held to those that are not."""
    assert entry.closed is not None
    for n in (2, 3, 4, 6, 8, 11, 16, 23, 40):
        for spec in variants(entry, n):
            schedule = build(entry.collective, spec, n)
            layout = {"nodes": None} if entry.needs_layout else {}
            closed = entry.closed(n, **parse_spec(entry.collective, spec).values, **layout)
            found = terms(schedule)
            assert (closed.steps, closed.volume) == (found.steps, pytest.approx(found.volume)), (spec, n)
            assert closed.transfers >= found.transfers, (spec, n)


def test_what_has_no_closed_form_is_small() -> None:
    """`check` relies on it: it does not make schedules to count their transfers."""
    for entry in ENTRIES:
        if entry.closed is None and not any(parameter.of for parameter in entry.parameters):
            for n in (2, 3, 23, 40, 255, 1024):
                for spec in variants(entry, n):
                    segments = parse_spec(entry.collective, spec).values.get("segments", 1)
                    assert build(entry.collective, spec, n).transfers * 3 <= PER_RANK * n * segments, (spec, n)


def test_bandwidth_optimal_algorithms_meet_the_lower_bound() -> None:
    for collective, spec in (
        ("all_reduce", "ring"),
        ("all_reduce", "two_shot"),
        ("reduce_scatter", "ring"),
        ("all_gather", "bruck"),
        ("all_to_all", "pairwise"),
    ):
        for n in (2, 5, 8, 13):
            assert verify(build(collective, spec, n), lowered=False).ratio == pytest.approx(1.0), (collective, spec, n)


# ---------------------------------------------------------------- properties of single algorithms


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 7, 8, 9, 16, 21, 32, 33, 64, 100])
def test_double_binary_tree_has_each_rank_inside_one_tree_at_most(n: int) -> None:
    table = build("all_reduce", "double_binary_tree", n).table
    inside = [set(table[(table["reduce"] == 1) & (table["src_chunk"] == half)]["dst_rank"]) for half in (0, 1)]
    assert not inside[0] & inside[1]
    for half in (0, 1):
        up = table[(table["reduce"] == 1) & (table["src_chunk"] == half)]
        assert len(up) == n - 1
        assert max(np.bincount(up["dst_rank"])) <= 2
    sent = np.bincount(table["src_rank"], minlength=n)
    assert sent.max() <= 4  # halves of the data: no rank sends more than twice the data


def test_rings_use_one_direction() -> None:
    for spec in ("ring", "ring:segments=4"):
        table = build("all_reduce", spec, 6).table
        assert set(((table["dst_rank"] - table["src_rank"]) % 6).tolist()) == {1}


def test_pairwise_partners_exchange_for_powers_of_two() -> None:
    table = build("all_to_all", "pairwise", 8).table
    table = table[table["src_rank"] != table["dst_rank"]]
    pairs = {(int(t["step"]), int(t["src_rank"]), int(t["dst_rank"])) for t in table}
    assert pairs == {(step, dst, src) for step, src, dst in pairs}


def test_chain_visits_ranks_in_order_from_the_root() -> None:
    table = build("broadcast", "chain:segments=1", 5, root=3).table
    assert [(int(t["src_rank"]), int(t["dst_rank"])) for t in table] == [(3, 4), (4, 0), (0, 1), (1, 2)]


def test_allgather_reduce_folds_in_plain_rank_order() -> None:
    """Its last step is the only one that reduces: one fold over all ranks in each of them."""
    schedule = build("all_reduce", "allgather_reduce", 6)
    folds = schedule.table[schedule.table["reduce"] == 1]
    assert set(folds["step"]) == {schedule.steps - 1}
    assert np.all(folds["src_rank"] == folds["dst_rank"])
    assert [sorted(folds[folds["dst_rank"] == r]["src_chunk"]) for r in (0, 5)] == [[1, 2, 3, 4, 5], [0, 1, 2, 3, 4]]


def test_rings_follow_a_given_order() -> None:
    table = build("all_reduce", "ring:order=0+2+4+1+3", 5).table
    hops = set(zip(table["src_rank"].tolist(), table["dst_rank"].tolist(), strict=True))
    assert hops == {(0, 2), (2, 4), (4, 1), (1, 3), (3, 0)}


def test_rank_without_a_share_reduces_nothing() -> None:
    table = build("all_reduce", "unequal_two_shot:shares=3+0+1", 3).table
    folds = table[table["reduce"] == 1]
    assert set(folds["dst_rank"]) == {0, 2}
    assert measured(build("all_reduce", "unequal_two_shot:shares=3+0+1", 3)) == (2, 2 * Fraction(3 * 2, 4))


@pytest.mark.parametrize("n", [2, 3, 4, 6, 8, 12, 16, 20, 31, 64, 100])
def test_swing_and_bine_partners_are_nearer_than_powers_of_two(n: int) -> None:
    """Steps of a Bine tree from the far end: the distances 1, 1, 3, 5, 11, ... of the papers, backwards."""
    even = n - n % 2
    table = build("broadcast", "bine", n).table
    apart = (table["dst_rank"] - table["src_rank"]) % even
    inside = (table["dst_rank"] < even) & (table["src_rank"] < even)
    rounds = ceil(log2(even)) if even > 1 else 0
    for step in range(rounds):
        d = (1 - (-2) ** (rounds - step)) // 3
        there = apart[inside & (table["step"] == step)]
        assert set(there.tolist()) <= {d % even, -d % even}, step


def test_pat_bounds_what_a_message_holds() -> None:
    for limit in (1, 2, 3):
        table = build("all_gather", f"pat:aggregation={limit}", 13).table
        message = table["step"].astype(np.int64) * 13 + table["src_rank"]
        assert np.unique(message, return_counts=True)[1].max() <= limit


def test_bcube_talks_within_groups_of_k() -> None:
    table = build("all_reduce", "bcube:radix=4", 16).table
    for step in range(4):
        now = table[table["step"] == step]
        assert np.unique(now["src_rank"], return_counts=True)[1].tolist() == [3] * 16


def test_buckets_use_all_dimensions_at_once() -> None:
    table = build("all_reduce", "bucket:dims=4x4", 16).table
    first = table[table["step"] == 0]
    apart = (first["dst_rank"] - first["src_rank"]) % 16
    assert set(apart.tolist()) == {4, 1, 13}  # down, right, and right across the edge


def test_each_collective_has_what_the_field_has() -> None:
    for collective, name in [*KNOWN, *KNOWN_POWER]:
        assert get(collective, name.partition(":")[0]).summary
    assert len({entry.name for entry in ENTRIES}) >= 25
