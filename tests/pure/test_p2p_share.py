"""Schedules over messages, without an MPI: ranks are threads that exchange through mailboxes."""

from __future__ import annotations

import queue
import threading
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringleader.algorithms import build, names
from ringleader.errors import InvalidArgument, ScheduleError
from ringleader.executors import reference
from ringleader.executors.p2p import Message, execute, share_of
from ringleader.schedule import Builder, Collective, Schedule

SUM, MAX, AVG, PREMUL_SUM, NONE = 0, 3, 4, 5, 255
F32 = 0


class Mailboxes:
    """All ranks' messages: a queue for each sender, receiver and order."""

    def __init__(self) -> None:
        self.boxes: dict[tuple[int, int, int], queue.Queue[Any]] = defaultdict(queue.Queue)
        self.lock = threading.Lock()

    def box(self, source: int, target: int, order: int) -> queue.Queue[Any]:
        with self.lock:
            return self.boxes[source, target, order]


class Rank:
    """One rank's end of the mailboxes."""

    def __init__(self, rank: int, mailboxes: Mailboxes) -> None:
        self.rank, self.mailboxes = rank, mailboxes

    def exchange(self, sends: Sequence[tuple[Message, Any]], receives: Sequence[tuple[Message, Any]]) -> None:
        for message, array in sends:
            self.mailboxes.box(self.rank, message.peer, message.order).put((message.channel, array.copy()))
        for message, array in receives:
            channel, sent = self.mailboxes.box(message.peer, self.rank, message.order).get(timeout=20)
            assert (channel, sent.shape) == (message.channel, array.shape)
            array[...] = sent


def run_all(schedule: Schedule, inputs: list[Any], count: int, code: int, op: int, factor: float) -> list[Any]:
    mailboxes = Mailboxes()
    results: list[Any] = [None] * schedule.n

    def work(rank: int) -> None:
        results[rank] = execute(share_of(schedule, rank), inputs[rank], count, code, op, factor, Rank(rank, mailboxes))

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(schedule.n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(box.empty() for box in mailboxes.boxes.values())
    return results


def compare(schedule: Schedule, count: int, op: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    divides = schedule.collective in (Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL, Collective.SCATTER)
    size = count * (schedule.n if divides else 1)
    barrier = schedule.collective is Collective.BARRIER
    inputs: list[Any] = [None if barrier else rng.normal(size=size).astype(np.float32) for _ in range(schedule.n)]
    copies = [None if x is None else x.copy() for x in inputs]
    got = run_all(schedule, inputs, 0 if barrier else count, F32, op, 0.3)
    wanted = reference.run(schedule, inputs, F32, op, 0.3)
    for rank, (mine, theirs) in enumerate(zip(got, wanted, strict=True)):
        assert (mine is None) == (theirs is None), rank
        if mine is not None:
            assert mine.tobytes() == theirs.tobytes(), f"rank {rank}"
            assert not any(np.shares_memory(mine, x) for x in inputs)
    assert all(a is b or np.array_equal(a, b) for a, b in zip(inputs, copies, strict=True))


@pytest.mark.parametrize("collective", list(Collective))
def test_same_bits_as_the_reference(collective: Collective):
    for n in (1, 2, 3, 5, 6):
        for index, algorithm in enumerate(names(collective)):
            root = (index + 1) % n if collective.rooted else 0
            schedule = build(collective, algorithm, n, root)
            op = (SUM, AVG, PREMUL_SUM, MAX)[(n + index) % 4] if collective.reduces else NONE
            for count in (0, 1, 7, 100):
                compare(schedule, count, op, seed=n * 100 + index)


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([(str(c), a) for c in ("all_reduce", "reduce", "reduce_scatter") for a in names(c)]),
    st.integers(2, 7),
    st.integers(0, 200),
    st.sampled_from([SUM, AVG, PREMUL_SUM]),
)
def test_any_count_and_operation(chosen: tuple[str, str], n: int, count: int, op: int):
    compare(build(*chosen, n, 0), count, op, seed=count)


def test_shares_of_one_message_agree():
    """What one rank sends is what the other expects: peer, order, channel and sizes."""
    schedule = build("all_reduce", "ring:segments=3", 5)
    shares = [share_of(schedule, rank) for rank in range(5)]
    sent = {
        (rank, m.peer, m.order): (m.channel, m.classes)
        for rank in range(5)
        for s in shares[rank].steps
        for m in s.sends
    }
    received = {
        (m.peer, rank, m.order): (m.channel, m.classes)
        for rank in range(5)
        for s in shares[rank].steps
        for m in s.receives
    }
    assert sent == received and len(sent) == schedule.transfers


def test_a_schedule_that_reads_nothing_or_leaves_a_gap_is_refused_on_every_rank():
    b = Builder("broadcast", n=3, chunks=1)
    b.send(0, src=1, src_chunk=0, dst=2)
    early = b.build()
    b = Builder("broadcast", n=3, chunks=1)
    b.send(0, src=0, src_chunk=0, dst=2)
    short = b.build()
    for rank in range(3):
        with pytest.raises(ScheduleError, match=r"transfer 0 .*reads a chunk that is not there"):
            share_of(early, rank)
        with pytest.raises(ScheduleError, match=r"ends without rank 1 data\[0\]"):
            share_of(short, rank)
    with pytest.raises(InvalidArgument, match="rank is 3; expected 0 to 2"):
        share_of(short, 3)
