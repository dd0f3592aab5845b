"""Starting ranks: results, failures of every kind, and nothing left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from meeting_support import PROMPT, wait_until

import ringleader as rl
from ringleader.errors import AbortedError, ClosedError, CollectiveTimeout, InvalidArgument, PeerLost, SpawnError
from ringleader.runtime.spawn import WorkerGroup, spawn

# ------------------------------------------------------------------------------------------- what runs in the processes


def my_rank() -> int:
    return int(os.environ["RINGLEADER_RANK"])


def place(*args, **kwargs):
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "TRANSPORT")
    return [os.environ.get(f"RINGLEADER_{n}") for n in names], os.environ.get("MY_OWN"), args, kwargs, os.getpid()


class Picky(Exception):
    """Can be pickled but not unpickled."""

    def __init__(self, one, two):
        super().__init__(f"{one} {two}")


def fail(rank, how):
    if my_rank() != rank:
        time.sleep(0.3)
        return my_rank()
    if how == "raise":
        raise ValueError("a wrong value")
    if how == "picky":
        raise Picky(1, 2)
    if how == "exit":
        sys.exit(7)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "unpicklable":
        return threading.Lock()
    raise AssertionError(how)


def hang_unless(rank):
    if my_rank() == rank:
        raise RuntimeError("the cause")
    time.sleep(600)


def meet():
    with rl.init() as comm:
        return comm.rank, comm.size


def lose_a_rank():
    comm = rl.init()
    comm.barrier()
    if comm.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        comm.barrier(timeout=30)
    except (PeerLost, AbortedError):  # the latter if another rank has seen it first
        smaller = comm.shrink(timeout=20)
        return smaller.rank, smaller.size
    return None


def child_of_a_rank():
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=time.sleep, args=(0,))
    process.start()
    process.join()
    return process.exitcode


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def gone(pids) -> bool:
    return wait_until(lambda: not any(alive(pid) for pid in pids), PROMPT)


# ---------------------------------------------------------------------------------------------------------------- tests


@pytest.fixture(scope="module")
def group():
    with WorkerGroup(3, env={"MY_OWN": "value"}, transport="tcp") as made:
        yield made


def test_results_in_order_of_rank_with_arguments_and_environment(group):
    results = group.run(place, 1, "two", key=[3])
    for rank, (names, own, args, kwargs, pid) in enumerate(results):
        assert names == [str(rank), "3", str(rank), "3", "tcp"]
        assert (own, args, kwargs, pid) == ("value", (1, "two"), {"key": [3]}, group.pids[rank])
    assert "RINGLEADER_RANK" not in os.environ and "MY_OWN" not in os.environ


def test_init_meets_in_every_run(group):
    assert group.run(meet) == [(0, 3), (1, 3), (2, 3)]
    # A run in which only some ranks came as far as init() does not confuse the next.
    with pytest.raises(SpawnError):
        group.run(fail, 1, "raise")
    assert group.run(meet) == [(0, 3), (1, 3), (2, 3)]


def test_an_exception_is_shown_and_the_group_lives_on(group):
    with pytest.raises(SpawnError, match="rank 1 of 3 failed") as caught:
        group.run(fail, 1, "raise")
    assert "Traceback" in str(caught.value) and "ValueError: a wrong value" in str(caught.value)
    assert caught.value.ranks == (1,) and isinstance(caught.value.__cause__, ValueError)
    outcomes = group.outcomes(fail, 2, "picky")
    assert [o.failed for o in outcomes] == [False, False, True]
    assert [o.value for o in outcomes] == [0, 1, None] and "Picky: 1 2" in outcomes[2].error
    with pytest.raises(SpawnError, match="pickle"):
        group.run(fail, 0, "unpicklable")
    assert len(group.run(place)) == 3


def test_functions_that_cannot_be_sent(group, monkeypatch):
    monkeypatch.setattr("ringleader.runtime.spawn._cloudpickle", lambda: None)
    with pytest.raises(InvalidArgument, match="top of a module"):
        group.run(lambda: 1)
    with pytest.raises(InvalidArgument, match="top of a module"):
        group.run(place, threading.Lock())


def test_ranks_may_have_processes_of_their_own(group):
    assert group.run(child_of_a_rank) == [0, 0, 0]


@pytest.mark.parametrize(("how", "told"), [("exit", "exit code 7"), ("kill", "SIGKILL")])
def test_a_death_is_named_and_ends_the_group(how, told):
    with WorkerGroup(2) as group:
        pids = group.pids
        with pytest.raises(SpawnError, match=rf"rank 1 of 2 failed:\n.*{told}") as caught:
            group.run(fail, 1, how)
        assert caught.value.ranks == (1,)
        with pytest.raises(ClosedError):
            group.run(place)
    assert gone(pids)


def test_the_others_get_a_grace_time_then_end():
    started = time.monotonic()
    with WorkerGroup(3) as group:
        pids = group.pids
        with pytest.raises(SpawnError, match="rank 2 of 3 failed") as caught:
            group.run(hang_unless, 2, grace=0.5)
    assert "RuntimeError: the cause" in str(caught.value).split("failed as well")[0]
    assert "within 0.5 s" in str(caught.value) and caught.value.ranks[0] == 2
    assert time.monotonic() - started < 60 and gone(pids)


def test_timeout_names_the_ranks():
    with WorkerGroup(2) as group:
        pids = group.pids
        with pytest.raises(CollectiveTimeout, match=r"ranks 0, 1 were not done within 0\.3 s") as caught:
            group.run(time.sleep, 600, timeout=0.3)
        assert caught.value.ranks == (0, 1)
    assert gone(pids)


def test_survivors_regroup_after_the_death_of_rank_0():
    """The parent serves the store, so no rank is special."""
    with WorkerGroup(3) as group:
        outcomes = group.outcomes(lose_a_rank, grace=60)
    assert [o.value for o in outcomes[1:]] == [(0, 2), (1, 2)], outcomes
    assert "SIGKILL" in (outcomes[0].error or "")


def test_spawn_and_bad_numbers():
    assert [result[0][0] for result in spawn(place, 2, "x")] == ["0", "1"]
    with pytest.raises(InvalidArgument, match="at least 1"):
        spawn(place, 0)


def test_nothing_leaks():
    def count() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    spawn(my_rank, 1)
    before, children = count(), set(multiprocessing.active_children())
    for _ in range(3):
        assert spawn(my_rank, 1) == [0]
        with pytest.raises(SpawnError):
            spawn(fail, 1, 0, "exit")
    # Fewer are none of ours: what earlier tests have left may end meanwhile.
    assert wait_until(lambda: all(now <= then for now, then in zip(count(), before, strict=True))), (count(), before)
    assert set(multiprocessing.active_children()) <= children


PROGRAM = """
import os, sys, time
from ringleader.runtime.spawn import WorkerGroup
def ready(path):
    with open(path, "a") as f: f.write(f"{os.getpid()}\\n")
    time.sleep(600)
