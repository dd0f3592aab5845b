"""MSCCL files run on the engine, each over its own number of ranks as threads, over shared memory and TCP."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from formats_support import files
from numpy.typing import NDArray

import ringleader as rl
from ringleader.runtime.store import LocalStore
from ringleader.schedule import Collective, Schedule
from ringleader.schedule.formats import msccl

FILES = files("msccl", ".xml")


@pytest.fixture(params=FILES, ids=lambda path: path.name)
def imported(request: pytest.FixtureRequest) -> Iterator[tuple[str, Schedule]]:
    """A file's algorithm under a name, and its schedule."""
    schedule = msccl.load(request.param)
    name = rl.algorithms.load_msccl(request.param, "imported")
    yield name, schedule
    rl.algorithms.forget(schedule.collective.value, name)


def counts(schedule: Schedule) -> list[int]:
    """Elements: none, fewer than chunks, a multiple of them, and neither."""
    m = schedule.chunks_per_block
    return [0, 1, 3 * m, 7 * m + 5, 4099]


def data(dtype: str, rank: int, size: int) -> NDArray[Any]:
    """Whole numbers, so that sums are exact in any order; different for every rank and element."""
    i = np.arange(size)
    return ((i * 7 + rank * 31 + i // 13) % 97).astype(dtype)


def run_rank(comm: rl.Communicator, name: str, schedule: Schedule) -> list[str]:
    """What is wrong on one rank."""
    problems = []
    n, rank = comm.size, comm.rank
    for dtype in ("float32", "int64"):
        for count in counts(schedule):
            if schedule.collective is Collective.ALL_REDUCE:
                result = comm.all_reduce(data(dtype, rank, count), algorithm=name)
                wanted = np.sum([data(dtype, r, count) for r in range(n)], axis=0, dtype=dtype)
            elif schedule.collective is Collective.ALL_GATHER:
                result = comm.all_gather(data(dtype, rank, count), algorithm=name)
                wanted = np.concatenate([data(dtype, r, count) for r in range(n)])
            else:
                result = comm.all_to_all(data(dtype, rank, n * count), algorithm=name)
                mine = slice(rank * count, (rank + 1) * count)
                wanted = np.concatenate([data(dtype, r, n * count)[mine] for r in range(n)])
            if not np.array_equal(np.asarray(result).reshape(-1).view("u1"), wanted.view("u1")):
                problems.append(f"rank {rank}, {count} elements of {dtype}: {result} instead of {wanted}")
    if comm.last_choice is None or comm.last_choice.algorithm != name:
        problems.append(f"rank {rank} ran {comm.last_choice}")
    return problems


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_the_engine_runs_it(imported: tuple[str, Schedule], transport: str) -> None:
    name, schedule = imported
    store = LocalStore()

    def body(rank: int) -> list[str]:
        with rl.init(rank=rank, size=schedule.n, store=store, transport=transport, timeout=60) as comm:
            return run_rank(comm, name, schedule)

    with ThreadPoolExecutor(schedule.n) as pool:
        problems = [problem for found in pool.map(body, range(schedule.n)) for problem in found]
    assert not problems, problems[:5]
