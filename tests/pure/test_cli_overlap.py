"""``ringleader overlap``: plans from files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ringleader.cli.main import main
from ringleader.overlap import Timeline

LAYERS = 12
LINE = Timeline(
    [f"layer{LAYERS - 1 - i}" for i in range(LAYERS)],
    [2 << 20] * LAYERS,
    [3e-3 * (i + 1) for i in range(LAYERS)],
    [1e-3 * (LAYERS - 1 - i) for i in range(LAYERS)],
)


@pytest.fixture
def line(tmp_path: Path) -> str:
    path = tmp_path / "timeline.json"
    path.write_text(json.dumps(LINE.to_json()))
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["overlap", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_plan_for_latency_and_bandwidth(capsys, line: str, tmp_path: Path) -> None:
    code, out, _ = run(capsys, line, "--latency", "100", "--bandwidth", "1", "--picture", str(tmp_path / "plan.svg"))
    assert code == 0
    assert "of 12 gradients, 24.0 MiB" in out
    assert "exposed 2.20 ms of a 36.00 ms backward pass" in out  # the last layer: 2 MiB at 1 GB/s and 0.1 ms
    assert (tmp_path / "plan.svg").stat().st_size > 1000


def test_costs_change_the_plan(capsys, line: str) -> None:
    few = run(capsys, line, "--latency", "9000", "--bandwidth", "1")[1]
    slow = run(capsys, line, "--bandwidth", "1", "--slowdown", "3", "--overhead", "50", "--launch", "20")[1]
    assert int(few.split()[0]) < 8
    assert "(not proved best)" not in slow
    assert few.splitlines()[0] != slow.splitlines()[0]


def test_costs_from_a_bench(capsys, line: str, tmp_path: Path) -> None:
    def measured(library: str, microseconds: float) -> dict[str, object]:
        return {"contestant": {"library": library}, "timing": {"median": microseconds}}

    results = [
        {"collective": "all_reduce", "nbytes": n, "measured": [measured("ringleader", t), measured("gloo", 1e9)]}
        for n, t in ((1 << 10, 100.0), (2 << 20, 2000.0), (64 << 20, 64000.0))
    ]
    path = tmp_path / "bench.json"
    path.write_text(json.dumps({"results": results}))
    code, out, _ = run(capsys, line, "--bench", str(path))
    assert code == 0
    assert "exposed 2.00 ms" in out
    path.write_text(json.dumps({"results": []}))
    code, _, err = run(capsys, line, "--bench", str(path))
    assert code == 2
    assert "no all_reduce" in err


def test_priority(capsys, line: str) -> None:
    code, out, _ = run(capsys, line, "--priority", "--bandwidth", "0.5")
    assert code == 0
    assert "partitions of at most" in out
    assert "max(0, communication - computing)" in out


def test_what_is_refused(capsys, line: str, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.json"
    for text, says in (
        ("{", "cannot be read as JSON"),
        ("[1]", "holds a list; expected a timeline"),
        ("{}", "not a timeline"),
        ('{"names": ["a"], "nbytes": ["x"], "ready": [0.1]}', "not the numbers of a timeline"),
    ):
        wrong.write_text(text)
        code, _, err = run(capsys, str(wrong))
        assert (code, says in err) == (2, True), err
    for options, says in (
        (["--bandwidth", "0"], "above 0"),
        (["--picture", "plan.doc"], "unknown kind of picture"),
        (["--priority", "--picture", "plan.png"], "leave out --priority"),
        (["--bench", "nowhere.json"], "nowhere.json"),
    ):
        code, _, err = run(capsys, line, *options)
        assert (code, says in err) == (2, True), err
