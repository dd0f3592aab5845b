"""torch's own code on top of the backend: pipelines, autograd through collectives, averaged models, DTensor."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch_support import TORCH, Ranks, joined

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    group = Ranks(4)
    yield group
    group.close()


def pipeline(path: str, kind: str) -> tuple[list[Tensor], list[Tensor]]:
    """Gradients of this rank's stage, and of the same layer where one process has all."""
    from torch.distributed import pipelining

    with joined(path) as (rank, n):
        torch.manual_seed(11)
        layers = [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(n)]
        x, target = torch.randn(8, 6), torch.randn(8, 6)
        whole = nn.Sequential(*layers)
        nn.functional.mse_loss(whole(x), target).backward()
        expected = [p.grad.clone() for p in layers[rank].parameters()]
        layers[rank].zero_grad()
        stage = pipelining.PipelineStage(layers[rank], rank, n, torch.device("cpu"))
        schedule = getattr(pipelining, kind)(stage, 4, loss_fn=nn.functional.mse_loss)
        if TORCH < (2, 7):  # torch 2.6 adds up the micro-batches' gradients, without their mean
            expected = [4 * grad for grad in expected]
        if rank == 0:
            schedule.step(x)
        elif rank == n - 1:
            schedule.step(target=target, losses=[])
        else:
            schedule.step()
        return [p.grad for p in layers[rank].parameters()], expected


@pytest.mark.parametrize("kind", ["ScheduleGPipe", "Schedule1F1B"])
def test_pipeline_gradients(ranks: Ranks, kind: str) -> None:
    for found, expected in ranks.run(pipeline, kind):
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found, expected, strict=True))


def through_collectives(path: str) -> dict[str, list[float]]:
    """x's gradient of the sum of squares of what a collective makes of x times rank + 1."""
    import torch.distributed._functional_collectives as functional

    with joined(path) as (rank, n):
        world, grads = dist.group.WORLD, {}

        def grad_of(name: str, call: object) -> None:
            x = torch.arange(4.0).requires_grad_()
            call(x * (rank + 1)).pow(2).sum().backward()  # type: ignore[operator]
            grads[name] = x.grad.tolist()

        grad_of("all_gather", lambda x: functional.all_gather_tensor_autograd(x, 0, world))
        grad_of("reduce_scatter", lambda x: functional.reduce_scatter_tensor_autograd(x, "sum", 0, world))
        grad_of("all_to_all", lambda x: functional.all_to_all_single_autograd(x, [1] * n, [1] * n, world))
        return grads


@pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")
def test_autograd_through_collectives(ranks: Ranks) -> None:
    for rank, grads in enumerate(ranks.run(through_collectives)):
        factor = rank + 1
        # Each rank's square is summed on 4 ranks; d/dx of (factor x)^2 is 2 factor^2 x.
        assert grads["all_gather"] == [4 * 2 * factor**2 * x for x in range(4)]
        # Element i is summed over the ranks, (1+2+3+4) x, on rank i only.
        assert grads["reduce_scatter"] == [2 * 10 * x * factor for x in range(4)]
        assert grads["all_to_all"] == [2 * factor**2 * x for x in range(4)]


def averaged(path: str) -> tuple[float, float, float]:
    from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    with joined(path) as (rank, _):
        model = nn.parallel.DistributedDataParallel(nn.Linear(3, 2, bias=False))
        pairs, _ = dist.new_subgroups(2)
        model.register_comm_hook(PostLocalSGDState(None, pairs, start_localSGD_iter=1), post_localSGD_hook)
        grads = []
        for _ in range(2):
            model.zero_grad()
            model(torch.full((1, 3), float(rank))).sum().backward()
            grads.append(model.module.weight.grad.mean().item())
        with torch.no_grad():
            model.module.weight.fill_(rank)
        averager = PeriodicModelAverager(period=2, warmup_steps=0)
        for _ in range(2):
            averager.average_parameters(list(model.parameters()))
        return grads[0], grads[1], model.module.weight.mean().item()


def test_local_sgd_and_model_averaging(ranks: Ranks) -> None:
    for rank, (first, second, weight) in enumerate(ranks.run(averaged)):
        assert first == 1.5  # averaged over all
        assert second == (0.5 if rank < 2 else 2.5)  # over pairs
        assert weight == 1.5


def distributed_tensor(path: str) -> list[float]:
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    with joined(path) as (_, n):
        mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
        whole = torch.arange(48.0).view(8, 6)
        x = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
        errors = []
        for placements in ([Shard(1), Shard(0)], [Replicate(), Shard(0)], [Shard(0), Shard(0)], [Replicate()] * 2):
            moved = x.redistribute(mesh, placements)
            errors.append(float((moved.full_tensor() - whole).abs().max()))
        product = x @ x.redistribute(mesh, [Replicate(), Replicate()]).t()
        errors.append(float((product.full_tensor() - whole @ whole.t()).abs().max()))
        partial = (x * 2).sum(0)
        assert any(isinstance(p, Partial) for p in partial.placements)
        errors.append(float((partial.full_tensor() - 2 * whole.sum(0)).abs().max()))
        assert mesh._flatten("all").size() == n
        return errors


def test_distributed_tensor(ranks: Ranks) -> None:
    for errors in ranks.run(distributed_tensor):
        assert max(errors) == 0.0
