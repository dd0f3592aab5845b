"""Buffers (running statistics and the like) follow those of one rank, all of a type in one broadcast."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ringleader.torch.data_parallel.transport import Transport

__all__ = ["BufferSync"]


class BufferSync:
    """Broadcasts buffers.

    Parameters
    ----------
    buffers
        Of the model; looked up each time, since programs may put other tensors in their place.
    """

    def __init__(self, buffers: Sequence[Tensor], transport: Transport) -> None:
        self._transport = transport
        kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        for x in buffers:
            kinds.setdefault((x.dtype, x.device), []).append(x)
        self._kinds = list(kinds.values())
        self._flats = [
            transport.empty(sum(x.numel() for x in kind), kind[0].dtype, kind[0].device) for kind in self._kinds
        ]

    @torch.no_grad()
    def broadcast(self, root: int = 0) -> None:
        """Copy rank `root`'s buffers to the others."""
        for kind, flat in zip(self._kinds, self._flats, strict=True):
            if not len(flat):
                continue
            parts = [
                part.view(x.shape) for part, x in zip(torch.split(flat, [x.numel() for x in kind]), kind, strict=True)
            ]
            if self._transport.rank == root:
                torch._foreach_copy_(parts, kind)
            self._transport.broadcast(flat, root)
            if self._transport.rank != root:
                torch._foreach_copy_(kind, parts)
