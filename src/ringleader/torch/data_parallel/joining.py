"""Ranks that run out of data before others do (`DataParallel.join`)."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.join import Join, Joinable, JoinHook

from ringleader import errors
from ringleader.torch.data_parallel.reducer import Options, Reducer
from ringleader.torch.data_parallel.start import broadcast_from_first

__all__ = ["JoiningMixin", "ShadowHook"]


class _JoinOne(Join):
    """Torch's context for one model, which is as before after it. (Torch's own leaves it joining.)"""

    def __init__(self, model: JoiningMixin, *arguments: Any, **named: Any) -> None:
        self._model, self._before = model, model._join_config
        self._at_the_end = False
        super().__init__([model], *arguments, **named)

    def __enter__(self) -> None:
        # Rounds in here are not recorded (who has joined cannot take part in planning): no reason to send late.
        model, reducer = self._model, self._model.reducer
        self._at_the_end = reducer.at_the_end
        if self._enable and model.plan() is None:
            reducer.at_the_end = model._options.at_the_end
        super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *raised: Any) -> Any:
        try:
            return super().__exit__(*raised)
        finally:
            reducer = self._model.reducer
            self._model._join_config = self._before
            reducer.scale, reducer.at_the_end = None, self._at_the_end


class ShadowHook(JoinHook):
    """What a rank without data does for each step of the others, in the same order as `DataParallel.forward`."""

    def __init__(self, model: JoiningMixin) -> None:
        self._model = model

    def main_hook(self) -> None:
        """Take part in the collectives of one step."""
        model = self._model
        if model.tell_joined(False):
            model.sync_buffers(active=False)
            model.shadow()

    def post_hook(self, is_last_joiner: bool) -> None:
        """Take the model of a rank that has seen all of its data last."""
        self._model.broadcast_state(self._model.highest_rank(is_last_joiner))


class JoiningMixin(Joinable):
    """What `torch.distributed.algorithms.Join` needs of a model."""

    _options: Options
    _overlap: str
    _sync: bool

    def __init__(self) -> None:
        Joinable.__init__(self)
        self._divide_by_all = True

    @property
    def process_group(self) -> Any:
        """The group of the ranks that train this model together."""
        raise NotImplementedError

    @property
    def reducer(self) -> Reducer:
        """What reduces the gradients."""
        raise NotImplementedError

    def sync_buffers(self, active: bool = True) -> None:
        """Give buffers the values of one rank."""
        raise NotImplementedError

    def plan(self) -> Any:
        """What was planned, None if nothing was."""
        raise NotImplementedError

    def current_state(self) -> list[Tensor]:
        """Parameters and buffers."""
        raise NotImplementedError

    def join(
        self, divide_by_initial_world_size: bool = True, enable: bool = True, throw_on_early_termination: bool = False
    ) -> Join:
        """A context for ranks with different numbers of steps: those that are through take part with zeros.

        Parameters
        ----------
        divide_by_initial_world_size
            Means are over all ranks; False: over those that still have data.
        enable, throw_on_early_termination
            See `torch.distributed.algorithms.Join`.

        Examples
        --------
        >>> import torch.distributed as dist
        >>> from torch import nn
        >>> from ringleader.torch import DataParallel
        >>> dist.init_process_group("ringleader", store=dist.HashStore(), rank=0, world_size=1)
        >>> model = DataParallel(nn.Linear(2, 1))
        >>> with model.join():
        ...     for _ in range(3):
        ...         model(torch.ones(1, 2)).sum().backward()
        >>> model.bias.grad
        tensor([3.])
        >>> dist.destroy_process_group()
        """
        return _JoinOne(
            self,
            enable,
            throw_on_early_termination,
            divide_by_initial_world_size=divide_by_initial_world_size,
        )

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """What `torch.distributed.algorithms.Join` calls."""
        self._divide_by_all = kwargs.get("divide_by_initial_world_size", True)
        return ShadowHook(self)

    @property
    def join_device(self) -> torch.device:
        """Of the collectives of `Join`."""
        return self.reducer.slots[0].parameter.device

    @property
    def join_rank(self) -> int:
        """This rank's number in the group."""
        return self.reducer.transport.rank

    @property
    def join_process_group(self) -> Any:
        """Of the collectives of `Join`."""
        return self.process_group

    def highest_rank(self, candidate: bool) -> int:
        """The highest rank that is a candidate; a collective."""
        rank = torch.tensor([self.join_rank if candidate else -1], device=self.join_device)
        dist.all_reduce(rank, dist.ReduceOp.MAX, group=self.process_group)
        return int(rank.item())

    def tell_joined(self, sync: bool) -> bool:
        """Tell ranks that have joined whether this step reduces gradients; a collective. Returns whether any does."""
        flag = torch.tensor([float(sync)], device=self.join_device)
        dist.all_reduce(flag, group=self.process_group)
        return bool(flag.item())

    def _before_joint_step(self) -> None:
        if self._overlap == "priority":
            raise errors.InvalidArgument("join() needs another overlap than 'priority'")
        work: Any = Join.notify_join_context(self)
        self.tell_joined(self._sync)
        reducer = self.reducer
        reducer.scale = None
        if work is not None and not self._divide_by_all and self._options.average:
            work.wait()
            reducer.scale = reducer.transport.size / float(work.result()[0].item())

    def shadow(self) -> None:
        """Take part in a step of the others with zeros; collective."""
        self.reducer.shadow()

    def broadcast_state(self, root: int) -> None:
        """Give all ranks the parameters and buffers of rank `root` of the group; collective."""
        broadcast_from_first(self.current_state(), self.reducer.transport, root)
