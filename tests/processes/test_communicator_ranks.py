"""Four ranks: values, groups, messages, order, resources. Worker functions return what they saw; the test judges."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from meeting_support import PROMPT, Event

import ringleader as rl

_comm: rl.Communicator | None = None


def world() -> rl.Communicator:
    """This process's communicator, made anew if a test has broken it."""
    global _comm
    if _comm is None or _comm.state != "live":
        _comm = rl.init(timeout=60)
    return _comm


def forget() -> None:
    """The next `world()` makes a new communicator, on all ranks."""
    global _comm
    _comm = None


class Workers:
    """Four processes that several tests share; started again after a test that broke them."""

    def __init__(self, transport: str) -> None:
        self.transport = transport
        self._group: rl.WorkerGroup | None = None

    def run(self, fn: Any, *args: Any, timeout: float) -> list[Any]:
        if self._group is None:
            self._group = rl.WorkerGroup(4, transport=self.transport)
        try:
            return self._group.run(fn, *args, timeout=timeout)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._group is not None:
            self._group.close(force=True)
            self._group = None


@pytest.fixture(scope="module", params=["shm", "tcp"])
def group(request: pytest.FixtureRequest) -> Iterator[Workers]:
    workers = Workers(request.param)
    yield workers
    workers.close()


# ----------------------------------------------------------------------------------------------------- values


def _strided() -> Any:
    comm = world()
    a = np.arange(12).reshape(3, 4) + 100 * comm.rank
    before = a.copy()
    comm.all_reduce(a[:, 1])
    rest = [0, 2, 3]
    return a[:, 1].tolist(), bool((a[:, rest] == before[:, rest]).all())


def test_a_column_in_place(group: Workers) -> None:
    assert group.run(_strided, timeout=150) == [([4 * i + 600 for i in (1, 5, 9)], True)] * 4


def _reduce_to_one() -> Any:
    comm = world()
    x = np.array([[1, 2], [3, 4]]) + 3 * comm.rank
    result = comm.reduce(x, root=2)
    return x.tolist(), None if result is None else result.tolist()


def test_reduce_leaves_other_inputs_alone(group: Workers) -> None:
    got = group.run(_reduce_to_one, timeout=150)
    total = [[22, 26], [30, 34]]
    for rank, (x, result) in enumerate(got):
        assert result == (total if rank == 2 else None)
        assert x == (total if rank == 2 else [[1 + 3 * rank, 2 + 3 * rank], [3 + 3 * rank, 4 + 3 * rank]])


def _averages() -> Any:
    comm = world()
    whole = comm.all_reduce(np.full(7, comm.rank + 1.0), "avg")
    three = comm.subgroup([0, 1, 2])
    part = None if three is None else three.all_reduce(np.full(3, comm.rank + 1.0), "avg").tolist()
    integer = comm.all_reduce(np.array([6 if comm.rank == 0 else 0]), "avg")
    negative = comm.all_reduce(np.array([-6 if comm.rank == 0 else 0]), "avg")
    if three is not None:
        three.close()
    return whole.tolist(), part, integer.tolist(), negative.tolist()


def test_avg_divides_by_the_group_in_use_and_truncates(group: Workers) -> None:
    for rank, got in enumerate(group.run(_averages, timeout=150)):
        assert got == ([2.5] * 7, [2.0] * 3 if rank < 3 else None, [1], [-1])


def _small_integers() -> Any:
    comm = world()
    with_two = comm.split(0 if comm.rank < 2 else 1)
    assert with_two is not None
    low = with_two.rank == 0
    a = with_two.all_reduce(np.array([120 if low else 100], np.int8))
    b = with_two.all_reduce(np.array([200], np.uint8))
    c = comm.all_reduce(np.array([True, comm.rank == 1, False]))
    d = comm.all_reduce(np.array([True, comm.rank == 1, False]), "prod")
    with_two.close()
    return a.tolist(), b.tolist(), c.view(np.uint8).tolist(), d.view(np.uint8).tolist()


def test_bool_and_small_integers(group: Workers) -> None:
    # The same on every rank: int8 and uint8 wrap, a bool stays one byte of 0 or 1.
    assert group.run(_small_integers, timeout=150) == [([-36], [144], [1, 1, 0], [1, 0, 0])] * 4


