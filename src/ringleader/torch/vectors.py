"""Gradients that are reduced as one vector."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ringleader.compress.base import Compressor
from ringleader.compress.pieces import Pieces
from ringleader.runtime.communicator import Communicator
from ringleader.runtime.compressed import all_reduce_pieces

__all__ = ["average_as_they_are", "exact_type", "joined", "reduce_compressed", "spread"]


def exact_type(x: torch.Tensor) -> torch.dtype:
    """The type to sum in: at least float32, of half-precision gradients too."""
    return torch.promote_types(x.dtype, torch.float32)


def average_as_they_are(comm: Communicator, tensors: Sequence[torch.Tensor]) -> None:
    """Replace tensors of one type by their means over all ranks."""
    vector = joined(tensors, exact_type(tensors[0]))
    comm.all_reduce(vector, "avg")
    spread(tensors, vector)


def reduce_compressed(
    comm: Communicator, tensors: Sequence[torch.Tensor], average: bool, compressor: Compressor, key: str
) -> None:
    """Replace tensors by their means or sums over all ranks, compressed as one array; where they lie, if of float32."""
    compressor.set_shapes(key, [tuple(x.shape) for x in tensors])
    if all(x.dtype == torch.float32 and x.is_contiguous() for x in tensors):
        pieces = Pieces([x.detach().view(-1).numpy() for x in tensors])
        all_reduce_pieces(comm, pieces, average, compressor, key)
        return
    vector = joined(tensors, torch.float32)
    all_reduce_pieces(comm, Pieces([vector.numpy()]), average, compressor, key)
    spread(tensors, vector)


def joined(tensors: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """All elements as one vector: where they lie, if of that type and side by side as in DDP's buckets, else a copy."""
    first, end = tensors[0], tensors[0].data_ptr()
    for x in tensors:
        if x.dtype != dtype or not x.is_contiguous() or x.data_ptr() != end:
            break
        end += x.nbytes
    else:
        storage = first.untyped_storage()
        if end <= storage.data_ptr() + storage.nbytes():  # else they are neighbours by chance
            elements = sum(x.numel() for x in tensors)
            return torch.empty(0, dtype=dtype).set_(storage, first.storage_offset(), (elements,), (1,))
    block, at = torch.empty(sum(x.numel() for x in tensors), dtype=dtype), 0
    for x in tensors:
        block[at : at + x.numel()].view(x.shape).copy_(x.detach())
        at += x.numel()
    return block


def spread(tensors: Sequence[torch.Tensor], block: torch.Tensor) -> None:
    """The elements of a vector back to the tensors, unless it is where they lie."""
    if block.data_ptr() == tensors[0].data_ptr():
        return
    at = 0
    for x in tensors:
        x.detach().copy_(block[at : at + x.numel()].view(x.shape))
        at += x.numel()
