"""The backend as one of several in a process group (torch 2.14 and later); what older releases say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from operations_support import (
    check_all_gather_in_place,
    check_all_reduce,
    check_all_to_all,
    check_copies,
    check_not_contiguous,
    check_reduce_scatter,
)
from test_torch_operations import check_coalesced, check_functional, check_objects, check_sparse
from torch_support import Ranks, joined

from ringleader import errors

NEW = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 14)
new = pytest.mark.skipif(
    not NEW, reason=f"a backend in Python can be one of several from torch 2.14 on; {torch.__version__}"
)


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    group = Ranks(4, RINGLEADER_COMPOSABLE="1")
    yield group
    group.close()


@pytest.mark.skipif(NEW, reason="this torch has it")
def test_an_old_torch_says_so() -> None:
    with pytest.raises(errors.InvalidArgument, match="RINGLEADER_COMPOSABLE"):
        dist.init_process_group(
            "ringleader", store=dist.HashStore(), rank=0, world_size=1, pg_options={"composable": True}
        )


@new
@pytest.mark.parametrize(
    "check",
    [
        check_all_reduce, check_reduce_scatter, check_not_contiguous, check_copies,
        check_all_gather_in_place, check_all_to_all, check_coalesced, check_objects, check_functional,
        check_sparse,
    ],
    ids=lambda check: check.__name__.removeprefix("check_"),
)  # fmt: skip
def test_operations(ranks: Ranks, check: Any) -> None:
    ranks.run(check)


def messages(path: str) -> tuple[float, str]:
    with joined(path) as (rank, n):
        got = torch.empty(3)
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, torch.full((3,), float(rank)), (rank + 1) % n, tag=3),
                dist.P2POp(dist.irecv, got, (rank - 1) % n, tag=3),
            ]
        )
        for work in works:
            work.wait()
        text = ""
        if rank == 0:
            other = torch.empty(1)
            try:  # torch's C++ does not ask a work in Python whose message it was
                dist.recv(other)
            except RuntimeError as error:
                text = str(error)
            assert other.item() == 7.0
        elif rank == 1:
            dist.send(torch.tensor([7.0]), 0)
        dist.reduce(got, 2, dist.ReduceOp.MAX)
        dist.barrier()
        return float(got[0]), text


@new
def test_messages(ranks: Ranks) -> None:
    results = ranks.run(messages)
    assert [got for got, _ in results] == [3.0, 0.0, 3.0, 2.0]
    assert "sourceRank" in results[0][1]


def beside_gloo(path: str) -> list[float]:
    with joined(path, "cpu:ringleader,cuda:gloo") as (rank, n):
        world = dist.distributed_c10d._get_default_group()
        assert type(world) is dist.ProcessGroup
        ours = world._get_backend(torch.device("cpu"))
        assert ours.name() == "ringleader" and world._get_backend(torch.device("cuda")).name() == "gloo"
        assert ours.communicator.size == n
        net = torch.nn.Linear(3, 2)
        model = torch.nn.parallel.DistributedDataParallel(net)
        model._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
        model(torch.full((1, 3), float(rank))).sum().backward()
        result = net.weight.grad[0].tolist()  # type: ignore[union-attr]
        del model
        try:
            dist.all_reduce(torch.ones(3 + (rank == 1)))
        except errors.MismatchError as error:
            assert "(4,)" in str(error)
        return list(result)


@new
def test_beside_another_backend(ranks: Ranks) -> None:
    assert ranks.run(beside_gloo) == [[1.5] * 3] * 4
