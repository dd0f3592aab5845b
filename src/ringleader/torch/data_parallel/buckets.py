"""Buckets: flat memory in which the gradients of several parameters lie one after another.

Invariant: after `Bucket.pack` every gradient's value is in its view, and the parameter's ``grad`` is that view (or,
with ``gradient_as_bucket_view=False``, a tensor of its own). Autograd adds into a view in place, so gradients are
collected without a copy as long as nobody takes the views away. ``zero_grad(set_to_none=True)`` and programs that set
``grad`` do: then autograd leaves its result in a new tensor, which `pack` copies before it puts the view back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from ringleader.torch.data_parallel.transport import Reduction, Transport

__all__ = ["EARLY_BYTES", "IDLE", "NEVER", "Bucket", "Slot", "group_by_kind", "make_bucket"]

ALIGNMENT: Final = 64
EARLY_BYTES: Final = 64 << 10
"""Gradients from this size on are brought into their bucket one by one as they come, smaller ones all at once."""
IDLE: Final = 1
"""Hooks still to come where no round is open: the next one gets noticed."""
NEVER: Final = 1 << 62
"""More than ever come: hooks are to be ignored."""


@dataclass(frozen=True)
class Slot:
    """A parameter of the model: its number in registration order, its name and itself."""

    index: int
    name: str
    parameter: nn.Parameter


class Bucket:
    """Some parameters' gradients in one flat tensor.

    Attributes
    ----------
    slots, views
        Its parameters, and for each the part of `flat` in the parameter's shape and strides.
    pending
        How many hooks have to fire until it is full.
    total, start
        How many that are in a backward pass in which each parameter is used, and in the round that was opened last.
    full
        Whether all of them have fired in this round.
    """

    __slots__ = ("flat", "full", "on_full", "pending", "reduction", "slots", "start", "total", "views")

    def __init__(
        self, slots: Sequence[Slot], flat: Tensor, views: list[Tensor], on_full: Callable[[Bucket, Tensor], None]
    ) -> None:
        self.slots = tuple(slots)
        self.flat = flat
        self.views = views
        self.on_full = on_full
        self.total = self.start = len(slots)
        self.pending = IDLE
        self.full = False
        self.reduction: Reduction

    def fire(self, parameter: Tensor) -> None:
        """A gradient is complete. The whole cost of a small parameter in a steady state."""
        self.pending -= 1
        if not self.pending:
            self.on_full(self, parameter)

    def take(self, view: Tensor, parameter: Tensor) -> None:
        """A large gradient is complete: bring it into its view while it is in the caches, and free its memory.

        Autograd can then put the next one there, into memory that is mapped already.
        """
        grad = parameter.grad
        if grad is not view and grad is not None and not grad.requires_grad:
            view.copy_(grad)
            parameter.grad = view
        self.fire(parameter)

    def pack(self, keep: bool) -> list[int]:
        """Bring all gradients into `flat`. Returns the indices of the parameters that have none.

        Parameters
        ----------
        keep
            Leave ``grad`` as it is rather than make it a view.
        """
        absent: list[int] = []
        targets: list[Tensor] = []
        sources: list[Tensor] = []
        taken: list[tuple[nn.Parameter, Tensor]] = []
        for slot, view in zip(self.slots, self.views, strict=True):
            parameter = slot.parameter
            grad = parameter.grad
            if grad is view:
                continue
            if grad is None:
                absent.append(slot.index)
                view.zero_()
                continue
            targets.append(view)
            sources.append(grad)
            taken.append((parameter, view))
        if targets:
            with torch.no_grad():
                torch._foreach_copy_(targets, sources)
            if not keep:
                for parameter, view in taken:
                    parameter.grad = view
        return absent

    def unpack(self) -> None:
        """Copy the reduced values to gradients that are no views."""
        pairs = [
            (slot.parameter.grad, view)
            for slot, view in zip(self.slots, self.views, strict=True)
            if slot.parameter.grad is not None and slot.parameter.grad is not view
        ]
        if pairs:
            with torch.no_grad():
                torch._foreach_copy_([grad for grad, _ in pairs], [view for _, view in pairs])

    @property
    def nbytes(self) -> int:
        """Bytes that one reduction moves."""
        return self.flat.nbytes


def _view(flat: Tensor, parameter: nn.Parameter, offset: int) -> Tensor:
    """Part of `flat` with the parameter's shape, and its strides where these leave no gaps (channels_last)."""
    part = flat[offset : offset + parameter.numel()]
    dense = torch.empty_like(parameter, device="meta")  # keeps strides only if they are without gaps or overlap
    return part.as_strided(parameter.shape, dense.stride())


def make_bucket(
    slots: Sequence[Slot], transport: Transport, average: bool, on_full: Callable[[Bucket, Tensor], None]
) -> Bucket:
    """A bucket for parameters of one type on one device, its memory not yet filled."""
    first = slots[0].parameter
    step = ALIGNMENT // first.element_size() or 1
    offsets = [0]
    for slot in slots:
        offsets.append(offsets[-1] + -(-slot.parameter.numel() // step) * step)
    flat = transport.empty(offsets[-1], first.dtype, first.device)
    flat.zero_()  # also the gaps: what is reduced with them must not be NaN
    views = [_view(flat, slot.parameter, at) for slot, at in zip(slots, offsets, strict=False)]
    bucket = Bucket(slots, flat, views, on_full)
    bucket.reduction = transport.reduction(flat, average)
    return bucket


def group_by_kind(slots: Sequence[Slot]) -> list[list[Slot]]:
    """The parameters of each type and device, in the order in which the first of each comes."""
    kinds: dict[tuple[torch.dtype, torch.device], list[Slot]] = {}
    for slot in slots:
        kinds.setdefault((slot.parameter.dtype, slot.parameter.device), []).append(slot)
    return list(kinds.values())
