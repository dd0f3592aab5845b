"""The examples of docs/api.md and of the public docstrings run as they stand."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
MODULES = [
    "",
    *(f".runtime.{name}" for name in ("communicator", "collectives", "dtypes", "messages", "persistent", "work")),
]
MODULES += [f".runtime.{name}" for name in ("start", "shrink", "arrays", "plans", "calls")]


def test_api_page() -> None:
    result = doctest.testfile(str(ROOT / "docs" / "api.md"), module_relative=False)
    assert result.attempted > 40
    assert result.failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"ringleader{name}")).failed == 0


def test_the_version_is_the_packages() -> None:
    import ringleader

    assert f'version = "{ringleader.__version__}"' in (ROOT / "pyproject.toml").read_text()
