"""A rank that is stopped in the middle of an operation, given up by the others, and wakes up: it changes nothing.

What it may still write when it goes on, and what keeps that from being anybody's memory by then, is in
docs/architecture.md, "Who may write which memory until when". Ranks that stop at exact places:
native/tests/test_claims.cpp.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from meeting_support import Event, wait_until
from robustness_support import LONG

import ringleader as rl
from ringleader import _core

VICTIM = 2


def _own_progress(comm: rl.Communicator) -> ctypes.c_uint64:
    """The progress word of this rank, as it lies in its arena."""
    inode = str(os.fstat(_core.arena_info()[0]).st_ino)
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split()
        if len(fields) > 5 and fields[4] == inode and "ringleader" in fields[5]:
            return ctypes.c_uint64.from_address(int(fields[0].split("-")[0], 16) + comm._core.control_offset())
    raise AssertionError("no arena")


def _stop_inside(comm: rl.Communicator, long: bool, stopped: Event) -> None:
    """Stop this process while it computes: all have entered its window, and it has not completed what comes first."""
    word = _own_progress(comm)
    first = (word.value >> 20) + 3
    while True:
        seen = word.value
        if seen >> 20 < first or seen & 0xFFFFF != 1 or len({row["sequence"] for row in comm._core.status()}) != 1:
            continue
        if long:
            time.sleep(0.0003)  # into the computing
        if word.value == seen:
            stopped.set()
            os.kill(os.getpid(), signal.SIGSTOP)
            return


def _give_up(protocol: str, algorithm: str | None, registered: bool, count: int, freed: bool, folder: str) -> Any:
    os.environ["RINGLEADER_PROTO"] = protocol
    comm = rl.init(timeout=30)
    stopped, awake = Event(folder, "stopped"), Event(folder, "awake")

    def make(size: int = count) -> Any:
        return comm.empty(size, np.float32) if registered else np.empty(size, np.float32)

    x = make()
    x[:] = 1
    comm.all_reduce(x, op="avg", algorithm=algorithm)
    if comm.rank == VICTIM:
        (Path(folder) / "pid").write_text(str(os.getpid()))
        threading.Thread(target=_stop_inside, args=(comm, registered and count > 10_000, stopped), daemon=True).start()
    try:
        while True:
            x[:] = comm.rank + 1
            comm.all_reduce(x, op="avg", algorithm=algorithm, timeout=30 if comm.rank == VICTIM else 0.6)
    except rl.errors.RingleaderError as error:
        text = str(error)
    if comm.rank == VICTIM:
        awake.set()
        return text
    assert stopped.is_set(), text
    # The others go on without it: the same array, or new ones in its pages; those of all that was closed as well.
    smaller = comm.shrink(timeout=3)
    if freed:
        del x
        comm.close()
        x = smaller.empty(count, np.float32)
    arrays = [x, *(smaller.empty(size, np.float32) for size in (count, 100_000, 30_000, 2_000, 2_000, 2_000))]
    x[:] = 2
    smaller.all_reduce(x)
    right = bool((x == 4).all())
    for array in arrays:
        array[:] = -5
    smaller.barrier()
    if smaller.rank == 0:
        os.kill(int((Path(folder) / "pid").read_text()), signal.SIGCONT)
    assert awake.wait(30)
    changed = [int((array != -5).sum()) for array in arrays]
    s = np.full(1000, smaller.rank + 1.0)
    for _ in range(10):
        right &= bool((smaller.all_reduce(s, op="avg") == 1.5).all())
    smaller.close()
    if not freed:
        comm.close()
    return right, changed


CASES: list[tuple[str, str | None, bool, int, bool]] = [
    ("auto", None, True, 4_000_000, False),
    ("push", "two_shot", True, 4_000_000, True),
    ("pull", "ring", True, 1_000_000, False),
    ("auto", "two_shot", False, 4_000_000, True),
]
if LONG:
    CASES += [
        (protocol, algorithm, registered, count, freed)
        for protocol in ("push", "pull")
        for algorithm in ("ring", "two_shot", "rabenseifner", "linear")
        for registered in (True, False)
        for freed in (False, True)
        for count in (300_000 if freed == registered else 4_000_000,)
    ]
    CASES += [("auto", None, registered, count, True) for registered in (True, False) for count in (1_000, 300_000)]


@pytest.mark.parametrize(("protocol", "algorithm", "registered", "count", "freed"), CASES)
def test_a_stopped_rank_that_wakes_up_changes_nothing(
    protocol: str, algorithm: str | None, registered: bool, count: int, freed: bool, tmp_path: Path
) -> None:
    given = protocol, algorithm, registered, count, freed, str(tmp_path)
    with rl.WorkerGroup(3, transport="shm") as group:
        outcomes = group.outcomes(_give_up, *given, timeout=120, grace=90)
    assert not any(outcome.failed for outcome in outcomes), [outcome.error for outcome in outcomes]
    for outcome in outcomes[:VICTIM]:
        right, changed = outcome.value
        assert right
        assert changed == [0] * len(changed)


def _late(folder: str) -> Any:
    """One rank times out in an operation on a registered array, the other is in its program all the while."""
    before = _core.arena_used()
    comm = rl.init(timeout=30)
    late, over = Event(folder, "late"), Event(folder, "over")
    x = comm.empty(1_000_000, np.float32)
    comm.all_reduce(x)
    if comm.rank == 1:
        assert late.wait(60)
        with pytest.raises(rl.errors.RingleaderError):
            comm.all_reduce(x)
        over.set()
    else:
        with pytest.raises(rl.errors.CollectiveTimeout):
            comm.all_reduce(x, timeout=0.2, algorithm="ring")
        address = x.ctypes.data
        x[:] = 3
        late.set()
        assert over.wait(60)
        y = comm.empty(1_000_000, np.float32)
        assert x.ctypes.data == address != y.ctypes.data
        assert (x == 3).all()
        del y
    del x
    comm.close()

    def held() -> int:
        _core.Communicator(0, 1, 5.0, {})  # a communicator that is made looks for memory that is claimed no more
        return _core.arena_used()

    return wait_until(lambda: held() == before)


def test_what_was_held_back_is_given_out_again_when_the_late_rank_has_left(tmp_path: Path) -> None:
    with rl.WorkerGroup(2, transport="shm") as group:
        assert group.run(_late, str(tmp_path), timeout=120) == [True, True]
