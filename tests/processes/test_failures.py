"""Deaths, aborts, Ctrl-C, forks and exits: survivors get an error, nobody waits for the dead, nothing stays behind."""

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

import ringleader as rl

TRANSPORTS = ["shm", "tcp", pytest.param("ucx", marks=pytest.mark.ucx)]


def _run(script: str, *args: str, timeout: float = 150, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *args],
        capture_output=True,
        text=True,
        timeout=timeout,
        **kwargs,
    )


# ------------------------------------------------------------------------------------------------------ kill -9


def _loop_until_loss(victim: int, delay: float) -> Any:
    comm = rl.init(timeout=60)
    x = np.ones(4 << 20, np.float32)  # 16 MiB
    comm.all_reduce(x, "max")
    if comm.rank == victim:
        threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
    try:
        while True:
            comm.all_reduce(x, "max")
    except rl.errors.RingleaderError as error:
        noticed, kind, text, ranks = time.monotonic(), type(error).__name__, str(error), list(error.ranks)
    with pytest.raises(rl.errors.AbortedError, match=f"rank {victim}"):
        comm.all_reduce(x)
    smaller = comm.shrink(timeout=20)
    total = smaller.all_reduce(np.ones(5)).tolist()
    sizes = smaller.size, smaller.rank
    smaller.close()
    comm.close()
    return noticed, kind, text, ranks, total, sizes


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("seed", range(2))
def test_survivors_of_a_killed_rank_name_it_and_go_on(transport: str, seed: int) -> None:
    rng = random.Random(seed)
    victim, delay = rng.randrange(4), rng.uniform(0.05, 0.3)
    with rl.WorkerGroup(4, transport=transport) as workers:
        outcomes = workers.outcomes(_loop_until_loss, victim, delay, timeout=150, grace=40)
    survivors = [outcome for outcome in outcomes if outcome.rank != victim]
    assert outcomes[victim].failed
    assert "SIGKILL" in (outcomes[victim].error or "")
    for number, outcome in enumerate(survivors):
        assert not outcome.failed, outcome.error
        _, kind, text, ranks, total, sizes = outcome.value
        assert kind in ("PeerLost", "AbortedError"), text
        assert f"rank {victim}" in text
        assert victim in ranks
        assert total == [3.0] * 5
        assert sizes == (3, number)
    noticed = [outcome.value[0] for outcome in survivors]
    assert max(noticed) - min(noticed) < PROMPT


# ------------------------------------------------------------------------------------- abort, close, exceptions


def _abort_from_a_thread(folder: str) -> Any:
    comm = rl.init(timeout=60)
    ended = Event(folder)
    comm.barrier()
    if comm.rank == 1:
        ended.wait()  # never joins the other's barrier in time
    else:
        threading.Timer(0.3, comm.abort, ("a test wants it",)).start()
    started = time.monotonic()
    try:
        comm.barrier()
        comm.barrier()  # rank 0 was in the first one when it was aborted: over a network that one may still succeed
    except rl.errors.RingleaderError as error:
        elapsed = time.monotonic() - started
        ended.set()
        again = rl.init(timeout=60)
        total = again.all_reduce(np.ones(1))[0]
        again.close()
        comm.close()
        return type(error).__name__, str(error), elapsed, total
    return "no error"


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_abort_from_another_thread_ends_a_blocked_call(transport: str, tmp_path: Path) -> None:
    for kind, text, elapsed, total in rl.spawn(
        _abort_from_a_thread, 2, str(tmp_path), transport=transport, timeout=100
    ):
        assert kind == "AbortedError"
        assert "a test wants it" in text
        assert elapsed < PROMPT
        assert total == 2


def _close_with_work_in_flight(folder: str) -> Any:
    comm = rl.init(timeout=60)
    closed = Event(folder)
    comm.barrier()
    if comm.rank == 1:
        closed.wait()
    works = [comm.all_reduce(np.ones(1000), async_op=True) for _ in range(5)] if comm.rank == 0 else []
    started = time.monotonic()
    comm.close()
    elapsed = time.monotonic() - started
    closed.set()
    errors = []
    for work in works:
        try:
            work.wait(timeout=5)
        except rl.errors.RingleaderError as error:
            errors.append(type(error).__name__)
    return elapsed, errors


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_close_with_work_in_flight_is_quick(transport: str, tmp_path: Path) -> None:
    got = rl.spawn(_close_with_work_in_flight, 2, str(tmp_path), transport=transport, timeout=150)
    assert got[0][0] < PROMPT
    assert len(got[0][1]) == 5
    assert set(got[0][1]) <= {"ClosedError", "AbortedError", "PeerLost"}


EXCEPTION = """
    import os, sys, time
    import numpy as np
    import ringleader as rl
    rank = int(sys.argv[1])
    comm = rl.init(rank=rank, size=2, master_addr="127.0.0.1", master_port=int(sys.argv[2]), timeout=60)
    comm.barrier()
    if rank == 1:
        print(time.time(), flush=True)
        raise KeyError("a mistake")
    try:
        comm.all_reduce(np.ones(10))
    except rl.errors.RingleaderError as error:
        print(type(error).__name__, error)
"""


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_exception_on_one_rank_is_printed_and_ends_it_at_once(transport: str) -> None:
    port = str(free_port())
    env = {**os.environ, "RINGLEADER_TRANSPORT": transport}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(EXCEPTION), str(rank), port],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        for rank in range(2)
    ]
    try:
        out1, err1 = ranks[1].communicate(timeout=40)
        ended = time.time()
        out0, err0 = ranks[0].communicate(timeout=20)
    finally:
        for process in ranks:
            process.kill()
    assert ranks[1].returncode == 1
    assert "KeyError: 'a mistake'" in err1
    assert ended - float(out1) < PROMPT
    assert ranks[0].returncode == 0, err0
    assert out0.split()[0] in ("PeerLost", "AbortedError"), out0
    assert "rank 1" in out0


