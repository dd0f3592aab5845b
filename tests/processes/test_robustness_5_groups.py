"""Groups that overlap, come and go by the hundred, and ranks that are late for them."""

from __future__ import annotations

import gc
import os
import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from meeting_support import PROMPT, Event
from robustness_support import LONG, Workers, descriptors, leave_world, resident, world

import ringleader as rl

N = 4


@pytest.fixture(scope="module", params=["shm", "tcp"])
def four(request: pytest.FixtureRequest) -> Iterator[Workers]:
    workers = Workers(N, request.param)
    yield workers
    workers.close()


# ------------------------------------------------------------------------------------------------------------ subsets


def _interleaved() -> Any:
    """[0,1], [2,3], [3,0], [2]: operations of all of them and of the world in flight together."""
    comm, wrong = world(), []
    memberships = [[0, 1], [2, 3], [3, 0], [2]]
    groups = [comm.subgroup(ranks) for ranks in memberships]
    for i in range(40):
        works = []
        for ranks, group in zip(memberships, groups, strict=True):
            if group is None:
                continue
            x = np.arange(50 + 30 * i) + 1000.0 * i + comm.rank
            want = len(ranks) * (np.arange(x.size) + 1000.0 * i) + sum(ranks)
            works.append((ranks, group.all_reduce(x, async_op=i % 3 != 0), want))
        if i % 5 == 0:
            x = np.array([comm.rank + 1.0])
            works.append(([0, 1, 2, 3], comm.all_reduce(x, async_op=True), np.array([10.0])))
        for ranks, work, want in reversed(works):  # waited for in another order than started
            got = work.wait(30) if isinstance(work, rl.Work) else work
            if not np.array_equal(got, want):
                wrong.append(f"{ranks}, round {i}: {got[:3]}, expected {want[:3]}")
    places = [None if group is None else group.rank for group in groups]
    order = groups[2].all_gather(np.array([comm.rank])).reshape(-1).tolist() if groups[2] is not None else None
    for group in groups:
        if group is not None:
            group.close()
    with pytest.raises(rl.errors.InvalidArgument, match="0 to 3"):
        comm.subgroup([0, 4])
    return wrong, places, order


def test_overlapping_groups_interleaved(four: Workers) -> None:
    got = four.run(_interleaved)
    assert [wrong for wrong, *_ in got] == [[]] * N
    assert [places for _, places, _ in got] == [
        [0, None, 1, None],
        [1, None, None, None],
        [None, 0, None, 0],
        [None, 1, 0, None],
    ]
    assert [order for *_, order in got] == [[3, 0], None, None, [3, 0]]


def _barrier_counts_members() -> Any:
    """Rank 2 of the group comes late: no member leaves before, whatever ranks outside it do."""
    comm = world()
    group = comm.subgroup([1, 3, 2])
    comm.barrier()
    if group is None:
        return 0.0, 0.0
    if comm.rank == 2:
        time.sleep(0.7)
    arrived = time.monotonic()
    group.barrier()
    left = time.monotonic()
    group.close()
    return arrived, left


def test_a_barrier_counts_the_members(four: Workers) -> None:
    got = four.run(_barrier_counts_members)
    last = max(arrived for arrived, _ in got)
    assert all(left >= last for _, left in got[1:])  # one clock: the ranks are on one host


# --------------------------------------------------------------------------------------------------------- many groups


def _come_and_go(rounds: int, drop: bool) -> Any:
    comm = world()

    def one(i: int) -> None:
        group = comm.split(0)
        assert group is not None
        assert group.all_reduce(np.full(3, i))[0] == 4 * i
        if i % 10 == 0:
            group.all_reduce(np.ones(3), async_op=True)  # may still be in flight
        if not drop:
            group.close()
            with pytest.raises(rl.errors.ClosedError):
                group.barrier()

    for i in range(20):
        one(i)
    gc.collect()
    comm.barrier()
    before = descriptors(), resident(), threading.active_count()
    for i in range(rounds):
        one(i)
    gc.collect()
    comm.barrier()
    return descriptors() - before[0], resident() - before[1], threading.active_count() - before[2]


@pytest.mark.parametrize("drop", [False, True], ids=["closed", "dropped"])
def test_groups_come_and_go(four: Workers, drop: bool) -> None:
    for files, grown, threads in four.run(_come_and_go, 1000 if LONG else 80, drop, timeout=600 if LONG else 250):
        assert files <= 5
        assert grown < 20 << 20
        assert threads <= 0


def _limited() -> Any:
    """200 live groups under a limit of 1024 files; whatever comes of it, the world works on afterwards."""
    comm = world()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    comm.barrier()
    before = descriptors()
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    groups: list[rl.Communicator] = []
    error = ""
    try:
        for _ in range(200):
            group = comm.split(0, timeout=20)
            assert group is not None
            groups.append(group)
        results = {int(group.all_reduce(np.full(2, i))[0]) - 4 * i for i, group in enumerate(groups)}
    except rl.errors.RingleaderError as failure:
        error, results = f"{type(failure).__name__}: {failure}", set()
    finally:
        made = len(groups)
        for group in groups:
            group.close()
        del groups
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    gc.collect()
    total = comm.all_reduce(np.ones(3)).tolist()
    again = comm.split(0)
    assert again is not None
    fresh = again.all_reduce(np.ones(2)).tolist()
    again.close()
    comm.barrier()
    return made, error, results, total, fresh, descriptors() - before


