"""Deaths, aborts, exceptions, signals and forks beyond test_failures.py: at random moments, under launchers."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from meeting_support import PROMPT, Event, free_port
from robustness_support import LONG

import ringleader as rl

TRANSPORTS = ["shm", "tcp"]


# ------------------------------------------------------------------------------------------------------------ kill -9


def _loop(victim: int, delay: float, registered: bool, mode: bool) -> Any:
    """64 MiB of ones, again and again, until a rank is gone; the sums must be right until the last."""
    comm = rl.init(timeout=60)
    x = comm.empty(16 << 20, np.float32) if registered else np.empty(16 << 20, np.float32)
    x[:] = 1
    comm.all_reduce(x)
    if comm.rank == victim:
        threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
    wrong = 0
    try:
        while True:
            wrong += int((x[:: 1 << 16] != comm.size).sum())
            x[:] = 1
            work = comm.all_reduce(x, async_op=mode)
            if mode:
                work.wait()
    except rl.errors.RingleaderError as error:
        noticed, text, ranks = time.monotonic(), f"{type(error).__name__}: {error}", list(error.ranks)
    smaller = comm.shrink(timeout=30)
    x[:] = 1
    smaller.all_reduce(x)
    ok = bool((x == 3).all())
    # Shared memory has no name anywhere, so a killed rank cannot leave any behind.
    named = [line for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/shm" in line]
    smaller.close()
    comm.close()
    return noticed, text, ranks, ok, wrong, named


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("seed", range(20 if LONG else 2))
def test_a_rank_killed_in_the_middle_of_64_mib(transport: str, seed: int) -> None:
    rng = random.Random(f"{transport}{seed}")
    victim, delay = rng.randrange(4), rng.uniform(0.01, 0.5)
    with rl.WorkerGroup(4, transport=transport) as group:
        outcomes = group.outcomes(_loop, victim, delay, seed % 2 == 0, seed % 4 >= 2, timeout=250, grace=100)
    assert "SIGKILL" in (outcomes[victim].error or "")
    survivors = [outcome for outcome in outcomes if outcome.rank != victim]
    for outcome in survivors:
        assert not outcome.failed, outcome.error
        _, text, ranks, ok, wrong, named = outcome.value
        assert text.startswith(("PeerLost", "AbortedError")), text
        assert f"rank {victim}" in text, text
        assert ranks == [victim]
        assert ok
        assert wrong == 0
        assert named == []
    noticed = [outcome.value[0] for outcome in survivors]
    assert max(noticed) - min(noticed) < PROMPT


# -------------------------------------------------------------------------------------------------------------- abort


def _blocked_in(comm: rl.Communicator, what: str) -> None:
    if what == "collective":
        comm.all_reduce(np.ones(1 << 20))
        comm.barrier()
    elif what == "wait":
        works = [comm.all_reduce(np.ones(100), async_op=True) for _ in range(4)]
        for work in works:
            work.wait()
    elif what == "persistent":
        operation = comm.all_gather_init(np.ones(9))
        for _ in range(3):
            operation()
    else:
        comm.recv(np.empty(3), 1 - comm.rank, tag=4)


def _abort_where(what: str, folder: str) -> Any:
    """Rank 0 is blocked in `what`, another of its threads aborts; rank 1 comes later and learns it then."""
    comm = rl.init(timeout=60)
    ended = Event(folder, what)
    comm.barrier()
    if comm.rank == 1:
        ended.wait()
    else:
        threading.Timer(0.3, comm.abort, ("enough of it",)).start()
    started = time.monotonic()
    with pytest.raises(rl.errors.AbortedError, match="enough of it"):
        _blocked_in(comm, what)
        comm.barrier()  # over a network everything may have been there for rank 1
    elapsed = time.monotonic() - started
    ended.set()
    for use in (lambda: comm.all_reduce(np.ones(1)), lambda: comm.isend(np.ones(1), 1 - comm.rank).wait(5)):
        with pytest.raises(rl.errors.AbortedError, match="enough of it"):
            use()
    fresh = rl.init(timeout=60)
    total = fresh.all_reduce(np.ones(2)).tolist()
    fresh.close()
    comm.close()
    return elapsed, total


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_abort_ends_every_kind_of_blocked_call(transport: str, tmp_path: Path) -> None:
    with rl.WorkerGroup(2, transport=transport) as pair:
        for what in ("collective", "wait", "persistent", "receive"):
            for elapsed, total in pair.run(_abort_where, what, str(tmp_path), timeout=150):
                assert elapsed < PROMPT, what
                assert total == [2, 2]


# ----------------------------------------------------------------------------------------- an exception on one rank

RAISES = """
import os, sys, time
from pathlib import Path
import numpy as np
{start}
here = Path(sys.argv[1])
reduce()
if rank == 1:
    (here / "raised").write_text(str(time.time()))
    raise KeyError("a mistake of rank 1")
