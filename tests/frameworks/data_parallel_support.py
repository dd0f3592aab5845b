"""Models and training loops for the tests of DataParallel."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch_support import joined

from ringleader.torch import DataParallel


class Branches(nn.Module):
    """A transformer layer, a convolution in channels_last, a branch for some batches, a parameter for none."""

    def __init__(self, idle: bool = False, reentrant: bool | None = None) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 16)
        self.conv = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.branch = nn.Linear(16, 16)
        self.head = nn.Linear(16, 4)
        self.reentrant = reentrant
        if idle:
            self.idle = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor, use_branch: bool = True) -> dict[str, Any]:
        y = self.embed(x)
        y = self.layer(y) if self.reentrant is None else checkpoint(self.layer, y, use_reentrant=self.reentrant)
        if use_branch:
            y = y + self.branch(y)
        y = self.head(y) + self.conv(x[:, :3, :8].reshape(len(x), 3, 2, 4)).sum((2, 3))[:, None]
        return {"out": [y], "shape": y.shape}


def small(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def batch(step: int, rank: int) -> Tensor:
    return torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(100 * step + rank))


def loss_of(model: Any, x: Tensor, *args: Any) -> Tensor:
    out: Tensor = model(x, *args)["out"][0]
    return out.pow(2).mean()


def one_process(make: Callable[[], nn.Module], size: int, steps: int, micro: int = 1) -> list[Tensor]:
    torch.manual_seed(1)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        for rank in range(size):
            for i in range(micro):
                (loss_of(model, batch(step * micro + i, rank)) / size).backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def train(
    make: Callable[[], nn.Module],
    rank: int,
    steps: int,
    options: dict[str, Any],
    to_none: bool = True,
    micro: int = 1,
    wrap: Callable[..., Any] = DataParallel,
) -> list[Tensor]:
    torch.manual_seed(1 + rank)  # the ranks' values differ before they are given those of the first
    model = wrap(make(), **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad(set_to_none=to_none)
        for i in range(micro):
            with contextlib.nullcontext() if i == micro - 1 else model.no_sync():
                loss_of(model, batch(step * micro + i, rank)).backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def worst(a: list[Tensor], b: list[Tensor]) -> float:
    return max(float((x - y).abs().max()) for x, y in zip(a, b, strict=True))


def compare_with_one_process(
    path: str,
    backend: str,
    options: dict[str, Any],
    to_none: bool = True,
    micro: int = 1,
    reentrant: bool | None = None,
) -> float:
    def make() -> nn.Module:
        return Branches(reentrant=reentrant)

    with joined(path, backend) as (rank, size):
        return worst(train(make, rank, 5, options, to_none, micro), one_process(make, size, 5, micro))
