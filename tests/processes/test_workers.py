"""Large operations in slices, on several threads a rank: results, order, agreement, failures."""

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

import ringleader as rl
from ringleader.runtime.workers import MIN_SLICE, Workers, rank_order
from ringleader.schedule import Collective

N = 3
COUNT = 3 * MIN_SLICE // 4 + 5  # of float32: three slices, the last a little longer
_comm: rl.Communicator | None = None


def world() -> rl.Communicator:
    global _comm
    if _comm is None or _comm.state != "live":
        _comm = rl.init(timeout=60)
    return _comm


@pytest.fixture(scope="module", params=["shm", "tcp"])
def group(request: pytest.FixtureRequest) -> Iterator[rl.WorkerGroup]:
    workers = rl.WorkerGroup(N, transport=request.param, env={"RINGLEADER_WORKERS": "3"})
    yield workers
    workers.close(force=True)


def data(rank: int, count: int, dtype: str) -> np.ndarray[Any, Any]:
    return ((np.arange(count) * (rank + 3) + rank) % 61).astype(dtype)


def count_of(dtype: str) -> int:
    return 3 * MIN_SLICE // np.dtype(dtype).itemsize + 5


# ---------------------------------------------------------------- the cut


def test_slices_cover_everything_once() -> None:
    workers = Workers([object()] * 3, [0, 0])  # type: ignore[list-item]
    for count in (0, 1, MIN_SLICE, MIN_SLICE + 1, 4 * MIN_SLICE - 1, 4 * MIN_SLICE, 123_456_789):
        for itemsize in (1, 2, 4, 8, 16):
            slices = workers.slices(Collective.ALL_REDUCE, count, itemsize)
            ends = [first + elements for first, elements in slices]
            assert [first for first, _ in slices] == [0, *ends[:-1]]
            assert ends[-1] == count
            assert len(slices) == max(1, min(4, count * itemsize // MIN_SLICE))
            assert all(first * itemsize % 64 == 0 for first, _ in slices)
    assert workers.slices(Collective.ALL_GATHER, 1 << 30, 4) == [(0, 1 << 30)]


@pytest.mark.parametrize("n", range(1, 13))
def test_rank_orders_are_orders_and_differ(n: int) -> None:
    orders = [rank_order(n, worker, [0] * n) for worker in range(4)]
    assert all(sorted(order) == list(range(n)) for order in orders)
    assert orders[0] == list(range(n))
    if n >= 3:
        assert orders[1] != orders[0]


def test_an_uneven_layout_keeps_its_order() -> None:
    assert rank_order(4, 1, [0, 0, 1, 1]) == [0, 1, 2, 3]


# ---------------------------------------------------------------- results


def run_all(dtype: str, op: str, mode: str) -> list[tuple[str, bytes]]:
    comm, results = world(), []
    assert comm.workers == 3
    x = data(comm.rank, count_of(dtype), dtype)
    if mode == "registered":
        registered = comm.empty(x.size, dtype)
        registered[:] = x
        x = registered
    for name in ("all_reduce", "reduce", "broadcast"):
        y = x if mode == "registered" else x.copy()
        before = y.copy()
        arguments: dict[str, Any] = {} if name == "all_reduce" else {"root": 1}
        if name != "broadcast":
            arguments["op"] = op
        if mode == "async":
            getattr(comm, name)(y, async_op=True, **arguments).wait()
        elif mode == "persistent":
            getattr(comm, f"{name}_init")(y, **arguments)()
        else:
            getattr(comm, name)(y, **arguments)
        if mode != "persistent":
            assert comm.last_choice is not None and comm.last_choice.workers == 3, comm.last_choice
        results.append((name, y.tobytes()))
        y[:] = before
    return results


@pytest.mark.parametrize(
    ("dtype", "op", "mode"),
    [
        ("float32", "sum", "plain"),
        ("float32", "avg", "registered"),
        ("int64", "max", "async"),
        ("float16", "min", "persistent"),
        ("uint8", "bxor", "plain"),
    ],
)
def test_slices_together_are_the_whole(group: rl.WorkerGroup, dtype: str, op: str, mode: str) -> None:
    by_rank = group.run(run_all, dtype, op, mode, timeout=150)
    inputs = np.stack([data(rank, count_of(dtype), dtype) for rank in range(N)])
    fold = {"sum": np.add, "max": np.maximum, "min": np.minimum, "bxor": np.bitwise_xor, "avg": np.add}[op]
    want = fold.reduce(inputs, dtype=dtype)
    for rank, results in enumerate(by_rank):
        for name, got in results:
            expected = want / np.float32(N) if op == "avg" and name != "broadcast" else want
            if name == "broadcast":
                expected = inputs[1]
            elif name == "reduce" and rank != 1:
                expected = inputs[rank]
            if op == "avg":
                np.testing.assert_allclose(np.frombuffer(got, dtype), expected, rtol=1e-6)
            else:
                assert got == expected.tobytes(), (rank, name)
    assert len({results[0][1] for results in by_rank}) == 1


def started_one_after_the_other() -> list[float]:
    comm = world()
    x, small = np.full(COUNT, float(comm.rank + 1), np.float32), np.ones(3, np.float32)
    works = []
    for _ in range(4):  # all on one array: each must see what the one before it has made
        works.append(comm.all_reduce(x, async_op=True))
        works.append(comm.all_reduce(small, async_op=True))
    for work in works:
        work.wait()
    return [float(x.min()), float(x.max()), float(small[0])]


def test_operations_keep_their_order(group: rl.WorkerGroup) -> None:
    assert group.run(started_one_after_the_other, timeout=150) == [[6.0 * 27, 6.0 * 27, 81.0]] * N


def wire_sum() -> bytes:
    comm = world()
    x = data(comm.rank, COUNT, "float32") / np.float32(7)
    return comm.all_reduce(x, wire="int8").tobytes()


def test_wire_formats_in_slices_give_equal_bits(group: rl.WorkerGroup) -> None:
    results = group.run(wire_sum, timeout=150)
    assert results[0] == results[1] == results[2]


# ---------------------------------------------------------------- who decides


def count_workers() -> tuple[int, int]:
    with rl.init(timeout=60, workers=1 + int(os.environ["RINGLEADER_RANK"])) as comm:
        x = comm.all_reduce(np.ones(4 * MIN_SLICE, np.uint8))
        return comm.workers, int(x.sum()) // x.size


def test_the_lowest_number_is_used() -> None:
    with rl.WorkerGroup(2) as workers:
        assert workers.run(count_workers, timeout=150) == [(1, 2)] * 2


# ---------------------------------------------------------------- failures


def loop_until_loss(victim: int) -> tuple[str, str, list[float]]:
    comm = world()
    x = np.ones(COUNT, np.float32)
    comm.all_reduce(x, "max")
    if comm.rank == victim:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGKILL)).start()
    try:
        while True:
            comm.all_reduce(x, "max")
    except rl.errors.RingleaderError as error:
        kind, text = type(error).__name__, str(error)
    smaller = comm.shrink(timeout=20)
    total = smaller.all_reduce(np.ones(COUNT, np.float32))
    return kind, text, [float(total.min()), float(total.max())]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_survivors_of_a_killed_rank_name_it_and_go_on(transport: str) -> None:
    with rl.WorkerGroup(N, transport=transport, env={"RINGLEADER_WORKERS": "2"}) as workers:
        outcomes = workers.outcomes(loop_until_loss, 1, timeout=150, grace=40)
    for rank in (0, 2):
        assert not outcomes[rank].failed, outcomes[rank].error
        kind, text, total = outcomes[rank].value
        assert kind in ("PeerLost", "AbortedError"), text
        assert "rank 1" in text
        assert total == [2.0, 2.0]


