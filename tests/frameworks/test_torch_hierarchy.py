"""Two-level collectives: Gloo inside "hosts", which are named for the test, the engine between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch_support import Ranks, data, joined

import ringleader as rl
import ringleader.torch
from ringleader.torch.devices.layout import Layout

pytestmark = pytest.mark.slow

TYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int32, torch.int64,
]  # fmt: skip
SHAPES = [(0,), (), (1,), (7,), (3, 5), (33, 129)]
HOSTS = {"2x2": [0, 0, 1, 1], "interleaved": [5, 2, 5, 2], "3+1": [0, 0, 0, 1], "1+2+1": [0, 1, 1, 2], "4": [0] * 4}


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    group = Ranks(4)
    yield group
    group.close()


def same(a: torch.Tensor, b: torch.Tensor) -> None:
    assert a.dtype is b.dtype and a.shape == b.shape, (a.dtype, b.dtype, a.shape, b.shape)
    assert torch.equal(a, b), f"\n{a}\n{b}"


def expected(parts: list[torch.Tensor], op: Any) -> torch.Tensor:
    stacked = torch.stack(parts)
    if op == dist.ReduceOp.MAX:
        return stacked.amax(0)
    if op == dist.ReduceOp.MIN:
        return stacked.amin(0)
    if op == dist.ReduceOp.PRODUCT:
        return stacked.prod(0).to(parts[0].dtype)
    total = stacked.sum(0).to(parts[0].dtype)
    if op == dist.ReduceOp.AVG:
        return torch.div(total, len(parts), rounding_mode=None if total.is_floating_point() else "trunc")
    return total


OPS = [dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT]


def as_backend(path: str, hosts: list[int]) -> tuple[int, int]:
    """All operations of a process group that has Gloo inside; how often its own communicator was used, and how many."""
    options = {"inside": "gloo", "hosts": hosts, "device_segment": "4K"}
    with joined(path, pg_options=options) as (rank, n):
        group: Any = dist.distributed_c10d._get_default_group()
        before = group._get_sequence_number_for_group()
        calls = 0
        for dtype in TYPES:
            for shape in SHAPES:
                for op in OPS if shape == (7,) else OPS[:2]:
                    parts = [data(r, shape, dtype) for r in range(n)]
                    x = parts[rank].clone()
                    dist.all_reduce(x, op)
                    same(x, expected(parts, op))
                    calls += 1
                root = len(shape)
                x = data(rank, shape, dtype, 5)
                dist.broadcast(x, root)
                same(x, data(root, shape, dtype, 5))
                parts = [data(r, (n, *shape), dtype, 6) for r in range(n)]
                out = torch.empty(shape, dtype=dtype)
                dist.reduce_scatter_tensor(out, parts[rank].clone())
                same(out, expected(parts, dist.ReduceOp.SUM)[rank])
                dist.reduce_scatter(out, list(parts[rank].clone().unbind()), dist.ReduceOp.AVG)
                same(out, expected(parts, dist.ReduceOp.AVG)[rank])
                whole = torch.empty((n, *shape), dtype=dtype)
                dist.all_gather_into_tensor(whole, parts[rank][0].clone())
                same(whole, torch.stack([part[0] for part in parts]))
                rows = [torch.empty(shape, dtype=dtype) for _ in range(n)]
                dist.all_gather(rows, parts[rank][1].clone())
                for row, part in zip(rows, parts, strict=True):
                    same(row, part[1])
        used = group._get_sequence_number_for_group() - before
        # Not contiguous, and what goes the usual way.
        x = torch.full((64, 50), float(rank)).T
        dist.all_reduce(x)
        same(x, torch.full((50, 64), 6.0))
        y = torch.full((3,), rank + 1j)
        dist.all_reduce(y)
        same(y, torch.full((3,), 6 + 4j))
        bits = torch.tensor([1 << rank])
        dist.all_reduce(bits, dist.ReduceOp.BOR)
        same(bits, torch.tensor([15]))
        everything: list[Any] = [None] * n
        dist.all_gather_object(everything, rank)
        assert everything == list(range(n))
        dist.barrier()
        return used, calls


@pytest.mark.parametrize("hosts", HOSTS.values(), ids=HOSTS)
def test_all_operations(ranks: Ranks, hosts: list[int]) -> None:
    for used, calls in ranks.run(as_backend, hosts):
        assert used == 0 and calls > 100  # nothing that the hierarchy takes went through the group's own communicator


def order_and_bits(path: str, hosts: list[int]) -> list[bytes]:
    with joined(path, pg_options={"inside": "gloo", "hosts": hosts, "device_segment": "4K"}) as (rank, _):
        generator = torch.Generator().manual_seed(rank)
        xs = [torch.randn(k, generator=generator) for k in (5000, 1, 20001, 0, 300)]
        works = [dist.all_reduce(x, async_op=True) for x in xs]
        small = torch.full((2,), 1j * rank)  # not taken by the hierarchy
        works.append(dist.all_reduce(small, async_op=True))
        future = works[2].get_future().then(lambda done: done.value()[0].double().sum())
        for work in reversed(works):
            work.wait()
        assert future.wait() == xs[2].double().sum()
        same(small, torch.full((2,), 6j))
        with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
            for x in xs:
                dist.broadcast(x, 1, async_op=True)
        manager.wait()
        return [x.numpy().tobytes() for x in xs]


@pytest.mark.parametrize("hosts", [HOSTS["2x2"], HOSTS["3+1"]], ids=["2x2", "3+1"])
def test_results_are_equal_on_all_ranks(ranks: Ranks, hosts: list[int]) -> None:
    results = ranks.run(order_and_bits, hosts)
    assert all(result == results[0] for result in results)


def by_hand(path: str) -> tuple[list[float], list[str]]:
    """The function, with a given group inside, and as a hook of DDP against DDP without it."""
    with joined(path) as (rank, n):
        groups = [dist.new_group([0, 1], backend="gloo"), dist.new_group([2, 3], backend="gloo")]
        mine = groups[rank // 2]
        levels = rl.torch.hierarchical(inside=mine, hosts=[0, 0, 1, 1])
        x = torch.full((5,), float(rank))
        levels.all_reduce(x)
        same(x, torch.full((5,), 6.0))
        work = levels.broadcast(x.mul_(rank), 3, async_op=True)
        work.wait()
        same(x, torch.full((5,), 18.0))
        out = torch.empty(n * 2)
        levels.all_gather(out, torch.full((2,), float(rank)))
        same(out, torch.arange(float(n)).repeat_interleave(2))
        piece = torch.empty(2)
        levels.reduce_scatter(piece, out, dist.ReduceOp.AVG)
        same(piece, torch.full((2,), float(rank)))
        levels.barrier()
        texts = []
        for call in (
            lambda: rl.torch.hierarchical(inside=mine, hosts=[0, 0, 0, 1]),
            lambda: rl.torch.hierarchical(hosts=[0, 1]),
            lambda: rl.torch.hierarchical(mine),
            lambda: rl.torch.hierarchical(segment=0),
            lambda: levels.all_reduce(torch.ones(2, dtype=torch.bool)),
            lambda: levels.broadcast(x, 4),
            lambda: levels.all_gather(torch.ones(3), torch.ones(1)),
        ):
            try:
                call()
            except rl.errors.RingleaderError as error:
                texts.append(str(error))
        losses = []
        for hook in (True, False):
            torch.manual_seed(0)
            net = torch.nn.Sequential(torch.nn.Linear(6, 40), torch.nn.Tanh(), torch.nn.Linear(40, 1))
            model = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.0005)
            if hook:
                model.register_comm_hook(levels, rl.torch.hierarchical_hook)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(3):
                inputs = data(rank, (8, 6), torch.float32, step)
                loss = model(inputs).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            losses.append(loss.item())
            del model
        levels.close()
        for group in groups:
            if group is not dist.GroupMember.NON_GROUP_MEMBER:
                dist.destroy_process_group(group)
        return losses, texts


def test_by_hand_and_as_a_hook(ranks: Ranks) -> None:
    for losses, texts in ranks.run(by_hand):
        assert losses[0] == pytest.approx(losses[1], rel=1e-6)
        assert "expected a group of the 3 ranks" in texts[0] or "expected a group of the 1 ranks" in texts[0]
        assert "expected 4 numbers" in texts[1] and "'gloo'" in texts[2] and "segment is 0" in texts[3]
        assert "torch.bool" in texts[4] and "root 4" in texts[5] and "4 times as many" in texts[6]


def training(path: str, options: dict[str, Any]) -> list[float]:
    with joined(path, pg_options=options) as (rank, _):
        torch.manual_seed(1)
        net = torch.nn.Sequential(torch.nn.Linear(6, 50), torch.nn.Tanh(), torch.nn.Linear(50, 1))
        model = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.0005, gradient_as_bucket_view=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for step in range(4):
            loss = model(data(rank, (8, 6), torch.float32, step)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        del model
        return losses


def test_ddp_trains_as_without(ranks: Ranks) -> None:
    plain = ranks.run(training, {})
    for hosts in (HOSTS["2x2"], HOSTS["3+1"]):
        for a, b in zip(ranks.run(training, {"inside": "gloo", "hosts": hosts}), plain, strict=True):
            assert a == pytest.approx(b, rel=1e-5)


def between_by_wire(path: str, wire: str) -> tuple[list[bytes], float, int]:
    """Each rank a node of its own for the engine, two hosts by name: parts travel in the wire format."""
    options = {"inside": "gloo", "hosts": [0, 0, 1, 1], "shm_disable": 1, "wire": wire}
    with joined(path, pg_options=options) as (rank, n):
        group: Any = dist.distributed_c10d._get_default_group()
        parts = [torch.randn(40000, generator=torch.Generator().manual_seed(r)) for r in range(n)]
        x = parts[rank].clone()
        rail = group._detour.hierarchy._rail
        sent = rail.counters()
        dist.all_reduce(x)
        now = rail.counters()
        error = (x - torch.stack(parts).sum(0)).abs().max().item()
        return [x.numpy().tobytes()], error, now["bytes_sent_net"] - sent["bytes_sent_net"]


def test_wire_formats_between_hosts(ranks: Ranks) -> None:
    exact, half = ranks.run(between_by_wire, "f32"), ranks.run(between_by_wire, "bf16")
    for results in (exact, half):
        assert all(bits == results[0][0] for bits, _, _ in results)
    assert exact[0][1] < 1e-5 < half[0][1] < 0.2
    assert half[0][2] < 0.6 * exact[0][2]


def test_inside_is_for_all_or_none(ranks: Ranks) -> None:
    texts = ranks.run(disagreeing)
    assert all("off on ranks [2]" in text for text in texts)


def disagreeing(path: str) -> str:
    from torch_support import place

    inside = "off" if place()[0] == 2 else "gloo"
    try:
        with joined(path, pg_options={"inside": inside}):
            return "no error"
    except (rl.errors.InvalidArgument, RuntimeError) as error:
        return str(error)


def lost(path: str) -> str:
    import os

    with joined(path, seconds=10.0, pg_options={"inside": "gloo", "hosts": [0, 0, 1, 1]}) as (rank, _):
        dist.all_reduce(torch.ones(5))
        if rank == 3:
            os._exit(7)
        try:
            for _ in range(5):
                dist.all_reduce(torch.ones(5000))
        except RuntimeError as error:
            return f"{type(error).__name__}: {error}"
        return "no error"


def test_a_lost_rank_ends_all(ranks: Ranks) -> None:
    with pytest.raises(rl.errors.SpawnError) as caught:
        ranks.run(lost)
    assert "rank 3" in str(caught.value)
    ranks.close()


@pytest.mark.parametrize("hosts", [[0], [0, 0, 1], [2, 1, 2, 2, 1], [0, 1, 2, 0]])
def test_layout_has_a_place_for_every_rank(hosts: list[int]) -> None:
    for rank in range(len(hosts)):
        layout = Layout(hosts, rank)
        assert layout.mine[layout.local] == rank and layout.place(rank) == (layout.host, layout.local)
        places = [r for by_host in layout.table() for turns in by_host for r in turns if r is not None]
        assert sorted(places) == list(range(len(hosts)))
        assert all(len(layout.rail(j)) == len(set(hosts)) for j in range(layout.rails))
