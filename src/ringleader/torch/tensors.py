"""torch tensors as memory: lists that are one block, and lists that are not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch

from ringleader import _core, errors
from ringleader.runtime import arrays

__all__ = ["as_block", "copies_into", "direct", "equal_sizes", "pack", "single"]

T = TypeVar("T")

_STRIDED = torch.strided


def direct(x: torch.Tensor) -> bool:
    """Whether the engine may work in the tensor's memory: dense, on the CPU, contiguous, no pending negation.

    A null pointer goes the long way: the tensor has no elements, or no memory, which `arrays` refuses.
    """
    return (
        x.is_cpu
        and x.layout is _STRIDED
        and x.is_contiguous()
        and not x.is_neg()
        and not (x.is_complex() and x.is_conj())
        and x.data_ptr() != 0
    )


def single(tensors: Sequence[T], what: str) -> T:
    """The one item of a list with an item per device: a process of this backend has one device.

    Raises
    ------
    InvalidArgument
        Another number of items.
    """
    if len(tensors) != 1:
        raise errors.InvalidArgument(f"{what} has {len(tensors)} items; expected one")
    return tensors[0]


def equal_sizes(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether all have as many elements as the first."""
    first = tensors[0].numel()
    return all(x.numel() == first for x in tensors)


def as_block(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The tensors (of equal sizes) as one of shape (len, elements) over the same memory, if they follow one another."""
    first = tensors[0].detach()
    count = first.numel()
    if count == 0 or not all(direct(x) and x.dtype is first.dtype for x in tensors):
        return None
    step, base, storage = count * first.element_size(), first.data_ptr(), first.untyped_storage().data_ptr()
    for i, x in enumerate(tensors):
        if x.data_ptr() != base + i * step or x.untyped_storage().data_ptr() != storage:
            return None
    return first.as_strided((len(tensors), count), (count, 1))


def pack(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The tensors (of equal sizes) as one of shape (len, elements), copied unless they follow one another."""
    block = as_block(tensors)
    if block is None:
        block = torch.stack([x.detach().reshape(-1) for x in tensors])
    return block


def copies_into(tensors: Sequence[torch.Tensor], block: torch.Tensor) -> tuple[_core.StridedCopy, ...]:
    """The copies of the rows of a contiguous `block` into the tensors; whoever has them keeps both alive.

    Raises
    ------
    InvalidArgument
        A tensor of another type, or one that cannot be written to.
    """
    for i, x in enumerate(tensors):
        if x.dtype is not block.dtype:
            raise errors.InvalidArgument(
                f"tensor {i} of the output list is of type {x.dtype}, the first of {block.dtype}"
            )
        arrays.target(x, f"tensor {i} of the output list")
    return tuple(arrays.tensor_copy(row.data_ptr(), x.detach()) for x, row in zip(tensors, block, strict=True))
