"""Processes that fork while they have a communicator: pools, loaders, in the middle of a call."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from typing import Any

import numpy as np
import pytest
from robustness_support import world

import ringleader as rl

TRANSPORTS = ["shm", "tcp"]


def _square(x: int) -> int:
    return x * x


def _use(comm: rl.Communicator) -> int:
    try:
        comm.all_reduce(np.ones(3))
    except rl.errors.ForkError:
        return 0
    return 1


def _forks(kind: str) -> Any:
    comm = world(timeout=60)
    x = comm.empty(1000)
    x[:] = comm.rank + 1
    operation = comm.all_reduce_init(x, "max")
    comm.all_reduce(np.ones(3))
    seen: Any = None
    if kind == "pool":
        with multiprocessing.get_context("fork").Pool(2) as pool:
            seen = pool.map(_square, range(20)) == [i * i for i in range(20)]
            comm.all_reduce(np.ones(3))  # while the children live
    elif kind == "loader":
        from torch.utils.data import DataLoader

        seen = []
        for batch in DataLoader(range(40), batch_size=10, num_workers=2, multiprocessing_context="fork"):  # type: ignore[arg-type]
            seen.append(int(comm.all_reduce(batch.numpy().copy())[0]) // comm.size)
        seen = seen == [0, 10, 20, 30]
    elif kind == "while blocked":
        # Another thread is in the middle of a collective while this one forks: the child has a copy of that state.
        if comm.rank == 1:
            time.sleep(0.6)
            comm.barrier()
        else:
            thread = threading.Thread(target=comm.barrier)
            thread.start()
            time.sleep(0.2)
            child = os.fork()
            if child == 0:
                os._exit(_use(comm))
            seen = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            thread.join()
    elif kind == "child makes its own":
        child = os.fork()
        if child == 0:
            code = 9
            try:
                with rl.init(rank=0, size=1) as own:
                    code = int(own.all_reduce(np.full(4, 3.0))[0]) + _use(comm)
            finally:
                os._exit(code)
        seen = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    elif kind == "pending work":
        work = comm.all_reduce(np.ones(100_000), async_op=True)
        child = os.fork()
        if child == 0:
            os._exit(0 if _use(comm) == 0 else 1)
        seen = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 and work.wait(30)[-1] == comm.size
    comm.barrier()
    return bool(seen) or comm.rank == 1, float(operation()[-1]), comm.all_reduce(np.ones(3)).tolist()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_forks_of_every_kind_leave_the_parent_alone(transport: str) -> None:
    pytest.importorskip("torch")
    with rl.WorkerGroup(2, transport=transport) as pair:
        for kind in ("pool", "loader", "while blocked", "child makes its own", "pending work"):
            for seen, largest, total in pair.run(_forks, kind, timeout=150):
                assert seen, kind
                assert largest == 2
                assert total == [2, 2, 2]
