"""Before the first step: all ranks have the same model, with the values of the first rank."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ringleader import errors
from ringleader.torch.data_parallel.errors import shorten
from ringleader.torch.data_parallel.transport import Transport

__all__ = ["broadcast_from_first", "verify_alike"]


def _describe(named: Sequence[tuple[str, Tensor]]) -> list[str]:
    """A line a tensor with all that must be alike."""
    return [
        f"{name}: shape {tuple(x.shape)}, {x.dtype}, strides {tuple(x.stride())}, requires_grad={x.requires_grad}"
        + (", on the meta device" if x.is_meta else "")
        for name, x in named
    ]


def verify_alike(named: Sequence[tuple[str, Tensor]], group: Any) -> None:
    """Compare names, shapes, types and strides with those of the other ranks.

    Parameters
    ----------
    named
        Names and tensors, in an order that must be alike as well.

    Raises
    ------
    MismatchError
        They differ; names the ranks and the first difference. On all ranks.
    InvalidArgument
        Some have no memory.
    """
    mine = _describe(named)
    size = dist.get_world_size(group)
    digests: list[Any] = [None] * size
    dist.all_gather_object(digests, hashlib.sha256("\n".join(mine).encode()).hexdigest(), group=group)
    different = [rank for rank in range(size) if digests[rank] != digests[0]]
    if not different:
        without = [name for name, x in named if x.is_meta]
        if without:
            raise errors.InvalidArgument(
                f"{shorten(without)}: on the meta device, without memory; give the model some with "
                "model.to_empty(device='cpu') and initialise it before it is wrapped"
            )
        return
    lines: list[Any] = [None] * size
    dist.all_gather_object(lines, mine, group=group)  # all ranks see the same digests, so all come here
    raise errors.MismatchError(_difference(lines[0], lines[different[0]], different), different)


def _difference(first: list[str], other: list[str], ranks: list[int]) -> str:
    who = f"rank{'s' * (len(ranks) != 1)} {', '.join(map(str, ranks))} of the group"
    for mine, theirs in zip(first, other, strict=False):
        if mine != theirs:
            return f"the model of {who} is another than rank 0's: rank 0 has {mine}; rank {ranks[0]} has {theirs}"
    longer, which = (first, 0) if len(first) > len(other) else (other, ranks[0])
    return (
        f"the model of {who} is another than rank 0's: it has {len(other)} parameters and buffers, rank 0 has "
        f"{len(first)}; only rank {which} has {longer[min(len(first), len(other))]}"
    )


@torch.no_grad()
def broadcast_from_first(tensors: Sequence[Tensor], transport: Transport, root: int = 0) -> None:
    """Copy the values of rank `root` of the group to all others."""
    for x in tensors:
        dense = x.detach().contiguous()
        transport.broadcast(dense, root)
        if dense.data_ptr() != x.data_ptr():
            x.copy_(dense)
