"""DataParallel when a collective fails: who left is named, and everything can be given up and begun anew."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch.distributed as dist
from data_parallel_support import batch, small
from meeting_support import PROMPT
from torch_support import Ranks, joined

from ringleader import errors
from ringleader.torch import DataParallel

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    group = Ranks(3)
    yield group
    group.close()


def leaves(path: str, overlap: str) -> str:
    with joined(path, seconds=30.0) as (rank, _):
        model = DataParallel(small(), bucket_cap_mb=0.0001, overlap=overlap)  # type: ignore[arg-type]
        try:
            for step in range(6):
                if rank == 2 and step == 4:
                    return "gone"
                model(batch(step, rank)).sum().backward()
        except RuntimeError as error:
            assert isinstance(error, errors.RingleaderError)
            return str(error)
    return "nothing"


@pytest.mark.parametrize("overlap", ["fixed", "plan"])
def test_a_rank_that_leaves_is_named(ranks: Ranks, overlap: str) -> None:
    told = ranks.run(leaves, overlap)
    assert told[2] == "gone"
    assert "rank 2" in told[0] and "rank 2" in told[1]


def mean_gradients(model: Any, rank: int) -> list[float]:
    """Distances of the gradients of a pass from the means of those that each rank finds alone."""
    net = model.module
    for p in net.parameters():
        p.grad = None
    net(batch(9, rank)).sum().backward()
    expected = []
    for p in net.parameters():
        dist.all_reduce(p.grad, dist.ReduceOp.AVG)
        expected.append(p.grad)
        p.grad = None
    model(batch(9, rank)).sum().backward()
    return [float((p.grad - e).abs().max()) for p, e in zip(net.parameters(), expected, strict=True)]


def gives_up(path: str, overlap: str, group_first: bool) -> tuple[str, bool, float, int, float]:
    """Rank 2 ends in the middle; the others drop their wrapper and the group, and train on in a new one."""
    net = small()
    with joined(path, seconds=60.0) as (rank, _):
        model: Any = DataParallel(net, bucket_cap_mb=0.0001, overlap=overlap)  # type: ignore[arg-type]
        text = ""
        for step in range(6):
            if rank == 2 and step == 4:
                dist.distributed_c10d._get_default_group().abort()
                break
            try:
                model(batch(step, rank)).sum().backward()
            except errors.RingleaderError as error:
                text = str(error)
                break
        gone = weakref.ref(model.reducer)
        if not group_first:
            del model
            gc.collect()
        left = time.monotonic()
    took = time.monotonic() - left
    if group_first:
        del model
        gc.collect()
    hooks = sum(len(p._post_accumulate_grad_hooks or ()) for p in net.parameters())
    with joined(path + "-again") as (rank, _):
        again = DataParallel(net, bucket_cap_mb=0.0001, overlap="fixed")
        off = max(mean_gradients(again, rank))
    return text, gone() is None, took, hooks, off


@pytest.mark.parametrize("overlap", ["fixed", "plan"])
@pytest.mark.parametrize("group_first", [False, True], ids=["wrapper first", "group first"])
def test_after_a_failure_wrapper_and_group_go_without_a_hang(ranks: Ranks, overlap: str, group_first: bool) -> None:
    found = ranks.run(gives_up, overlap, group_first)
    assert "rank 2" in found[0][0] and "rank 2" in found[1][0] and found[2][0] == ""
    for _, gone, took, hooks, off in found:
        assert gone
        assert took < PROMPT  # operations have 60 s
        assert hooks == 0
        assert off < 1e-6
