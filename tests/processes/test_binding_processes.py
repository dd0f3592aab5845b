"""RINGLEADER_BIND among processes and threads: where ranks and the engine's threads run, and that it is undone."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ringleader as rl
from ringleader.errors import RingleaderError

TWO = sorted(os.sched_getaffinity(0))[:2]
pytestmark = pytest.mark.skipif(len(TWO) < 2, reason="needs two cores")


def threads_by_cores() -> dict[int, list[int]]:
    """Of every thread of this process, the cores that it may use."""
    return {int(task.name): sorted(os.sched_getaffinity(int(task.name))) for task in Path("/proc/self/task").iterdir()}


class Heard(logging.Handler):
    """The log's lines."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []
        self.log = logging.getLogger("ringleader.INIT")
        self.log.setLevel(logging.INFO)
        self.log.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def seen(own: list[int] | None, bind: str | None) -> dict[str, Any]:
    """What a rank sees that begins on the cores `own`."""
    heard = Heard()
    os.sched_setaffinity(0, TWO if own is None else own)
    comm = rl.init(timeout=30, bind=bind)
    during = sorted(os.sched_getaffinity(0))
    before = set(threads_by_cores())
    x = np.full(1000, comm.rank + 1.0)
    starter = threading.Thread(target=lambda: os.sched_setaffinity(0, TWO) or comm.all_reduce(x, async_op=True).wait())
    starter.start()  # the engine's thread is started by one that may run anywhere
    starter.join(30)
    others = before | {starter.native_id}  # Python lets go of a thread before the system does
    engine = [cores for thread, cores in threads_by_cores().items() if thread not in others]
    pair = comm.split(comm.rank % 2)
    assert pair is not None
    after_split = sorted(os.sched_getaffinity(0))
    pair.close()
    comm.close()
    return {
        "during": during, "engine": engine, "split": after_split, "sum": float(x[0]),
        "closed": sorted(os.sched_getaffinity(0)), "lines": heard.lines,
    }  # fmt: skip


def world_line(result: dict[str, Any]) -> str:
    return next(line for line in result["lines"] if line.startswith("group 'world'") and "on cores" in line)


@pytest.mark.parametrize("n", [2, 4])
def test_core_binds_and_gives_back(n: int) -> None:
    results = rl.spawn(seen, n, None, "core", timeout=100)
    for rank, result in enumerate(results):
        mine = [TWO[rank * 2 // n]]
        assert result["during"] == result["split"] == mine
        assert result["engine"] and all(cores == mine for cores in result["engine"])
        assert result["closed"] == TWO
        assert result["sum"] == n * (n + 1) / 2
        assert world_line(result).endswith("more than they have cores" if n > 2 else "each with cores of its own")


def test_lists_and_no_binding() -> None:
    results = rl.spawn(seen, 2, None, f"{TWO[1]}:{TWO[0]}", timeout=100)
    assert [result["during"] for result in results] == [[TWO[1]], [TWO[0]]]
    results = rl.spawn(seen, 2, None, None, timeout=100)
    assert all(result["during"] == TWO for result in results)
    assert all(all(cores == TWO for cores in result["engine"]) for result in results)


def bound_elsewhere(bind: str) -> dict[str, Any]:
    return seen([TWO[int(os.environ["RINGLEADER_RANK"]) % 2]], bind)


@pytest.mark.parametrize(("n", "bind"), [(2, "none"), (2, "core"), (3, "core")])
def test_ranks_bound_by_a_launcher_share_cores_only_if_they_do(n: int, bind: str) -> None:
    results = rl.spawn(bound_elsewhere, n, bind, timeout=100)
    for rank, result in enumerate(results):
        assert result["during"] == result["closed"] == [TWO[rank % 2]]
        assert world_line(result).endswith("more than they have cores" if n > 2 else "each with cores of its own")


def refused() -> str:
    try:
        rl.init(start_timeout=30).close()
    except RingleaderError as error:
        return str(error)
    return "joined"


def test_a_list_that_is_too_short_is_an_error_on_all_ranks() -> None:
    told = rl.spawn(refused, 3, env={"RINGLEADER_BIND": f"{TWO[0]}:{TWO[1]}"}, timeout=100)
    assert all("names cores for 2 rank(s) of a host, but rank 2" in text for text in told)
    told = rl.spawn(refused, 2, env={"RINGLEADER_BIND": f"{TWO[0]}:4000"}, timeout=100)
    assert all("cannot run on cores 4000" in text for text in told)


def as_threads() -> list[list[int]]:
    """Two ranks as threads of this process; the cores of each while they are bound, then of this thread."""
    from ringleader.runtime.store import LocalStore

    os.sched_setaffinity(0, TWO)
    store, found = LocalStore(), [[], []]

    def body(rank: int) -> None:
        comm = rl.init(rank, 2, store=store, bind="core", timeout=30)
        comm.barrier()
        found[rank] = sorted(os.sched_getaffinity(0))
        comm.close()

    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [*found, sorted(os.sched_getaffinity(0))]


def test_ranks_that_are_threads_are_bound_each_by_itself() -> None:
    assert rl.spawn(as_threads, 1, timeout=100) == [[[TWO[0]], [TWO[1]], TWO]]
