"""Staging: tensors of devices in collectives, tried with a "device" that is the CPU with asynchronous streams.

On the staged ranks CPU tensors go the way of a GPU's: down to other memory, through the engine, up again.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch_support import Ranks, data, events, joined, place

import ringleader as rl
from ringleader.torch.devices import StreamThreads, register_device

SHAPES = [(0,), (), (7,), (3, 5), (33, 129), (5000,)]
TYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.bool, torch.complex64, torch.complex128,
]  # fmt: skip
MIXED, ALL = (1, 2), (0, 1, 2, 3)


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    group = Ranks(4)
    yield group
    group.close()


@contextlib.contextmanager
def staged(
    path: str, on: tuple[int, ...], latency: float = 0.0, registers: bool = True, segment: str = "4K", **more: Any
) -> Iterator[tuple[int, int, Any]]:
    """A process group on some of whose ranks CPU tensors are a device's; large ones travel in segments."""
    if place()[0] in on:
        register_device("cpu", lambda device: StreamThreads(latency, registers))
    try:
        with joined(path, pg_options={"device_segment": segment}, **more) as (rank, size):
            yield rank, size, dist.distributed_c10d._get_default_group()
    finally:
        register_device("cpu", None)


def same(a: torch.Tensor, b: torch.Tensor) -> None:
    assert a.dtype is b.dtype and a.shape == b.shape, (a.dtype, b.dtype, a.shape, b.shape)
    assert torch.equal(a, b), f"\n{a}\n{b}"


def total(parts: list[torch.Tensor]) -> torch.Tensor:
    if parts[0].dtype is torch.bool:
        return torch.stack(parts).any(0)
    return sum(parts[1:], parts[0]).to(parts[0].dtype)


# --------------------------------------------------------------------------------------------------- all operations


def reductions(path: str, on: tuple[int, ...], registers: bool) -> list[bytes]:
    with staged(path, on, registers=registers) as (rank, n, group):
        assert group._detour is not None and group._detour.segment == 4096
        for dtype in TYPES:
            for shape in SHAPES:
                parts = [data(r, shape, dtype) for r in range(n)]
                x = parts[rank].clone()
                dist.all_reduce(x)
                same(x, total(parts))
        # Values whose sum depends on the order: equal on all ranks, and as without staging.
        x = torch.randn(5000, generator=torch.Generator().manual_seed(rank))
        dist.all_reduce(x)
        for root in (0, 1):
            parts = [data(r, (3000,), torch.float32, root) for r in range(n)]
            y = parts[rank].clone()
            dist.reduce(y, root, dist.ReduceOp.MAX)
            same(y, torch.stack(parts).amax(0) if rank == root else parts[rank])
            for shape in ((3000,), (3,)):
                y = data(rank, shape, torch.int32, 7)
                dist.broadcast(y, root)
                same(y, data(root, shape, torch.int32, 7))
        y = torch.full((3,), float(rank + 1))
        dist.all_reduce(y, dist._make_nccl_premul_sum(0.5))
        same(y, torch.full((3,), 5.0))
        return [x.numpy().tobytes()]


@pytest.mark.parametrize("on, registers", [(ALL, True), (MIXED, True), (MIXED, False)], ids=["all", "mixed", "pinned"])
def test_reductions(ranks: Ranks, on: tuple[int, ...], registers: bool) -> None:
    results = ranks.run(reductions, on, registers)
    assert all(result == results[0] for result in results)


def layouts(path: str) -> None:
    with staged(path, MIXED, latency=0.002) as (rank, n, _):
        for rows in (5, 100):
            x = torch.zeros(rows, 2 * rows)[:, ::2]
            x.copy_(torch.arange(float(rows * rows)).view(rows, rows) + rank)
            dist.all_reduce(x)
            same(x, (torch.arange(float(rows * rows)).view(rows, rows) * n + 6))
            x = torch.full((rows, rows), float(rank)).T
            dist.broadcast(x, 3)
            same(x, torch.full((rows, rows), 3.0))
        x = (torch.arange(2000) * (rank + 1) + 1j).conj()
        group = dist.distributed_c10d._get_default_group()
        group.allreduce(x).wait()
        same(x.resolve_conj(), (torch.arange(2000) * 10 - 4j).to(x.dtype))
        dense = data(rank, (6, 2), torch.float32)
        sparse = dense.to_sparse(1)
        dist.all_reduce(dense)
        dist.all_reduce(sparse)
        same(sparse.to_dense(), dense)
        leaf = torch.ones(3000, requires_grad=True)
        (leaf * (rank + 1)).sum().backward()
        assert leaf.grad is not None
        dist.all_reduce(leaf.grad, dist.ReduceOp.AVG)
        same(leaf.grad, torch.full((3000,), 2.5))


