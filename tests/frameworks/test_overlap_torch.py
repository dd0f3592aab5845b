"""Timelines of real models: traced before the first step, and recorded by the clock."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, fx, nn

from ringleader.errors import InvalidArgument
from ringleader.overlap import CostCurve, Timeline, fixed_buckets, plan_buckets
from ringleader.torch.graph import Rates, timeline_from_graph
from ringleader.torch.recording import record_step, record_timeline


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attend = nn.MultiheadAttention(width, 2, batch_first=True)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        x = x + self.attend(y, y, y, need_weights=False)[0]
        return x + self.narrow(torch.relu(self.wide(x)))


class Transformer(nn.Module):
    def __init__(self, words: int = 50, width: int = 32, depth: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, words)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embed(words)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, 512))


def words() -> Tensor:
    return torch.arange(64).reshape(4, 16) % 50


def as_autograd_runs(model: nn.Module, loss: Tensor) -> list[str]:
    """Names in the order in which their gradients really come."""
    order: list[str] = []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: order.append(name))
    loss.backward()
    return order


def layer_of(name: str) -> str:
    return name.rpartition(".")[0]


def layers(names: list[str] | tuple[str, ...]) -> list[str]:
    return list(dict.fromkeys(map(layer_of, names)))


# ------------------------------------------------------------------------------------------------ traced


def test_transformer_in_autograds_order() -> None:
    model = Transformer()
    line = timeline_from_graph(model, [words()])
    assert layers(line.names) == layers(as_autograd_runs(model, model(words()).sum()))
    assert sorted(line.names) == sorted(name for name, _ in model.named_parameters())
    assert layer_of(line.names[0]) == "head"
    assert line.names[-1] == "embed.weight"
    # Needed in the order of the forward pass.
    needed = dict(zip(line.names, line.needed, strict=True))
    assert needed["embed.weight"] == 0.0
    assert (
        needed["embed.weight"] < needed["blocks.0.wide.weight"] < needed["blocks.2.wide.weight"] < needed["head.weight"]
    )
    assert line.needed.max() < line.forward
    assert line.total == sum(p.nbytes for p in model.parameters())


def test_mlp_shares_follow_the_arithmetic() -> None:
    """With nothing but arithmetic counted, times are known: each product is 2 x batch x in x out operations."""
    model, batch = mlp(), 128
    line = timeline_from_graph(model, [torch.ones(batch, 64)], rates=Rates(flops=1e9, nbytes=1e30, dispatch=0.0))
    one, two, three = (2e-9 * batch * a * b for a, b in ((64, 256), (256, 32), (32, 512)))
    ready = dict(zip(line.names, line.ready, strict=True))
    assert line.forward == pytest.approx(one + two + three)
    assert line.backward_end == pytest.approx(one + 2 * two + 2 * three)  # nobody needs the input's gradient
    # Which of a layer's two products autograd does first is its choice.
    assert ready["4.weight"] == pytest.approx(three) or ready["4.weight"] == pytest.approx(2 * three)
    assert ready["0.weight"] == pytest.approx(line.backward_end)
    assert dict(zip(line.names, line.needed, strict=True))["4.weight"] == pytest.approx(one + two)


def test_nothing_is_computed_and_nothing_changed() -> None:
    model = mlp()
    before = [p.detach().clone() for p in model.parameters()]

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            result = func(*args, **(kwargs or {}))
            real = [x for x in torch.utils._pytree.tree_leaves(result) if type(x) is Tensor]
            assert not any(x.numel() > 64 for x in real if func is torch.ops.aten.addmm.default)
            return result

    with Watch():
        timeline_from_graph(model, [torch.ones(8, 64)])
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))


def test_scaled_to_what_was_measured() -> None:
    inputs = [torch.ones(8, 64)]
    plain = timeline_from_graph(mlp(), inputs)
    scaled = timeline_from_graph(mlp(), inputs, forward=0.5, backward=2.0)
    assert (scaled.forward, scaled.backward_end) == (pytest.approx(0.5), pytest.approx(2.0))
    assert scaled.ready == pytest.approx(plain.ready * 2.0 / plain.backward_end)
    assert scaled.needed == pytest.approx(plain.needed * 0.5 / plain.forward)


def test_unused_frozen_and_shared_parameters() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused, self.frozen = (nn.Linear(4, 4) for _ in range(3))
            self.shared = self.used  # the same parameters by another name
            self.frozen.requires_grad_(False)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"result": self.shared(self.frozen(self.used(x)))}

    line = timeline_from_graph(Odd(), [torch.ones(2, 4)])
    assert set(line.names) == {"used.weight", "used.bias", "unused.weight", "unused.bias"}
    ready = dict(zip(line.names, line.ready, strict=True))
    assert ready["unused.weight"] == line.backward_end
    assert dict(zip(line.names, line.needed, strict=True))["unused.weight"] == line.forward


def test_symbolically_traced_model_and_loss() -> None:
    traced = fx.symbolic_trace(mlp())
    line = timeline_from_graph(traced, [torch.ones(8, 64)], loss=lambda y: (y**2).mean())
    assert layers(line.names) == ["4", "2", "0"]


def test_what_cannot_be_traced() -> None:
    class Branches(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if x.sum().item() > 0 else x

    with pytest.raises(InvalidArgument, match="Branches cannot be traced"):
        timeline_from_graph(Branches(4, 4), [torch.ones(1, 4)])
    with pytest.raises(InvalidArgument, match="no parameter of ReLU"):
        timeline_from_graph(nn.ReLU(), [torch.ones(1)])

    class Counts(nn.Linear):
        def forward(self, x: Tensor) -> list[int]:
            return [len(x)]

    with pytest.raises(InvalidArgument, match="pass loss="):
        timeline_from_graph(Counts(4, 4), [torch.ones(1, 4)])
    with pytest.raises(InvalidArgument, match="above 0"):
        Rates(flops=0.0)


# ------------------------------------------------------------------------------------------------ recorded


def test_recorded_order_is_the_traced_one() -> None:
    model = Transformer()

    def step() -> Tensor:
        model.zero_grad(set_to_none=True)
        return model(words()).sum()

    recorded = record_timeline(model, step, steps=3, warmup=1)
    traced = timeline_from_graph(model, [words()])
    assert layers(recorded.names) == layers(traced.names)
    needed = dict(zip(recorded.names, recorded.needed, strict=True))
    assert needed["embed.weight"] < needed["blocks.0.wide.weight"] < needed["head.weight"] <= recorded.forward
    assert isinstance(recorded, Timeline)
    assert 0 < recorded.ready[0] < recorded.ready[-1] <= recorded.backward_end


def test_recording_leaves_no_hooks_even_after_an_error() -> None:
    model = mlp()

    def broken() -> Tensor:
        model(torch.ones(1, 64))
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        record_step(model, broken)
    assert not any(part._forward_pre_hooks for part in model.modules())
    assert not any(getattr(p, "_post_accumulate_grad_hooks", None) for p in model.parameters())


def test_recording_of_an_unused_parameter() -> None:
    model = nn.ModuleDict({"used": nn.Linear(4, 4), "unused": nn.Linear(4, 4)})
    recording = record_step(model, lambda: model["used"](torch.ones(1, 4)).sum())
    assert torch.tensor(recording.ready).isnan().tolist() == [False, False, True, True]
    assert recording.needed is not None
    assert recording.needed[2] == recording.forward
    with pytest.raises(InvalidArgument, match="no parameter of ReLU"):
        record_step(nn.ReLU(), lambda: torch.ones(1))
    with pytest.raises(InvalidArgument, match="at least 1"):
        record_timeline(model, lambda: torch.ones(1), steps=0)


def test_plan_of_a_traced_model_hides_what_can_be_hidden() -> None:
    """Communication takes half as long as backward: a plan leaves less exposed than one bucket, or one a gradient."""
    line = timeline_from_graph(Transformer(width=64), [words()], backward=0.1)
    cost = CostCurve.affine(5e-4, 0.05 / line.total)
    plan = plan_buckets(line, cost, 25e-6)
    assert plan.exposed < 0.5 * plan.compared["a single one"].exposed
    assert plan.exposed < plan.compared["one a gradient"].exposed


def test_fixed_buckets_are_those_of_ddp() -> None:
    random = np.random.default_rng(3)
    sizes = random.integers(1, 3000, 40)
    theirs, _ = torch._C._distributed_c10d._compute_bucket_assignment_by_size(
        [torch.empty(int(size), dtype=torch.uint8) for size in sizes], [1000, 5000]
    )
    assert fixed_buckets(sizes, 5000, 1000) == tuple(tuple(bucket) for bucket in theirs)
