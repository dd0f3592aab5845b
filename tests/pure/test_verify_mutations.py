"""Mutated schedules: verify rejects every mutation that changes the result, and only those or broken rules.

Whether the result changes is decided without the verifier: by running the mutant on random integers.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_schedule_samples import I64, SAMPLES, SUM, dissemination, expected, random_inputs, run, same

from ringleader.errors import ScheduleError
from ringleader.schedule import Builder, Schedule, check_spec, verify

try:
    from ringleader import _core

    LOWERS = hasattr(_core, "lower")
except ImportError:
    LOWERS = False

F32 = 0
MUTATIONS = ["drop", "duplicate", "repeat later", "swap", "src_rank", "dst_rank", "src_chunk", "dst_chunk", "reduce"]


def mutate(schedule: Schedule, kind: str, data: st.DataObject) -> Schedule:
    table = schedule.table.copy()
    rows = st.integers(0, len(table) - 1)
    row = data.draw(rows, "row")
    if kind == "drop":
        table = np.delete(table, row)
    elif kind == "duplicate":
        table = np.insert(table, row, table[row])
    elif kind == "repeat later":
        again = table[row : row + 1].copy()
        again["step"] = data.draw(st.integers(0, schedule.steps), "step")
        table = np.concatenate([table, again])
    elif kind == "swap":
        other = data.draw(rows, "other row")
        table["step"][[row, other]] = table["step"][[other, row]]
    elif kind == "reduce":
        table["reduce"][row] ^= 1
    else:
        size = schedule.n if kind.endswith("rank") else schedule.chunks
        table[kind][row] = data.draw(st.integers(0, size - 1), kind)
    return Schedule(schedule.collective, schedule.n, schedule.chunks, table, schedule.root)


def keeps_rules(schedule: Schedule) -> bool:
    try:
        check_spec(schedule)
    except ScheduleError:
        return False
    return True


def result_is_right(schedule: Schedule) -> bool:
    inputs = random_inputs(schedule, count=2 * schedule.chunks_per_block + 1)
    try:
        return same(run(schedule, inputs, I64, SUM, native=False), expected(schedule, inputs))
    except ScheduleError:  # something was read that is not there, or writes collided
        return False


@pytest.mark.parametrize("name", SAMPLES)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_verify_agrees_with_execution(name: str, data: st.DataObject) -> None:
    original = SAMPLES[name]()
    mutant = original
    for _ in range(data.draw(st.integers(1, 3), "number of mutations")):
        if len(mutant.table):
            mutant = mutate(mutant, data.draw(st.sampled_from(MUTATIONS), "mutation"), data)
    reports = [verify(mutant, mode=mode, lowered=False) for mode in ("exact", "fingerprint")]
    assert reports[0].ok == reports[1].ok, f"the modes disagree: {reports[0]} {reports[1]}"
    if not keeps_rules(mutant):
        assert not reports[0].ok
        return
    if not result_is_right(mutant):
        assert not reports[0].ok, f"accepted a wrong schedule: {mutant.table}"
    elif not reports[0].ok:
        assert all("association" in text for text in reports[0].violations), str(reports[0])
    elif LOWERS:  # odd, but right: the lowering must cope with it
        verify(mutant).raise_if_failed()


@pytest.mark.skipif(not LOWERS, reason="the native core is not built")
def test_a_dead_value_may_pass_through_n_contributions() -> None:
    """Of n = 4 ranks one contributes four times to a chunk that nobody reads again: it is a result at no time."""
    original = SAMPLES["reduce_scatter"]()
    again = original.table[[3, 3, 3]].copy()
    again["step"] = 1
    table = np.concatenate([original.table, again])
    verify(Schedule(original.collective, original.n, original.chunks, table, original.root)).raise_if_failed()


@pytest.mark.parametrize("name", SAMPLES)
def test_no_transfer_can_be_dropped(name: str) -> None:
    original = SAMPLES[name]()
    for row in range(len(original.table)):
        table = np.delete(original.table, row)
        mutant = Schedule(original.collective, original.n, original.chunks, table, original.root)
        assert not result_is_right(mutant)
        for mode in ("exact", "fingerprint"):
            report = verify(mutant, mode=mode, lowered=False)
            assert not report.ok
            assert "rank" in report.violations[0]


Tree = int | frozenset["Tree"]


def combine_locally(b: Builder, rank: int, merges: list[list[int]]) -> Tree:
    """Have one rank, which has all contributions (others' in scratch), combine them; returns the association.

    Each merge names slots: the others of it are reduced into the first, in one step.
    """
    place = [("data", 0) if slot == rank else ("scratch", slot) for slot in range(b.n)]
    trees: list[Tree] = list(range(b.n))
    lowest = list(range(b.n))
    for step, slots in enumerate(merges, start=1):
        into, *others = slots
        for other in others:
            (source, src_chunk), (target, dst_chunk) = place[other], place[into]
            b.send(step, rank, src_chunk, rank, dst_chunk, reduce=True, src_buffer=source, dst_buffer=target)
        ordered = sorted(slots, key=lambda slot: lowest[slot])
        trees[into] = functools.reduce(lambda a, c: frozenset({a, trees[c]}), ordered[1:], trees[ordered[0]])
        lowest[into] = min(lowest[slot] for slot in slots)
    last = merges[-1][0]
    if last != rank:
        b.send(len(merges) + 1, rank, last, rank, 0, src_buffer="scratch")
    return trees[last]


@st.composite
def merge_orders(draw: st.DrawFn, n: int) -> list[list[int]]:
    live, merges = list(range(n)), []
    while len(live) > 1:
        slots = draw(st.lists(st.sampled_from(live), min_size=2, max_size=len(live), unique=True))
        merges.append(slots)
        live = [slot for slot in live if slot not in slots[1:]]
    return merges


def everybody_combines(n: int, orders: list[list[list[int]]]) -> tuple[Schedule, set[Tree]]:
    """All send to all, then rank r combines in order r (in turn); returns the associations too."""
    b = Builder("all_reduce", n, chunks=1)
    src, dst = np.nonzero(~np.eye(n, dtype=bool))
    b.send(0, src=src, src_chunk=0, dst=dst, dst_chunk=src, dst_buffer="scratch")
    trees = {combine_locally(b, rank, orders[rank % len(orders)]) for rank in range(n)}
    return b.build(), trees


def test_one_fold_is_in_order_of_lowest_ranks() -> None:
    together = [[0, 3], [2, 1, 0]]  # (0, 3) has the lowest rank: ((0, 3), 1), 2
    in_turn = [[3, 0], [3, 1], [3, 2]]
    otherwise = [[0, 3], [1, 2], [0, 1]]
    assert verify(everybody_combines(4, [together, in_turn])[0], lowered=False).ok
    assert not verify(everybody_combines(4, [together, otherwise])[0], lowered=False).ok


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_accepted_means_same_association(data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 5))
    schedule, trees = everybody_combines(n, data.draw(st.lists(merge_orders(n), min_size=1, max_size=2)))
    reports = [verify(schedule, mode=mode, lowered=False) for mode in ("exact", "fingerprint")]
    assert [report.ok for report in reports] == [len(trees) == 1] * 2
    if len(trees) == 1 and LOWERS:
        verify(schedule).raise_if_failed()
    if len(trees) == 1:  # so single precision agrees bit for bit, with values of very different size
        rng = np.random.default_rng(n)
        inputs = [(rng.standard_normal(64) * 10.0 ** rng.integers(-6, 6, 64)).astype(np.float32) for _ in range(n)]
        outputs = run(schedule, inputs, F32, SUM, native=False)
        assert all(np.array_equal(output.view(np.uint32), outputs[0].view(np.uint32)) for output in outputs)


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_barrier_mutants(data: st.DataObject) -> None:
    mutant = mutate(dissemination(6), data.draw(st.sampled_from(MUTATIONS)), data)
    if not keeps_rules(mutant):
        assert not verify(mutant, lowered=False).ok
        return
    heard = [{rank} for rank in range(mutant.n)]
    for step in range(mutant.steps):
        before = [set(ranks) for ranks in heard]
        for row in mutant.table[mutant.table["step"] == step]:
            own = before[row["dst_rank"]] if row["reduce"] else set()
            if row["reduce"]:
                heard[row["dst_rank"]] |= own | before[row["src_rank"]]
            else:
                heard[row["dst_rank"]] = set(before[row["src_rank"]])
    assert verify(mutant, lowered=False).ok == all(len(ranks) == mutant.n for ranks in heard)