if __name__ == "__main__":
    group = WorkerGroup(2)
    if sys.argv[2] == "run":
        group.run(ready, sys.argv[1])
    open(sys.argv[1], "w").write("".join(f"{pid}\\n" for pid in group.pids))
"""


def start(tmp_path, mode):
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(PROGRAM))
    file = tmp_path / "pids"
    process = subprocess.Popen([sys.executable, str(script), str(file), mode], stderr=subprocess.PIPE, text=True)
    assert wait_until(lambda: file.exists() and len(file.read_text().split()) >= 2, 60)
    return process, [int(pid) for pid in file.read_text().split()]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_children_end_with_the_parent(tmp_path, how):
    process, pids = start(tmp_path, "run")
    process.send_signal(how)
    _, errors = process.communicate(timeout=30)
    assert gone(pids)
    if how == signal.SIGINT:
        assert "KeyboardInterrupt" in errors


def test_programs_that_the_ranks_cannot_import(tmp_path):
    call = "import ringleader as rl, math\nrl.spawn(math.sqrt, 1, 4.0)"
    unguarded = tmp_path / "unguarded.py"
    unguarded.write_text(call)
    done = subprocess.run([sys.executable, str(unguarded)], capture_output=True, text=True, timeout=150)
    assert done.returncode != 0 and 'under `if __name__ == "__main__":`' in done.stderr


def test_a_group_that_was_never_closed_does_not_keep_the_program_from_ending(tmp_path):
    process, pids = start(tmp_path, "leave")
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "") and gone(pids)