def disagree(what: str, folder: str) -> str:
    comm = world()
    count = COUNT + (4096 if what == "count" and comm.rank == 1 else 0)
    gave_up = {rank: Event(folder, rank) for rank in range(N) if rank != 1}
    comm.barrier()
    if what == "late" and comm.rank == 1:
        assert all(event.wait() for event in gave_up.values())
    op, limit = "max" if what == "op" and comm.rank == 1 else "sum", 1.5 if what == "late" else 30
    try:
        comm.all_reduce(np.ones(count, np.float32), op, timeout=limit)
    except rl.errors.RingleaderError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        if comm.rank in gave_up:
            gave_up[comm.rank].set()
    return "no error"


@pytest.mark.parametrize("what", ["count", "op", "late"])
def test_an_error_not_a_hang(group: rl.WorkerGroup, what: str, tmp_path: Path) -> None:
    texts = group.run(disagree, what, str(tmp_path), timeout=150)
    if what == "late":
        assert all(text.startswith(("CollectiveTimeout", "AbortedError")) for text in texts), texts
        assert any("rank 1" in text for text in texts), texts
    else:  # the abort of the one who sees it first may be another's error
        assert any(text.startswith("MismatchError") for text in texts), texts
        assert all(text.startswith(("MismatchError", "AbortedError")) for text in texts), texts