try:
    while True:
        reduce()
except BaseException as error:
    (here / "seen").write_text(f"{{type(error).__name__}} {{time.time()}} {{error}}")
    raise
"""
PLAIN = """
import ringleader as rl
comm = rl.init(timeout=60)
rank = comm.rank
def reduce(): comm.all_reduce(np.ones(1000))
"""
TORCH = """
import torch, torch.distributed as dist
dist.init_process_group("ringleader")
rank = dist.get_rank()
def reduce(): dist.all_reduce(torch.ones(1000))
"""


@pytest.mark.parametrize("start", [PLAIN, TORCH], ids=["ringleader", "torch backend"])
@pytest.mark.parametrize("launcher", ["python", "torchrun"])
def test_an_exception_on_one_rank(start: str, launcher: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(RAISES.format(start=start))
    command = [sys.executable, str(script), str(tmp_path)]
    if launcher == "torchrun":
        run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        done = subprocess.run([*run, *command[1:]], capture_output=True, text=True, timeout=150)
        codes, text = [done.returncode], done.stderr
    else:
        port = str(free_port())
        common = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        ranks = [
            subprocess.Popen(
                command, env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stderr=subprocess.PIPE, text=True
            )
            for rank in range(2)
        ]
        try:
            text = "".join(process.communicate(timeout=200)[1] for process in ranks)
        finally:
            for process in ranks:
                process.kill()
        codes = [process.returncode for process in ranks]
    assert all(code not in (0, -signal.SIGSEGV, -signal.SIGABRT) for code in codes), text
    assert "KeyError: 'a mistake of rank 1'" in text
    raised = float((tmp_path / "raised").read_text())
    if launcher == "torchrun" and not (tmp_path / "seen").exists():
        return  # torchrun ends the other rank as soon as it sees the first one dead, which may be before it has written
    kind, when, message = (tmp_path / "seen").read_text().split(" ", 2)
    assert kind in ("PeerLost", "AbortedError", "DistBackendError", "RuntimeError"), message
    assert "rank 1" in message
    assert float(when) - raised < 2 * PROMPT  # for the rank to be gone, and for the other to notice


# ------------------------------------------------------------------------------------------------------------ signals

PLACES = ["close", "group", "shrink", "wait", "exit", "barrier"]
IN_CLOSE = """
import os, signal, sys, threading, time
import numpy as np
import ringleader as rl
comm = rl.init(timeout=60)
comm.barrier()
if comm.rank == 1:
    time.sleep(float(sys.argv[2]))
    os._exit(0)
works = [comm.all_reduce(np.ones(100), async_op=True) for _ in range(3)]
place = sys.argv[1]
def later():
    time.sleep(0.3)
    print("signal", time.monotonic(), flush=True)
    os.kill(os.getpid(), getattr(signal, sys.argv[3]))
try:
    threading.Thread(target=later).start()
    if place == "close":
        comm.close()
        time.sleep(60)
    elif place == "group":
        comm.subgroup([0, 1], timeout=60)
    elif place == "shrink":
        comm.shrink(timeout=60)
    elif place == "wait":
        works[-1].wait()
    elif place == "exit":
        sys.exit(5)
    else:
        comm.barrier()
except KeyboardInterrupt:
    print("interrupted", time.monotonic(), flush=True)
    sys.exit(7)
