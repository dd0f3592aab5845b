"""Collectives on CUDA tensors: staging, mixed groups, NCCL inside hosts, schedules over NCCL.

One GPU is enough for most: several ranks can use it. NCCL wants one for each rank, so those tests need two.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1] / "frameworks"))

from torch_support import Ranks, data, joined, place

import ringleader as rl
import ringleader.torch

TYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.complex64,
]
SHAPES = [(0,), (), (7,), (33, 129), (300001,)]
GPUS = torch.cuda.device_count()
two_gpus = pytest.mark.skipif(GPUS < 2, reason=f"NCCL needs a GPU for each rank; {GPUS} here")


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    group = Ranks(4, PYTHONPATH=str(Path(__file__).parents[1] / "frameworks") + ":" + str(Path(__file__).parent))
    yield group
    group.close()


@pytest.fixture(scope="module")
def pair() -> Iterator[Ranks]:
    group = Ranks(2, PYTHONPATH=str(Path(__file__).parents[1] / "frameworks") + ":" + str(Path(__file__).parent))
    yield group
    group.close()


def mine(rank: int, on: tuple[int, ...]) -> torch.device:
    """This rank's device: a GPU, shared if there are fewer than ranks, or the CPU."""
    if rank not in on:
        return torch.device("cpu")
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def same(a: torch.Tensor, b: torch.Tensor) -> None:
    assert a.dtype is b.dtype and a.shape == b.shape, (a.dtype, b.dtype, a.shape, b.shape)
    assert torch.equal(a.cpu(), b.cpu()), f"\n{a}\n{b}"


