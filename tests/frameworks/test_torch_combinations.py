"""Sixteen ways to train on two ranks: DDP, DataParallel, FSDP2, ZeRO; float32, bfloat16; with and without accumulation.

Each is compared with one process that trains in float32 on the batches of all ranks together.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch_support import TORCH, Ranks, joined

import ringleader.torch

pytestmark = pytest.mark.slow

RANKS, STEPS, MICRO, ROWS = 2, 5, 2, 4
RATE, MOMENTUM = 0.1, 0.5
STYLES = ("ddp", "data_parallel", "fsdp2", "zero")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    group = Ranks(RANKS)
    yield group
    group.close()


def make_model() -> nn.Module:
    """Three layers of uneven sizes, their parameters rounded to bfloat16: so all runs start from the same numbers."""
    torch.manual_seed(21)
    model = nn.Sequential(nn.Linear(16, 33), nn.Tanh(), nn.Linear(33, 17), nn.Tanh(), nn.Linear(17, 4))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.bfloat16())
    return model


def batch(step: int, micro: int, rank: int) -> tuple[Tensor, Tensor]:
    """Rows and targets, different on every rank by more than chance: an average that is left out must show."""
    generator = torch.Generator().manual_seed(100 * step + 10 * micro + rank)
    x = torch.randn(ROWS, 16, generator=generator).bfloat16().float()
    return x, x[:, :4] * (1 - 2 * rank) + rank


def loss_of(model: Any, x: Tensor, y: Tensor, dtype: torch.dtype) -> Tensor:
    """The mean square error, in float32."""
    return (model(x.to(dtype)).float() - y).pow(2).mean()


# --------------------------------------------------------------------------------------------------- one process


def single(accumulate: bool, only: int | None = None) -> tuple[list[float], list[Tensor], float]:
    """Loss of each step, parameters at the end, the largest gradient; `only`: with this rank's data alone."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    losses, largest = [], 0.0
    for step in range(STEPS):
        loss = torch.zeros(())
        micros = MICRO if accumulate else 1
        for micro in range(micros):
            parts = [batch(step, micro, rank) for rank in range(RANKS) if only in (None, rank)]
            x, y = (torch.cat(column) for column in zip(*parts, strict=True))
            loss = loss + loss_of(model, x, y, torch.float32) / micros
        loss.backward()
        largest = max(largest, *(float(p.grad.abs().max()) for p in model.parameters()))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, [p.detach().clone() for p in model.parameters()], largest


# --------------------------------------------------------------------------------------------------------- ranks


def wrapped(style: str, model: nn.Module, dtype: torch.dtype) -> Any:
    """The model as the style has it. Small buckets: there are several."""
    if style == "fsdp2":
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        mesh = dist.init_device_mesh("cpu", (RANKS,))
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype)
        for layer in [m for m in model if isinstance(m, nn.Linear)]:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        return fully_shard(model, mesh=mesh, mp_policy=policy)
    if style == "data_parallel":
        return ringleader.torch.DataParallel(model.to(dtype), bucket_cap_mb=0.002)
    return DistributedDataParallel(model.to(dtype), bucket_cap_mb=0.002, gradient_as_bucket_view=True)


def optimizer_of(style: str, model: Any) -> Any:
    if style == "zero":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=RATE, momentum=MOMENTUM)
    return torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)


@contextlib.contextmanager
def apart(style: str, model: Any, yes: bool) -> Iterator[None]:
    """A backward pass that only accumulates, if `yes`."""
    if style == "fsdp2":
        model.set_requires_gradient_sync(not yes)
        yield
    else:
        with model.no_sync() if yes else contextlib.nullcontext():
            yield


def train(path: str, style: str, kind: str, accumulate: bool) -> tuple[list[float], list[Tensor]]:
    """The mean loss of each step, and the parameters at the end."""
    dtype = DTYPES[kind]
    with joined(path) as (rank, _):
        model = wrapped(style, make_model(), dtype)
        optimizer = optimizer_of(style, model)
        losses = torch.zeros(STEPS, dtype=torch.float64)
        micros = MICRO if accumulate else 1
        for step in range(STEPS):
            for micro in range(micros):
                with apart(style, model, micro < micros - 1):
                    loss = loss_of(model, *batch(step, micro, rank), dtype) / micros
                    loss.backward()
                losses[step] += loss.item()
            optimizer.step()
            optimizer.zero_grad()
        dist.all_reduce(losses, dist.ReduceOp.AVG)
        whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
        return losses.tolist(), [p.detach().float().clone() for p in whole]


# --------------------------------------------------------------------------------------------------------- tests


def distance(a: list[Tensor], b: list[Tensor]) -> float:
    return max(float((x - y).abs().max()) for x, y in zip(a, b, strict=True))


def bfloat16_tolerance(weights: list[Tensor], largest_gradient: float) -> float:
    """How far from float32 bfloat16 may be after STEPS steps, from the roundings that are made.

    bfloat16 keeps 8 bits: rounding a number changes it by at most u = 2^-8 of itself. Every step rounds each parameter
    when it is stored: u |p|. A gradient has gone through some 12 roundings: two a layer on the way forward (product and
    bias; tanh), one a layer on the way back, then the accumulation, the sum over ranks, the momentum: 12 u |g|.
    It acts with the learning rate and, through the momentum, in later steps: 1 / (1 - MOMENTUM) times in all. Steps
    this small contract differences, so what the steps contribute at most adds up.
    """
    u = 2.0**-8
    largest = max(float(p.abs().max()) for p in weights)
    return STEPS * u * (largest + 12 * RATE / (1 - MOMENTUM) * largest_gradient)


@pytest.mark.parametrize("accumulate", [False, True], ids=["every-batch", "accumulated"])
@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("style", STYLES)
def test_training_equals_one_process(ranks: Ranks, style: str, kind: str, accumulate: bool) -> None:
    if style == "fsdp2" and TORCH < (2, 7):
        pytest.skip("fully_shard runs on the CPU from torch 2.7 on")
    losses, weights, gradient = single(accumulate)
    tolerance = 1e-6 if kind == "float32" else bfloat16_tolerance(weights, gradient)
    # The comparison means something: a rank that trained on its own data alone would be far outside.
    assert all(distance(single(accumulate, only=rank)[1], weights) > 3 * tolerance for rank in range(RANKS))
    results = ranks.run(train, style, kind, accumulate)
    for found, parameters in results:
        assert distance(parameters, weights) < tolerance
        if kind == "float32":
            assert max(abs(a - b) for a, b in zip(found, losses, strict=True)) < 1e-6
    assert all(torch.equal(a, b) for a, b in zip(results[0][1], results[1][1], strict=True))
