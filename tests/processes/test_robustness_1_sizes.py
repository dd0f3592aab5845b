"""The smallest and the largest: one rank alone, more than 2^31 elements."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from robustness_support import LONG, free_memory, world

import ringleader as rl

ALONE = """
import numpy as np, ringleader as rl
from ringleader.algorithms import all_algorithms
with rl.init() as comm:
    for entry in all_algorithms():
        call = getattr(comm, entry.collective)
        call(algorithm=entry.name) if entry.collective == "barrier" else call(np.arange(3.0), algorithm=entry.name)
    y = np.zeros(2)
    work = comm.irecv(y, source=0)
    comm.send(np.ones(2), dest=0)
    work.wait(10)
print(y.tolist())
"""


def test_one_rank_needs_no_network_and_warns_of_nothing() -> None:
    command = [sys.executable, "-W", "error", "-c", ALONE]
    isolated = ["unshare", "--net", "--user", "--map-root-user", *command]
    try:
        done = subprocess.run(isolated, capture_output=True, text=True, timeout=250)
    except FileNotFoundError:
        done = None
    if done is None or "unshare" in done.stderr:  # may not be allowed: then with the network, for the warnings
        done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[1.0, 1.0]\n", "")


# ------------------------------------------------------------------------------------------------------ large counts

BIG = (1 << 31) + 8
PERIOD = 251  # prime: a shift by any power of two shows


def _pattern(rank: int) -> NDArray[np.int8]:
    return (np.arange(PERIOD) * (rank + 3) % 199 - 99 + rank).astype(np.int8)


def _fill(x: NDArray[np.int8], pattern: NDArray[np.int8]) -> None:
    whole = x.size // PERIOD * PERIOD
    x[:whole].reshape(-1, PERIOD)[:] = pattern
    x[whole:] = pattern[: x.size - whole]


def _differences(x: NDArray[np.int8], pattern: NDArray[np.int8], start: int = 0) -> list[int]:
    """Where `x`, as if it began at `start`, is not the pattern: at both ends, in the middle, around 2^31, sampled."""
    picks = [np.arange(16), x.size - 1 - np.arange(16), x.size // 2 + np.arange(-8, 8)]
    for edge in (1 << 30, 1 << 31):
        if start < edge < start + x.size:
            picks.append(edge - start + np.arange(-8, min(8, x.size + start - edge)))
    picks.append(np.random.default_rng(5).integers(0, x.size, 200_000))
    index = np.concatenate(picks)
    return sorted({int(i) for i in index[x[index] != pattern[(index + start) % PERIOD]]})[:5]


def _large(registered: bool) -> Any:
    comm = world(timeout=90)
    x = comm.empty(BIG, np.int8) if registered else np.empty(BIG, np.int8)
    _fill(x, _pattern(comm.rank))
    with np.errstate(over="ignore"):
        total = _pattern(0) + _pattern(1)
    comm.all_reduce(x)
    return _differences(x, total)


def _large_in_sum() -> Any:
    comm = world(timeout=90)
    count = (1 << 30) + 8
    x = np.empty(count, np.int8)
    _fill(x, _pattern(comm.rank))
    out = comm.all_gather(x)
    return [_differences(out[r], _pattern(r)) for r in range(2)], out.shape == (2, count)


def _too_large() -> Any:
    comm = world(timeout=60)
    try:
        comm.empty(1 << 44, np.uint8)
    except rl.errors.OutOfMemory as error:
        text = str(error)
    return comm.all_reduce(np.ones(2)).tolist(), text


@pytest.mark.slow
def test_more_than_2_to_the_31_elements() -> None:
    if free_memory() < 12 << 30:
        pytest.skip(f"needs 12 GiB of free memory, has {free_memory() >> 20} MiB")
    with rl.WorkerGroup(2, transport="shm") as pair:
        assert pair.run(_large, False, timeout=250) == [[], []]
        assert pair.run(_too_large, timeout=250)[0][0] == [2, 2]


@pytest.mark.slow
def test_counts_that_exceed_2_to_the_31_in_sum_only() -> None:
    if free_memory() < 12 << 30:
        pytest.skip(f"needs 12 GiB of free memory, has {free_memory() >> 20} MiB")
    with rl.WorkerGroup(2, transport="shm") as pair:
        assert pair.run(_large_in_sum, timeout=250) == [([[], []], True)] * 2
        if LONG:
            assert pair.run(_large, True, timeout=250) == [[], []]
