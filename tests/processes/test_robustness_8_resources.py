"""What a job takes from its host: shared memory, files, time of waiting, memory over many calls."""

from __future__ import annotations

import gc
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from meeting_support import wait_until
from robustness_support import LONG, Workers, descriptors, free_memory, resident, world

import ringleader as rl
from ringleader import _core

N = 4


@pytest.fixture(scope="module", params=["shm", "tcp"])
def four(request: pytest.FixtureRequest) -> Iterator[Workers]:
    workers = Workers(N, request.param)
    yield workers
    workers.close()


# ------------------------------------------------------------------------------------------------- small shared memory

EVERYTHING = """
import sys
import numpy as np
import ringleader as rl

def body():
    comm = rl.init(timeout=60)
    x = comm.empty(3_000_000, np.float32)
    x[:] = comm.rank + 1
    comm.all_reduce(x)
    y = np.arange(1_000_000.0) + comm.rank
    comm.all_reduce(y)
    gathered = comm.all_gather(np.full(200_000, comm.rank))
    message = np.empty(500_000)
    work = comm.isend(np.full(500_000, float(comm.rank)), 1 - comm.rank)
    comm.recv(message, 1 - comm.rank)
    work.wait(30)
    groups = [comm.split(0) for _ in range(20)]
    ok = (x == 3).all() and y[7] == 15 and (gathered[1] == 1).all() and message[-1] == 1 - comm.rank
    return bool(ok) and all(g.all_reduce(np.ones(1000))[0] == 2 for g in groups)

if __name__ == "__main__":
    print(rl.spawn(body, 2, transport="shm", timeout=150))
"""