"""


def _pair_of_processes(script: str, *arguments: str, transport: str) -> list[subprocess.Popen[str]]:
    port = str(free_port())
    common = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script), *arguments],
            env={**common, "RANK": str(rank), "RINGLEADER_TRANSPORT": transport},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("place", PLACES)
def test_ctrl_c_and_sigterm_in_calls_that_wait_for_a_peer(place: str, transport: str) -> None:
    # SIGTERM takes turns: a C++ wait that swallows it would do so over either transport.
    other_turn = (PLACES.index(place) + TRANSPORTS.index(transport)) % 2 == 0
    for name in ("SIGINT", "SIGTERM") if other_turn or LONG else ("SIGINT",):
        ranks = _pair_of_processes(IN_CLOSE, place, "80", name, transport=transport)
        try:
            out, err = ranks[0].communicate(timeout=50)
        finally:
            for process in ranks:
                process.kill()
            ranks[1].communicate(timeout=20)
        if place == "exit":  # leaving takes 2 s at most, with a signal or without
            assert ranks[0].returncode in (5, -getattr(signal, name), 1), err
            continue
        if name == "SIGTERM":
            assert ranks[0].returncode == -signal.SIGTERM, err
            continue
        assert ranks[0].returncode == 7, err
        times = dict(line.split() for line in out.splitlines())
        assert float(times["interrupted"]) - float(times["signal"]) < PROMPT, place


# ---------------------------------------------------------------------------------------------------------------- GIL


def _ticks_while(what: str, folder: str) -> bool:
    """Whether another thread of rank 0 counted to 200 while the call waited for rank 1, which comes only then."""
    counted = Event(folder, what)
    rank = int(os.environ["RINGLEADER_RANK"])
    comm = None
    if what != "start":
        comm = rl.init(timeout=60)
        comm.barrier()
    if rank == 1:
        in_time = counted.wait()
        comm = comm or rl.init(timeout=60)
        if what == "group":
            group = comm.subgroup([0, 1])
            assert group is not None
            group.close()
        elif what in ("barrier", "wait"):
            comm.barrier()
        elif what == "receive":
            comm.send(np.ones(3), 0)
        comm.close()
        return in_time
    stop = threading.Event()

    def count() -> None:
        ticks = 0
        while not stop.is_set():
            ticks += 1
            if ticks == 200:
                counted.set()
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    if what == "start":
        comm = rl.init(timeout=60)
    assert comm is not None
    if what == "barrier":
        comm.barrier()
    elif what == "wait":
        comm.barrier(async_op=True).wait()
    elif what == "receive":
        comm.recv(np.empty(3), 1)
    elif what == "group":
        group = comm.subgroup([0, 1])
        assert group is not None
        group.close()
    stop.set()
    thread.join()
    comm.close()
    return counted.is_set()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_python_threads_run_during_every_blocking_call(transport: str, tmp_path: Path) -> None:
    with rl.WorkerGroup(2, transport=transport) as pair:
        # Start and groups are the same code over both.
        for what in ("start", "barrier", "wait") if transport == "shm" else ("barrier", "receive", "group"):
            assert pair.run(_ticks_while, what, str(tmp_path), timeout=150) == [True, True], what


# ------------------------------------------------------------------------------------------------------------ the end

PENDING = """
import sys, time
import numpy as np
import ringleader as rl
comm = rl.init(timeout=60)
comm.barrier()
if comm.rank == 1:
    time.sleep(float(sys.argv[1]))
    sys.exit(0)
keep = [comm.irecv(np.empty(10), 1, tag=i) for i in range(5)]
keep += [comm.isend(np.ones(1_000_000), 1, tag=9)]
works = [comm.all_reduce(np.ones(100_000), async_op=True) for _ in range(20)]
cycle = [works, comm.empty(1000)]
cycle.append(cycle)  # found by the collector only
group = comm.subgroup([0])
print("end")
"""


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_exit_with_pending_work_of_two_ranks_does_not_hang(transport: str) -> None:
    for _ in range(10 if LONG else 1):
        ranks = _pair_of_processes(PENDING, "80", transport=transport)
        try:
            out, err = ranks[0].communicate(timeout=50)  # start-up, 2 s for leaving, and a loaded machine
            assert (ranks[0].returncode, out, err) == (0, "end\n", "")
        finally:
            for process in ranks:
                process.kill()
            ranks[1].communicate(timeout=20)
