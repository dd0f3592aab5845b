"""FSDP2 with compressed gradients: near the exact result, nothing lost, restarts, what is refused."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from compress_support import WITH_MEMORY, gradient
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch_support import Ranks, joined

from ringleader import errors
from ringleader.compress import DGC, FP16, ErrorFeedback, Int8, OneBit, Policy, PowerSGD, TopK
from ringleader.runtime.compressed import reduce_scatter_vector
from ringleader.torch import fsdp

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not hasattr(FSDPModule, "set_custom_reduce_scatter"), reason="this torch's FSDP does not let it be replaced"
    ),
]
ON_SHARDS = [name for name in WITH_MEMORY if not name.startswith("powersgd")]


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    each = Ranks(3)
    yield each
    each.close()


# ---------------------------------------------------------------- the collective


def conserve(path: str) -> dict[str, list[tuple[Any, Any, Any]]]:
    """For every compressor and size: the sum of this rank's shards, what it remembers, the sum of its gradients."""
    found: dict[str, list[tuple[Any, Any, Any]]] = {}
    with joined(path) as (rank, size):
        comm = dist.group.WORLD._channel().comm
        for name in ON_SHARDS:
            for elements in (0, size, 7 * size, 65 * size, 700 * size):
                codec = WITH_MEMORY[name]()
                sent, total = np.zeros(elements // size), np.zeros(elements)
                for step in range(4):
                    x = gradient(elements, step, rank)
                    kept = x.copy()
                    sent += reduce_scatter_vector(comm, x, False, codec, "w")
                    assert kept.tobytes() == x.tobytes()
                    total += x
                rest = codec.error("w", elements) if elements else np.zeros(0)
                found.setdefault(name, []).append((sent, rest.astype(np.float64), total))
    return found


def test_sum_of_shards_and_residuals_is_the_sum_of_gradients(ranks: Ranks) -> None:
    results = ranks.run(conserve)
    for name in ON_SHARDS:
        for each in zip(*(result[name] for result in results), strict=True):
            sent = np.concatenate([shard for shard, _, _ in each])
            rest, total = (sum(part[index] for part in each) for index in (1, 2))
            bound = 1e-4 * max(1.0, np.abs(total).max(initial=0))  # roundings of float32
            assert np.abs(sent + rest - total).max(initial=0) <= bound, name


# ---------------------------------------------------------------- training


def model_of(compression: Any, seed: int = 0, **more: Any) -> tuple[Any, Any, Any]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(20, 67), nn.ReLU(), nn.Linear(67, 48), nn.ReLU(), nn.Linear(48, 4))
    for layer in (model[0], model[2]):
        fully_shard(layer, **more)
    fully_shard(model, **more)
    made = None if compression is None else fsdp.compress_gradients(model, compression, least_elements=100)
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5), made


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    x = torch.randn(16, 20, generator=generator)
    return x, x[:, :4] * 2 - x[:, 4:8]


def train(model: Any, optimiser: Any, rank: int, steps: range) -> list[float]:
    losses = []
    for step in steps:
        x, y = batch(rank, step)
        loss = ((model(x) - y) ** 2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def bits(model: Any) -> bytes:
    return b"".join(parameter.full_tensor().detach().numpy().tobytes() for parameter in model.parameters())


TRAINED: dict[str, Any] = {
    "fp16": FP16,
    "int8": Int8,
    "onebit": lambda: ErrorFeedback(OneBit()),
    "topk": lambda: ErrorFeedback(TopK(ratio=0.1)),
    "dgc": lambda: DGC(ratio=0.1, momentum=0.5),
}


def trains(path: str, name: str) -> tuple[bytes, list[float], bool]:
    with joined(path) as (rank, _):
        model, optimiser, _ = model_of(TRAINED[name]())
        losses = train(model, optimiser, rank, range(40))
        straight = bits(model)
        first, optimiser, made = model_of(TRAINED[name]())
        train(first, optimiser, rank, range(20))
        saved = io.BytesIO()
        torch.save([first.state_dict(), optimiser.state_dict(), made.state_dict()], saved)
        saved.seek(0)
        parameters, momentum, state = torch.load(saved, weights_only=False)
        second, optimiser, made = model_of(TRAINED[name](), seed=5)
        second.load_state_dict(parameters)
        optimiser.load_state_dict(momentum)
        made.load_state_dict(state)
        train(second, optimiser, rank, range(20, 40))
        return straight, losses, bits(second) == straight


@pytest.mark.parametrize("name", TRAINED)
def test_it_learns_and_a_restart_changes_no_bit(ranks: Ranks, name: str) -> None:
    results = ranks.run(trains, name)
    assert len({parameters for parameters, _, _ in results}) == 1
    for _, losses, same in results:
        assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
        assert same


def near(path: str) -> list[float]:
    """The largest difference to uncompressed gradients: in float32, accumulated, in bfloat16, with another divisor."""
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    cases: list[tuple[dict[str, Any], bool, float | None]] = [
        ({}, False, None), ({}, True, None), ({"mp_policy": half}, False, None), ({}, False, 6.0),
    ]  # fmt: skip
    found = []
    with joined(path) as (rank, _):
        for more, accumulate, divisor in cases:
            grads = []
            for compression in (None, Policy(Int8(), rules=[("2", None), ("0", FP16())], least_elements=1)):
                model, _, _ = model_of(compression, **more)
                if divisor is not None:
                    for module in (model[0], model[2], model):
                        module.set_gradient_divide_factor(divisor)
                for part in range(2 if accumulate else 1):
                    model.set_requires_gradient_sync(part == 1 or not accumulate)
                    x, y = batch(rank, part)
                    ((model(x).float() - y) ** 2).mean().backward()
                grads.append(torch.cat([parameter.grad.full_tensor().reshape(-1) for parameter in model.parameters()]))
            found.append(((grads[0] - grads[1]).abs().max() / grads[0].abs().max()).item())
    return found


def test_gradients_are_near_the_uncompressed_ones(ranks: Ranks) -> None:
    for found in ranks.run(near):
        assert all(0 < difference < 0.03 for difference in found), found


# ---------------------------------------------------------------- what is refused


def refused(path: str) -> list[str]:
    texts = []
    with joined(path):
        for call in (
            lambda: model_of(ErrorFeedback(PowerSGD())),
            lambda: model_of(Policy(Int8(), rules=[("0", PowerSGD())])),
            lambda: fsdp.compress_gradients(nn.Linear(2, 2), Int8()),
        ):
            try:
                call()
            except errors.InvalidArgument as error:
                texts.append(str(error))
    with joined(path, backend="gloo") as (rank, _):
        model, _, _ = model_of(Int8())
        try:
            model(batch(rank, 0)[0]).sum().backward()
        except errors.InvalidArgument as error:
            texts.append(str(error))
        del model
    return texts


def test_what_cannot_work_is_refused(ranks: Ranks) -> None:
    for texts in ranks.run(refused):
        assert len(texts) == 4, texts
        wanted = ("whole matrices", "whole matrices", "call fully_shard first", "'gloo'")
        assert all(part in text for part, text in zip(wanted, texts, strict=True)), texts
