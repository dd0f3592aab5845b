"""`verify`: its report, its two modes, its limits, and the lowered programs. See also test_verify_mutations.py."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_schedule_samples import (
    SAMPLES,
    binomial_broadcast,
    direct_all_to_all,
    dissemination,
    doubling,
    linear_gather,
    one_shot,
    ring,
    ring_reduce_scatter,
    through_scratch,
    tree,
    two_shot,
)

from ringleader.algorithms import build
from ringleader.errors import ScheduleError
from ringleader.schedule import Builder, Schedule, lower, replay, verify
from ringleader.schedule.lower import CACHED_TRANSFERS, clear_cache

try:
    from ringleader import _core

    LOWERS = hasattr(_core, "lower")
except ImportError:
    LOWERS = False
needs_core = pytest.mark.skipif(not LOWERS, reason="the native core is not built: lowering cannot be checked")

MAKERS: dict[str, Callable[[int], Schedule]] = {
    "ring": ring,
    "tree": tree,
    "one-shot": one_shot,
    "two-shot": two_shot,
    "through scratch": through_scratch,
    "reduce_scatter": ring_reduce_scatter,
    "all_gather": lambda n: ring_reduce_scatter(n).reversed(),
    "broadcast": lambda n: binomial_broadcast(n, root=n - 1),
    "reduce": lambda n: binomial_broadcast(n, root=n // 2).reversed(),
    "gather": linear_gather,
    "scatter": lambda n: linear_gather(n).reversed(),
    "all_to_all": direct_all_to_all,
    "barrier": dissemination,
}


@pytest.mark.parametrize("name", MAKERS)
def test_both_modes_prove_every_size(name: str) -> None:
    for n in (1, 2, 3, 4, 5, 7, 8, 16, 33):
        schedule = MAKERS[name](n)
        for mode in ("exact", "fingerprint"):
            verify(schedule, mode=mode, lowered=False, seed=n).raise_if_failed()


def test_auto_mode() -> None:
    assert verify(ring(32), lowered=False).mode == "exact"
    assert verify(ring(33), lowered=False).mode == "fingerprint"
    assert verify(dissemination(100), lowered=False).mode == "exact"
    with pytest.raises(ScheduleError, match="expected 'auto', 'exact' or 'fingerprint'"):
        verify(ring(3), mode="fast")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("schedule", "sent", "received", "ratio"),
    [
        (ring(8), 14 / 8, 14 / 8, 1.0),
        (two_shot(8), 14 / 8, 14 / 8, 1.0),
        (one_shot(8), 7.0, 7.0, 4.0),
        (doubling(8), 3.0, 3.0, 12 / 7),
        (tree(8), 3.0, 3.0, 12 / 7),
        (binomial_broadcast(8), 3.0, 1.0, 3.0),
        (ring_reduce_scatter(8), 7 / 8, 7 / 8, 1.0),
        (linear_gather(4), 1 / 4, 3 / 4, 1.0),
        (direct_all_to_all(4), 3 / 4, 3 / 4, 1.0),
    ],
)
def test_traffic_and_lower_bounds(schedule: Schedule, sent: float, received: float, ratio: float) -> None:
    report = verify(schedule, lowered=False)
    assert report.max_sent == pytest.approx(sent)
    assert report.max_received == pytest.approx(received)
    assert report.ratio == pytest.approx(ratio)
    assert report.sent.sum() == pytest.approx(report.received.sum())


def test_report_in_words() -> None:
    report = verify(ring(4), lowered=False)
    assert "proved (exact)" in str(report)
    assert "1.000 x the lower bound" in str(report)
    assert (report.steps, report.transfers) == (6, 24)
    assert report.raise_if_failed() is report
    assert np.isnan(verify(dissemination(4), lowered=False).ratio)


def test_violations_name_the_place() -> None:
    b = Builder("all_reduce", 3, 1)
    b.send(0, [1, 2], 0, 0, reduce=True)
    b.send(1, 0, 0, 1)
    report = verify(b.build(), lowered=False)
    assert report.violations == (
        "rank 2 data[0] ends with 1 contribution, none of rank 0, 1; expected all contributions to chunk 0",
    )
    with pytest.raises(ScheduleError, match="is wrong: rank 2 data"):
        report.raise_if_failed()
    b.send(2, 2, 5, 2, 0, src_buffer="scratch")
    assert "transfer 3 (step 2: rank 2 scratch[5] -> rank 2 data[0], channel 0) reads a chunk that is not there" in str(
        verify(b.build(), lowered=False)
    )


def test_every_kind_of_wrong_content_is_described() -> None:
    b = Builder("all_gather", 2, 2)
    b.send(0, 0, 0, 1, 1)  # into the wrong block, over what is there
    texts = " ".join(verify(b.build(), lowered=False).violations)
    assert "rank 0 data[1] ends with nothing; expected rank 1's contribution to chunk 1" in texts
    assert "rank 1 data[1] ends with 1 contribution, none of rank 1, some of rank 0, of chunk 0" in texts
    b = Builder("all_reduce", 2, 1)
    b.send([0, 1], [0, 1], 0, [1, 0], reduce=True)
    assert "several of rank 0" in str(verify(b.build(), lowered=False))
    b = Builder("barrier", 70, 1)
    b.send(0, np.arange(1, 69), 0, 0, reduce=True)
    b.send(1, 0, 0, np.arange(1, 70))
    assert "none of rank 69;" in str(verify(b.build(), lowered=False))


def test_many_violations_are_cut_short() -> None:
    report = verify(Schedule.empty("all_reduce", 100, 1), lowered=False)
    assert len(report.violations) == 21
    assert report.violations[-1] == "and 80 more"


def test_contributions_that_wrap_round_are_not_taken_for_one() -> None:
    """Doubling k times makes 2^k contributions: 2^61 is 1 modulo the prime 2^61 - 1, and 2^64 is 0 in 64 bits."""
    for doublings in (32, 61, 64, 122):
        b = Builder("reduce", 2, 1)
        b.send(0, 1, 0, 0, 0, dst_buffer="scratch")
        for step in range(1, 2 * doublings, 2):
            b.send(step, 0, 0, 0, 1, src_buffer="scratch", dst_buffer="scratch")
            b.send(step + 1, 0, 1, 0, 0, src_buffer="scratch", dst_buffer="scratch", reduce=True)
        b.send(2 * doublings + 1, 0, 0, 0, src_buffer="scratch", reduce=True)
        for mode in ("exact", "fingerprint"):
            assert not verify(b.build(), mode=mode, lowered=False).ok, (doublings, mode)


def test_broken_rules_are_violations_not_errors() -> None:
    b = Builder("all_reduce", 2, 1)
    b.send(0, 0, 0, 5)
    report = verify(b.build(), lowered=False)
    assert not report.ok
    assert "dst_rank is 5" in report.violations[0]


def test_too_large_to_verify() -> None:
    with pytest.raises(ScheduleError, match="verify takes at most"):
        verify(Schedule.empty("all_reduce", 1 << 13, 1 << 13))
    assert not verify(Schedule.empty("all_reduce", 1 << 20, 1 << 20)).ok
    for schedule in (Schedule.empty("barrier", 1 << 20, 1), Schedule.empty("all_reduce", 1 << 10, 1 << 10)):
        with pytest.raises(ScheduleError, match="counters; at most 268435456"):
            verify(schedule, mode="exact")


def test_thousand_ranks() -> None:
    start = time.thread_time()
    assert verify(ring(1024), lowered=False).ok
    assert time.thread_time() - start < 30  # about 0.7 s on an idle core


# -------------------------------------------------------------------------------------------------- lowered programs


@needs_core
@pytest.mark.parametrize("name", MAKERS)
def test_lowered_programs_are_proved(name: str) -> None:
    for n in (1, 2, 3, 4, 5, 8):
        report = verify(MAKERS[name](n)).raise_if_failed()
        layouts = ["one node, push", "one node, pull", "network", "two nodes, push"]
        assert list(report.instructions) == layouts[: 2 if n == 1 else 3 if n == 2 else 4]
        if n > 1:
            assert all(report.instructions.values())


@needs_core
def test_chosen_layouts() -> None:
    report = verify(ring(6), nodes=[0, 0, 1, 1, 2, 2], push=False).raise_if_failed()
    assert list(report.instructions) == ["3 nodes, pull"]
    report = verify(ring(4).split(2, [[0, 1, 2, 3], [3, 2, 1, 0]]).pipelined(2)).raise_if_failed()
    assert len(report.instructions) == 4
    with pytest.raises(ScheduleError, match="nodes has 2 entries"):
        verify(ring(3), nodes=[0, 1])
    with pytest.raises(ScheduleError, match="nodes has 2 entries"):
        lower(ring(3), [0, 1])


@needs_core
def test_thousand_ranks_lowered() -> None:
    start = time.thread_time()
    report = verify(ring(1024)).raise_if_failed()
    assert list(report.instructions) == ["two nodes, push"]
    assert time.thread_time() - start < 60  # about 2.5 s on an idle core


@needs_core
def test_lowered_form_keeps_the_schedule() -> None:
    schedule = binomial_broadcast(4, root=3)
    lowered = lower(schedule, [0, 0, 1, 1], push=True)
    assert (lowered.collective, lowered.n, lowered.root) == (schedule.collective.code, 4, 3)
    assert (lowered.chunks, lowered.blocks, list(lowered.nodes)) == (1, 1, [0, 0, 1, 1])
    assert lowered.check(1) == []
    assert "send" in lowered.text(3)


@needs_core
def test_cache_knows_schedule_layout_and_direction_and_is_bounded() -> None:
    clear_cache()
    first = lower(ring(4), [0] * 4)
    assert lower(ring(4), [0] * 4) is first
    assert lower(ring(4).with_name("other"), (0, 0, 0, 0), push=True) is first
    different = [lower(ring(4), [0] * 4, push=False), lower(ring(4), [0, 0, 1, 1]), lower(tree(4), [0] * 4)]
    assert all(other is not first for other in different)
    large = ring(256)
    held = lower(large, [0] * 256)
    assert lower(large, [0] * 256) is held
    for shift in range(CACHED_TRANSFERS // large.transfers + 1):
        lower(large.on(ranks=np.roll(np.arange(256), shift + 1)), [0] * 256)
    assert lower(ring(4), [0] * 4) is not first
    with pytest.raises(ScheduleError, match="dst_rank"):
        table = ring(4).table.copy()
        table["dst_rank"][3] = 4
        lower(Schedule("all_reduce", 4, 4, table), [0] * 4)


@needs_core
@pytest.mark.parametrize("name", SAMPLES)
def test_lowering_agrees_with_verify_about_dropped_transfers(name: str) -> None:
    """The native proof is independent: on the lowered form of a wrong schedule it finds something wrong, too."""
    original = SAMPLES[name]()
    for row in range(0, len(original.table), 3):
        table = np.delete(original.table, row)
        mutant = Schedule(original.collective, original.n, original.chunks, table, original.root)
        try:
            found = lower(mutant, [0] * mutant.n).check(0)
        except ValueError as error:  # refused: something is read that is not there
            found = [str(error)]
        assert found


@pytest.mark.parametrize("broken", [False, True])
def test_a_large_step_is_replayed_in_pieces(monkeypatch: pytest.MonkeyPatch, broken: bool) -> None:
    # What is at hand at one time is bounded, however many chunks a step moves; and the result is the same.
    schedule = build("all_reduce", "hierarchical:hosts=4*6:outer=ring", 24)
    if broken:
        schedule = Schedule("all_reduce", 24, schedule.chunks, np.delete(schedule.table, [5, 40]))
    at_once: list[int] = []
    step = replay.Replay._step

    def counted(self: replay.Replay, rows_of: Any, src: Any, *rest: Any) -> None:
        at_once.append(len(src))
        step(self, rows_of, src, *rest)

    monkeypatch.setattr(replay.Replay, "_step", counted)
    whole = replay.Replay(schedule, False, 3)
    steps, largest = len(at_once), max(at_once)
    monkeypatch.setattr(replay, "PIECE", largest // 4)
    at_once.clear()
    pieces = replay.Replay(schedule, False, 3)
    assert steps == schedule.steps < len(at_once)
    assert max(at_once) <= largest // 4 + 1
    assert pieces.missing == whole.missing
    report = verify(schedule, mode="fingerprint", lowered=False)
    assert report.ok is not broken
    weights = [each.rows[:, replay.WEIGHT] for each in (whole, pieces)]
    np.testing.assert_array_equal(*weights)
