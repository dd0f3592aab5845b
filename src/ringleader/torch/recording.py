"""A timeline from the clock: hooks that note when each gradient is complete and when each parameter is first used."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
from torch import Tensor, nn

from ringleader.errors import InvalidArgument
from ringleader.overlap import Recording, Timeline

__all__ = ["record_step", "record_timeline"]


def record_step(module: nn.Module, step: Callable[[], Tensor]) -> Recording:
    """Run one forward and backward pass and note its times.

    A parameter counts as used when the module that holds it begins its forward pass.

    Parameters
    ----------
    module
        Whose parameters with ``requires_grad`` are watched, in the order of ``named_parameters()``.
    step
        Runs the forward pass of `module` and returns the loss; ``backward()`` is called here.

    Returns
    -------
    Recording
        Without communication; `quiet`.

    Raises
    ------
    InvalidArgument
        No parameter has a gradient.

    Examples
    --------
    >>> import torch
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    >>> recording = record_step(model, lambda: model(torch.ones(2, 4)).sum())
    >>> bool(recording.ready[2] < recording.ready[0]), bool(recording.needed[2] > recording.needed[0])
    (True, True)
    """
    parameters = [p for p in module.parameters() if p.requires_grad]
    if not parameters:
        raise InvalidArgument(f"no parameter of {type(module).__name__} has requires_grad; expected at least one")
    ready, needed = np.full(len(parameters), np.nan), np.full(len(parameters), np.nan)
    index_of = {id(p): i for i, p in enumerate(parameters)}

    def complete(parameter: Tensor) -> None:
        ready[index_of[id(parameter)]] = perf_counter()

    def used(part: nn.Module, _: Any) -> None:
        for parameter in part.parameters(recurse=False):
            index = index_of.get(id(parameter))
            if index is not None and np.isnan(needed[index]):
                needed[index] = perf_counter()

    handles = [p.register_post_accumulate_grad_hook(complete) for p in parameters]  # type: ignore[no-untyped-call]
    handles += [part.register_forward_pre_hook(used) for part in module.modules()]
    try:
        began = perf_counter()
        loss = step()
        turned = perf_counter()
        loss.backward()  # type: ignore[no-untyped-call]
        ended = perf_counter()
    finally:
        for handle in handles:
            handle.remove()
    uses = np.where(np.isnan(needed), turned, needed) - began
    return Recording(ready - turned, ended - turned, uses, turned - began, quiet=True)


def record_timeline(module: nn.Module, step: Callable[[], Tensor], steps: int = 5, warmup: int = 2) -> Timeline:
    """The medians of some steps.

    Parameters
    ----------
    module, step
        As in `record_step`; each step should set the gradients to None before, as training does.
    steps, warmup
        Steps that count, and steps before them that do not.

    Examples
    --------
    >>> import torch
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    >>> line = record_timeline(model, lambda: model(torch.ones(2, 4)).sum(), steps=3)
    >>> sorted(line.names), line.total
    (['0.bias', '0.weight', '1.bias', '1.weight'], 196)
    """
    if steps < 1 or warmup < 0:
        raise InvalidArgument(f"steps is {steps}, warmup {warmup}; expected at least 1 and 0")
    recordings = [record_step(module, step) for _ in range(warmup + steps)][warmup:]
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    ready = np.array([np.where(np.isnan(r.ready), r.backward_end, r.ready) for r in recordings])
    needed = np.median([r.needed for r in recordings if r.needed is not None], axis=0)
    middle = np.median(ready, axis=0)
    backward = max(float(np.median([r.backward_end for r in recordings])), float(middle.max()))
    forward = max(float(np.median([r.forward or 0.0 for r in recordings])), float(needed.max()))
    line, _ = Timeline.sorted(
        [name for name, _ in named], [p.nbytes for _, p in named], middle, needed, backward, forward
    )
    return line
