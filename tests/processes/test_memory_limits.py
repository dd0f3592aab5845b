"""What collectives take of memory beyond the program's own buffers: a bound per rank, and no growth over many calls."""

from __future__ import annotations

import multiprocessing
import random
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from robustness_support import LONG, Workers, world

import ringleader as rl
from ringleader import _core

N = 4
MIB = 1 << 20
SIZES = [8, 1 << 10, 64 << 10, MIB, 16 * MIB, 64 * MIB]
CALLS = 20_000 if LONG else 3_000
DISTINCT = 600  # more than the cache of plans keeps


@pytest.fixture(scope="module", params=["shm", "tcp"])
def four(request: pytest.FixtureRequest) -> Iterator[Workers]:
    workers = Workers(N, request.param)
    yield workers
    workers.close()


def own_memory() -> int:
    """Bytes of memory of this process; of what it shares, its share (so that the sum over all is what they take)."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    raise AssertionError("/proc/self/smaps_rollup has no line Pss")


def _extra(registered: bool) -> tuple[int, int]:
    """Most bytes that this process, and its arena, had beyond those before the first call and the buffers."""
    comm = world()
    largest = SIZES[-1] // 4
    x = comm.empty(largest, np.float32) if registered else np.empty(largest, np.float32)
    x[:] = 1
    comm.barrier()
    before, arena = own_memory(), _core.arena_used()
    most = most_arena = 0
    for nbytes in SIZES:
        part = x[: max(nbytes // 4, 1)]
        for _ in range(3):
            comm.all_reduce(part, op="max")
        comm.barrier()  # all ranks at once: shared pages count for whoever maps them
        most, most_arena = max(most, own_memory() - before), max(most_arena, _core.arena_used() - arena)
        comm.barrier()
    assert (x == 1).all()
    return most, most_arena


@pytest.mark.parametrize("registered", [False, True], ids=["plain", "registered"])
def test_extra_memory_is_bounded(four: Workers, registered: bool) -> None:
    """64 MiB and 5% of the largest message per rank; buffers of all sizes, none copied as a whole."""
    if not Path("/proc/self/smaps_rollup").exists():
        pytest.skip("needs /proc/self/smaps_rollup")
    told = four.run(_extra, registered, timeout=120)
    limit = 64 * MIB + SIZES[-1] // 20
    # A peer's registered buffer counts in part for whoever maps it: only the sum over ranks says what is taken.
    assert sum(most for most, _ in told) / N <= limit, told
    assert max(arena for _, arena in told) <= limit, told


def _growth(calls: int) -> tuple[int, int]:
    """Bytes by which this process, and its arena, grew over calls of changing size, once the caches were full."""
    comm = world()
    draw = random.Random(7)  # the same on all ranks
    plain, registered = np.ones(64 << 10, np.float32), comm.empty(64 << 10, np.float32)
    registered[:] = 1

    def some(sizes: Iterator[int]) -> None:
        for i, count in enumerate(sizes):
            x = (plain, registered)[i % 2][:count]
            if i % 5 == 4:
                comm.broadcast(x, root=i % N)
            else:
                comm.all_reduce(x, op="max")

    some(iter(range(1, DISTINCT)))
    some(draw.randint(1, len(plain)) for _ in range(DISTINCT))
    comm.barrier()
    before, arena = own_memory(), _core.arena_used()
    some(draw.randint(1, len(plain)) for _ in range(calls))
    comm.barrier()
    return own_memory() - before, _core.arena_used() - arena


def test_memory_does_not_grow_over_calls_of_changing_size(four: Workers) -> None:
    told = four.run(_growth, CALLS, timeout=600)
    assert max(arena for _, arena in told) <= 0, told
    # Plans differ in size, and allocators keep what they had. 1.4 kB per call would show, or 200 bytes if long.
    assert sum(grown for grown, _ in told) / N < 4 * MIB, told


def _in_little_space() -> tuple[float, int]:
    comm = rl.init(timeout=60)
    x = comm.empty(1_000_000, np.float32)
    x[:] = comm.rank + 1
    comm.all_reduce(x)
    return float(x[0]), _core.arena_info()[1]


def _little_space(ranks: int) -> None:
    # 4 GB of address space: of it NumPy's libraries take a part, and every rank maps the arenas of all.
    resource.setrlimit(resource.RLIMIT_AS, (4_000_000 << 10, 4_000_000 << 10))
    with rl.WorkerGroup(ranks, transport="shm") as group:
        results = group.run(_in_little_space, timeout=100)
    assert [total for total, _ in results] == [ranks * (ranks + 1) / 2] * ranks
    assert all(16 << 20 <= size <= (2 << 30) // ranks for _, size in results), results


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_start_under_a_limit_of_address_space(ranks: int) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_little_space, args=(ranks,))
    process.start()
    process.join(120)
    assert process.exitcode == 0


def test_too_little_address_space_is_an_error_with_the_numbers() -> None:
    program = (
        "import resource, numpy, ringleader as rl\n"
        "pages = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (pages + (24 << 20),) * 2)\n"
        "rl.init(rank=0, size=1)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert ended.returncode != 0
    assert "OutOfMemory" in ended.stderr and "ulimit -v" in ended.stderr and "16 MiB" in ended.stderr, ended.stderr