def _nan_everywhere() -> Any:
    from ringleader.algorithms import names

    comm = world()
    wrong = []
    for algorithm in names("all_reduce"):
        for dtype in ("f4", "f8", "f2"):
            for op in ("min", "max"):
                for where in range(comm.size):
                    values = [1.0, 3.0, 4.0, 2.0]
                    values[where] = np.nan
                    got = comm.all_reduce(np.full(5, values[comm.rank], dtype), op, algorithm=algorithm)
                    if not np.isnan(got).all():
                        wrong.append((algorithm, dtype, op, where, got.tolist()))
    return wrong


def test_nan_wins_min_and_max_wherever_it_is(group: Workers) -> None:
    assert group.run(_nan_everywhere, timeout=150) == [[]] * 4


def _fixed_order() -> Any:
    from ringleader.algorithms import names

    comm = world()
    values = [1e8, 1.0, -1e8, 1.0]
    seen = {}
    for algorithm in names("all_reduce"):
        results = {
            comm.all_reduce(np.full(9, values[comm.rank], np.float32), algorithm=algorithm).tobytes() for _ in range(20)
        }
        seen[algorithm] = results
    return seen


def test_same_bits_on_all_ranks_every_time(group: Workers) -> None:
    ranks = group.run(_fixed_order, timeout=150)
    for algorithm, results in ranks[0].items():
        assert len(results) == 1, algorithm
        assert all(rank[algorithm] == results for rank in ranks), algorithm


def _empty_and_scalar() -> Any:
    comm = world()
    shapes = [comm.all_gather(np.zeros((1, 0, 2), dtype)).shape for dtype in ("f4", "i8", "?")]
    one = np.array(comm.rank + 1)
    comm.all_reduce(one, async_op=True).wait()
    comm.barrier()
    return shapes, int(one), comm.all_to_all(np.zeros((4, 0))).shape


def test_empty_and_scalar(group: Workers) -> None:
    assert group.run(_empty_and_scalar, timeout=150) == [([(4, 1, 0, 2)] * 3, 10, (4, 0))] * 4


def _byte_orders() -> Any:
    comm = world()
    x = np.arange(3, dtype=">i4" if comm.rank % 2 else "<i4") + 10 * comm.rank
    comm.all_reduce(x)
    y = np.array([1.5 * comm.rank], ">f8" if comm.rank == 0 else "<f8")
    comm.broadcast(y, root=3)
    return x.tolist(), y.tolist()


def test_byte_orders_may_differ_between_ranks(group: Workers) -> None:
    assert group.run(_byte_orders, timeout=150) == [([60, 64, 68], [4.5])] * 4


# ---------------------------------------------------------------------------------------- order and messages


def _mixed_order() -> Any:
    comm = world()
    works, seen = [], []
    for i in range(50):
        x = np.full(1000, float(i + comm.rank))
        if i % 3 == 0:
            comm.all_reduce(x)
            seen.append(x[0])
        else:
            works.append((i, comm.all_reduce(x, async_op=True)))
    return seen, [float(work.wait(timeout=30)[-1]) for _, work in works]


def test_sync_and_async_keep_call_order(group: Workers) -> None:
    sync = [4.0 * i + 6 for i in range(50) if i % 3 == 0]
    started = [4.0 * i + 6 for i in range(50) if i % 3]
    assert group.run(_mixed_order, timeout=150) == [(sync, started)] * 4


def _messages() -> Any:
    comm = world()
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    received = np.full((2, 5), -1.0)
    receive = comm.irecv(received[:, 1:3], left, tag=5)
    send = comm.isend(np.arange(4.0).reshape(2, 2) + 10 * comm.rank, right, tag=5)
    send.wait()
    receive.wait()
    anyone = []
    if comm.rank == 0:
        for _ in range(3):
            value = np.zeros(1, np.int64)
            anyone.append((comm.recv(value, rl.ANY_SOURCE, tag=9), int(value[0])))
    else:
        comm.send(np.array([comm.rank * 11]), 0, tag=9)
    return received.tolist(), sorted(anyone), receive.source, receive.nbytes


def test_send_and_receive(group: Workers) -> None:
    for rank, (received, anyone, source, nbytes) in enumerate(group.run(_messages, timeout=150)):
        left = (rank - 1) % 4
        base = 10.0 * left
        assert received == [[-1, base, base + 1, -1, -1], [-1, base + 2, base + 3, -1, -1]]
        assert (source, nbytes) == (left, 32)
        assert anyone == ([(1, 11), (2, 22), (3, 33)] if rank == 0 else [])


