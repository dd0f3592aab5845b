"""What torch.distributed has beyond the operations themselves: kinds of groups, debug modes, the ends of groups."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch_support import ENV, TORCH, Ranks, joined

from ringleader import errors


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    group = Ranks(4)
    yield group
    group.close()


def summed(value: float, group: Any) -> float:
    x = torch.full((3,), value)
    dist.all_reduce(x, group=group)
    return float(x[0])


def groups(path: str) -> dict[str, float]:
    """Sums of the ranks' numbers over the groups that each way of making them gives."""
    with joined(path) as (rank, n):
        found = {}
        mine, _ = dist.new_subgroups(2)
        found["new_subgroups"] = summed(rank, mine)
        mine, _ = dist.new_subgroups_by_enumeration([[0, 3], [1, 2]])
        found["by_enumeration"] = summed(rank, mine)
        mesh = dist.init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("a", "b", "c"))
        found["mesh"] = summed(rank, mesh["c"].get_group())
        found["submesh"] = summed(rank, mesh["a", "c"].get_group("a"))
        found["flattened"] = summed(rank, mesh["a", "c"]._flatten("ac").get_group())
        world = dist.distributed_c10d._get_default_group()
        found["from_group"] = summed(rank, dist.DeviceMesh.from_group(world, "cpu").get_group())
        store = world.get_group_store()
        store.set(f"of {rank}", str(rank))
        found["store"] = float(sum(int(store.get(f"of {r}")) for r in range(n)))
        assert dist.get_process_group_ranks(world) == list(range(n))
        assert dist.get_backend_config() == "cpu:ringleader,cuda:ringleader"
        return found


def inference(path: str) -> bool:
    """Results that are copied into tensors of inference mode, by other threads, and after the mode has ended."""
    with joined(path) as (rank, n):
        expected = [torch.full((2, 3), float(r)) for r in range(n)]
        with torch.inference_mode():
            lists = [[torch.zeros(3, 2).t() for _ in range(n)] for _ in range(2)]
            works = [dist.all_gather(out, torch.full((2, 3), float(rank)), async_op=True) for out in lists]
            turned = torch.full((2, 3), float(rank)).t()
            works.append(dist.all_reduce(turned, async_op=True))
        works[1].get_future().wait()  # another thread makes the copies
        for work in works:
            work.wait()
        sums = torch.full((3, 2), n * (n - 1) / 2)
        return all(torch.equal(x, y) for out in lists for x, y in zip(out, expected, strict=True)) and bool(
            torch.equal(turned, sums)
        )


@pytest.mark.slow
def test_operations_that_were_called_in_inference_mode(ranks: Ranks) -> None:
    assert all(ranks.run(inference))


def afterwards(path: str) -> list[float]:
    with joined(path):
        future = dist.all_reduce(torch.ones(3), async_op=True).get_future()
        future.then(lambda done: done.value()).wait()
    value: list[float] = future.then(lambda done: done.value()[0].tolist()).wait()
    return value


def test_callbacks_after_the_end_of_the_group(ranks: Ranks) -> None:
    assert ranks.run(afterwards) == [[4.0] * 3] * 4


def test_ways_to_make_groups(ranks: Ranks) -> None:
    for rank, found in enumerate(ranks.run(groups)):
        assert found == {
            "new_subgroups": 1.0 if rank < 2 else 5.0,
            "by_enumeration": 3.0,
            "mesh": 1.0 if rank < 2 else 5.0,
            "submesh": 2.0 if rank % 2 == 0 else 4.0,
            "flattened": 6.0,
            "from_group": 6.0,
            "store": 6.0,
        }


