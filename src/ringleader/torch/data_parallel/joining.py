"""Ranks that run out of data before others do (`DataParallel.join`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import JoinHook

if TYPE_CHECKING:
    from ringleader.torch.data_parallel.module import DataParallel

__all__ = ["ShadowHook", "active_ranks", "highest_of", "tell_joined"]


def highest_of(model: DataParallel, candidate: bool) -> int:
    """The highest rank that is a candidate; a collective."""
    rank = torch.tensor([model.join_rank if candidate else -1], device=model.join_device)
    dist.all_reduce(rank, dist.ReduceOp.MAX, group=model.process_group)
    return int(rank.item())


def tell_joined(model: DataParallel, sync: bool) -> bool:
    """Tell ranks that have joined whether this step reduces gradients; a collective. Returns whether any rank does."""
    flag = torch.tensor([float(sync)], device=model.join_device)
    dist.all_reduce(flag, group=model.process_group)
    return bool(flag.item())


def active_ranks(work: Any) -> float:
    """How many ranks take part in this step, from the work of torch's notification."""
    work.wait()
    return float(work.result()[0].item())


class ShadowHook(JoinHook):
    """What a rank without data does for each step of the others, in the same order as `DataParallel.forward`."""

    def __init__(self, model: DataParallel) -> None:
        self._model = model

    def main_hook(self) -> None:
        """Take part in the collectives of one step."""
        model = self._model
        if tell_joined(model, False):
            model.sync_buffers(active=False)
            model.shadow()

    def post_hook(self, is_last_joiner: bool) -> None:
        """Take the model of a rank that has seen all of its data last."""
        self._model.broadcast_state(highest_of(self._model, is_last_joiner))
