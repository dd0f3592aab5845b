"""Gradients of Horovod's operations against its rules, for two and three processes, and gradcheck alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch_support import Ranks, data

import ringleader as rl
import ringleader.horovod.torch as hvd
from ringleader import compress

SIZE = 3
Case = tuple[torch.Tensor, "torch.Tensor | None"]
"""A result and the gradient of what it was made from."""


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    group = Ranks(SIZE)
    yield group
    group.close()


def value(r: int, shape: tuple[int, ...], seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return data(r, shape, dtype, seed) * (r + 1)


def weight(r: int, shape: tuple[int, ...]) -> torch.Tensor:
    """By what rank r multiplies its result before it adds up its loss."""
    return data(r, shape, torch.float32, seed=7) + 10 * r


REDUCTIONS: dict[str, dict[str, Any]] = {
    "average": {},
    "old average": {"average": False},
    "sum": {"op": hvd.Sum},
    "scaled": {"op": hvd.Sum, "prescale_factor": 0.5, "postscale_factor": 8.0},
    "scaled average": {"op": hvd.Average, "prescale_factor": 0.5, "postscale_factor": 8.0},
    "fp16": {"op": hvd.Sum, "compression": hvd.Compression.fp16, "prescale_factor": 0.5},
    "bf16": {"compression": hvd.Compression.bf16, "postscale_factor": 2.0},
    "max": {"op": hvd.Max},
    "min": {"op": hvd.Min},
    "onebit": {"op": hvd.Sum, "compression": compress.ErrorFeedback(compress.OneBit()), "name": "x"},
}
SCATTERS = {name: more for name, more in REDUCTIONS.items() if name not in ("old average", "onebit")}


def backward(y: torch.Tensor, x: torch.Tensor, r: int) -> Case:
    assert y.requires_grad and y.grad_fn is not None
    (weight(r, tuple(y.shape)) * y).sum().backward()
    return y.detach(), x.grad


def every_gradient(_: str, members: list[int] | None) -> dict[str, Case]:
    hvd.init()
    r = hvd.rank()
    group = None if members is None else hvd.add_process_set(members)
    if group is not None and not group.included():
        hvd.shutdown()
        return {}
    n = hvd.size() if group is None else len(members or [])
    seen: dict[str, Case] = {}

    def leaf(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return value(r, shape, seed, dtype).requires_grad_(dtype.is_floating_point)

    for name, more in REDUCTIONS.items():
        x = leaf(4, 2)
        seen[f"allreduce {name}"] = backward(hvd.allreduce(x, process_set=group, **more), x, r)
        x, z, whole = leaf(3), leaf(5, dtype=torch.float64), leaf(2, dtype=torch.int64)
        first, second, third = hvd.grouped_allreduce([x, z, whole], process_set=group, **more | {"name": "many"})
        assert not third.requires_grad
        seen[f"grouped {name} 0"] = backward(first, x, r)
        assert z.grad is not None and not z.grad.any()  # unused so far
        z.grad = None
        first, second, _ = hvd.grouped_allreduce([x, z, whole], process_set=group, **more | {"name": "many"})
        seen[f"grouped {name} 1"] = backward(second, z, r)
    for name, more in SCATTERS.items():
        x, z = leaf(5, 2), leaf(4, dtype=torch.float64)
        seen[f"reducescatter {name}"] = backward(hvd.reducescatter(x, process_set=group, **more), x, r)
        parts = hvd.grouped_reducescatter([leaf(2), z], process_set=group, **more)
        seen[f"grouped reducescatter {name}"] = backward(parts[1], z, r)
    x, z = leaf(r + 1, 2), leaf(2, 3)
    seen["allgather"] = backward(hvd.allgather(x, process_set=group), x, r)
    x = leaf(r + 1, 2)
    seen["grouped allgather"] = backward(hvd.grouped_allgather([z, x], process_set=group)[1], x, r)
    scalar = value(r, (1,))[0].requires_grad_()
    seen["allgather of scalars"] = backward(hvd.allgather(scalar, process_set=group), scalar, r)
    x = leaf(4)
    seen["broadcast"] = backward(hvd.broadcast(x, root_rank=2, process_set=group), x, r)
    x = leaf(2 * n, 2)
    seen["alltoall"] = backward(hvd.alltoall(x, process_set=group), x, r)
    splits = torch.arange(n) + 1
    x = leaf(int(splits.sum()))
    y, received = hvd.alltoall(x, splits, process_set=group)
    assert received.dtype is splits.dtype and not received.requires_grad
    seen["alltoall with splits"] = backward(y, x, r)
    x = leaf(2)
    (first_order,) = torch.autograd.grad(
        (weight(r, (2,)) * hvd.allreduce(x**2, op=hvd.Sum, process_set=group)).sum(), x, create_graph=True
    )
    first_order.sum().backward()  # type: ignore[no-untyped-call]
    seen["twice"] = (first_order.detach(), x.grad)
    for name, function in ALL.items():  # gradients without strides
        x = leaf(2 * n)
        function(x, group).sum().backward()
        seen[f"ones {name}"] = (x.detach(), x.grad)
    # What Horovod does not differentiate either: results of handles, and what is overwritten.
    x = leaf(2 * n)
    handles = [
        hvd.allreduce_async(x, process_set=group),
        hvd.allgather_async(x, process_set=group),
        hvd.broadcast_async(x, 2, process_set=group),
        hvd.reducescatter_async(x, process_set=group),
    ]
    assert not any(hvd.synchronize(handle).requires_grad for handle in handles)
    assert not hvd.synchronize(hvd.alltoall_async(x, process_set=group))[0].requires_grad
    assert not any(y.requires_grad for y in hvd.synchronize(hvd.grouped_allgather_async([x], process_set=group)))
    assert hvd.allreduce_(x, process_set=group) is x and x.is_leaf and x.requires_grad
    hvd.shutdown()
    return seen


ALL: dict[str, Callable[[torch.Tensor, Any], torch.Tensor]] = {
    "allreduce": lambda x, group: hvd.allreduce(x, op=hvd.Sum, process_set=group),
    "allgather": lambda x, group: hvd.allgather(x, process_set=group),
    "broadcast": lambda x, group: hvd.broadcast(x, root_rank=2, process_set=group),
    "alltoall": lambda x, group: hvd.alltoall(x, process_set=group),
    "reducescatter": lambda x, group: hvd.reducescatter(x, op=hvd.Average, process_set=group),
}


def combine(parts: list[torch.Tensor], more: dict[str, Any]) -> torch.Tensor:
    stacked = torch.stack([part.double() for part in parts])
    op = hvd.Sum if more.get("average") is False else more.get("op", hvd.Average)
    by = {hvd.Sum: stacked.sum(0), hvd.Average: stacked.mean(0), hvd.Max: stacked.amax(0), hvd.Min: stacked.amin(0)}
    return by[op] * more.get("prescale_factor", 1.0) * more.get("postscale_factor", 1.0)


def share(x: torch.Tensor, i: int, n: int) -> torch.Tensor:
    return torch.tensor_split(x, n)[i]


def expected(r: int, m: list[int]) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    n, i = len(m), m.index(r)
    found: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def reduced(shape: tuple[int, ...], more: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        return combine([value(s, shape) for s in m], more), combine([weight(s, shape) for s in m], more)

    def scattered(shape: tuple[int, ...], more: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        whole = combine([value(s, shape) for s in m], more)
        factor = more.get("prescale_factor", 1.0) * more.get("postscale_factor", 1.0)
        factor *= n if more.get("op") is hvd.Sum else 1
        weights = [weight(s, tuple(share(whole, j, n).shape)) for j, s in enumerate(m)]
        return share(whole, i, n), torch.cat(weights) * factor

    for name, more in REDUCTIONS.items():
        found[f"allreduce {name}"] = reduced((4, 2), more)
        found[f"grouped {name} 0"] = reduced((3,), more)
        found[f"grouped {name} 1"] = reduced((5,), more)
    for name, more in SCATTERS.items():
        found[f"reducescatter {name}"] = scattered((5, 2), more)
        found[f"grouped reducescatter {name}"] = scattered((4,), more)
    rows = [s + 1 for s in m]
    joined = torch.cat([value(s, (s + 1, 2)) for s in m])
    mean = combine([weight(s, tuple(joined.shape)) for s in m], {})
    found["allgather"] = found["grouped allgather"] = (joined, mean.split(rows)[i])
    scalars = torch.cat([value(s, (1,)) for s in m])
    found["allgather of scalars"] = (scalars, combine([weight(s, (n,)) for s in m], {})[i])
    told = combine([weight(s, (4,)) for s in m], {})
    found["broadcast"] = (value(2, (4,)), told if r == 2 else torch.zeros(4))
    blocks = {s: value(s, (2 * n, 2)).split(2) for s in m}
    theirs = torch.cat([weight(s, (2 * n, 2)).split(2)[i] for s in m])
    found["alltoall"] = (torch.cat([blocks[s][i] for s in m]), theirs)
    splits = [j + 1 for j in range(n)]
    parts = {s: value(s, (sum(splits),)).split(splits) for s in m}
    back = torch.cat([weight(s, (n * (j + 1),)).split(j + 1)[i] for j, s in enumerate(m)])
    found["alltoall with splits"] = (torch.cat([parts[s][i] for s in m]), back)
    total = combine([weight(s, (2,)) for s in m], {"op": hvd.Sum})
    found["twice"] = (2 * value(r, (2,)) * total, 2 * total)
    own = value(r, (2 * n,))
    factors = {"allreduce": n, "allgather": 1, "broadcast": r == 2, "alltoall": 1, "reducescatter": 1}
    for name, factor in factors.items():
        found[f"ones {name}"] = (own, torch.full((2 * n,), float(factor)))
    return found


@pytest.mark.parametrize("members", [None, [0, 2]], ids=["3", "2"])
def test_gradients_are_those_of_horovod(ranks: Ranks, members: list[int] | None) -> None:
    m = members or list(range(SIZE))
    seen = ranks.run(every_gradient, members)
    for r in m:
        wanted = expected(r, m)
        assert seen[r].keys() == wanted.keys()
        for name, (y, gradient) in seen[r].items():
            assert gradient is not None, name
            near = 1e-2 if "bf16" in name else 1e-6
            if "onebit" not in name:
                assert torch.allclose(y.double(), wanted[name][0].double(), rtol=near), name
            assert torch.allclose(gradient.double(), wanted[name][1].double(), rtol=near), (name, gradient)


def test_alone_gradients_are_the_derivatives() -> None:
    """With one process Horovod's rules and the derivatives are the same."""
    hvd.init(rank=0, size=1)
    x = torch.tensor([[1.0, 2.0], [0.5, -3.0]], dtype=torch.float64, requires_grad=True)
    z = torch.tensor([4.0, -1.0], dtype=torch.float64, requires_grad=True)
    factors = {"prescale_factor": 0.5, "postscale_factor": 3.0}
    functions: list[Callable[[torch.Tensor, torch.Tensor], Any]] = [
        lambda x, z: hvd.allreduce(x * x, op=hvd.Sum, **factors),
        lambda x, z: tuple(hvd.grouped_allreduce([x * x, z * z], **factors)),
        lambda x, z: hvd.allgather(x * x),
        lambda x, z: tuple(hvd.grouped_allgather([x * x, z * z])),
        lambda x, z: hvd.broadcast(x * x, 0),
        lambda x, z: hvd.alltoall(x * x),
        lambda x, z: hvd.alltoall(x * x, splits=[2])[0],
        lambda x, z: hvd.reducescatter(x * x, op=hvd.Sum, **factors),
        lambda x, z: tuple(hvd.grouped_reducescatter([x * x, z * z], op=hvd.Average, **factors)),
    ]
    for function in functions:
        assert torch.autograd.gradcheck(function, (x, z))
        assert torch.autograd.gradgradcheck(function, (x, z))
    hvd.shutdown()


def test_a_lossy_compressor_for_reduce_scatter_is_refused() -> None:
    with pytest.raises(rl.errors.InvalidArgument, match="class like these"):
        hvd.reducescatter(torch.ones(2), compression=compress.OneBit())
