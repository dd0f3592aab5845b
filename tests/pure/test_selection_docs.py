"""The examples of docs/selection.md run as they stand."""

from __future__ import annotations

import doctest
import json
import re
from pathlib import Path

from ringleader import tune
from ringleader.tune.conditions import CONDITIONS
from ringleader.tune.rulefile import _MEMBERS, MAX_RULES

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "selection.md"


def test_examples() -> None:
    result = doctest.testfile(str(PAGE), module_relative=False)
    assert result.attempted > 10
    assert result.failed == 0


def test_the_file_shown_is_valid() -> None:
    (shown,) = re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
    rules = tune.loads(shown, "docs")
    assert len(rules.rules) == len(json.loads(shown)["rules"]) == 4


def test_every_member_and_limit_is_described() -> None:
    text = PAGE.read_text()
    assert all(f"| `{name}` |" in text for name in (*CONDITIONS, *(set(_MEMBERS) - {"collective"})))
    assert f"at most 1 MiB and {MAX_RULES} rules" in text
    for value in re.findall(r'`RINGLEADER_ALGO="(.*?)"`', text):
        assert tune.parse_algo(value)
    for value in re.findall(r'`RINGLEADER_PROTO="(.*?)"`', text):
        assert tune.parse_proto(value)