# ------------------------------------------------------------------------------------------------------ groups


def _overlapping_groups() -> Any:
    comm = world()
    groups = [comm.subgroup(ranks) for ranks in ([0, 1], [2, 3], [3, 0], [2])]
    seen = []
    for _ in range(3):
        for member in groups:
            if member is not None:
                member.barrier()
                seen.append((member.rank, member.size, member.all_reduce(np.array([comm.rank])).tolist()))
    for member in groups:
        if member is not None:
            member.close()
    return [member is not None for member in groups], seen


def test_overlapping_groups_made_by_members_only(group: Workers) -> None:
    got = group.run(_overlapping_groups, timeout=150)
    assert [members for members, _ in got] == [
        [True, False, True, False],
        [True, False, False, False],
        [False, True, False, True],
        [False, True, True, False],
    ]
    assert got[0][1] == [(0, 2, [1]), (1, 2, [3])] * 3  # rank 0 is second in [3, 0]
    assert got[3][1] == [(1, 2, [5]), (0, 2, [3])] * 3


def _members_only() -> Any:
    comm = world()
    if comm.rank == 3:
        return "never called"
    member = comm.subgroup([2, 0, 1])
    assert member is not None
    result = member.all_gather(np.array([comm.rank])).reshape(-1).tolist()
    member.close()
    return result


def test_a_group_needs_its_members_only(group: Workers) -> None:
    assert group.run(_members_only, timeout=150) == [[2, 0, 1]] * 3 + ["never called"]


def _split() -> Any:
    comm = world()
    part = comm.split(color=None if comm.rank == 1 else 7, key=-comm.rank)
    if part is None:
        return None
    result = part.rank, part.all_gather(np.array([comm.rank])).reshape(-1).tolist()
    part.close()
    return result


def test_split_orders_by_key(group: Workers) -> None:
    assert group.run(_split, timeout=150) == [(2, [3, 2, 0]), None, (1, [3, 2, 0]), (0, [3, 2, 0])]


def _late_rank(limit: float, folder: str) -> Any:
    """Rank 2 comes when the others have given up, or after a while if they are patient."""
    comm = world()
    gave_up = {rank: Event(folder, rank) for rank in (0, 1, 3)}
    comm.barrier()
    if comm.rank == 2:
        if limit < PROMPT:
            assert all(event.wait() for event in gave_up.values())
        else:
            time.sleep(0.5)
    started = time.monotonic()
    try:
        comm.all_reduce(np.ones(3), timeout=limit)
    except rl.errors.RingleaderError as error:
        elapsed = time.monotonic() - started
        with pytest.raises(rl.errors.AbortedError) as later:
            comm.barrier()
        if comm.rank in gave_up:
            gave_up[comm.rank].set()
        forget()
        return type(error).__name__, str(error), elapsed, list(error.ranks), str(later.value), comm.state
    if limit < PROMPT:
        # Over the network everything may have been there for the late rank. It learns with the next call at the latest.
        with pytest.raises(rl.errors.RingleaderError, match="timed out"):
            comm.barrier()
        state = comm.state
        forget()
        return state
    return "fine"


def test_a_late_rank_is_named(group: Workers, tmp_path: Path) -> None:
    assert group.run(_late_rank, 30.0, str(tmp_path), timeout=150) == ["fine"] * 4
    got = group.run(_late_rank, 1.5, str(tmp_path), timeout=150)
    if group.transport == "tcp" and got[2] == "aborted":
        del got[2]
    for kind, text, elapsed, ranks, later, state in got:
        # The first cause is the timeout of one rank, on all ranks; who hears of it from a peer may say Aborted.
        assert kind in ("CollectiveTimeout", "AbortedError")
        assert "all_reduce" in text
        assert elapsed < PROMPT
        assert state == "aborted"
        assert "timed out" in later
        if group.transport == "shm":  # over the network only the peer that was waited for itself is known
            assert "rank 2" in text, text
            assert 2 in ranks


def _recover_from_timeout() -> Any:
    comm = world()
    comm.abort("start over")
    fresh = comm.shrink(timeout=20)
    return fresh.size, fresh.all_reduce(np.ones(2)).tolist()


def test_shrink_without_loss_starts_over(group: Workers) -> None:
    assert group.run(_recover_from_timeout, timeout=150) == [(4, [4.0, 4.0])] * 4