def test_layouts(ranks: Ranks) -> None:
    ranks.run(layouts)


def copies(path: str, on: tuple[int, ...]) -> None:
    with staged(path, on, latency=0.0005) as (rank, n, _):
        for dtype in (torch.float32, torch.uint8, torch.bool):
            for shape in ((0,), (3,), (2, 5), (40, 50)):
                parts = [data(r, shape, dtype) for r in range(n)]
                outs = [torch.empty(shape, dtype=dtype) for _ in range(n)]
                dist.all_gather(outs, parts[rank])
                for out, part in zip(outs, parts, strict=True):
                    same(out, part)
                block = torch.empty((n, *shape), dtype=dtype)
                dist.all_gather_into_tensor(block, parts[rank])
                same(block, torch.stack(parts))
                dist.gather(parts[rank], outs if rank == 1 else None, 1)
                out = torch.empty(shape, dtype=dtype)
                dist.scatter(out, parts if rank == 2 else None, 2)
                same(out, parts[rank])
                received = [torch.empty(shape, dtype=dtype) for _ in range(n)]
                dist.all_to_all(received, [data(rank, shape, dtype, d) for d in range(n)])
                for r, out in enumerate(received):
                    same(out, data(r, shape, dtype, rank))
        x = torch.arange(n * 3.0) + rank
        out = torch.empty(3)
        dist.reduce_scatter_tensor(out, x, dist.ReduceOp.AVG)
        same(out, torch.arange(n * 3.0).view(n, 3)[rank] + 1.5)
        dist.reduce_scatter(out, list(x.view(n, 3).unbind()))
        same(out, torch.arange(n * 3.0).view(n, 3)[rank] * n + 6)
        y = torch.empty(n * 3)
        dist.all_to_all_single(y, x)
        same(y.view(n, 3), torch.stack([torch.arange(n * 3.0).view(n, 3)[rank] + r for r in range(n)]))
        y = torch.empty(4)
        dist.all_to_all_single(y, torch.full((4,), float(rank)), [1] * n, [1] * n)
        same(y, torch.arange(4.0))
        whole = torch.empty(n, 3)
        whole[rank] = rank
        dist.all_gather_into_tensor(whole, whole[rank])  # in place
        same(whole, torch.arange(float(n)).view(n, 1).expand(n, 3).contiguous())
        everything: list[Any] = [None] * n
        dist.all_gather_object(everything, {"rank": rank})
        assert [each["rank"] for each in everything] == list(range(n))


@pytest.mark.parametrize("on", [ALL, MIXED], ids=["all", "mixed"])
def test_copies(ranks: Ranks, on: tuple[int, ...]) -> None:
    ranks.run(copies, on)


def messages(path: str) -> None:
    with staged(path, MIXED, latency=0.002) as (rank, n, _):
        peer, before = (rank + 1) % n, (rank - 1) % n
        outs = [torch.empty(k) for k in (1, 2000, 0)]
        operations = [dist.P2POp(dist.isend, torch.full((k,), float(rank + k)), peer) for k in (1, 2000, 0)]
        operations += [dist.P2POp(dist.irecv, out, before) for out in outs]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        for out, k in zip(outs, (1, 2000, 0), strict=True):
            same(out, torch.full((k,), float(before + k)))
        # A receive that is posted long before its message does not hold back what comes after it.
        x, y = torch.zeros(3), torch.full((2000,), float(rank))
        late = dist.irecv(x, before, tag=5) if rank % 2 == 0 else None
        dist.all_reduce(y)
        same(y, torch.full((2000,), 6.0))
        if late is None:
            dist.send(torch.full((3,), float(rank)), peer, tag=5)
        else:
            late.wait()
            same(x, torch.full((3,), float(before)))
        if rank == 0:
            seen = [dist.recv(x) for _ in range(3)]
            assert sorted(seen) == [1, 2, 3]
        else:
            dist.send(torch.full((3,), float(rank)), 0)
        dist.barrier()


