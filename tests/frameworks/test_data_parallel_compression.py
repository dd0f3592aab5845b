"""DataParallel with compressed gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch_support import Ranks, joined

from ringleader import errors
from ringleader.compress import FP16, ErrorFeedback, Int8, Policy, TopK
from ringleader.torch import DataParallel

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    group = Ranks(2)
    yield group
    group.close()


def net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))


def batch(step: int, rank: int) -> Tensor:
    return torch.randn(8, 64, generator=torch.Generator().manual_seed(100 * step + rank))


COMPRESSIONS: dict[str, Any] = {
    "none": lambda: None,
    "fp16": FP16,
    "int8": lambda: ErrorFeedback(Int8()),
    "policy": lambda: Policy(ErrorFeedback(TopK(0.1)), rules=[("0.*", None), ("2.bias", FP16())]),
}


def steps(model: Any, rank: int, first: int, last: int) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    losses = []
    for step in range(first, last):
        optimizer.zero_grad()
        x = batch(step, rank)
        loss = (model(x) - x.mean(1, keepdim=True) * 3).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def learns(path: str, name: str, overlap: str) -> tuple[float, float, bool]:
    with joined(path) as (rank, _):
        compression = COMPRESSIONS[name]()
        model = DataParallel(net(), compression=compression, overlap=overlap, bucket_cap_mb=0.01)  # type: ignore[arg-type]
        losses = steps(model, rank, 0, 60)
        first = [p.detach().clone() for p in model.parameters()]
        for p in first:
            dist.broadcast(p, 0)
        same = all(torch.equal(a, b) for a, b in zip(first, model.parameters(), strict=True))
        return sum(losses[:10]), sum(losses[-10:]), same


@pytest.mark.parametrize("overlap", ["fixed", "plan"])
@pytest.mark.parametrize("name", ["fp16", "int8", "policy"])
def test_compressed_training_learns_alike_on_all_ranks(ranks: Ranks, name: str, overlap: str) -> None:
    expected = ranks.run(learns, "none", "fixed")
    for (_, plain, _), (before, after, same) in zip(expected, ranks.run(learns, name, overlap), strict=True):
        assert same
        assert after < before / 2 and after < 2 * plain


def resumed(path: str) -> tuple[bool, bool]:
    """Whether training goes on with the same bits from saved states, and whether it would without the memory."""
    with joined(path) as (rank, _):

        def make() -> Any:
            return DataParallel(net(), compression=COMPRESSIONS["int8"](), overlap="fixed", bucket_cap_mb=0.01)

        model = make()
        steps(model, rank, 0, 10)
        state = {key: value.clone() for key, value in model.state_dict().items()}
        communication = model.communication_state_dict()
        steps(model, rank, 10, 20)
        results = []
        for load in (True, False):
            other = make()
            other.load_state_dict(state)
            if load:
                other.load_communication_state_dict(communication)
            steps(other, rank, 10, 20)
            pairs = zip(other.parameters(), model.parameters(), strict=True)
            results.append(all(torch.equal(a, b) for a, b in pairs))
        return results[0], results[1]


def test_training_is_resumed_with_the_same_bits(ranks: Ranks) -> None:
    for with_memory, without in ranks.run(resumed):
        assert with_memory and not without


def refusals(path: str) -> None:
    with joined(path, "gloo"), pytest.raises(errors.InvalidArgument, match="'ringleader'"):
        DataParallel(net(), compression=FP16())
    with joined(path + "2"):
        with pytest.raises(errors.InvalidArgument, match="expected a compressor"):
            DataParallel(net(), compression="fp16")  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidArgument, match="nor compression"):
            DataParallel(net(), compression=FP16(), overlap="priority")
        with pytest.raises(errors.InvalidArgument, match="no state"):
            DataParallel(net()).load_communication_state_dict({})


def test_what_cannot_be_is_refused(ranks: Ranks) -> None:
    ranks.run(refusals)
