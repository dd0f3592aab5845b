"""What the torch profiler shows of the backend's operations, and which ranks a monitored barrier names."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch_support import Ranks, joined
from torch_support import events as events_of

import ringleader as rl


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    group = Ranks(3)
    yield group
    group.close()


def events(profiler: Any) -> list[tuple[str, list[list[int]]]]:
    ours = [e for e in profiler.events() if e.name.startswith("ringleader:")]
    assert all(e.is_async and e.count == 1 and e.cpu_time >= 0 for e in ours)
    return [
        (e.name.removeprefix("ringleader:"), e.input_shapes) for e in sorted(ours, key=lambda e: e.time_range.start)
    ]


def every_operation(path: str) -> list[tuple[str, list[list[int]]]]:
    with joined(path) as (rank, size):
        x, rows = torch.ones(2, 3), torch.ones(size * 2, 3)
        each = [torch.empty(2, 3) for _ in range(size)]
        with torch.profiler.profile(record_shapes=True) as profiler:
            dist.all_reduce(x)
            dist.all_reduce(x, async_op=True).wait()
            dist.reduce(x, 1)
            dist.broadcast(x, 0)
            dist.all_gather(each, x)
            dist.all_gather_into_tensor(rows, x)
            dist.reduce_scatter_tensor(x, rows)
            dist.all_to_all_single(torch.empty_like(rows), rows)
            dist.gather(x, each if rank == 1 else None, 1)
            dist.scatter(x, each if rank == 1 else None, 1)
            dist.barrier()
            sent = dist.isend(x, (rank + 1) % size)
            dist.recv(each[0], None if rank == 0 else rank - 1)
            sent.wait()
        dist.all_reduce(x)  # when nobody looks
        return events(profiler)


def test_every_operation_has_its_event(ranks: Ranks) -> None:
    x, rows = [2, 3], [6, 3]
    for rank, found in enumerate(ranks.run(every_operation)):
        assert found == [
            ("all_reduce", [x]),
            ("all_reduce", [x]),
            ("reduce", [x]),
            ("broadcast", [x]),
            ("all_gather", [x]),
            ("all_gather", [x]),
            ("reduce_scatter", [rows]),
            ("all_to_all", [rows]),
            ("gather", [x]),
            ("scatter", [x] * 3 if rank == 1 else []),
            ("barrier", []),
            ("send", [x]),
            ("recvAnySource" if rank == 0 else "recv", [x]),
        ]


def lengths(path: str) -> list[float]:
    started = events_of(path, (0, 2))
    with joined(path) as (rank, _):
        with torch.autograd.profiler.profile() as profiler:
            if rank == 1:
                assert all(event.wait() for event in started.values())
                time.sleep(1.0)
            work = dist.all_reduce(torch.ones(4), async_op=True)
            if rank != 1:
                started[rank].set()
            work.get_future().wait()  # nobody calls work.wait()
        return [e.time_range.elapsed_us() / 1e6 for e in profiler.function_events if e.name == "ringleader:all_reduce"]


def test_an_event_lasts_until_the_last_rank_came(ranks: Ranks) -> None:
    found = ranks.run(lengths)
    assert all(len(each) == 1 for each in found)
    assert found[0][0] > 0.9 and found[2][0] > 0.9 and found[1][0] < min(found[0][0], found[2][0])


def training(path: str) -> tuple[int, int]:
    with joined(path):
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(50, 50, bias=False))
        with torch.profiler.profile() as profiler:
            for _ in range(3):
                model(torch.ones(1, 50)).sum().backward()
        names = [name for name, _ in events(profiler)]
        return names.count("all_reduce"), names.count("broadcast")


def test_ddp_under_the_profiler(ranks: Ranks) -> None:
    for reduced, broadcast in ranks.run(training):
        assert reduced == 3  # one bucket per step
        assert broadcast >= 1  # when the buckets are rebuilt


def failing(path: str) -> tuple[list[str], str]:
    gave_up = events_of(path, (0,))[0]
    with joined(path) as (rank, _):
        dist.barrier()
        dist.distributed_c10d._get_default_group().set_timeout(timedelta(seconds=0.5))
        text = ""
        with torch.profiler.profile() as profiler:
            with pytest.raises(rl.errors.InvalidArgument):
                dist.all_gather([torch.ones(1)], torch.ones(1))
            if rank == 0:
                with pytest.raises(dist.DistBackendError) as caught:
                    dist.all_reduce(torch.ones(1))
                text = str(caught.value)
                gave_up.set()
            else:
                assert gave_up.wait()
        return [name for name, _ in events(profiler)], text


def test_failed_operations_have_events_too(ranks: Ranks) -> None:
    found = ranks.run(failing)
    assert found[0][0] == ["all_gather", "all_reduce"] and found[1][0] == ["all_gather"]
    assert " timeout " in found[0][1] and "rank 1" in found[0][1]
    ranks.close()


def monitored(path: str, absent: list[int], wait_all_ranks: bool) -> str:
    with joined(path) as (rank, size):
        group: Any = dist.group.WORLD
        for _ in range(3):
            group.monitored_barrier(timedelta(seconds=20))
        text = ""
        if rank not in absent:
            try:
                group.monitored_barrier(timedelta(seconds=1.5), wait_all_ranks)
            except RuntimeError as error:
                assert isinstance(error, rl.errors.CollectiveTimeout)
                text = str(error)
        x = torch.ones(1)
        dist.all_reduce(x)  # the group is as good as before
        assert x.item() == size
        return text


@pytest.mark.parametrize("absent", [[], [1], [1, 2]])
@pytest.mark.parametrize("wait_all_ranks", [False, True])
def test_monitored_barrier_names_the_absent(ranks: Ranks, absent: list[int], wait_all_ranks: bool) -> None:
    found = ranks.run(monitored, absent, wait_all_ranks)
    named = "Ranks 1, 2 failed" if wait_all_ranks and len(absent) > 1 else "Rank 1 failed"
    for rank, text in enumerate(found):
        if rank in absent or not absent:
            assert text == ""
        elif rank == 0:
            assert f"{named} to pass monitoredBarrier in 1500 ms" in text
        else:
            assert f"Rank {rank} successfully reached monitoredBarrier" in text
