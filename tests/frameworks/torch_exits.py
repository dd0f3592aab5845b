"""Script of test_torch_failures.py: imports torch once and forks ranks that end in different ways.

Prints a JSON list of [exit code, seconds] per rank of each round.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

torch.set_num_threads(1)


def join(path: str, rank: int, size: int) -> None:
    dist.init_process_group(
        "ringleader", init_method=f"file://{path}", rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )


def pending_at_exit(path: str, rank: int) -> None:
    """Ends with works, futures and callbacks pending, without destroy_process_group."""
    join(path, rank, 2)
    dist.all_reduce(torch.ones(3))
    if rank == 0:
        work = dist.all_reduce(torch.ones(1000), async_op=True)
        work.get_future().then(lambda future: future.value())
        dist.irecv(torch.empty(3), 1)


def raises(path: str, rank: int) -> None:
    join(path, rank, 2)
    dist.all_reduce(torch.ones(3))
    if rank == 1:
        raise ValueError("rank 1 has had enough")
    dist.all_reduce(torch.ones(3))


def waits(path: str, rank: int) -> None:
    """Rank 0 waits in a barrier, rank 1 in a message; both get SIGINT."""
    join(path, rank, 2)
    dist.all_reduce(torch.ones(3))
    Path(f"{path}-{rank}-waits").touch()
    if rank == 0:
        dist.barrier()
    else:
        dist.recv(torch.empty(3), 0)


def fork_round(scenario: Callable[[str, int], None], interrupt: bool) -> list[tuple[int, float]]:
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        pids = []
        for rank in range(2):
            pid = os.fork()
            if pid == 0:
                if scenario is not pending_at_exit:
                    sys.stderr = open(f"{sys.argv[2]}-{rank}", "w")  # noqa: SIM115 - until the process ends
                scenario(f"{folder}/store", rank)
                sys.exit(0)  # with the interpreter's whole end
            pids.append(pid)
        if interrupt:
            while len(list(Path(folder).glob("*-waits"))) < 2 and time.monotonic() - started < 60:
                time.sleep(0.01)
            time.sleep(0.5)  # until they really do
            started = time.monotonic()
            for pid in pids:
                os.kill(pid, signal.SIGINT)
        ends: dict[int, tuple[int, float]] = {}
        while len(ends) < 2 and time.monotonic() - started < 30:
            for pid in set(pids) - set(ends):
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    ends[pid] = (os.waitstatus_to_exitcode(status), time.monotonic() - started)
            time.sleep(0.01)
        for pid in set(pids) - set(ends):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            ends[pid] = (-99, 30.0)
        return [ends[pid] for pid in pids]


if __name__ == "__main__":
    name, rounds = sys.argv[1], int(sys.argv[3])
    scenario = {"pending": pending_at_exit, "raises": raises, "interrupted": waits}[name]
    print(json.dumps([fork_round(scenario, name == "interrupted") for _ in range(rounds)]))
