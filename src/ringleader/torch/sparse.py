"""All-reduce of sparse tensors, as embeddings with ``sparse=True`` have for gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from ringleader import errors
from ringleader.runtime.communicator import Communicator
from ringleader.runtime.dtypes import ReduceOp
from ringleader.runtime.watched import unseen

__all__ = ["sparse_all_reduce"]


def sparse_all_reduce(comm: Communicator, x: Tensor, op: ReduceOp, timeout: float | None) -> None:
    """Sum a sparse COO tensor over all ranks, in place, on the calling thread.

    Every rank's elements are gathered everywhere, padded to the largest number of them.

    Raises
    ------
    UnsupportedType
        Another layout, or another operation than sum and average.
    MismatchError
        The ranks' tensors differ in shape.
    """
    if x.layout is not torch.sparse_coo or not x.is_cpu or op not in (ReduceOp.SUM, ReduceOp.AVG):
        raise errors.UnsupportedType(
            f"all_reduce with {op} of a {x.layout} tensor on {x.device}; expected a dense CPU tensor, or a sparse COO "
            "tensor on the CPU with SUM or AVG; x.to_dense() makes one of it"
        )
    mine = x.detach().coalesce()
    indices, values = mine.indices(), mine.values()
    shape = [x.sparse_dim(), *x.shape]
    with unseen(comm, 1):
        told = comm.all_gather(torch.tensor([indices.shape[1], *shape]), timeout=timeout)
    for rank, row in enumerate(told[:, 1:].tolist()):
        if row != shape:
            raise errors.MismatchError(
                f"rank {comm.rank} all-reduces a sparse tensor of shape {shape[1:]} with {shape[0]} sparse dimensions, "
                f"rank {rank} one of shape {row[1:]} with {row[0]}",
                (rank,),
            )
    counts = told[:, 0].tolist()
    most = max(counts)
    all_indices = comm.all_gather(_padded(indices.T, most), timeout=timeout)
    all_values = comm.all_gather(_padded(values, most), timeout=timeout)
    picked = [slice(0, count) for count in counts]
    total = torch.sparse_coo_tensor(
        torch.cat([all_indices[rank][rows] for rank, rows in enumerate(picked)]).T,
        torch.cat([all_values[rank][rows] for rank, rows in enumerate(picked)]),
        x.shape,
        check_invariants=False,  # said, for torch warns where nothing is said
    ).coalesce()
    if op is ReduceOp.AVG:
        total = total / comm.size
    with torch.no_grad():  # not through detach(): of a sparse tensor that shares the elements, not their number
        x.copy_(total)


def _padded(x: Tensor, rows: int) -> Tensor:
    padded = torch.zeros((rows, *x.shape[1:]), dtype=x.dtype)
    padded[: x.shape[0]] = x
    return padded