def test_messages(ranks: Ranks) -> None:
    ranks.run(messages)


def inference(path: str) -> bool:
    with staged(path, MIXED) as (rank, n, _):
        with torch.inference_mode():
            outs = [torch.zeros(5) for _ in range(n)]
            x = torch.full((3000,), float(rank))
            works = [dist.all_gather(outs, torch.full((5,), float(rank)), async_op=True)]
            works.append(dist.all_reduce(x, async_op=True))
        for work in works:
            work.wait()
        return bool(x[0] == n * (n - 1) / 2) and [out[4].item() for out in outs] == list(range(n))


def test_operations_that_were_called_in_inference_mode(ranks: Ranks) -> None:
    assert all(ranks.run(inference))


# ------------------------------------------------------------------------------------------------------------ order


def in_flight(path: str) -> float:
    """Many operations at once, of host and staged tensors, results looked at only after their wait."""
    with staged(path, MIXED, latency=0.003) as (rank, n, group):
        xs = [torch.full((k,), float(rank + i)) for i, k in enumerate((5000, 1, 3000, 0, 9000))]
        works = [dist.all_reduce(x, async_op=True) for x in xs]
        works.append(dist.barrier(async_op=True))
        last = torch.full((4,), float(rank))
        works.append(dist.broadcast(last, 2, async_op=True))
        for work in reversed(works):
            work.wait()
            assert work.is_completed() and work.is_success() and work.exception() is None
        for i, x in enumerate(xs):
            same(x, torch.full_like(x, 6.0 + i * n))
        same(last, torch.full((4,), 2.0))
        # By their futures, chained, with collectives in the callbacks.
        x = torch.full((3000,), float(rank))

        def again(done: Any) -> torch.Tensor:
            y = done.value()[0] * 2
            dist.all_reduce(y)
            return y

        future = dist.all_reduce(x, async_op=True).get_future().then(again)
        z = torch.full((2,), float(rank))
        dist.all_reduce(z)
        same(future.wait(), torch.full((3000,), 6.0 * 2 * n))
        same(z, torch.full((2,), 6.0))
        with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
            for x in xs:
                dist.all_reduce(x, async_op=True)
        manager.wait()
        for i, x in enumerate(xs):
            same(x, torch.full_like(x, (6.0 + i * n) * n))
        work = group.allreduce_coalesced(xs)
        work.wait()
        same(xs[0], torch.full_like(xs[0], 6.0 * n * n))
        assert work.result()[1].shape == (1,)
        return float(group._get_sequence_number_for_group())


def test_operations_in_flight_keep_their_order(ranks: Ranks) -> None:
    assert len(set(ranks.run(in_flight))) == 1


class Gated(StreamThreads):
    """Its last copy down waits until the first one up has been made."""

    def __init__(self, segments: int) -> None:
        super().__init__()
        self.left = segments
        self.first_up = threading.Event()
        self.met = False

    def enqueue(self, stream: Any, work: Any) -> None:
        if stream is self.up:
            super().enqueue(stream, work)
            super().enqueue(stream, self.first_up.set)
            return
        self.left -= 1
        if self.left == 0:
            super().enqueue(stream, self.wait_for_up)
        super().enqueue(stream, work)

    def wait_for_up(self) -> None:
        self.met = self.first_up.wait(10)


def overlapping(path: str) -> bool:
    device = Gated(12)
    register_device("cpu", lambda _: device)
    try:
        with joined(path, pg_options={"device_segment": "4K"}) as (rank, _):
            x = torch.full((1024 * 12,), float(rank))
            dist.all_reduce(x)
            same(x, torch.full_like(x, 6.0))
    finally:
        register_device("cpu", None)
    return device.met and device.left == 0


def test_segments_overlap(ranks: Ranks) -> None:
    """The first segment is up again although the last one is not yet down."""
    assert all(ranks.run(overlapping))


