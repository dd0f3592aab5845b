"""The tutorial's code runs, from the first line to the last, and prints what the page says."""

from __future__ import annotations

import doctest
from pathlib import Path

import ringleader as rl

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"


def test_the_page_is_one_script() -> None:
    runner = doctest.DocTestRunner(optionflags=doctest.FAIL_FAST)
    text = PAGE.read_text(encoding="utf-8")
    test = doctest.DocTestParser().get_doctest(text, {}, PAGE.name, str(PAGE), 0)
    assert len(test.examples) > 20
    report: list[str] = []
    try:
        results = runner.run(test, out=report.append)
    finally:
        for name in ("pairs", "pairs_pipelined"):
            if name in rl.algorithms.names("all_reduce"):
                rl.algorithms.forget("all_reduce", name)
    assert not results.failed, "".join(report)
