"""Lowering and its proofs through the bindings: every algorithm on several placements, mutations, refusals, speed."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from ringleader import _core
from ringleader.algorithms import registry
from ringleader.errors import InvalidArgument
from ringleader.schedule import Schedule

COLLECTIVES = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
    "barrier",
)
ALGORITHMS = [(collective, name) for collective in COLLECTIVES for name in registry.names(collective)]


def build(collective: str, name: str, n: int, root: int = 0) -> Schedule:
    try:
        return registry.build(collective, name, n, root)
    except InvalidArgument as error:
        pytest.skip(str(error))


def lower(schedule: Schedule, nodes: list[int], push: bool = True, table: np.ndarray | None = None) -> _core.Lowered:
    rows = schedule.table if table is None else table
    return _core.lower(rows, schedule.collective.code, schedule.n, schedule.root, schedule.chunks, nodes, push)


def placements(n: int) -> list[list[int]]:
    """One node; all apart; pairs; interleaved over three nodes; one rank apart from the others."""
    ranks = range(n)
    return [[0] * n, list(ranks), [r // 2 for r in ranks], [r % 3 for r in ranks], [int(r == 1) for r in ranks]]


@pytest.mark.parametrize(("collective", "name"), ALGORITHMS)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7, 8, 13, 16])
def test_every_algorithm_is_proved_on_every_placement(collective: str, name: str, n: int) -> None:
    rooted = collective in ("broadcast", "reduce", "gather", "scatter")
    schedule = build(collective, name, n, n - 1 if rooted else 0)
    for nodes in placements(n):
        for push in (True, False):
            lowered = lower(schedule, nodes, push)
            for seed in (0, 1):
                assert lowered.check(seed) == [], (nodes, push)


@pytest.mark.parametrize("name", registry.names("all_reduce"))
def test_a_schedule_without_one_transfer_is_reported(name: str) -> None:
    schedule = build("all_reduce", name, 4)
    for nodes in ([0] * 4, [0, 0, 1, 1]):
        for row in range(len(schedule.table)):
            table = np.delete(schedule.table, row)
            try:
                violations = lower(schedule, nodes, table=table).check()
            except InvalidArgument as error:  # a later transfer then reads a chunk that holds nothing
                assert "holds nothing yet" in str(error)
            else:
                assert any("content" in text or "association" in text for text in violations), row


@pytest.mark.parametrize("name", registry.names("all_reduce"))
def test_a_doubled_reduce_is_reported(name: str) -> None:
    schedule = build("all_reduce", name, 5)
    reduces = np.flatnonzero(schedule.table["reduce"])
    for row in reduces:
        table = np.concatenate([schedule.table, schedule.table[row : row + 1]])
        assert lower(schedule, [0] * 5, table=table).check() != []


def test_text_and_properties() -> None:
    schedule = build("all_reduce", "two_shot", 3)
    lowered = lower(schedule, [4, 4, 9])
    assert (lowered.n, lowered.chunks, lowered.blocks, lowered.nodes) == (3, schedule.chunks, 1, [4, 4, 9])
    assert lowered.collective == schedule.collective.code
    for rank in range(3):
        lines = [line for line in lowered.text(rank).splitlines() if line.startswith("#")]
        assert len(lines) == lowered.instruction_count(rank)
        assert any("final" in line for line in lines)
    assert "send" in lowered.text(2)


def test_the_fastest_form_of_two_shot() -> None:
    """One instruction per rank: wait for all to enter, reduce my share from all, write it to all."""
    lowered = lower(build("all_reduce", "two_shot", 4), [0] * 4)
    assert [lowered.instruction_count(rank) for rank in range(4)] == [1, 1, 1, 1]


def test_bad_tables_are_refused() -> None:
    schedule = build("all_reduce", "ring", 3)
    with pytest.raises(InvalidArgument, match="29 bytes each"):
        _core.lower(np.zeros(4, np.int32), 0, 3, 0, 3, [0, 0, 0], True)
    with pytest.raises(InvalidArgument, match="contiguous"):
        _core.lower(schedule.table[::2], 0, 3, 0, 3, [0, 0, 0], True)
    with pytest.raises(InvalidArgument, match="nodes has 2 entries"):
        lower(schedule, [0, 0])
    with pytest.raises(InvalidArgument, match="collective code 99"):
        _core.lower(schedule.table, 99, 3, 0, 3, [0, 0, 0], True)
    table = schedule.table.copy()
    table["dst_rank"][5] = 7
    with pytest.raises(InvalidArgument, match=r"transfer #5 \(step 1, .*-> rank 7 .*ranks must be in 0\.\.2"):
        lower(schedule, [0, 0, 0], table=table)
    with pytest.raises(InvalidArgument, match=r"rank is 3; expected 0\.\.2"):
        lower(schedule, [0, 0, 0]).text(3)


def test_any_buffer_of_packed_rows_is_taken() -> None:
    schedule = build("all_reduce", "ring", 3)
    raw = schedule.table.tobytes()
    for table in (raw, bytearray(raw), np.frombuffer(raw, np.uint8), np.array(schedule.table)):
        lowered = lower(schedule, [0, 0, 0], table=table)  # type: ignore[arg-type]
        assert lowered.text(1) == lower(schedule, [0, 0, 0]).text(1)


def test_large_schedules_are_fast_and_release_the_gil() -> None:
    """A ring over 512 ranks has half a million transfers; lowering and proving it must stay linear in that."""

    def seconds(n: int) -> float:
        schedule = build("all_reduce", "ring", n)
        begin = time.thread_time()  # of this thread: what else the machine does is not counted
        assert lower(schedule, [0] * n).check() == []
        return time.thread_time() - begin

    ticks = 0
    stop = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not stop.wait(0.002):
            ticks += 1

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        small, large = seconds(128), seconds(512)
    finally:
        stop.set()
        thread.join()
    assert large < 80 * small  # 16 times the transfers; the rest is for caches and a busy machine
    assert ticks > 10
