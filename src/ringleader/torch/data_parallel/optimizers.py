"""Optimizers whose steps wait for the gradients that they need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from ringleader import errors
from ringleader.torch.data_parallel.priority import PartitionedGradients

__all__ = ["make_optimizer"]


def make_optimizer(
    kind: type[torch.optim.Optimizer],
    parameters: Any,
    options: dict[str, Any],
    partitioned: Callable[[], PartitionedGradients | None],
) -> torch.optim.Optimizer:
    """An optimizer of a class derived from `kind`, so that schedulers and the like take it for one.

    Parameters
    ----------
    partitioned
        The model's gradients on their way, if it has such.
    """

    class Deferred(kind):  # type: ignore[misc,valid-type]
        param_groups: list[dict[str, Any]]

        def step(self, closure: Any = None) -> Any:
            gradients = partitioned()
            if gradients is None or not gradients.in_flight:
                return super().step(closure)
            if closure is not None:
                raise errors.InvalidArgument(
                    "step() was given a closure; with overlap='priority' steps are made later and cannot call it"
                )
            gradients.step(self, [{k: v for k, v in group.items() if k != "params"} for group in self.param_groups])
            return None

        def step_only(self, parameters: Sequence[nn.Parameter], options: list[dict[str, Any]]) -> None:
            """Step some parameters, with the options that the groups had when the step was asked for."""
            wanted = {id(p) for p in parameters}
            groups = self.param_groups
            try:
                self.param_groups = [
                    {**group, **then, "params": chosen}
                    for group, then in zip(groups, options, strict=False)
                    if (chosen := [p for p in group["params"] if id(p) in wanted])
                ]
                super().step()
            finally:
                self.param_groups = groups

        def zero_grad(self, set_to_none: bool = True) -> None:
            gradients = partitioned()
            if gradients is None or not gradients.clear(set_to_none):
                super().zero_grad(set_to_none)

        def state_dict(self) -> Any:
            gradients = partitioned()
            if gradients is not None:
                gradients.finish()
            return super().state_dict()

        def load_state_dict(self, state_dict: Any) -> None:
            gradients = partitioned()
            if gradients is not None:
                gradients.finish()  # a step that is due belongs to the state that goes
            super().load_state_dict(state_dict)

    if issubclass(kind, torch.optim.LBFGS):
        raise errors.InvalidArgument("LBFGS steps all parameters together; use it with another overlap than 'priority'")
    Deferred.__name__ = Deferred.__qualname__ = f"Deferred{kind.__name__}"
    return Deferred(parameters, **options)
