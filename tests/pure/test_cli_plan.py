"""``ringleader plan``: the table, JSON, a plot, and arguments that are wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("typer")

from typer.testing import CliRunner

from ringleader.cli.app import app
from ringleader.errors import InvalidArgument


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps([["head", [1024, 1024]], ["body", [3, 1024, 1024]]]))
    return str(path)


def run(*words: str) -> str:
    result = CliRunner().invoke(app, ["plan", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_json_has_every_option_and_says_which_are_worth_it(model: str) -> None:
    words = ("--compute", "1", "--host", "cpu-host", "--hosts", "1,2", "--links", "10,100", "--json")
    facts = json.loads(run(model, *words))
    assert facts["parameters"] == 4 << 20
    assert [(o["hosts"], o["gigabits"], o["algorithm"]) for o in facts["options"]] == [
        (hosts, speed, spec) for hosts in (1, 2) for speed in (10, 100) for spec in ("ring", "hierarchical")
    ]
    assert 1 <= sum(o["frontier"] for o in facts["options"]) < 8
    for option in facts["options"]:
        assert option["seconds"] == pytest.approx(option["compute"] + option["exposed"])


def test_the_table_shows_the_frontier_and_all_of_it_if_asked(model: str) -> None:
    words = (model, "--tokens", "1e6", "--flops", "1", "--host", "cpu-host", "--hosts", "1,2", "-a", "ring")
    few, everything = run(*words, "--links", "10,100"), run(*words, "--links", "10,100", "--all")
    assert few.count("ring") < everything.count("ring") == 4
    assert "tiny, 4 million parameters" in few


def test_the_plot_is_a_picture(model: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "plan.png"
    run(model, "--compute", "1", "--host", "cpu-host", "--hosts", "1,2", "--plot", str(picture))
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "expected either"),
        (("--tokens", "5"), "expected either"),
        (("--tokens", "5", "--flops", "1", "--compute", "1"), "expected either"),
        (("--compute", "1", "--hosts", "two"), "--hosts 'two'"),
        (("--compute", "1", "--links", "0"), "--links '0'"),
        (("--compute", "1", "--network", "fat"), "fat-tree"),
    ],
)
def test_wrong_arguments_are_refused(model: str, words: tuple[str, ...], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        run(model, *words)
