"""Mutated schedules: verify rejects every mutation that changes the result, and only those or broken rules.

Whether the result changes is decided without the verifier: by running the mutant on random integers.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_schedule_samples import I64, SAMPLES, SUM, dissemination, expected, random_inputs, run, same

from ringleader.errors import ScheduleError
from ringleader.schedule import Schedule, check_spec, verify

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


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_accepted_means_bitwise_identical(data: st.DataObject) -> None:
    """Single precision, values of very different size: another association would show."""
    n = data.draw(st.integers(2, 5))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    table = SAMPLES["one-shot"]().table[:0]
    pairs = data.draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, n - 1), st.integers(0, n - 1)), max_size=20))
    rows = [(step, src, 0, dst, 0, 1, 0, 0, 0, 1) for step, src, dst in pairs if src != dst]
    table = np.array(rows, table.dtype)
    for source in range(1, n):  # finish by a fold at rank 0 in random groups, and a broadcast
        step = 4 + data.draw(st.integers(0, 2))
        table = np.append(table, np.array([(step, source, 0, 0, 0, 1, 0, 0, 0, 1)], table.dtype))
    if data.draw(st.booleans()):
        end = [(8, 0, 0, rank, 0, 1, 0, 0, 0, 0) for rank in range(1, n)]
        table = np.append(table, np.array(end, table.dtype))
    schedule = Schedule("all_reduce", n, 1, table)
    if not verify(schedule, lowered=False).ok:
        return
    inputs = [(rng.standard_normal(64) * 10.0 ** rng.integers(-6, 6, 64)).astype(np.float32) for _ in range(n)]
    outputs = run(schedule, inputs, 0, SUM, native=False)
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
