"""A rank of a job that forks in every state and looks how its children end; run by test_fork_ends.

    python fork_ends.py USE     with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT

Prints one line of JSON: what did not end as it should.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

import ringleader as rl

LIMIT = 20.0  # of a child that takes some 50 ms; one that hangs, hangs for ever
CODE = 3

Held = dict[str, Any]
"""What the parent has: the communicator, works, groups; a child may do what it likes with it."""


# ------------------------------------------------------------------------------------------------ how children end


def leave(held: Held) -> None:
    sys.exit(CODE)


def leave_at_once(held: Held) -> None:
    os._exit(CODE)


def fail(held: Held) -> None:
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    raise RuntimeError("the child fails")


def drop(held: Held) -> None:
    held.clear()
    gc.collect()
    sys.exit(CODE)


def close(held: Held) -> None:
    for each in held.values():
        for end in ("close", "shutdown"):
            with suppress(rl.errors.ForkError):
                getattr(each, end, lambda: None)()
    sys.exit(CODE)


def look(held: Held) -> None:
    """Ask for everything: each answers or says that it is the parent's, and nothing waits."""
    wrong = 0
    for each in held.values():
        for name in ("is_completed", "exception", "wait", "result"):
            method = getattr(each, name, None)
            try:
                if callable(method):
                    method()
            except rl.errors.ForkError:
                continue
            except RuntimeError as error:
                wrong += "parent process" not in str(error)
    comm = held.get("comm")
    if comm is not None:
        repr(comm), comm.lost_ranks, comm.counters()
        for call in (comm.barrier, comm.status, lambda: comm.send(np.ones(3), 0), lambda: comm.all_reduce(np.ones(3))):
            try:
                call()
                wrong += 1
            except rl.errors.ForkError:
                pass
    sys.exit(CODE + wrong)


def start_anew(held: Held) -> None:
    """A child may have a job of its own."""
    with rl.init(rank=0, size=1) as own:
        work = own.all_reduce(np.ones(9)[::2], async_op=True)
        right = work.wait().tolist() == [1.0] * 5
    sys.exit(CODE if right else 4)


ENDINGS: list[Callable[[Held], None]] = [leave, leave_at_once, fail, drop, close, look, start_anew]


def fork(end: Callable[[Held], None], held: Held) -> str:
    """Fork, let the child end, and say what is wrong about it."""
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        # Not through what called this: the child ends as a program does whose main function is here.
        threading.Thread(target=kill_after, args=(LIMIT,), daemon=True).start()
        end(held)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    expected = 1 if end is fail else CODE
    return "" if status == expected else f"{end.__name__}: {status} after {time.monotonic() - began:.1f} s"


def kill_after(seconds: float) -> None:
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


def all_ways(held: Held) -> list[str]:
    """Fork from this thread and from another one, by hand and by multiprocessing."""
    wrong = [fork(end, held) for end in ENDINGS]
    from_thread = threading.Thread(target=lambda: wrong.append(in_thread(held)))
    from_thread.start()
    from_thread.join()
    process = multiprocessing.get_context("fork").Process(target=sys.exit, args=(CODE,))
    process.start()
    process.join(LIMIT)
    wrong.append("" if process.exitcode == CODE else f"multiprocessing: {process.exitcode}")
    return [each for each in wrong if each]


def in_thread(held: Held) -> str:
    child = os.fork()
    if child == 0:  # this thread is the child's main thread now, and its function returns
        held.clear()
        gc.collect()
        os._exit(CODE)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return "" if status == CODE else f"from a thread: {status}"


# --------------------------------------------------------------------------------------------- what the parent does


@contextmanager
def late(comm: rl.Communicator) -> Iterator[bool]:
    """True on rank 0; the other ranks leave it when rank 0 is done, and only then call what it has started."""
    if comm.rank == 0:
        yield True
        for peer in range(1, comm.size):
            comm.send(np.zeros(1), peer, tag=99)
    else:
        comm.recv(np.zeros(1), 0, tag=99)
        yield False


def pending(comm: rl.Communicator) -> list[str]:
    x, blocks = np.arange(2000.0)[::2], np.zeros((comm.size, 5), ">f4")
    wrong: list[str] = []
    with late(comm) as first:
        if first:
            work, other = comm.all_reduce(x, async_op=True), comm.all_gather(np.ones(5, ">f4"), blocks, async_op=True)
            message = comm.irecv(np.zeros(7), tag=5)
            wrong = all_ways({"comm": comm, "work": work, "other": other, "message": message})
    if comm.rank != 0:
        comm.all_reduce(x, async_op=True)
        comm.all_gather(np.ones(5, ">f4"), blocks, async_op=True)
        comm.send(np.ones(7), 0, tag=5)
    comm.barrier()
    return wrong + ([] if x[1] == 2.0 * comm.size and blocks.sum() == 5 * comm.size else ["the parent's result"])


