"""Training through torch's own wrappers: the same numbers as over Gloo, or as in one process."""

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


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    group = Ranks(4)
    yield group
    group.close()


class Block(nn.Module):
    """A small transformer with a branch that only some batches use and a parameter that none does."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.branch = nn.Linear(16, 16)
        self.head = nn.Linear(16, 4)
        self.idle = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor, use_branch: bool = False) -> Tensor:
        y = self.layer(self.embed(x))
        if use_branch:
            y = y + self.branch(y)
        return self.head(y)


def batch(step: int, rank: int) -> Tensor:
    return torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(100 * step + rank))


# ------------------------------------------------------------------------------------------------------------- DDP


# Gloo's groups are never destructed: with the GIL held, its destructor waits for a thread that may wait for the GIL.
kept: list[Any] = []


def train(path: str, backend: str, options: dict[str, Any], accumulate: bool) -> tuple[list[float], list[Tensor]]:
    """Six steps, two micro-batches each; the branch is used in the first micro-batch of odd steps only."""
    with joined(path, backend) as (rank, _):
        kept.append(dist.group.WORLD)
        torch.manual_seed(1)
        static = options.get("static_graph", False)
        model = DistributedDataParallel(Block(), **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)  # Adam would blow up rounding
        losses = []
        for step in range(6):
            for micro in range(2):
                last = micro == 1
                with contextlib.nullcontext() if last or not accumulate else model.no_sync():
                    branch = static or (step % 2 == 1 and not last)
                    loss = model(batch(10 * step + micro, rank), branch).pow(2).mean()
                    loss.backward()
                    losses.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
        assert static or model.module.idle.grad is None or not model.module.idle.grad.any()
        return losses, [p.detach().clone() for p in model.parameters()]


def compare_ddp(path: str, options: dict[str, Any], accumulate: bool) -> float:
    ours, weights = train(path, "ringleader", options, accumulate)
    theirs, expected = train(path, "gloo", options, accumulate)
    return max(
        max(abs(a - b) for a, b in zip(ours, theirs, strict=True)),
        max(float((a - b).abs().max()) for a, b in zip(weights, expected, strict=True)),
    )


@pytest.mark.parametrize(
    ("options", "accumulate"),
    [
        ({"find_unused_parameters": True, "gradient_as_bucket_view": True}, True),
        ({"find_unused_parameters": True, "bucket_cap_mb": 0.001}, False),
        ({"static_graph": True, "gradient_as_bucket_view": True, "bucket_cap_mb": 0.002}, False),
    ],
    ids=["accumulation", "small-buckets", "static"],
)
def test_ddp_trains_as_over_gloo(ranks: Ranks, options: dict[str, Any], accumulate: bool) -> None:
    assert max(ranks.run(compare_ddp, options, accumulate)) < 1e-6


class Ragged(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def uneven_inputs(path: str, hook: str) -> list[Tensor]:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    with joined(path) as (rank, _):
        torch.manual_seed(2)
        model = DistributedDataParallel(Ragged(), bucket_cap_mb=0.001)
        if hook == "fp16":
            model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif hook == "powersgd":
            state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
            model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        with model.join():
            for step in range((5, 4, 2, 3)[rank]):
                optimizer.zero_grad()
                model(batch(step, rank)).pow(2).mean().backward()
                optimizer.step()
        return [p.detach().clone() for p in model.parameters()]


def averaged_over_those_with_data(path: str) -> list[float]:
    """The gradient at each rank's last step; every rank's own is its number + 1."""
    with joined(path) as (rank, _):
        model = DistributedDataParallel(nn.Linear(1, 1, bias=False))
        with model.join(divide_by_initial_world_size=False):
            for _ in range(rank + 1):
                model.zero_grad()
                model(torch.full((1, 1), float(rank + 1))).sum().backward()
        assert model.module.weight.grad is not None
        return model.module.weight.grad.flatten().tolist()


def test_join_can_divide_by_the_ranks_that_have_data(ranks: Ranks) -> None:
    # Step s (from 0) has data on ranks s.., so rank r ends with the mean of r + 1 .. n.
    n = ranks.size
    expected = [[sum(range(r + 1, n + 1)) / (n - r)] for r in range(n)]
    assert ranks.run(averaged_over_those_with_data) == expected


@pytest.mark.parametrize("hook", ["none", "fp16"])
def test_uneven_inputs_with_join(ranks: Ranks, hook: str) -> None:
    first, *others = ranks.run(uneven_inputs, hook)
    for weights in others:
        assert all(torch.equal(a, b) for a, b in zip(first, weights, strict=True))


def hooked(path: str, backend: str, hook: str, cap: float, steps: int = 8) -> tuple[list[float], list[Tensor]]:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    with joined(path, backend) as (rank, _):
        kept.append(dist.group.WORLD)
        torch.manual_seed(3)
        model = DistributedDataParallel(
            nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(32, 32), nn.Tanh())]), bucket_cap_mb=cap
        )
        if hook == "powersgd":
            state = powerSGD_hook.PowerSGDState(
                None, matrix_approximation_rank=2, start_powerSGD_iter=2, warm_start=True
            )
            model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        elif hook.startswith("built-in"):  # in DDP's C++
            model._register_builtin_comm_hook(getattr(dist.BuiltinCommHookType, hook.removeprefix("built-in ")))
        else:
            model.register_comm_hook(None, getattr(default_hooks, hook))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        losses = []
        for step in range(steps):
            x = torch.randn(4, 32, generator=torch.Generator().manual_seed(100 * step + rank))
            loss = (model(x) - x.flip(1)).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses, [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("hook", ["allreduce_hook", "fp16_compress_hook", "powersgd", "built-in ALLREDUCE"])
def test_communication_hooks(ranks: Ranks, hook: str) -> None:
    """Several buckets: callbacks call collectives while the backward pass starts those of the next bucket."""
    results = ranks.run(hooked, "ringleader", hook, 0.005)
    for _, weights in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0][1], weights, strict=True))
    losses = results[0][0]
    assert losses[-1] < losses[0]
    for ours, theirs in zip(results, ranks.run(hooked, "gloo", hook, 25.0), strict=True):
        assert max(abs(a - b) for a, b in zip(ours[0], theirs[0], strict=True)) < 2e-2


def errors_in_ddp(path: str) -> list[str]:
    """Rank 3 stops in the middle: the others' backward raises; a new group works."""
    texts = []
    with contextlib.suppress(RuntimeError), joined(path) as (rank, _):
        for hook in (False, True):
            torch.manual_seed(4)
            model = DistributedDataParallel(Ragged(), bucket_cap_mb=0.001)
            if hook:
                from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

                model.register_comm_hook(None, default_hooks.fp16_compress_hook)
            model(batch(0, rank)).sum().backward()
            if rank == 3:
                break
            try:
                model(batch(1, rank)).sum().backward()
            except Exception as error:
                texts.append(f"{type(error).__name__}: {error}")
            break
    with joined(path + "again"):
        x = torch.ones(2)
        dist.all_reduce(x)
        texts.append(str(x.tolist()))
    return texts