# ---------------------------------------------------------------------------------------------- signals, GIL


INTERRUPTED = """
    import os, signal, sys, threading, time
    import numpy as np
    import ringleader as rl

    def later():
        time.sleep(0.5)
        print("signal", time.monotonic(), flush=True)
        os.kill(os.getpid(), getattr(signal, sys.argv[2]))

    def blocked(place):
        if place == "start":
            threading.Thread(target=later).start()
            rl.init(rank=0, size=2, master_addr="127.0.0.1", master_port=int(sys.argv[3]), start_timeout=90)
        comm = rl.init(rank=0, size=1)
        work = comm.irecv(np.empty(1), source=0)
        threading.Thread(target=later).start()
        if place == "wait":
            work.wait()
        comm.recv(np.empty(1), source=0, tag=1)

    try:
        blocked(sys.argv[1])
    except KeyboardInterrupt:
        print("interrupted", time.monotonic(), flush=True)
"""


@pytest.mark.parametrize("place", ["start", "wait", "recv"])
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_signals_get_through(place: str, name: str) -> None:
    done = _run(INTERRUPTED, place, name, str(free_port()), timeout=100)
    if name == "SIGTERM":
        assert done.returncode == -signal.SIGTERM
        return
    assert done.returncode == 0, done.stderr
    times = dict(line.split() for line in done.stdout.splitlines())
    assert float(times["interrupted"]) - float(times["signal"]) < PROMPT


def _interrupt_in_barrier(folder: str) -> Any:
    comm = rl.init(timeout=60)
    ended = Event(folder)
    comm.barrier()
    if comm.rank == 1:
        return "waited" if ended.wait() else "late"
    try:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        comm.barrier()
    except KeyboardInterrupt:
        ended.set()
        return "interrupted"
    return "no error"


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_ctrl_c_in_a_barrier(transport: str, tmp_path: Path) -> None:
    found = rl.spawn(_interrupt_in_barrier, 2, str(tmp_path), transport=transport, timeout=150)
    assert found == ["interrupted", "waited"]


def _count_while_waiting(folder: str) -> Any:
    """Rank 1 comes when a thread of rank 0 has counted to 200, which it cannot while a call keeps the GIL."""
    comm = rl.init(timeout=60)
    counted = Event(folder)
    comm.barrier()
    if comm.rank == 1:
        in_time = counted.wait()
        comm.barrier()
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
    comm.barrier()
    stop.set()
    thread.join()
    return counted.is_set()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_other_threads_run_while_a_call_waits(transport: str, tmp_path: Path) -> None:
    assert rl.spawn(_count_while_waiting, 2, str(tmp_path), transport=transport, timeout=150) == [True, True]


# ------------------------------------------------------------------------------------------------------- fork


def _fork() -> Any:
    comm = rl.init(timeout=60)
    x = comm.empty(1000)
    x[:] = comm.rank + 1
    op = comm.all_reduce_init(x, "max")
    comm.all_reduce(x.copy())
    statuses = []
    for use in ("collective", "persistent", "close", "exit"):
        child = os.fork()
        if child == 0:
            code = 7
            try:
                if use == "collective":
                    comm.all_reduce(np.ones(3))
                elif use == "persistent":
                    op()
                elif use == "close":
                    comm.close()
                    code = 0
                else:
                    del x
                    code = 0
            except rl.errors.ForkError:
                code = 0
            except BaseException:
                code = 9
            if use == "exit":
                sys.exit(0)  # the interpreter's whole way out, with its exit handlers; ends in the worker's process
            os._exit(code)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    result = op()
    subprocess.run(["true"], check=True)
    total = comm.all_reduce(np.ones(3)).tolist()
    comm.close()
    return statuses, float(result[0]), float(result[-1]), total


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_forked_child_cannot_use_it_and_does_no_harm(transport: str) -> None:
    for statuses, first, last, total in rl.spawn(_fork, 2, transport=transport, timeout=150):
        assert statuses == [0, 0, 0, 0]
        assert (first, last) == (2, 2)
        assert total == [2, 2, 2]


# --------------------------------------------------------------------------------------------------- leftovers


EXIT_WITH_WORK = """
    import numpy as np
    import ringleader as rl
    comm = rl.init(rank=0, size=1)
    keep = [comm.irecv(np.empty(10), source=0, tag=i) for i in range(5)]
    works = [comm.all_reduce(np.ones(100000), async_op=True) for _ in range(20)]
    x = comm.empty(100)
    print("end")
"""


def test_exit_with_pending_work_does_not_hang() -> None:
    for _ in range(3):
        done = _run(EXIT_WITH_WORK, timeout=150)
        assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def _killed_at_random(delay: float) -> None:
    comm = rl.init(timeout=60)
    x = comm.empty(1 << 16)
    threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
    while True:
        comm.all_reduce(x)
