"""Who may write which memory until when: random programs against a model, see memory_model.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from memory_model import run_programs

import ringleader as rl

LONG = bool(os.environ.get("RINGLEADER_LONG_TESTS"))


@pytest.mark.parametrize(("ranks", "transport"), [(2, "shm"), (3, "shm"), (2, "tcp")])
def test_programs_on_arrays(ranks: int, transport: str) -> None:
    programs = 5000 if LONG else 100
    with rl.WorkerGroup(ranks, transport=transport) as group:
        assert group.run(run_programs, 0, programs, timeout=800 if LONG else 120) == [programs] * ranks


@pytest.mark.parametrize(("ranks", "transport"), [(2, "shm"), (3, "tcp")])
def test_programs_on_tensors(ranks: int, transport: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    programs = 5000 if LONG else 60
    with rl.WorkerGroup(ranks, transport=transport) as group:
        done = group.run(run_programs, 0, programs, f"file://{tmp_path}/store", timeout=800 if LONG else 120)
        assert done == [programs] * ranks
