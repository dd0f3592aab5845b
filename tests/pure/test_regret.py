"""The regret benchmark's arithmetic, files and summary; what it measures is `make bench-regret`'s."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ringleader.tune.trials import Trial

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "benchmarks"))
regret = pytest.importorskip("regret")
regret_report = pytest.importorskip("regret_report")

A, B, C = (Trial("all_reduce", name, "push", 64) for name in ("ring", "linear", "one_shot"))


def _row(ranks: int, transport: str, **changes: Any) -> dict[str, Any]:
    row = {
        "ranks": ranks, "transport": transport, "collective": "all_reduce", "nbytes": 64, "tuned": "ring (push)",
        "tuned_us": 10.0, "built_in": "linear (push)", "built_in_us": 15.0, "best": "ring (push)", "best_us": 10.0,
        "regret": 1.0, "built_in_regret": 1.5, "twice_us": 12.0, "algorithms": 3, "blocks": 8, "load": 0.1,
    }  # fmt: skip
    return {**row, **changes}


def test_the_best_is_found_in_one_half_and_timed_in_the_other() -> None:
    # In each half another one was lucky: neither is as fast as it looked.
    halves = [{A: 1.0, B: 0.5, C: 2.0}, {A: 1.0, B: 1.1, C: 0.4}]
    assert regret._regret(halves, A, [A, B, C]) == pytest.approx((1.0 / 1.1 + 1.0 / 2.0) / 2, abs=1e-4)
    same = [{A: 3.0, B: 2.0}, {A: 3.0, B: 2.0}]
    assert regret._regret(same, A, [A, B]) == 1.5
    assert regret._regret(same, B, [A, B]) == 1.0


class Weather:
    """Measures as told: seconds of each trial in each call, in turn."""

    def __init__(self, *calls: dict[Trial, float]) -> None:
        self.calls = list(calls)
        self.asked: list[list[Trial]] = []

    def measure(self, trials: list[Trial], seconds: float, blocks: int) -> Any:
        self.asked.append(list(trials))
        told = self.calls.pop(0)
        return SimpleNamespace(blocks=[[told[trial]] * blocks for trial in trials], elapsed=0.0)


def test_a_doubtful_choice_is_measured_again() -> None:
    # A looks slow for one pair of halves only; C is slow, and is left out.
    calm = {A: 1.0, B: 1.01, C: 2.0}
    weather = Weather(*[calm] * 6)
    samples = [{A: [1.5] * 2, B: [1.0] * 2, C: [2.0] * 2} for _ in range(2)]
    field = [A, B, C]
    evaluation = regret.Evaluation(weather, None, None, 64)
    assert evaluation._again(samples, field, (A,), 2) == 3
    assert field == [A, B]
    assert all(set(trials) == {A, B} for trials in weather.asked)
    assert [sample[A] for sample in samples] == [[1.5, 1.5, 1.0, 1.0, 1.0, 1.0]] * 2
    # What is really slow stays so, after a bounded number of rounds.
    samples = [{A: [1.5] * 2, B: [1.0] * 2} for _ in range(2)]
    weather = Weather(*[{A: 1.5, B: 1.0}] * 6)
    evaluation = regret.Evaluation(weather, None, None, 64)
    assert evaluation._again(samples, [A, B], (A,), 2) == regret.MOST_ROUNDS
    assert not weather.calls


def test_blocks_fill_the_time_within_limits() -> None:
    assert regret._blocks([1e-6], 100.0) == regret.MOST_BLOCKS
    assert regret._blocks([1.0, 1.0], 0.1) == regret.FEWEST_BLOCKS
    assert regret._blocks([0.1], 1.0) == 5


def test_rows_of_other_places_are_kept_on_demand(tmp_path: Path) -> None:
    raw = [(2, "shm", "all_reduce", 64, "ring", "push", 9.0, 10.0, 10.0)]
    with regret_report.Results(tmp_path, False, {(2, "shm"), (4, "tcp")}) as results:
        results.add(_row(2, "shm"), raw)
        results.add(_row(4, "tcp", regret=1.4, tuned_us=14.0), [])
    with regret_report.Results(tmp_path, True, {(4, "tcp")}) as results:
        results.add(_row(4, "tcp", regret=1.2, tuned_us=12.0), [])
        results.note("quiet")
    rows = regret_report._read(tmp_path / "regret.csv")
    assert [(row["ranks"], row["regret"]) for row in rows] == [("2", "1.0"), ("4", "1.2")]
    assert len(regret_report._read(tmp_path / "regret_raw.csv")) == 1
    written = regret_report.write(tmp_path)
    assert {path.name for path in written} == {"regret.csv", "regret_raw.csv", "regret.md", "regret.png"}
    text = (tmp_path / "regret.md").read_text()
    assert "| tuned, max | 1.20 | 1.3 | met |" in text
    assert "| built-in, median | 1.50 | 1.1 | missed |" in text
    assert "quiet" in text
    with regret_report.Results(tmp_path, False, {(8, "shm")}):
        pass
    assert "Nothing was measured" in regret_report.write(tmp_path)[2].read_text()
