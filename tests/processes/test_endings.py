"""Ranks that leave right after their last call, in order: no other rank loses its own last operation by it."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from meeting_support import Event
from robustness_support import LONG, Workers

import ringleader as rl

N = 4
SIZE = 200_000


def _adaptive(comm: rl.Communicator) -> Any:
    reduce = rl.adapt.AdaptiveAllReduce(comm)
    for _ in range(4):
        x = reduce(np.ones(SIZE, np.float32))
    return x[0]


def _overlapping(comm: rl.Communicator) -> Any:
    reduce = rl.adapt.AdaptiveAllReduce(comm, overlap=True)
    works = [reduce(np.ones(SIZE, np.float32), async_op=True) for _ in range(3)]
    x = works[-1].wait()
    reduce.close()
    return x[0]


def _dropped(comm: rl.Communicator) -> Any:
    x = np.ones(SIZE, np.float32)
    for _ in range(3):
        comm.all_reduce(np.ones(SIZE, np.float32), async_op=True)
    comm.all_reduce(x)
    comm.broadcast(np.ones(SIZE), root=1, async_op=True)
    comm.all_reduce(np.ones(SIZE), async_op=True)
    return x[0]


def _persistent(comm: rl.Communicator) -> Any:
    x = np.ones(SIZE, np.float32)
    operation = comm.all_reduce_init(x)
    operation()
    operation.start()
    return comm.size


def _one_way(comm: rl.Communicator) -> Any:
    x = np.full(SIZE, comm.size, np.float32)
    for root in range(comm.size):
        comm.broadcast(x, root=root)
        comm.reduce(np.ones(SIZE, np.float32), root=root)
        comm.gather(np.ones(SIZE // 10), root=root)
    return x[-1]


def _messages(comm: rl.Communicator) -> Any:
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    x = np.empty(SIZE)
    work = comm.isend(np.full(SIZE, float(comm.size)), after, tag=3)
    comm.recv(x, before, tag=3)
    work.wait()
    comm.isend(np.full(10, float(comm.size)), after, tag=4)
    comm.recv(x[:10], before, tag=4)
    return x[0]


def _compressed(comm: rl.Communicator) -> Any:
    int8 = rl.compress.Int8()
    x = comm.all_reduce(np.ones(SIZE, np.float32), compression=int8)
    comm.all_reduce(np.ones(SIZE, np.float32), compression=int8, async_op=True)
    return round(float(x[0]))


KINDS: dict[str, Callable[[rl.Communicator], Any]] = {
    "adaptive": _adaptive,
    "overlapping": _overlapping,
    "dropped": _dropped,
    "persistent": _persistent,
    "one way": _one_way,
    "messages": _messages,
    "compressed": _compressed,
}


def end(kind: str) -> str:
    """Run everything and leave; empty if nothing failed."""
    comm = rl.init(timeout=60)
    try:
        with comm:
            got = KINDS[kind](comm)
            if comm.rank == comm.size - 1:
                time.sleep(0.002)
        return "" if got == comm.size else f"got {got}"
    except rl.errors.RingleaderError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        gc.collect()


def end_torch(kind: str, folder: str) -> str:
    """The same of torch's process groups."""
    import torch
    import torch.distributed as dist

    import ringleader.torch as rlt

    # The store lives in rank 0's process as long as the group does: torch's own would end with it.
    rank, size = (int(__import__("os").environ[f"RINGLEADER_{name}"]) for name in ("RANK", "SIZE"))
    dist.init_process_group("ringleader", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    try:
        if kind == "group":
            x = torch.ones(SIZE)
            dist.all_reduce(x)
            dist.all_reduce(torch.ones(SIZE), async_op=True)
        else:
            torch.manual_seed(3)
            model = rlt.DataParallel(torch.nn.Linear(300, 300))
            for _ in range(2):
                model(torch.ones(8, 300)).sum().backward()
            x = torch.full((1,), float(size))
        return "" if float(x[0]) == size else f"got {x[0]}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module", params=["tcp", "shm"])
def workers(request: pytest.FixtureRequest) -> Iterator[Workers]:
    group = Workers(N, request.param)
    yield group
    group.close()


@pytest.mark.parametrize("kind", KINDS)
def test_leaving_right_after_the_last_call_is_no_failure(workers: Workers, kind: str) -> None:
    for number in range(100 if LONG else 3):
        assert workers.run(end, kind, timeout=150) == [""] * N, number


@pytest.mark.parametrize("kind", ["group", "DataParallel"])
def test_leaving_a_process_group_of_torch(workers: Workers, kind: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    for number in range(50 if LONG else 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert workers.run(end_torch, kind, str(folder), timeout=150) == [""] * N, number


def _late(folder: str) -> tuple[str, str]:
    """Ranks 0 and 1 do everything there is to do, and one operation more among them; rank 2 is far behind."""
    left = [Event(folder, rank) for rank in range(2)]
    comm = rl.init(timeout=60)
    x, more = np.full(5_000, comm.rank + 1.0), "fine"
    comm.barrier()
    try:
        if comm.rank == 2:
            assert all(event.wait() for event in left)
        comm.broadcast(x, root=0)  # complete for 0 without 2
        if comm.rank == 1:  # in an operation that 0 will never be in: that is its failure, and none of 2's broadcast
            try:
                comm.barrier()
            except rl.errors.PeerLost as error:
                more = str(error)
        return str(x[0]), more
    except rl.errors.RingleaderError as error:
        return f"{type(error).__name__}: {error}", more
    finally:
        if comm.rank == 1:
            left[1].set()
            left[0].wait()
        comm.close()
        if comm.rank == 0:
            left[0].set()


def test_who_is_behind_gets_what_was_sent_before_others_failed(workers: Workers, tmp_path: Path) -> None:
    with rl.WorkerGroup(3, transport=workers.transport) as three:
        got = three.run(_late, str(tmp_path), timeout=150)
    assert [value for value, _ in got] == ["1.0"] * 3
    assert "rank 0" in got[1][1] and "left" in got[1][1]
