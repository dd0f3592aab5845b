"""A forked child owns nothing of its parent's communicators, and ends in any way at once; see fork_ends.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from meeting_support import free_port

SCRIPT = Path(__file__).parent / "fork_ends.py"
TORCH = ("torch_group", "data_parallel", "horovod")


def run(use: str, **settings: str) -> list[str]:
    """What was wrong, on any of two ranks."""
    shared = {k: v for k, v in os.environ.items() if not k.startswith("RINGLEADER_")} | settings
    shared |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), use],
            env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        texts = [rank.communicate(timeout=150)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0]
    return [wrong for text in texts for wrong in json.loads(text.splitlines()[-1])]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_children_end_while_operations_are_pending(transport: str) -> None:
    assert run("pending", RINGLEADER_TRANSPORT=transport) == []


def test_children_end_after_operations_in_slices() -> None:
    assert run("over", RINGLEADER_WORKERS="2") == []


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_children_end_that_were_forked_while_a_thread_was_in_calls(transport: str) -> None:
    assert run("inside", RINGLEADER_TRANSPORT=transport) == []


def test_children_end_beside_compressed_operations() -> None:
    assert run("compressed") == []


@pytest.mark.slow
@pytest.mark.parametrize("use", TORCH)
def test_children_of_programs_that_use_torch_end(use: str) -> None:
    pytest.importorskip("torch")
    assert run(use) == []
