"""Compression hooks of DDP: equal parameters on all ranks, restarts, join, no_sync, and what is refused."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch_support import Ranks, joined

from ringleader import errors
from ringleader.compress import ErrorFeedback, Int4, OneBit, Policy, TopK
from ringleader.torch import hooks

HOOKS: dict[str, Any] = {
    "fp16": hooks.fp16,
    "bf16": hooks.bf16,
    "topk": lambda: hooks.topk(0.1),
    "topk_sampled": lambda: hooks.topk(0.1, selection="sampled", warmup_steps=4),
    "dgc": lambda: hooks.dgc(0.1, momentum=0.5),
    "randomk": lambda: hooks.randomk(0.2),
    "onebit": hooks.onebit,
    "int8": hooks.int8,
    "int4": hooks.int4,
    "qsgd": hooks.qsgd,
    "natural": hooks.natural,
    "powersgd": lambda: hooks.powersgd(2),
    "policy": lambda: hooks.compressed(
        Policy(ErrorFeedback(TopK(ratio=0.1)), rules=[("second.*", ErrorFeedback(OneBit())), ("last.*", None)])
    ),
}


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    each = Ranks(3)
    yield each
    each.close()


class Net(nn.Module):
    """Its layers are used in another order than they are made: DDP arranges its buckets anew."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(48, 4)
        self.first = nn.Linear(20, 64)
        self.second = nn.Linear(64, 48)

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(torch.relu(self.second(torch.relu(self.first(x)))))


def model_of(hook: Any, seed: int = 0, **more: Any) -> tuple[Any, Any]:
    torch.manual_seed(seed)
    model = DistributedDataParallel(Net(), bucket_cap_mb=0.008, **more)
    hook.register(model)
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)


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
    return b"".join(parameter.detach().numpy().tobytes() for parameter in model.module.parameters())


def restarts(path: str, name: str) -> tuple[bytes, list[float], bool, int]:
    """40 steps; and 20, a restart, 20 more."""
    with joined(path) as (rank, _):
        straight, optimiser = model_of(HOOKS[name](), gradient_as_bucket_view=name in ("int8", "topk"))
        losses = train(straight, optimiser, rank, range(40))
        want = bits(straight)
        hook = HOOKS[name]()
        first, optimiser = model_of(hook)
        train(first, optimiser, rank, range(20))
        saved = io.BytesIO()
        torch.save([first.module.state_dict(), optimiser.state_dict(), hook.state_dict()], saved)
        layouts = len(hook.state_dict()["layout"])
    with joined(path + "-again") as (rank, _):
        saved.seek(0)
        parameters, momentum, state = torch.load(saved)
        hook = HOOKS[name]()
        second, optimiser = model_of(hook, seed=5)
        second.module.load_state_dict(parameters)
        optimiser.load_state_dict(momentum)
        hook.load_state_dict(state)
        train(second, optimiser, rank, range(20, 40))
        return want, losses, bits(second) == want, layouts


@pytest.mark.slow
@pytest.mark.parametrize("name", HOOKS)
def test_ranks_stay_equal_and_learn_and_a_restart_changes_no_bit(ranks: Ranks, name: str) -> None:
    results = ranks.run(restarts, name)
    assert len({parameters for parameters, _, _, _ in results}) == 1
    for _, losses, same, buckets in results:
        assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
        assert same
        assert buckets > 1


def other_buckets(path: str) -> list[str]:
    import logging

    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("ringleader.COMPRESS").addHandler(handler)
    with joined(path) as (rank, _):
        hook = hooks.onebit()
        train(*model_of(hook), rank, range(4))
        state = hook.state_dict()
        again = hooks.onebit()
        again.load_state_dict(state)
        torch.manual_seed(0)
        model = DistributedDataParallel(Net(), bucket_cap_mb=25)
        again.register(model)
        train(model, torch.optim.SGD(model.parameters(), lr=0.01), rank, range(8))
        assert len(again.state_dict()["layout"]) < len(state["layout"])
    logging.getLogger("ringleader.COMPRESS").removeHandler(handler)
    return lines


def test_other_buckets_start_anew_with_one_line(ranks: Ranks) -> None:
    for lines in ranks.run(other_buckets):
        assert [line for line in lines if "arranged in another way" in line] == lines
        assert len(lines) == 1


def uneven(path: str, name: str) -> bytes:
    with joined(path) as (rank, _):
        model, optimiser = model_of(HOOKS[name]())
        with Join([model]):
            train(model, optimiser, rank, range((5, 4, 2)[rank]))
        return bits(model)


@pytest.mark.parametrize("name", HOOKS)
def test_uneven_inputs(ranks: Ranks, name: str) -> None:
    assert len(set(ranks.run(uneven, name))) == 1


def accumulates(path: str) -> list[bool]:
    """Gradients of a batch in two parts, of which one is not synchronised, are those of the whole."""
    found = []
    with joined(path) as (rank, _):
        for make in (hooks.fp16, lambda: hooks.topk(1.0), lambda: hooks.dgc(1.0, momentum=0.0)):
            grads = []
            for accumulate in (True, False):
                model, _ = model_of(make())
                for step in range(2):  # the first is not compressed
                    model.zero_grad()
                    x, y = batch(rank, step)
                    halves = [(x[:8], y[:8]), (x[8:], y[8:])] if accumulate else [(x, y)]
                    for part, (a, b) in enumerate(halves):
                        waits = accumulate and part == 0
                        with model.no_sync() if waits else contextlib.nullcontext():
                            (((model(a) - b) ** 2).mean() / len(halves)).backward()
                grads.append(torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()]))
            found.append(torch.allclose(*grads, rtol=1e-2, atol=1e-3) and bool(torch.isfinite(grads[0]).all()))
    return found


