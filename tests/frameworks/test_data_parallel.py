"""DataParallel against training in one process and against torch's own DDP."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from data_parallel_support import (
    Branches,
    batch,
    compare_with_one_process,
    loss_of,
    one_process,
    train,
    worst,
)
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch_support import Ranks, joined

from ringleader.torch import DataParallel


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    group = Ranks(3)
    yield group
    group.close()


# ------------------------------------------------------------------------------------------ as in one process


@pytest.mark.parametrize("backend", ["ringleader", "gloo"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"overlap": "fixed"},
        {"overlap": "fixed", "bucket_cap_mb": 0.002},
        {"overlap": "off", "bucket_cap_mb": 0.002},
        {"overlap": "fixed", "gradient_as_bucket_view": False, "bucket_cap_mb": 0.002},
        {"overlap": "fixed", "static_graph": True, "bucket_cap_mb": 0.002},
    ],
    ids=["plan", "one-bucket", "small-buckets", "off", "copies", "static"],
)
@pytest.mark.parametrize("to_none", [True, False], ids=["none", "zero"])
def test_training_equals_one_process(ranks: Ranks, backend: str, options: dict[str, Any], to_none: bool) -> None:
    for difference in ranks.run(compare_with_one_process, backend, options, to_none):
        assert difference < 1e-6


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing(ranks: Ranks, reentrant: bool) -> None:
    options = {"overlap": "fixed", "bucket_cap_mb": 0.002}
    for difference in ranks.run(compare_with_one_process, "ringleader", options, True, 1, reentrant):
        assert difference < 1e-6


@pytest.mark.parametrize("options", [{}, {"overlap": "fixed", "bucket_cap_mb": 0.002}], ids=["plan", "fixed"])
def test_accumulation(ranks: Ranks, options: dict[str, Any]) -> None:
    for to_none in (True, False):
        for difference in ranks.run(compare_with_one_process, "ringleader", options, to_none, 3):
            assert difference < 1e-6


# ---------------------------------------------------------------------------------------------- as torch's DDP


def as_ddp(path: str, ours: dict[str, Any], pattern: str) -> list[float]:
    """Differences of parameters and of gradients after each step; the ranks use the branch in different steps."""

    def run(wrap: Any, options: dict[str, Any]) -> list[Tensor]:
        torch.manual_seed(3)
        model = wrap(Branches(idle=True), bucket_cap_mb=0.003, **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        seen = []
        for step in range(6):
            optimizer.zero_grad()
            for micro in range(2):
                with contextlib.nullcontext() if micro else model.no_sync():
                    use = pattern == "always" or (step + rank * (pattern == "differs")) % 3 == 1
                    loss_of(model, batch(2 * step + micro, rank), use).backward()
            missing = [name for name, p in model.named_parameters() if p.grad is None]
            seen.append(torch.tensor(float(len(missing))))
            seen += [torch.zeros(1) if p.grad is None else p.grad.clone() for p in model.parameters()]
            optimizer.step()
        assert model.module.idle.grad is None
        return seen + [p.detach().clone() for p in model.parameters()]

    with joined(path) as (rank, _):
        theirs = run(DistributedDataParallel, {"find_unused_parameters": True})
        return [worst(run(DataParallel, {**ours, **more}), theirs) for more in ({}, {"gradient_as_bucket_view": False})]


@pytest.mark.parametrize("ours", [{}, {"overlap": "fixed"}, {"overlap": "off"}], ids=["plan", "fixed", "off"])
@pytest.mark.parametrize("pattern", ["alike", "differs"])
def test_unused_parameters_as_in_ddp(ranks: Ranks, ours: dict[str, Any], pattern: str) -> None:
    for differences in ranks.run(as_ddp, {"find_unused_parameters": True, **ours}, pattern):
        assert max(differences) < 1e-6


def test_static_graph_with_unused_parameters_as_in_ddp(ranks: Ranks) -> None:
    for differences in ranks.run(as_ddp, {"static_graph": True, "overlap": "fixed"}, "always"):
        assert max(differences) < 1e-6


class Shared(nn.Module):
    """A layer that is used twice, each time within a reentrant checkpoint: its hooks fire twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.shared, self.last = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> dict[str, Any]:
        y = self.first(x)
        for _ in range(2):
            y = checkpoint(self.shared, y, use_reentrant=True).tanh()
        return {"out": [self.last(y)]}


def shared_layer(path: str, static: bool) -> float | str:
    options = {"static_graph": static, "overlap": "fixed", "bucket_cap_mb": 0.0001}
    with joined(path) as (rank, size):
        try:
            return worst(train(Shared, rank, 5, options), one_process(Shared, size, 5))
        except RuntimeError as error:
            return str(error)


def test_a_layer_used_twice_under_reentrant_checkpointing(ranks: Ranks) -> None:
    assert max(ranks.run(shared_layer, True)) < 1e-6
    for told in ranks.run(shared_layer, False):
        assert "shared" in told and "static_graph=True" in told


class Crossed(nn.Module):
    """Two branches that each rank computes in another order, so that autograd works in another order too."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.rank = rank

    def forward(self, x: Tensor) -> dict[str, Any]:
        order = [(i + self.rank) % 4 for i in range(4)]
        results = {i: self.branches[i](x).tanh() for i in order}
        return {"out": [sum(results[i] for i in range(4))]}


def other_order(path: str, overlap: str) -> float:
    options = {"overlap": overlap, "bucket_cap_mb": 0.0001}
    with joined(path) as (rank, size):
        return worst(train(lambda: Crossed(rank), rank, 12, options), one_process(lambda: Crossed(0), size, 12))


@pytest.mark.parametrize("overlap", ["fixed", "plan", "priority"])
def test_ranks_whose_autograd_works_in_another_order(ranks: Ranks, overlap: str) -> None:
    assert max(ranks.run(other_order, overlap)) < 1e-6


def two_models(path: str) -> tuple[float, float]:
    """Two models in one backward pass; one of them checkpointed as a whole."""
    with joined(path) as (rank, _):
        torch.manual_seed(6)
        nets = [nn.Linear(8, 8), nn.Linear(8, 8)]
        twins = [copy.deepcopy(net) for net in nets]
        models = [DataParallel(net, overlap="fixed") for net in nets]
        for step in range(4):
            x = batch(step, rank)
            for pair, whole in ((models, True), (twins, False)):
                for each in pair:
                    each.zero_grad()
                y = checkpoint(pair[0], x, use_reentrant=False) if whole else pair[0](x)
                pair[1](y.tanh()).pow(2).sum().backward()
        grads = [[p.grad for net in group for p in net.parameters()] for group in (nets, twins)]
        for grad in grads[1]:
            dist.all_reduce(grad)
            grad /= dist.get_world_size()
        return worst(grads[0], grads[1]), float(grads[0][0].abs().max())


def test_two_models_and_a_checkpointed_one(ranks: Ranks) -> None:
    for difference, size in ranks.run(two_models):
        assert difference < 1e-5 < size