def total(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(parts).any(0) if parts[0].dtype is torch.bool else sum(parts[1:], parts[0]).to(parts[0].dtype)


def staged(path: str, on: tuple[int, ...]) -> bytes:
    with joined(path, pg_options={"device_segment": "64K"}) as (rank, n):
        device = mine(rank, on)
        for dtype in TYPES:
            for shape in SHAPES:
                parts = [data(r, shape, dtype) for r in range(n)]
                x = parts[rank].to(device)
                work = dist.all_reduce(x, async_op=True)
                work.wait()
                same(x, total(parts))
                dist.broadcast(x, 1)
                rows = [torch.empty(shape, dtype=dtype, device=device) for _ in range(n)]
                dist.all_gather(rows, parts[rank].to(device))
                for row, part in zip(rows, parts, strict=True):
                    same(row, part)
                if not dtype.is_complex:
                    out = torch.empty(shape, dtype=dtype, device=device)
                    dist.reduce_scatter(out, [part.to(device) for part in parts], dist.ReduceOp.MAX)
                    same(out, parts[rank])
        columns = torch.full((300, 400), float(rank), device=device).T
        dist.all_reduce(columns, dist.ReduceOp.AVG)
        same(columns, torch.full((400, 300), 1.5))
        sent = dist.isend(torch.full((5,), float(rank), device=device), (rank + 1) % n)
        got = torch.empty(5, device=device)
        dist.recv(got, (rank - 1) % n)
        assert sent is not None
        sent.wait()
        same(got, torch.full((5,), float((rank - 1) % n)))
        noise = torch.randn(300001, generator=torch.Generator().manual_seed(rank)).to(device)
        dist.all_reduce(noise)
        return bytes(noise.cpu().numpy().tobytes())


@pytest.mark.parametrize("on", [(0, 1, 2, 3), (1, 2)], ids=["gpus", "mixed"])
def test_staged(ranks: Ranks, on: tuple[int, ...]) -> None:
    results = ranks.run(staged, on, timeout=300)
    assert all(result == results[0] for result in results)


def streams(path: str) -> None:
    """What is enqueued before the call and after the wait is in order, without a synchronisation of the host."""
    with joined(path, pg_options={"device_segment": "64K"}) as (rank, n):
        device = mine(rank, (0, 1, 2, 3))
        side = torch.cuda.Stream(device)
        for round_ in range(20):
            with torch.cuda.stream(side):
                x = torch.full((200000,), -1.0, device=device)
                torch.cuda._sleep(2_000_000)  # the value is there long after the call
                x.fill_(float(rank + round_))
                work = dist.all_reduce(x, async_op=True)
                y = torch.empty_like(x)  # memory that the allocator must not take from x
                work.wait()
                y.copy_(x).mul_(2)
                del x, work
                again = torch.full((200000,), 7.0, device=device)
                expected = 2.0 * (6 + n * round_)
                assert bool((y == expected).all()), (y[:3], expected)
                assert bool((again == 7).all())
        x = torch.full((200000,), float(rank), device=device)
        future = dist.all_reduce(x, async_op=True).get_future().then(lambda done: done.value()[0] * 3)
        assert bool((future.wait() == 18).all())


def test_streams(ranks: Ranks) -> None:
    ranks.run(streams, timeout=300)


def training(path: str, on: tuple[int, ...], options: dict[str, Any]) -> list[float]:
    with joined(path, pg_options=options) as (rank, _):
        device = mine(rank, on)
        torch.manual_seed(3)
        net = torch.nn.Sequential(torch.nn.Linear(8, 256), torch.nn.ReLU(), torch.nn.Linear(256, 2)).to(device)
        model = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.004, gradient_as_bucket_view=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for step in range(5):
            x = torch.randn(16, 8, generator=torch.Generator().manual_seed(10 * step + rank)).to(device)
            loss = torch.nn.functional.mse_loss(model(x), x[:, :2])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        del model
        return losses


def test_ddp_trains_on_gpus_as_on_cpus(ranks: Ranks) -> None:
    plain = ranks.run(training, (), {})
    for on in ((0, 1, 2, 3), (0, 3)):
        for a, b in zip(ranks.run(training, on, {}, timeout=300), plain, strict=True):
            assert a == pytest.approx(b, rel=1e-4)


def capture(path: str) -> str:
    with joined(path) as (rank, _):
        device = mine(rank, (0, 1, 2, 3))
        x = torch.ones(8, device=device)
        dist.all_reduce(x)
        text = "no error"
        try:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                try:
                    dist.all_reduce(x)
                except rl.errors.InvalidArgument as error:
                    text = str(error)
        except RuntimeError:
            pass  # an empty graph
        return text


def test_capture_is_refused(ranks: Ranks) -> None:
    assert all("CUDA graph" in text for text in ranks.run(capture, timeout=120))


def registered(path: str) -> bool:
    """Whether the arena's memory could be pinned in place."""
    from ringleader.torch.devices import device_of
    from ringleader.torch.devices.memory import buffers_of

    with joined(path) as (rank, _):
        x = torch.ones(300000, device=mine(rank, (0, 1, 2, 3)))
        dist.all_reduce(x)
        device = device_of(x)
        assert device is not None
        buffer = buffers_of(device).take(1 << 20)
        return bool(buffer.is_pinned()) and rl._core.arena_contains(buffer.data_ptr(), buffer.nbytes)


def test_host_memory_is_the_arena_pinned(ranks: Ranks) -> None:
    assert all(ranks.run(registered, timeout=120))


def two_levels(path: str, hosts: list[int]) -> list[bytes]:
    """NCCL inside a host of two ranks."""
    device = mine(place()[0], (0, 1))
    with joined(path, pg_options={"inside": "nccl", "hosts": hosts, "device_segment": "64K"}) as (rank, n):
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            for shape in SHAPES:
                parts = [data(r, shape, dtype) for r in range(n)]
                x = parts[rank].to(device)
                dist.all_reduce(x)
                same(x, total(parts))
        small = torch.full((3,), float(rank))  # on the CPU
        dist.all_reduce(small)
        same(small, torch.full((3,), 1.0))
        noise = torch.randn(300001, generator=torch.Generator().manual_seed(rank)).to(device)
        dist.all_reduce(noise)
        return [noise.cpu().numpy().tobytes()]


@two_gpus
def test_nccl_inside(pair: Ranks) -> None:
    results = pair.run(two_levels, [0, 0], timeout=300)
    assert all(result == results[0] for result in results)


def over_nccl(path: str) -> None:
    device = mine(place()[0], (0, 1))
    with joined(path, "nccl") as (rank, n):
        for check in (False, True):
            for name in ("ring", "two_shot", "recursive_doubling"):
                schedule = rl.algorithms.build("all_reduce", name, n)
                for dtype in (torch.float32, torch.bfloat16, torch.int32):
                    parts = [data(r, (1001,), dtype) for r in range(n)]
                    x = parts[rank].to(device)
                    rl.torch.run(schedule, x, op="sum", check=check)
                    same(x, total(parts))
        rl.torch.run(rl.algorithms.build("barrier", rl.algorithms.names("barrier")[0], n), None)


@two_gpus
def test_schedules_over_nccl(pair: Ranks) -> None:
    pair.run(over_nccl, timeout=300)
