"""DataParallel against training in one process and against torch's own DDP."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from data_parallel_support import Branches, batch, compare_with_one_process, loss_of, worst
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
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