def forms(path: str) -> None:
    with joined(path) as (rank, n):
        world = dist.distributed_c10d._get_default_group()
        row, out = torch.arange(float(n)) + rank, torch.empty(1)
        dist.reduce_scatter(out, list(row.split(1)), dist.ReduceOp.AVG)
        assert out.item() == rank + 1.5
        dist.reduce_scatter_tensor(out, row, dist._make_nccl_premul_sum(0.5))
        assert out.item() == (rank * n + 6) / 2
        dist.all_reduce(row, dist._make_nccl_premul_sum(torch.tensor(0.25)))
        assert row[0].item() == 1.5
        for dtype, one in ((torch.complex64, 1j), (torch.bool, True)):
            block = torch.empty(1, dtype=dtype)
            dist.reduce_scatter_tensor(block, torch.full((n,), one, dtype=dtype))
            assert block.item() == (4j if dtype is torch.complex64 else True)
            everything = torch.empty(n, dtype=dtype)
            dist.all_gather_into_tensor(everything, torch.full((1,), one, dtype=dtype))
            swapped = torch.empty_like(everything)
            dist.all_to_all_single(swapped, everything)
            assert torch.equal(swapped, everything) and everything[rank].item() == one
        got = torch.empty(2)
        with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:  # of messages
            dist.isend(torch.full((2,), float(rank)), (rank + 1) % n)
            dist.irecv(got, (rank - 1) % n)
        manager.wait()
        assert got[0].item() == (rank - 1) % n
        if rank == 0:
            dist.send_object_list([{"a": 1}, None], 1)
        elif rank == 1:
            objects: list[Any] = [None, 5]
            dist.recv_object_list(objects, 0)
            assert objects == [{"a": 1}, None]
        import torch.distributed._functional_collectives as functional

        a, b = functional.reduce_scatter_tensor_coalesced([torch.ones(n), torch.ones(2 * n)], "sum", [0, 0], world)
        assert a.tolist() == [4.0] and b.tolist() == [4.0, 4.0]
        a, b = functional.all_gather_into_tensor_coalesced([torch.ones(1), torch.zeros(2)], world)
        assert a.shape == (n,) and b.tolist() == [0.0] * 2 * n
        leaf = torch.ones(n, requires_grad=True)
        functional.all_to_all_single_autograd(leaf * rank, [1] * n, [1] * n, world).sum().backward()
        assert leaf.grad is not None and leaf.grad.tolist() == [float(rank)] * n
        leaf = torch.ones(n, requires_grad=True)
        functional.all_gather_tensor_autograd(leaf, 0, world).sum().backward()
        assert leaf.grad is not None and leaf.grad.tolist() == [float(n)] * n


@pytest.mark.filterwarnings("ignore")
def test_further_forms(ranks: Ranks) -> None:
    ranks.run(forms)


def limits_and_ends(path: str) -> list[str]:
    with joined(path) as (rank, n):
        world = dist.distributed_c10d._get_default_group()
        world.set_timeout(timedelta(seconds=17))
        assert world.communicator.timeout == 17.0
        world.eager_connect_single_device(torch.device("cpu"))
        work = dist.all_reduce(torch.ones(1000), async_op=True)
        world._wait_for_pending_works()
        assert work.is_completed()
        world._enable_collectives_timing()
        world.monitored_barrier(timedelta(seconds=15))
        group = dist.new_group(list(range(n)))
        texts = []
        if rank == 2:
            dist.distributed_c10d._abort_process_group(group)
        else:
            try:
                dist.barrier(group)
            except errors.AbortedError as error:
                texts.append(str(error))
            dist.destroy_process_group(group)
        assert summed(1.0, None) == n  # the others go on
        return texts


@pytest.mark.skipif(TORCH < (2, 7), reason="torch 2.6 aborts groups of NCCL only")
def test_limits_and_ends(ranks: Ranks) -> None:
    for rank, texts in enumerate(ranks.run(limits_and_ends)):
        assert rank == 2 or "rank 2 called abort()" in texts[0]


DETAIL = """
import sys
import torch, torch.distributed as dist
from torch_support import joined

rank, path = int(sys.argv[1]), sys.argv[2]
with joined(path, ranks=(rank, 2)):
    assert dist.get_debug_level() == dist.DebugLevel.DETAIL
    x = torch.full((3,), float(rank + 1))
    dist.all_reduce(x)
    assert x.tolist() == [3.0] * 3
    dist.all_gather([torch.empty(3) for _ in range(2)], x)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
    net(x).sum().backward()
    assert net.module.bias.grad.tolist() == [1.0, 1.0]
    net._get_ddp_logging_data()
    try:
        dist.all_reduce(torch.ones(3 + rank))
    except RuntimeError as error:
        print("said:", error)
    del net
"""


@pytest.mark.slow
def test_debug_level_detail(tmp_path: Path) -> None:
    """torch wraps C++ backends then; this one compares the calls of all ranks at any level."""
    env = {**os.environ, **ENV, "TORCH_DISTRIBUTED_DEBUG": "DETAIL", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    command = [sys.executable, "-c", DETAIL]
    started = [
        subprocess.Popen([*command, str(r), str(tmp_path / "store")], env=env, stdout=-1, stderr=-1, text=True)
        for r in range(2)
    ]
    for process in started:
        out, problem = process.communicate(timeout=200)
        assert process.returncode == 0, problem
        assert "said:" in out and "(3,)" in out and "(4,)" in out
