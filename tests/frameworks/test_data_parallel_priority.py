"""Communication that overlaps the next forward pass: the same bits as with everything in turn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from data_parallel_support import Branches, batch, loss_of, worst
from torch import Tensor, nn
from torch_support import Ranks, joined

from ringleader import errors
from ringleader.torch import DataParallel

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    group = Ranks(2)  # among two, the order of adding makes no difference, however the gradients are cut
    yield group
    group.close()


class Tied(nn.Module):
    """An attention layer, whose parts are not all called, and weights that are used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Branches()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(8, 4)
        self.back = nn.Linear(4, 8, bias=False)

    def forward(self, x: Tensor) -> dict[str, Any]:
        y = self.body(x)["out"][0] + self.head(x)
        y = y + self.attention(y, y, y, need_weights=False)[0]
        return {"out": (self.head(self.back(y)),)}


def train(overlap: str, rank: int, kind: Any, options: dict[str, Any], to_none: bool) -> tuple[list[Tensor], Any]:
    torch.manual_seed(5)
    model = DataParallel(Tied(), overlap=overlap, broadcast_buffers=False)  # type: ignore[arg-type]
    optimizer = model.optimizer(kind, **options)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    seen = []
    for step in range(20):
        optimizer.zero_grad(set_to_none=to_none)
        if step % 5 == 3:
            with model.no_sync():
                loss_of(model, batch(100 + step, rank)).backward()
        loss_of(model, batch(step, rank)).backward()
        if step % 7 == 6:
            model.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        scheduler.step()
        if step % 4 == 2:
            with torch.no_grad():
                seen.append(loss_of(model, batch(50, 0)))
    seen += [x.clone() for x in model.state_dict().values()]
    state = optimizer.state_dict()["state"]
    seen += [x for entry in state.values() for x in entry.values() if isinstance(x, Tensor)]
    return seen, model.plan()


def same_bits(path: str, kind: str, to_none: bool) -> tuple[bool, int, bool]:
    options: dict[str, Any] = {"SGD": {"lr": 0.1, "momentum": 0.9}, "AdamW": {"lr": 0.01}}[kind]
    optimizer = getattr(torch.optim, kind)
    with joined(path) as (rank, _):
        expected, _plan = train("off", rank, optimizer, options, to_none)
        seen, plan = train("priority", rank, optimizer, options, to_none)
        equal = len(seen) == len(expected) and all(torch.equal(a, b) for a, b in zip(seen, expected, strict=True))
        return equal, len(plan.partitions), "in flight" in plan.table()


@pytest.mark.parametrize(("kind", "to_none"), [("SGD", True), ("SGD", False), ("AdamW", True)])
def test_the_same_bits_as_in_turn(ranks: Ranks, kind: str, to_none: bool) -> None:
    for equal, partitions, told in ranks.run(same_bits, kind, to_none):
        assert equal
        assert partitions >= 1 and told


def plain_optimizer(path: str) -> bool:
    """With an optimizer that knows nothing of it, gradients are complete after the backward pass."""
    weights = []
    with joined(path) as (rank, _):
        for overlap in ("off", "priority"):
            torch.manual_seed(5)
            model = DataParallel(Tied(), overlap=overlap)  # type: ignore[arg-type]
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(12):
                optimizer.zero_grad()
                loss_of(model, batch(step, rank)).backward()
                optimizer.step()
            weights.append([p.detach() for p in model.parameters()])
    return worst(*weights) == 0.0


def test_other_optimizers_get_complete_gradients(ranks: Ranks) -> None:
    assert all(ranks.run(plain_optimizer))


def fails(path: str) -> list[str]:
    told = []
    with joined(path, seconds=30.0) as (rank, _):
        with pytest.raises(errors.InvalidArgument, match="find_unused_parameters"):
            DataParallel(Tied(), overlap="priority", find_unused_parameters=True)
        model = DataParallel(Branches(), overlap="priority")
        optimizer = model.optimizer(torch.optim.SGD, lr=0.1)
        for step in range(14):
            if rank == 1 and step == 12:
                return told
            optimizer.zero_grad()
            try:
                loss_of(model, batch(step, rank), not (rank == 1 and step == 10)).backward()
            except errors.RingleaderError as error:
                return [*told, str(error)]
            except RuntimeError as error:
                told.append(str(error))
            try:
                optimizer.step()
                model.synchronize()
            except errors.RingleaderError as error:
                return [*told, str(error)]
    return told


def test_failures_are_named(ranks: Ranks) -> None:
    first, second = ranks.run(fails)
    assert len(second) == 1 and "branch.weight" in second[0]
    assert len(first) == 1 and "rank 1" in first[0]