def test_error_in_backward_names_the_rank(ranks: Ranks) -> None:
    results = ranks.run(errors_in_ddp)
    for texts in results[:3]:
        assert "rank 3" in texts[0], texts
    assert [texts[-1] for texts in results] == ["[4.0, 4.0]"] * 4


# ------------------------------------------------------------------------------------------------------------ FSDP


FSDP2_NEEDS = "fully_shard runs on the CPU from torch 2.7 on"


def make_model() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(16, 33), nn.ReLU(), nn.Linear(33, 16), nn.ReLU(), nn.Linear(16, 4))


def steps_of(model: Any, batches: list[Tensor], optimizer: Any = None) -> list[float]:
    optimizer = optimizer or torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for x in batches:
        loss = model(x).pow(2).mean()
        loss.backward()
        if hasattr(model, "clip_grad_norm_"):
            model.clip_grad_norm_(10.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def all_batches(n: int) -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(6)
    return [[torch.randn(3, 16, generator=generator) for _ in range(n)] for _ in range(6)]


def single_process(n: int) -> list[float]:
    return steps_of(make_model(), [torch.cat(parts) for parts in all_batches(n)])


def mean_over_ranks(losses: list[float]) -> list[float]:
    x = torch.tensor(losses, dtype=torch.float64)
    dist.all_reduce(x, dist.ReduceOp.AVG)
    return x.tolist()


def fsdp(path: str, kind: str) -> tuple[list[float], list[float], dict[str, int]]:
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, ShardingStrategy, fully_shard

    with joined(path) as (rank, n):
        mine = [parts[rank] for parts in all_batches(n)]
        model: Any = make_model()
        if kind == "fsdp1":
            model = FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
        elif kind == "fsdp1-hybrid":
            mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
            model = FullyShardedDataParallel(
                model,
                device_id=torch.device("cpu"),
                device_mesh=mesh,
                sharding_strategy=ShardingStrategy.HYBRID_SHARD,
            )
        else:
            mesh = {
                "fsdp2": lambda: dist.init_device_mesh("cpu", (n,)),
                "fsdp2-factor": lambda: dist.init_device_mesh("cpu", (n,)),
                "fsdp2-hybrid": lambda: dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")),
            }[kind]()
            for layer in model:
                if isinstance(layer, nn.Linear):
                    fully_shard(layer, mesh=mesh, mp_policy=MixedPrecisionPolicy())
            fully_shard(model, mesh=mesh)
            if kind == "fsdp2-factor":  # uses PREMUL_SUM
                model.set_gradient_divide_factor(float(n))
        losses = mean_over_ranks(steps_of(model, mine))
        return losses, single_process(n), dist.group.WORLD.communicator.counters()


@pytest.mark.parametrize("kind", ["fsdp2", "fsdp2-factor", "fsdp2-hybrid", "fsdp1", "fsdp1-hybrid"])
def test_sharded_training_equals_one_process(ranks: Ranks, kind: str) -> None:
    if kind.startswith("fsdp2") and TORCH < (2, 7):
        pytest.skip(FSDP2_NEEDS)
    for losses, expected, _ in ranks.run(fsdp, kind):
        assert max(abs(a - b) for a, b in zip(losses, expected, strict=True)) < 1e-6


# ---------------------------------------------------------------------------------------------------------- others


def tensor_parallel_and_checkpoint(path: str, folder: str) -> tuple[float, bool]:
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    with joined(path) as (_, _n):
        mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
        plain, model = (
            nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)),
            nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)),
        )
        torch.manual_seed(7)
        for p in plain.parameters():
            nn.init.normal_(p)
            dist.broadcast(p.detach(), 0)
        model.load_state_dict(plain.state_dict())
        parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(model, mesh=mesh["data"])
        x = torch.randn(3, 8, generator=torch.Generator().manual_seed(8))
        difference = float((model(x) - plain(x)).abs().max())
        state = get_model_state_dict(model)
        checkpoint.save(state, checkpoint_id=folder)
        before = {key: value.full_tensor().clone() for key, value in state.items()}
        with torch.no_grad():
            for p in model.parameters():
                p.zero_()
        state = get_model_state_dict(model)
        checkpoint.load(state, checkpoint_id=folder)
        set_model_state_dict(model, state)
        after = {key: value.full_tensor() for key, value in get_model_state_dict(model).items()}
        future = checkpoint.async_save(get_model_state_dict(model), checkpoint_id=folder + "-async")
        future.result()
        return difference, all(torch.equal(before[key], after[key]) for key in before)