def over(comm: rl.Communicator) -> list[str]:
    work = comm.all_reduce(comm.empty(3_000_000), async_op=True)
    work.wait()
    part = comm.split(0)
    assert part is not None
    operation = part.all_reduce_init(np.ones(10)[::2])
    operation.start()
    return all_ways({"comm": comm, "part": part, "work": work, "operation": operation})


def inside(comm: rl.Communicator) -> list[str]:
    """Another thread is in the middle of calls all the time: it holds what it holds when the process forks."""
    ended = threading.Event()

    def call() -> None:
        x = np.ones(50)
        while not comm.all_reduce(np.array([ended.is_set()]), "min")[0]:
            for _ in range(20):
                comm.all_reduce(x[::2], async_op=True)
                if comm.rank == 0:
                    comm.isend(x, 1)
                elif comm.rank == 1:
                    comm.irecv(x, 0)

    thread = threading.Thread(target=call)
    thread.start()
    wrong = [fork(end, {"comm": comm}) for _ in range(8) for end in (drop, close, leave)]
    ended.set()
    thread.join()
    return [each for each in wrong if each]


def compressed(comm: rl.Communicator) -> list[str]:
    from ringleader.compress import FP16

    x = np.ones(100_000, "f4")
    comm.all_reduce(x, compression=FP16(), async_op=True).wait()
    wrong: list[str] = []
    with late(comm) as first:
        if first:
            work = comm.all_reduce(x, compression=FP16(), async_op=True)
            wrong = all_ways({"comm": comm, "work": work})
    if comm.rank != 0:
        comm.all_reduce(x, compression=FP16(), async_op=True)
    comm.barrier()
    return wrong + ([] if x[-1] == comm.size**2 else ["the parent's result"])


def torch_group(_: None) -> list[str]:
    import torch
    import torch.distributed as dist

    dist.init_process_group("ringleader")
    rank, size = dist.get_rank(), dist.get_world_size()
    group: Any = dist.distributed_c10d._get_default_group()
    x = torch.ones(40).view(20, 2).T
    parts = [torch.zeros(3, 2).T for _ in range(size)]
    dist.all_reduce(x, async_op=True).get_future().then(lambda future: future.value()).wait()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(50, 50))
    model(torch.ones(1, 50)).sum().backward()
    wrong: list[str] = []
    with late(group.communicator) as first:
        if first:
            work = dist.all_gather(parts, torch.ones(3, 2).T, async_op=True)
            exchange = dist.all_to_all_single(
                torch.zeros(size), torch.ones(size), [1] * size, [1] * size, async_op=True
            )
            wrong = all_ways({"comm": group.communicator, "group": group, "work": work, "exchange": exchange})
    if rank != 0:
        dist.all_gather(parts, torch.ones(3, 2).T, async_op=True)
        dist.all_to_all_single(torch.zeros(size), torch.ones(size), [1] * size, [1] * size, async_op=True)
    dist.barrier()
    if any(part.sum() != 6 for part in parts):
        wrong.append("the parent's result")
    dist.destroy_process_group()
    return wrong


def data_parallel(_: None) -> list[str]:
    import torch
    import torch.distributed as dist

    from ringleader.torch import DataParallel

    dist.init_process_group("ringleader")
    model = DataParallel(torch.nn.Linear(50, 50))
    for _step in range(2):
        model(torch.ones(1, 50)).sum().backward()
    wrong = all_ways({"model": model})
    model(torch.ones(1, 50)).sum().backward()
    dist.barrier()
    dist.destroy_process_group()
    return wrong


def horovod(_: None) -> list[str]:
    import torch

    import ringleader.horovod.torch as hvd

    hvd.init()
    wrong: list[str] = []
    x = torch.ones(100, 2).T
    with late(hvd_comm()) as first:
        if first:
            handle = hvd.allreduce_async_(x, op=hvd.Sum)
            wrong = all_ways({"handle": handle, "hvd": hvd})
    if hvd.rank() != 0:
        hvd.allreduce_async_(x, op=hvd.Sum)
    hvd.barrier()
    if x[0, 0] != hvd.size():
        wrong.append("the parent's result")
    hvd.shutdown()
    return wrong


def hvd_comm() -> rl.Communicator:
    from ringleader.horovod.session import global_process_set

    return global_process_set.lane.comm


USES: dict[str, Callable[[Any], list[str]]] = {
    each.__name__: each for each in (pending, over, inside, compressed, torch_group, data_parallel, horovod)
}


def main() -> list[str]:
    use = USES[sys.argv[1]]
    if use in (torch_group, data_parallel, horovod):
        return use(None)
    with rl.init(timeout=60) as comm:
        wrong = use(comm)
        comm.barrier()
        return wrong


if __name__ == "__main__":
    found = main()
    print(json.dumps(found), flush=True)
