"""Storages of torch in registered memory: moving them, and DDP's buckets."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from meeting_support import Event
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch_support import Ranks, data, joined

import ringleader.torch as rt
from ringleader import _core, errors
from ringleader.torch import registered


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    group = Ranks(2)
    yield group
    group.close()


def test_moving_keeps_all_views_and_values() -> None:
    x = torch.randn(3, 50_001)
    row, expected = x[1, 7:], x.clone()
    gc.collect()  # what earlier tests have left goes now
    used = _core.arena_used()
    assert registered.move(x)
    assert registered.move(row), "it is there already"
    assert _core.arena_used() >= used + x.nbytes
    assert torch.equal(x, expected)
    assert torch.equal(row, expected[1, 7:])
    inside = registered.address_of(row)
    assert _core.arena_contains(inside, row.nbytes)
    assert not _core.arena_contains(row.data_ptr(), 1)
    row.fill_(3)
    assert (x[1, 7:] == 3).all()
    del x, row
    gc.collect()
    registered.release_dead()
    assert _core.arena_used() == used


@pytest.mark.parametrize("kind", ["small", "shared", "numpy", "no room"])
def test_what_cannot_be_moved_stays_as_it_is(kind: str) -> None:
    x = torch.arange(100.0) if kind == "small" else torch.arange(100_000.0)
    if kind == "shared":
        x.untyped_storage().share_memory_()
    if kind == "numpy":
        x = torch.from_numpy(np.arange(100, dtype=np.float32))
    at, shared = x.data_ptr(), x.untyped_storage().is_shared()
    assert not registered.move(x, 1 << 40 if kind == "no room" else 1)
    assert x.data_ptr() == at == registered.address_of(x)
    assert x.untyped_storage().is_shared() == shared
    assert torch.equal(x, torch.arange(float(len(x))))


def staged(path: str) -> tuple[int, int, bool]:
    with joined(path) as (rank, size):
        x = data(rank, (1_000_003,), torch.float32)
        expected = sum((data(r, (1_000_003,), torch.float32) for r in range(size)), torch.zeros(1))
        group: Any = dist.group.WORLD
        counters = group.communicator.counters
        dist.all_reduce(x.clone())
        before = counters()["bytes_staged_in"]
        dist.all_reduce(x.clone())
        plain = counters()["bytes_staged_in"] - before
        assert registered.move(x)
        before = counters()["bytes_staged_in"]
        dist.all_reduce(x)
        return plain, counters()["bytes_staged_in"] - before, torch.equal(x, expected)


@pytest.mark.slow
def test_a_moved_tensor_is_reduced_without_staging(ranks: Ranks) -> None:
    for plain, moved, right in ranks.run(staged):
        assert right
        assert plain >= 2_000_000
        assert moved == 0


def taken_away(path: str) -> tuple[bool, bool]:
    """A moved tensor, in another group after an operation that one rank gave up while the other was not in it."""
    with joined(path) as (rank, _):
        failing: Any = dist.new_group([0, 1], timeout=timedelta(seconds=0.5 if rank == 0 else 60))
        late = Event(Path(path).parent, "late")
        x = torch.ones(1_000_003)
        view = x[5:]
        assert registered.move(x)
        dist.all_reduce(x, group=failing)
        if rank == 0:
            with pytest.raises(RuntimeError):
                dist.all_reduce(x, group=failing)
            x.fill_(10)
            late.set()
        else:
            assert late.wait()
            with pytest.raises(RuntimeError):
                dist.all_reduce(x, group=failing)
            x.fill_(20)
        dist.all_reduce(x)
        right = bool((x == 30).all() and (view == 30).all())
        gone = not _core.arena_contains(x.data_ptr(), 1)
        return right, gone


def test_a_moved_tensor_that_was_taken_away_from_peers_works_on(ranks: Ranks) -> None:
    assert ranks.run(taken_away) == [(True, True), (True, True)]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[m for _ in range(3) for m in (nn.Linear(128, 128), nn.Tanh())])
        self.idle = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return y


def train(path: str, backend: str, options: dict[str, Any]) -> tuple[list[Tensor], int]:
    """Weights after some steps, and how many storages are registered before the group ends."""
    with joined(path, backend) as (rank, _):
        torch.manual_seed(5)
        model = DistributedDataParallel(Model(), bucket_cap_mb=0.1, find_unused_parameters=True, **options)
        if backend == "ringleader":
            assert rt.register_ddp(model) is model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(6):
            with contextlib.nullcontext() if step % 3 else model.no_sync():
                x = torch.randn(4, 128, generator=torch.Generator().manual_seed(10 * step + rank))
                model(x).pow(2).mean().backward()
            if step % 3:
                optimizer.step()
                optimizer.zero_grad()
        moved = len(registered._moved)
        weights = [p.detach().clone() for p in model.parameters()]
        del model, optimizer
        gc.collect()
        return weights, moved


def compare(path: str, options: dict[str, Any]) -> tuple[float, int, int]:
    ours, moved = train(path, "ringleader", options)
    theirs, _ = train(path, "gloo", options)
    registered.release_dead()
    worst = max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))
    return worst, moved, len(registered._moved)


@pytest.mark.parametrize("options", [{}, {"gradient_as_bucket_view": True}], ids=["copies", "views"])
def test_ddp_trains_as_over_gloo(ranks: Ranks, options: dict[str, Any]) -> None:
    for worst, moved, left in ranks.run(compare, options):
        assert worst < 1e-6
        assert moved >= 2
        assert left == 0, "buckets are released with their model"


def refusals(path: str) -> list[str]:
    told = []
    with joined(path, "gloo"):
        for model in (nn.Linear(2, 2), DistributedDataParallel(nn.Linear(2, 2))):
            with pytest.raises(errors.InvalidArgument) as caught:
                rt.register_ddp(model)  # type: ignore[arg-type]
            told.append(str(caught.value))
    return told


def test_other_models_and_groups_are_refused(ranks: Ranks) -> None:
    for no_ddp, other_backend in ranks.run(refusals):
        assert "Linear" in no_ddp
        assert "'gloo'" in other_backend