def test_200_live_groups_under_1024_files_work_or_fail_clearly(four: Workers) -> None:
    got = four.run(_limited)
    for made, error, results, total, fresh, files in got:
        assert (total, fresh) == ([4.0] * 3, [4.0] * 2)
        assert files <= 5
        if error:
            assert four.transport == "tcp"  # shared memory needs no files per group
            assert "ulimit -n" in error or "too many open files" in error.lower(), error
            assert made > 50
        else:
            assert (made, results) == (200, {0})


# --------------------------------------------------------------------------------------------------------- a late rank

LIMIT, PATIENCE = (5.0, 30.0) if LONG else (1.5, 30.0)


def _late(what: str, limit: float, folder: str) -> Any:
    """Rank 2 comes late to a collective, a barrier, or the making of a group: when the others have given up, if it can.

    `limit` is that of the call or of the group.
    """
    comm = world()
    gave_up = {rank: Event(folder, f"{what} {rank}") for rank in (0, 1, 3)}
    comm.barrier()
    if comm.rank == 2:
        if limit < PATIENCE:
            assert all(event.wait() for event in gave_up.values())
        else:
            time.sleep(0.6)
    started = time.monotonic()
    try:
        if what == "group":
            group = comm.subgroup([0, 1, 2, 3], timeout=limit)
            assert group is not None
            group.close()
        elif what == "barrier":
            comm.barrier(timeout=limit)
        elif what == "async":
            comm.all_reduce(np.ones(4), async_op=True, timeout=limit).wait()
        else:
            comm.timeout = limit
            comm.all_reduce(np.ones(4))
            comm.timeout = 30
        return None
    except rl.errors.RingleaderError as error:
        return type(error).__name__, str(error), time.monotonic() - started, list(error.ranks)
    finally:
        if comm.rank in gave_up:
            gave_up[comm.rank].set()
        if limit < PATIENCE:
            leave_world()


@pytest.mark.parametrize("what", ["group", "barrier", "async", "limit of the group"])
def test_a_late_rank_is_named_with_operation_and_time(four: Workers, what: str, tmp_path: Path) -> None:
    got = four.run(_late, what, LIMIT, str(tmp_path))
    for rank in (0, 1, 3):
        assert got[rank] is not None, got
        kind, text, elapsed, ranks = got[rank]
        assert kind in ("CollectiveTimeout", "AbortedError"), text
        assert "rank 2" in text and 2 in ranks, got
        assert f"{LIMIT:.1f} s" in text, text
        assert what == "group" or "all_reduce" in text or "barrier" in text
        assert elapsed < LIMIT + PROMPT


def test_a_longer_limit_is_patient(four: Workers, tmp_path: Path) -> None:
    for what in ("group", "barrier", "async", "limit of the group"):
        assert four.run(_late, what, PATIENCE, str(tmp_path)) == [None] * N


# --------------------------------------------------------------------------------------------------------------- ports


def _of_job(job: int) -> int:
    with rl.init() as comm:
        return int(comm.all_reduce(np.array([100 * job + comm.rank]))[0])


@pytest.mark.skipif(
    not LONG, reason="RINGLEADER_LONG_TESTS=1 runs it; 5 rounds of it are in test_bootstrap_processes.py"
)
def test_twenty_rounds_of_eight_jobs_at_once() -> None:
    for _ in range(20):
        jobs = [rl.WorkerGroup(2, transport="tcp" if job % 2 else None) for job in range(8)]
        results: dict[int, list[int]] = {}

        def body(job: int, jobs: Any = jobs, results: Any = results) -> None:
            results[job] = jobs[job].run(_of_job, job, timeout=150)

        threads = [threading.Thread(target=body, args=(job,)) for job in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for group in jobs:
            group.close(force=True)
        assert results == {job: [200 * job + 1] * 2 for job in range(8)}


def _killed_while_grouping(delay: float, limit: float) -> Any:
    """A rank dies while groups are being made."""
    comm = world()
    comm.barrier()
    if comm.rank == 1:
        threading.Timer(delay, os.kill, (os.getpid(), 9)).start()
    try:
        while True:
            started = time.monotonic()
            group = comm.split(0, timeout=limit)
            assert group is not None
            group.barrier()
            group.close()
    except rl.errors.RingleaderError as error:
        failure = type(error).__name__, str(error), time.monotonic() - started
    smaller = comm.shrink(timeout=limit)
    total = smaller.all_reduce(np.ones(2)).tolist()
    smaller.close()
    return failure, total


@pytest.mark.parametrize("delay", [0.05, 0.13])
def test_a_rank_killed_while_groups_are_made(four: Workers, delay: float) -> None:
    limit = 60.0
    outcomes = four.outcomes(_killed_while_grouping, delay, limit)
    for rank in (0, 2, 3):
        assert not outcomes[rank].failed, outcomes[rank].error
        (_, text, elapsed), total = outcomes[rank].value
        assert total == [3, 3]
        assert "rank 1" in text, text
        assert elapsed < limit / 2  # the dead are not waited for
