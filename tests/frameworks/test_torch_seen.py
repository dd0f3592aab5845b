"""What a program sees of its calls under torch and in adaptive calls: its own; and tensors that have no memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist

import ringleader as rl

pytestmark = pytest.mark.slow


def torch_calls() -> list[tuple[str, int]]:
    """What `last_choice` says after each call, and how many operations were counted for it."""
    rl.torch.init_process_group("ringleader")
    comm = dist.group.WORLD.communicator
    n = dist.get_world_size()
    x, all_of_it = torch.ones(4), torch.empty(4 * n)
    seen: list[tuple[str, int]] = [
        ("" if comm.last_choice is None else str(comm.last_choice), comm.counters()["operations"])
    ]
    calls = [
        lambda: dist.all_reduce(x),
        lambda: dist.broadcast(x, 0),
        lambda: dist.reduce(x, 0),
        lambda: dist.all_gather_into_tensor(all_of_it, x),
        lambda: dist.reduce_scatter_tensor(x, all_of_it),
        lambda: dist.all_to_all_single(all_of_it, all_of_it.clone()),
        lambda: dist.gather(x, [torch.empty(4) for _ in range(n)] if comm.rank == 0 else None),
        lambda: dist.scatter(x, [torch.ones(4) for _ in range(n)] if comm.rank == 0 else None),
        lambda: dist.all_reduce(x.expand(2, 4).T.contiguous().T, async_op=True).wait(),
        lambda: dist.barrier(),
    ]
    for _ in range(2):  # the second time by the short way
        for call in calls:
            before = comm.counters()["operations"]
            call()
            assert comm.last_choice is not None
            seen.append((comm.last_choice.collective, comm.counters()["operations"] - before))
    dist.destroy_process_group()
    return seen


def test_last_choice_and_counters_are_of_torchs_calls() -> None:
    names = [
        "all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter",
        "all_reduce", "barrier",
    ]  # fmt: skip
    for seen in rl.spawn(torch_calls, 2, timeout=120):
        assert (
            seen[0][1] <= 1
        )  # torch ends init_process_group() with a barrier; what the group tells itself is not shown
        assert seen[1:] == [(name, 1) for name in names * 2]


def adaptive_calls() -> tuple[list[str], int, int]:
    with rl.init(transport="tcp") as comm:
        reduce = rl.adapt.AdaptiveAllReduce(comm, policies=["bf16"])
        assert comm.last_choice is None and comm.counters()["operations"] == 0
        seen = []
        for _ in range(30):
            reduce(np.ones(50_000, np.float32))
            assert comm.last_choice is not None
            seen.append(comm.last_choice.collective)
        counted = comm.counters()["operations"]
        half = comm.split(comm.rank)
        comm.barrier()
        after = comm.counters()["operations"]
        assert half is not None
        return seen, counted, after - counted


def test_exchanges_of_measurements_are_not_shown() -> None:
    for seen, counted, more in rl.spawn(adaptive_calls, 2, timeout=120):
        assert seen == ["all_reduce"] * 30
        assert counted == 30
        assert more == 1


def without_memory() -> list[str]:
    from torch.distributed.tensor import distribute_tensor

    rl.torch.init_process_group("ringleader")
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    comm = dist.group.WORLD.communicator
    sharded = distribute_tensor(torch.ones(4, 4), mesh)
    freed = torch.ones(8)
    freed.untyped_storage().resize_(0)
    texts = []
    for _ in range(2):
        for tensor in (sharded, freed):
            same = torch.ones(tensor.shape)
            calls = [
                lambda tensor=tensor: comm.all_reduce(tensor),
                lambda tensor=tensor: comm.broadcast(tensor),
                lambda tensor=tensor: comm.isend(tensor, comm.rank),
                lambda tensor=tensor, same=same: comm.all_reduce(same, out=tensor),
                lambda tensor=tensor: dist.group.WORLD.allreduce([tensor]),
                lambda tensor=tensor: dist.group.WORLD.broadcast([tensor], dist.BroadcastOptions()),
            ]
            for call in calls:
                with pytest.raises(rl.errors.UnsupportedType) as caught:
                    call()
                texts.append(str(caught.value))
            comm.all_reduce(same)
            dist.all_reduce(same)  # the short way knows the shape from now on
            dist.broadcast(same, 0)
    dist.barrier()
    dist.destroy_process_group()
    return texts


def test_tensors_without_memory_are_refused_by_a_true_sentence() -> None:
    for texts in rl.spawn(without_memory, 2, timeout=120):
        assert len(texts) == 24
        assert all("without memory of its own" in text and "to_local()" in text for text in texts), texts
        assert {text.split(" is a ")[1].split(" ")[0] for text in texts} == {"DTensor", "Tensor"}
