"""DataParallel in unusual use: gradients still in flight, ends of joining, replaced buffers, nothing to send."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from data_parallel_support import worst
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch_support import Ranks, joined

from ringleader import errors
from ringleader.torch import DataParallel

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    group = Ranks(2)
    yield group
    group.close()


def inputs(seed: int, rank: int, width: int) -> Tensor:
    return torch.randn(2, width, generator=torch.Generator().manual_seed(100 * seed + rank))


def backward_after_backward(path: str) -> list[float]:
    """Gradients of one pass are in flight when the next one, reduced or not, adds to them."""
    width, differences = 700, []
    with joined(path) as (rank, size):
        torch.manual_seed(0)
        net = nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(4)])
        model = DataParallel(net, overlap="priority")
        optimizer = model.optimizer(torch.optim.SGD, lr=1e-3)
        for step in range(10):
            optimizer.zero_grad()
            model(inputs(step, rank, width)).mean().backward()
            optimizer.step()
        assert model.plan() is not None
        for again in (model.no_sync, None):
            model.synchronize()
            optimizer.zero_grad()
            first, second = (inputs(seed, rank, width) for seed in (50, 51))
            own = [torch.autograd.grad(net(x).mean(), list(net.parameters())) for x in (first, second)]
            expected = []
            for a, b in zip(*own, strict=True):
                reduced = a.clone() if again else a + b
                dist.all_reduce(reduced)
                expected.append(reduced / size + (b if again else 0))
            model(first).mean().backward()
            if again:
                with again():
                    model(second).mean().backward()
            else:
                model(second).mean().backward()
            model.synchronize()
            scale = max(x.abs().max().item() for x in expected)
            found = [p.grad for p in net.parameters() if p.grad is not None]
            differences.append(worst(found, expected) / scale)
    return differences


def loads(path: str) -> tuple[list[float], int]:
    """What is loaded into an optimizer stays, while a step is due; and copies of the model have no recorder."""
    with joined(path):
        net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
        model = DataParallel(net, overlap="priority")
        optimizer = model.optimizer(torch.optim.SGD, lr=0.1, momentum=0.9)
        model(torch.ones(1, 2)).sum().backward()
        twin = copy.deepcopy(net)
        twin(torch.ones(1, 2))
        recorded = sum(
            type(hook).__name__ == "_CalledHook" for m in twin.modules() for hook in m._forward_pre_hooks.values()
        )
        for _ in range(10):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        saved = copy.deepcopy(optimizer.state_dict())
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.load_state_dict(saved)
        model.synchronize()
        differences = [
            (now["momentum_buffer"] - then["momentum_buffer"]).abs().max().item()
            for now, then in zip(optimizer.state_dict()["state"].values(), saved["state"].values(), strict=True)
        ]
        return differences, recorded


def test_loading_while_a_step_is_due(ranks: Ranks) -> None:
    for differences, recorded in ranks.run(loads):
        assert max(differences) == 0.0 and recorded == 0


def test_a_pass_adds_to_gradients_that_have_arrived(ranks: Ranks) -> None:
    for differences in ranks.run(backward_after_backward):
        assert max(differences) < 1e-5


def join_static(path: str) -> list[float]:
    """One rank has no data in the first epoch, in which the others learn a static graph."""
    with joined(path, seconds=15.0) as (rank, _):
        torch.manual_seed(0)
        model = DataParallel(nn.Linear(4, 2), static_graph=True, overlap="fixed")
        found = []
        for epoch in range(2):
            with model.join():
                for step in range(3 if rank or epoch else 0):
                    model.zero_grad()
                    model(torch.full((1, 4), float(step + rank))).sum().backward()
            grad = model.module.weight.grad
            found.append(0.0 if grad is None else grad[0, 0].item())
        return found


def test_a_rank_without_data_while_a_static_graph_is_learned(ranks: Ranks) -> None:
    assert ranks.run(join_static) == [[0.0, 2.5], [1.5, 2.5]]


def after_join(path: str) -> tuple[list[float], bool, bool]:
    with joined(path) as (rank, _):
        model = DataParallel(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)))
        with model.join(divide_by_initial_world_size=False):
            early = not model.reducer.at_the_end  # nothing is recorded in here
            for _ in range(1 + rank):
                model(torch.ones(1, 4)).sum().backward()
        alone = rank == 0  # what one rank does by itself needs no other any more
        if alone:
            with model.no_sync():
                model(torch.ones(1, 4)).sum().backward()
        found = []
        for _ in range(10):
            model.zero_grad()
            model(torch.ones(1, 4)).sum().mul(1.0 + rank).backward()
            grad = model.module[1].bias.grad
            assert grad is not None
            found.append(grad.item())
        return found, early, model.plan() is not None


def test_the_join_context_ends(ranks: Ranks) -> None:
    for found, early, planned in ranks.run(after_join):
        assert found == [1.5] * 10
        assert early and planned


class Averages(nn.Module):
    """Puts new tensors in the place of its buffers, in the second pass one of another size."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("average", torch.zeros(2))
        self.register_buffer("seen", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.average = self.average * 0.5 + x.mean(0)
        self.seen = torch.arange(len(self.seen) % 2 + 1) + len(self.seen)
        y: Tensor = self.layer(x)
        return y


def replaced_buffers(path: str) -> float:
    results = []
    with joined(path) as (rank, _):
        for wrap in (DataParallel, DistributedDataParallel):
            model: Any = wrap(Averages())
            for step in range(4):
                model(torch.full((1, 2), float(rank + step))).sum().backward()
            model(torch.zeros(1, 2))
            results.append([model.module.average, model.module.seen.float()])
    return worst(*results)


def test_buffers_that_programs_replace(ranks: Ranks) -> None:
    assert ranks.run(replaced_buffers) == [0.0, 0.0]


class Empty(nn.Module):
    def __init__(self, more: bool) -> None:
        super().__init__()
        self.none = nn.Parameter(torch.zeros(0, 3))
        self.some = nn.Parameter(torch.ones(2)) if more else None

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.none.sum() + (0.0 if self.some is None else (self.some * x).sum())
        return y


def no_elements(path: str) -> list[list[float]]:
    found = []
    with joined(path) as (rank, _):
        for overlap in ("plan", "priority"):
            model = DataParallel(Empty(True), overlap=overlap, bucket_cap_mb=math.inf)  # type: ignore[arg-type]
            optimizer = model.optimizer(torch.optim.SGD, lr=0.5)
            for _ in range(10):
                optimizer.zero_grad()
                model(torch.full((2,), float(rank))).backward()
                optimizer.step()
            model.synchronize()
            assert model.module.some is not None
            found.append(model.module.some.tolist())
        DataParallel(Empty(False))(torch.ones(2)).backward()
    return found


def test_parameters_without_elements(ranks: Ranks) -> None:
    assert ranks.run(no_elements) == [[[-1.5, -1.5]] * 2] * 2


def without_memory(path: str) -> str:
    with joined(path):
        with pytest.raises(errors.InvalidArgument) as caught:
            DataParallel(nn.Linear(2, 2, device="meta"))
        return str(caught.value)


def test_models_without_memory_are_refused(ranks: Ranks) -> None:
    for text in ranks.run(without_memory):
        assert text.startswith("weight, bias: on the meta device") and "to_empty" in text
