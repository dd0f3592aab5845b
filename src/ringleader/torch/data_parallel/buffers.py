"""Buffers (running statistics and the like) follow those of one rank, all of a type in one broadcast."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ringleader.torch.data_parallel.transport import Transport

__all__ = ["BufferSync"]


class BufferSync:
    """Broadcasts buffers.

    Parameters
    ----------
    module
        The model.
    names
        Of its buffers. They are looked up each time, since programs put other tensors in their place.
    """

    def __init__(self, module: nn.Module, names: Sequence[str], transport: Transport) -> None:
        self._transport = transport
        self._places = [(module.get_submodule(path), name) for path, _, name in (n.rpartition(".") for n in names)]
        self._shapes: list[torch.Size] = []
        self._kinds: dict[tuple[torch.dtype, torch.device], list[int]] = {}
        self._flats: list[Tensor] = []

    def __len__(self) -> int:
        return len(self._places)

    def current(self) -> list[Tensor]:
        """The buffers as they are now; one that a program has set to None is left out."""
        return [x for owner, name in self._places if (x := owner._buffers.get(name)) is not None]

    def _lay_out(self, buffers: Sequence[Tensor]) -> None:
        """One flat tensor for each type and device, for these buffers and others like them."""
        self._shapes = [x.shape for x in buffers]
        self._kinds = {}
        for index, x in enumerate(buffers):
            self._kinds.setdefault((x.dtype, x.device), []).append(index)
        self._flats = [
            self._transport.empty(sum(buffers[i].numel() for i in indices), dtype, device)
            for (dtype, device), indices in self._kinds.items()
        ]

    def _fits(self, buffers: Sequence[Tensor]) -> bool:
        alike = all(
            (x := buffers[i]).dtype is k[0] and x.device == k[1] for k, each in self._kinds.items() for i in each
        )
        return alike and [x.shape for x in buffers] == self._shapes

    @torch.no_grad()
    def broadcast(self, root: int = 0) -> None:
        """Copy rank `root`'s buffers to the others."""
        buffers = self.current()
        if len(buffers) != len(self._shapes) or not self._fits(buffers):
            self._lay_out(buffers)
        for indices, flat in zip(self._kinds.values(), self._flats, strict=True):
            kind = [buffers[i] for i in indices]
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
