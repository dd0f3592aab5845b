"""The examples of docs/schedule.md, and of the docstrings of this room, do what they say."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "schedule.md"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
MODULES = [
    "ringleader.executors.arithmetic",
    "ringleader.executors.reference",
    *(f"ringleader.schedule.{name}" for name in ("algebra", "draw", "lower", "replay", "serialize", "spec")),
    *(f"ringleader.schedule.{name}" for name in ("table", "types", "verify")),
]


def test_page() -> None:
    pytest.importorskip("ringleader._core")
    text = PAGE.read_text().replace("```pycon", "").replace("```", "")
    test = doctest.DocTestParser().get_doctest(text, {}, "schedule.md", str(PAGE), 0)
    assert len(test.examples) > 20
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    failures: list[str] = []
    runner.run(test, out=failures.append)
    assert not failures, "".join(failures)


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name: str) -> None:
    module = importlib.import_module(name)
    failures: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    for test in doctest.DocTestFinder().find(module):
        runner.run(test, out=failures.append)
    assert not failures, "".join(failures)
