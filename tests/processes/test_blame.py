"""A rank that is stopped in an operation: all others blame it when their limit passes, however they depend on it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from meeting_support import Event
from robustness_support import LONG, Workers

import ringleader as rl

N = 5
VICTIM = 2


@pytest.fixture(scope="module", params=["shm", "tcp"])
def workers(request: pytest.FixtureRequest) -> Iterator[Workers]:
    group = Workers(N, request.param)
    yield group
    group.close()


def _until_the_limit(verb: str, algorithm: str, elements: int, folder: str) -> Any:
    comm = rl.init(timeout=60)
    pids = comm.all_gather(np.array([os.getpid()]))
    events = {rank: Event(folder, rank) for rank in range(N) if rank != VICTIM}
    x = np.ones(elements, np.float32)
    options = {"root": 0} if verb in ("broadcast", "reduce") else {}
    comm.barrier()
    if comm.rank == VICTIM:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGSTOP)).start()
    try:
        for _ in range(100_000):
            getattr(comm, verb)(x, **options, algorithm=algorithm, timeout=1.5)
    except rl.errors.RingleaderError as error:
        return type(error).__name__, list(error.ranks), str(error)
    finally:
        if comm.rank != VICTIM:
            events[comm.rank].set()
            all(event.wait(60) for event in events.values())
            os.kill(int(pids[VICTIM, 0]), signal.SIGCONT)
        comm.close()
    return "no error", [], ""


CASES = [("broadcast", "chain"), ("broadcast", "binomial"), ("reduce", "chain"), ("all_reduce", "ring")]


@pytest.mark.parametrize(("verb", "algorithm"), CASES)
def test_all_ranks_blame_the_one_that_waits_for_nobody(
    workers: Workers, verb: str, algorithm: str, tmp_path: Path
) -> None:
    for elements in (100, 1_000_000) if LONG else (200_000,):
        folder = tmp_path / str(elements)
        folder.mkdir()
        got = workers.run(_until_the_limit, verb, algorithm, elements, str(folder), timeout=150)
        for kind, ranks, text in got[:VICTIM] + got[VICTIM + 1 :]:
            assert kind == "CollectiveTimeout", got
            assert ranks == [VICTIM], got
            assert f"waiting for rank {VICTIM}" in text, got