def test_accumulation_without_synchronising(ranks: Ranks) -> None:
    assert ranks.run(accumulates) == [[True] * 3] * 3


def half(path: str) -> dict[str, list[str]]:
    found = {}
    with joined(path) as (rank, _):
        for name, make in HOOKS.items():
            torch.manual_seed(0)
            model = DistributedDataParallel(Net().to(torch.bfloat16))
            make().register(model)
            for step in range(3):
                model(batch(rank, step)[0].to(torch.bfloat16)).float().pow(2).mean().backward()
            assert all(bool(torch.isfinite(parameter.grad).all()) for parameter in model.parameters())
            found[name] = sorted({str(parameter.grad.dtype) for parameter in model.parameters()})
    return found


def test_gradients_keep_their_type(ranks: Ranks) -> None:
    for found in ranks.run(half):
        assert found == {name: ["torch.bfloat16"] for name in HOOKS}


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Parameter(torch.ones(40, 40, dtype=torch.complex64))
        self.real = nn.Parameter(torch.ones(40, 40, dtype=torch.float64))
        self.vector = nn.Parameter(torch.full((40,), 1 / 3, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> Any:
        return (x @ self.turn).abs().sum() + (x.real.double() @ self.real * self.vector).sum()


def other_types(path: str, name: str) -> list[float]:
    """What is not compressed keeps all digits; of complex gradients every number arrives."""
    make = {"topk": lambda: hooks.topk(1.0), "adaptive": hooks.adaptive}[name]
    with joined(path) as (rank, n):
        model = DistributedDataParallel(Complex())
        make().register(model)
        x = torch.randn(2, 40, dtype=torch.complex64, generator=torch.Generator().manual_seed(rank))
        worst = [0.0, 0.0]
        for _ in range(3):
            model.zero_grad()
            model(x).backward()
            own = torch.autograd.grad(model.module(x), [model.module.turn, model.module.vector])
            for i, (mean, found) in enumerate(
                zip(own, (model.module.turn.grad, model.module.vector.grad), strict=True)
            ):
                torch.distributed.all_reduce(mean)
                worst[i] = max(worst[i], float((found - mean / n).abs().max() / mean.abs().max()))
            assert float(model.module.turn.grad.imag.abs().max()) > 0.01
        return worst


@pytest.mark.parametrize("name", ["topk", "adaptive"])
def test_other_types_are_exact(ranks: Ranks, name: str) -> None:
    for turn, vector in ranks.run(other_types, name):
        assert turn < 1e-5 and vector < 1e-14


def chosen(path: str) -> tuple[dict[str, bool], list[int]]:
    """Which gradients are exact, and how many elements are remembered by each compressor of the policy."""
    with joined(path) as (rank, _):
        policy = Policy(ErrorFeedback(TopK(ratio=0.1)), rules=[("second.*", ErrorFeedback(Int4())), ("last.*", None)])
        grads = []
        for hook in (None, hooks.compressed(policy)):
            torch.manual_seed(0)
            model = DistributedDataParallel(Net(), bucket_cap_mb=25)
            if hook is not None:
                hook.register(model)
            for step in range(3):
                model.zero_grad()
                model(batch(rank, step)[0]).pow(2).mean().backward()
            grads.append({name: parameter.grad.clone() for name, parameter in model.module.named_parameters()})
        exact = {name: torch.allclose(grads[1][name], each, rtol=1e-4, atol=1e-6) for name, each in grads[0].items()}
        return exact, [sum(each.size for each in codec.errors.values()) for codec in policy.compressors()]


def test_a_policy_chooses_for_each_parameter(ranks: Ranks) -> None:
    for exact, remembered in ranks.run(chosen):
        assert exact == {
            "last.weight": True, "last.bias": True, "first.weight": False, "first.bias": True,
            "second.weight": False, "second.bias": False,
        }  # fmt: skip
        assert remembered == [20 * 64, 64 * 48 + 48]


def refused(path: str) -> list[str]:
    texts = []
    with joined(path):
        hook = hooks.fp16()
        model, _ = model_of(hook)
        for wrong in (lambda: hook.register(model), lambda: hooks.fp16().register(model.module)):
            try:
                wrong()
            except errors.InvalidArgument as error:
                texts.append(str(error))
    with joined(path, backend="gloo"):
        try:
            hooks.fp16().register(DistributedDataParallel(Net()))
        except errors.InvalidArgument as error:
            texts.append(str(error))
    return texts


def test_wrong_registrations(ranks: Ranks) -> None:
    for texts in ranks.run(refused):
        assert len(texts) == 3
        assert "with a model already" in texts[0]
        assert "a Net; expected" in texts[1]
        assert "backend 'gloo'" in texts[2]


def fails(path: str) -> str:
    class Broken(hooks.compress.Int8):
        def encode(self, *args: Any) -> None:
            raise RuntimeError("the kernel is broken")

    with joined(path) as (rank, _):
        model, optimiser = model_of(hooks.compressed(Broken()))
        try:
            train(model, optimiser, rank, range(3))
        except RuntimeError as error:
            return str(error)
    return ""


def test_an_error_in_the_hook_reaches_backward(ranks: Ranks) -> None:
    for text in ranks.run(fails):
        assert "the kernel is broken" in text
