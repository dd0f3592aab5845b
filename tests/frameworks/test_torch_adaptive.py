"""DDP with the adaptive hook: all ranks stay equal and learn, and changes show in torch's profiler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_support import Ranks, joined

from ringleader import compress, errors
from ringleader.torch import hooks


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    each = Ranks(2, RINGLEADER_TRANSPORT="tcp")
    yield each
    each.close()


def trains(path: str, lossy: bool) -> tuple[bytes, list[float], list[str], list[str], bool]:
    with joined(path) as (rank, _):
        torch.manual_seed(0)
        hook = hooks.adaptive(["bf16", compress.ErrorFeedback(compress.OneBit())] if lossy else None)
        net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 4))
        model: Any = DistributedDataParallel(net, bucket_cap_mb=0.004)
        hook.register(model)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
        losses = []

        def step(number: int) -> None:
            x = torch.randn(16, 20, generator=torch.Generator().manual_seed(1000 * rank + number))
            loss = ((model(x) - x[:, :4] * 2) ** 2).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())

        for number in range(20):
            step(number)
        reduction: Any = hook.reduction
        if lossy:  # as if the lines had become slow
            reduction.estimates.into = reduction.estimates.out = [1e4] * 2
            reduction.estimates.learn = lambda rows, fan: False
            reduction.estimates.at_least = lambda load, seconds: None
        with torch.profiler.profile(record_shapes=False) as profile:
            for number in range(20, 520 if lossy else 40):
                changed = any(not each.after.endswith(" f32") for each in reduction.history)  # alike on all ranks
                step(number)  # once more after the change, which shows in the trace then
                if changed:
                    break
        for number in range(520, 600):  # enough to learn something, however early it changed
            step(number)
        marks = sorted({e.name for e in profile.events() if e.name.startswith("ringleader:adaptive")})
        state = hook.state_dict()
        hook.load_state_dict(state)
        bits = b"".join(parameter.detach().numpy().tobytes() for parameter in net.parameters())
        history = [str(each) for each in reduction.history]
        model = None  # before the group, which it would outlive
        return bits, losses, history, marks, len(state["policy"]["compressors"]) == lossy


@pytest.mark.slow
@pytest.mark.parametrize("lossy", [False, True])
def test_ranks_stay_equal_learn_and_change_together(ranks: Ranks, lossy: bool) -> None:
    results = ranks.run(trains, lossy)
    bits, losses, history, marks, remembered = results[0]
    assert all(result[0] == bits and result[2] == history for result in results)
    assert sum(losses[-8:]) / 8 < losses[0] / 2
    assert remembered
    if lossy:
        assert any(("bf16" in each or "OneBit" in each) and "f32 ->" in each for each in history)
        assert any("->" in each for each in marks)
    else:
        assert all("bf16" not in each and "OneBit" not in each for each in history)


def test_what_is_not_allowed_is_refused_before_anything_runs() -> None:
    with pytest.raises(errors.InvalidArgument, match="accuracy_budget"):
        hooks.adaptive([compress.OneBit()], accuracy_budget=0.1)