@pytest.mark.parametrize("size", ["4k", "64m, nearly full", "read-only"])
def test_small_dev_shm_is_no_limit(size: str, tmp_path: Path) -> None:
    """Shared memory is a memfd, so /dev/shm may be tiny, full or not writable."""
    script = tmp_path / "everything.py"
    script.write_text(EVERYTHING)
    prepare = {
        "4k": "mount -t tmpfs -o size=4k tmpfs /dev/shm",
        "64m, nearly full": "mount -t tmpfs -o size=64m tmpfs /dev/shm && head -c 67000000 /dev/zero > /dev/shm/full",
        "read-only": "mount -t tmpfs -o ro,size=4k tmpfs /dev/shm",
    }[size]
    namespace = ["unshare", "--mount"] + (["--user", "--map-root-user"] if os.geteuid() else [])
    inside = [*namespace, "sh", "-c", f"{prepare} || exit 99; exec {sys.executable} {script}"]
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare")
    done = subprocess.run(inside, capture_output=True, text=True, timeout=150)
    if done.returncode == 99 or "unshare failed" in done.stderr:
        pytest.skip(f"cannot make a mount namespace: {done.stderr.strip()}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "[True, True]\n", "")


def _more_than_there_is() -> Any:
    comm = world()
    keep = comm.empty(1000)
    keep[:] = comm.rank
    wanted = free_memory() + (1 << 30)
    try:
        comm.empty(wanted, np.uint8)
    except rl.errors.OutOfMemory as error:
        return str(error), float(comm.all_reduce(keep)[-1])
    return "no error", 0.0


def test_memory_that_cannot_be_had_is_an_error_with_the_numbers_not_a_bus_error(four: Workers) -> None:
    for text, total in four.run(_more_than_there_is):
        assert "cannot reserve" in text and "free are" in text and "fewer ranks" in text, text
        assert total == 6


# ----------------------------------------------------------------------------------------------------------- leftovers


def _killed_at_random(delay: float) -> None:
    threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
    comm = rl.init(timeout=60)
    x = comm.empty(1 << 16)
    while True:
        comm.all_reduce(x)
        group = comm.split(0)
        assert group is not None
        group.close()


def _own_places(tmp_path: Path) -> dict[str, str]:
    """A directory of the test's own for everything temporary: other programs write to the usual places."""
    return {"TMPDIR": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}


def test_nothing_is_left_after_all_ranks_were_killed_at_random(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    rng = random.Random(3)
    for turn in range(50 if LONG else 4):
        with rl.WorkerGroup(3, transport=("shm", "tcp")[turn % 2], env=_own_places(tmp_path)) as group:
            outcomes = group.outcomes(_killed_at_random, rng.uniform(0, 0.5), timeout=150, grace=30)
        assert all(outcome.failed for outcome in outcomes)
    assert list(tmp_path.iterdir()) == []


def test_a_new_job_of_the_name_of_a_killed_one_starts(tmp_path: Path) -> None:
    """Launched without a store (as by mpirun), ranks meet through files: those of a killed job must not disturb."""
    script = """
        import os, sys, signal
        import numpy as np
        import ringleader as rl
        comm = rl.init(timeout=60, start_timeout=30)
        print(int(comm.all_reduce(np.array([comm.rank + 1]))[0]), flush=True)
        if sys.argv[1] == "die":
            comm.barrier()
            os.kill(os.getpid(), signal.SIGKILL)
    """
    tmp_path.chmod(0o700)
    job = f"robust-{os.getpid()}"
    left: set[str] = set()
    for turn in ("die", "die", "live"):
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(script), turn],
                env={
                    **os.environ, **_own_places(tmp_path), "OMPI_COMM_WORLD_RANK": str(r), "OMPI_COMM_WORLD_SIZE": "2",
                    "OMPI_COMM_WORLD_LOCAL_RANK": str(r), "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": job,
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for r in range(2)
        ]  # fmt: skip
        try:
            for process in ranks:
                out, err = process.communicate(timeout=200)
                assert out == "3\n", err
        finally:
            for process in ranks:
                process.kill()
        if turn == "die":
            left |= {path.name for path in tmp_path.iterdir()}
    assert left  # they do meet here
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------------------------- waiting


def _wait(what: str, seconds: float) -> tuple[float, float]:
    """Processor time and time of waiting for rank 2."""
    comm = world()
    comm.all_reduce(np.ones(4))
    comm.barrier()
    if comm.rank == 2:
        time.sleep(seconds)
    started, used = time.monotonic(), time.process_time()
    if what == "barrier":
        comm.barrier()
    elif what == "async":
        comm.all_reduce(np.ones(1000), async_op=True).wait()
    elif what == "large":
        comm.all_reduce(np.ones(1 << 18))
    else:
        group = comm.subgroup([0, 1, 2, 3])
        assert group is not None
        group.close()
    used, elapsed = time.process_time() - used, time.monotonic() - started
    comm.barrier()
    return used, elapsed


@pytest.mark.parametrize("what", ["barrier", "async", "large", "group"])
def test_waiting_for_a_late_rank_costs_little(four: Workers, what: str) -> None:
    seconds = 5.0 if LONG else 1.5
    for rank, (used, elapsed) in enumerate(four.run(_wait, what, seconds)):
        if rank != 2:
            assert elapsed > seconds / 2
            # A rank that spins has most of a core; what a loaded machine adds to a quiet one is far less.
            assert used < 0.25 * elapsed + 0.1, (what, rank)


def _idle(seconds: float) -> float:
    """Processor time of a process between operations, with its communicator open."""
    comm = world()
    comm.all_reduce(np.ones(10), async_op=True).wait()
    comm.isend(np.ones(10), (comm.rank + 1) % comm.size).wait()
    comm.recv(np.empty(10))
    used = time.process_time()
    time.sleep(seconds)
    return time.process_time() - used


def test_idle_ranks_cost_nothing(four: Workers) -> None:
    seconds = 5.0 if LONG else 1.0
    # In one of three tries: page faults and interrupts of a loaded machine are charged to whoever runs.
    assert any(max(four.run(_idle, seconds)) < 0.05 * seconds for _ in range(3))


def _rate(nbytes: int, rounds: int, backend: str) -> float:
    """Seconds per all-reduce, with more ranks than cores."""
    rank, size = int(os.environ["RINGLEADER_RANK"]), int(os.environ["RINGLEADER_SIZE"])
    if backend == "gloo":
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        path = os.environ["MEETING_FILE"]
        dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=size)
        tensor = torch.ones(nbytes // 4)
        call, end = lambda: dist.all_reduce(tensor), dist.destroy_process_group
    else:
        comm = rl.init(timeout=60)
        array = np.ones(nbytes // 4, np.float32)
        call, end = lambda: comm.all_reduce(array, "max"), comm.close  # type: ignore[assignment]
    for _ in range(rounds // 5):
        call()
    started = time.monotonic()
    for _ in range(rounds):
        call()
    elapsed = time.monotonic() - started
    end()
    return elapsed / rounds


@pytest.mark.skipif(not LONG, reason="a measurement: RINGLEADER_LONG_TESTS=1 runs it")
@pytest.mark.parametrize("nbytes", [1024, 1 << 20])
def test_with_more_ranks_than_cores_it_is_within_three_times_of_gloo(nbytes: int, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    rounds = 200 if nbytes < 10_000 else 30
    for attempt in range(3):  # other load of the machine may fall on one of the two
        times = {}
        for backend in ("gloo", "ringleader"):
            env: dict[str, str | None] = {"MEETING_FILE": str(tmp_path / f"meet{attempt}"), "OMP_NUM_THREADS": "1"}
            with rl.WorkerGroup(8, env=env) as group:
                times[backend] = max(group.run(_rate, nbytes, rounds, backend, timeout=150))
        if times["ringleader"] <= 3 * times["gloo"]:
            return
    raise AssertionError(times)


# -------------------------------------------------------------------------------------------------------------- memory


def _changing_sizes(rounds: int) -> Any:
    comm = world()
    n = comm.size

    def calls(first: int, number: int) -> None:
        for i in range(first, first + number):
            size = 1 + (i * 7919) % 20_011
            match i % 6:
                case 0:
                    comm.all_reduce(np.ones(size, "f4"), async_op=True)
                case 1:
                    comm.all_gather(np.ones(size, "i2"), async_op=True)
                case 2:
                    comm.reduce_scatter(np.ones(n * (size // n + 1)), async_op=True)
                case 3:
                    comm.all_reduce(np.ones((size, 2), "f4")[:, 1], async_op=True)  # through a temporary
                case 4:
                    comm.broadcast(comm.empty(size), root=i % n, async_op=True)
                case _:
                    comm.all_reduce(np.ones(size % 100))
        comm.barrier()
        gc.collect()

    calls(0, 3000)
    before = resident(), descriptors(), _core.arena_used()
    calls(3000, rounds)
    return resident() - before[0], descriptors() - before[1], _core.arena_used() - before[2]


def _groups_without_a_collector(rounds: int) -> float:
    """Objects per group that came and went which only the garbage collector frees: they pile up between its runs."""
    comm = world()

    def come_and_go(number: int) -> None:
        for _ in range(number):
            part = comm.split(0)
            assert part is not None
            part.barrier()
            part.close()

    come_and_go(20)
    gc.collect()
    gc.disable()
    try:
        come_and_go(rounds)
        return gc.collect() / rounds
    finally:
        gc.enable()


def test_groups_that_come_and_go_leave_no_cycles(four: Workers) -> None:
    for cycles in four.run(_groups_without_a_collector, 1000 if LONG else 100, timeout=300 if LONG else 120):
        assert cycles < 1


@pytest.mark.slow
def test_memory_is_flat_over_calls_of_changing_sizes_dropped_unwaited(four: Workers) -> None:
    rounds = 20_000 if LONG else 3000
    for grown, files, arena in four.run(_changing_sizes, rounds, timeout=600 if LONG else 250):
        assert grown < 10 << 20
        assert files == 0
        assert arena <= 1 << 20


MOST_LEFT = 16 << 20  # of the arena: a few groups whose members have not all left yet


def _timeouts(rounds: int, groups: int) -> Any:
    """Waits that time out (the operation goes on), and operations that time out (their group is at an end)."""
    comm = world()

    def waits(number: int) -> None:
        work = comm.irecv(np.empty(1000), (comm.rank + 1) % comm.size, tag=3)
        for _ in range(number):
            with pytest.raises(rl.errors.CollectiveTimeout):
                work.wait(timeout=0.0005)
        comm.barrier()
        comm.send(np.ones(1000), (comm.rank - 1) % comm.size, tag=3)
        assert work.wait(30)[0] == 1

    def operations(number: int) -> None:
        for _ in range(number):
            group = comm.split(0)
            assert group is not None
            if group.rank == 1:
                # Never takes part in the operation; hears of its end.
                with pytest.raises(rl.errors.RingleaderError):
                    group.recv(np.empty(1), 0, tag=9)
            else:
                with pytest.raises(rl.errors.RingleaderError):
                    group.all_reduce(np.ones(5000), timeout=0.01)
            group.close()

    waits(50)
    operations(8)
    comm.barrier()
    gc.collect()
    before = resident(), descriptors(), threading.active_count(), _core.arena_used()
    waits(rounds)
    operations(groups)
    comm.barrier()
    gc.collect()
    wait_until(lambda: _core.arena_used() - before[3] <= MOST_LEFT, 10)  # until the members of all groups have left
    return (
        resident() - before[0],
        descriptors() - before[1],
        threading.active_count() - before[2],
        _core.arena_used() - before[3],
    )


@pytest.mark.slow
def test_timeouts_leave_nothing_behind(four: Workers) -> None:
    for grown, files, threads, arena in four.run(_timeouts, 500, 500 if LONG else 30, timeout=600 if LONG else 250):
        assert grown < 10 << 20
        assert files <= 5
        assert threads <= 0
        assert arena <= MOST_LEFT