@pytest.mark.skipif(TORCH < (2, 7), reason=FSDP2_NEEDS)
def test_tensor_parallel_and_checkpoint(ranks: Ranks, tmp_path: Any) -> None:
    for difference, restored in ranks.run(tensor_parallel_and_checkpoint, str(tmp_path / "checkpoint")):
        assert difference < 1e-5 and restored


def compiled(path: str) -> tuple[float, float]:
    import torch.distributed._functional_collectives as functional

    with joined(path, seconds=100.0) as (rank, n):
        torch.manual_seed(9)
        plain = Ragged()
        model = torch.compile(DistributedDataParallel(Ragged()))
        model._orig_mod.module.load_state_dict(plain.state_dict())
        eager = DistributedDataParallel(plain)
        model(batch(0, rank)).pow(2).mean().backward()
        eager(batch(0, rank)).pow(2).mean().backward()
        difference = max(
            float((a.grad - b.grad).abs().max()) for a, b in zip(model.parameters(), eager.parameters(), strict=True)
        )

        @torch.compile
        def step(x: Tensor) -> Tensor:
            return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1

        x = torch.full((4,), float(rank))
        return difference, float((step(x) - (2.0 * sum(range(n)) + 1)).abs().max())


@pytest.mark.slow
def test_compiled_ddp_and_collectives(ranks: Ranks) -> None:
    for ddp, collective in ranks.run(compiled, timeout=200.0):
        assert ddp < 1e-6 and collective == 0.0


def other_users(path: str) -> list[float]:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    with joined(path) as (rank, n):
        model = DistributedDataParallel(make_model())
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-2)
        return mean_over_ranks(steps_of(model, [parts[rank] for parts in all_batches(n)], optimizer))


def test_zero_redundancy_optimizer(ranks: Ranks) -> None:
    expected = single_process(4)
    for losses in ranks.run(other_users):
        assert max(abs(a - b) for a, b in zip(losses, expected, strict=True)) < 1e-6