def training(path: str) -> list[list[float]]:
    """DDP on ranks of both kinds, and without staging."""
    found = []
    for on in (MIXED, ()):
        with staged(f"{path}{len(on)}", on, latency=0.001) as (rank, _, _group):
            torch.manual_seed(3)
            net = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
            model = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.001, gradient_as_bucket_view=True)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            losses = []
            for step in range(4):
                generator = torch.Generator().manual_seed(10 * step + rank)
                x = torch.randn(16, 8, generator=generator)
                loss = torch.nn.functional.mse_loss(model(x), x[:, :2])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            del model
        found.append(losses)
    return found


@pytest.mark.slow
def test_ddp_on_a_mixed_group(ranks: Ranks) -> None:
    for mixed, plain in ranks.run(training):
        assert mixed == pytest.approx(plain, rel=1e-6)


# ----------------------------------------------------------------------------------------------------------- errors


def failing(path: str) -> list[str]:
    texts = []
    with staged(path, MIXED, latency=0.001) as (rank, n, group):
        for call in (
            lambda: group.allreduce([torch.ones(2), torch.ones(2)]).wait(),
            lambda: dist.all_reduce(torch.ones(3, dtype=torch.bool), dist.ReduceOp.AVG),
            lambda: group.alltoall([torch.ones(1)] * (n + 1), [torch.ones(1)] * n).wait(),
            lambda: dist.all_reduce(torch.ones(2, device="meta")),
        ):
            try:
                call()
            except (rl.errors.RingleaderError, ValueError, RuntimeError) as error:
                texts.append(f"{type(error).__name__}: {error}")
        x = torch.ones(3)
        dist.all_reduce(x)
        same(x, torch.full((3,), float(n)))
        work = dist.all_reduce(torch.ones(3000 if rank else 3001), async_op=True)
        try:
            work.wait()
        except RuntimeError as error:
            texts.append(f"{type(error).__name__}: {error}")
        assert work.is_completed() and not work.is_success()
        try:
            dist.all_reduce(torch.ones(3000))
        except RuntimeError as error:
            texts.append(f"{type(error).__name__}: {error}")
    return texts


def test_errors_come_from_wait(ranks: Ranks) -> None:
    for texts in ranks.run(failing):
        assert len(texts) == 6, texts
        assert "2 items" in texts[0] and "bool" in texts[1] and "expected 4, one per rank" in texts[2]
        assert "meta" in texts[3]
        assert "MismatchError" in texts[4] or "AbortedError" in texts[4]
        assert "AbortedError" in texts[5]


def late(path: str) -> tuple[str, float]:
    gave_up = events(path, (1, 2, 3))
    with staged(path, MIXED, latency=0.001) as (rank, _, _group):
        if rank == 0:
            assert all(event.wait() for event in gave_up.values())
            return "", 0.0
        begun = time.perf_counter()
        work = dist.all_reduce(torch.ones(3000), async_op=True)
        text = ""
        try:
            work.wait(timedelta(seconds=0.5))
        except rl.errors.CollectiveTimeout as error:
            text = str(error)
        gave_up[rank].set()
        return text, time.perf_counter() - begun


def test_a_wait_has_its_limit(ranks: Ranks) -> None:
    for text, took in ranks.run(late)[1:]:
        assert "still running" in text and took >= 0.4
    ranks.close()


class Broken(StreamThreads):
    """Fails in its third copy."""

    copies = 0

    def enqueue(self, stream: Any, work: Any) -> None:
        self.copies += 1
        if self.copies == 3:
            work = lambda: 1 / 0  # noqa: E731
        super().enqueue(stream, work)


def broken(path: str) -> str:
    if place()[0] == 1:
        register_device("cpu", lambda device: Broken())
    try:
        with joined(path, pg_options={"device_segment": "4K"}):
            try:
                dist.all_reduce(torch.ones(5000))
            except RuntimeError as error:
                return f"{type(error).__name__}: {error}"
            return "no error"
    finally:
        register_device("cpu", None)


def test_an_error_of_the_device_is_the_works(ranks: Ranks) -> None:
    texts = ranks.run(broken)
    ranks.close()
    # Its own error is the device's where the segments before were complete when it failed, else that of the abort.
    own = texts.pop(1)
    assert "rank 1's device failed: ZeroDivisionError" in own or "brought to the host or back: ZeroDivisionError" in own
    assert all("rank 1's device failed: ZeroDivisionError" in text or "PeerLost" in text for text in texts), texts
