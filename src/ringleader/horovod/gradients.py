"""The operations that wait, with gradients: what is reduced forward is reduced backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ringleader.horovod import operations
from ringleader.horovod.compression import Compression
from ringleader.horovod.operations import Sum, synchronize
from ringleader.horovod.session import ProcessSet, lane_of
from ringleader.runtime.dtypes import ReduceOp

__all__ = [
    "allgather",
    "allreduce",
    "allreduce_",
    "alltoall",
    "broadcast",
    "broadcast_",
    "grouped_allreduce",
    "grouped_allreduce_",
    "reducescatter",
]


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        ctx.options = options
        result: torch.Tensor = synchronize(operations.allreduce_async(tensor, **options))
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return allreduce(gradients[0], **ctx.options), None


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, process_set: ProcessSet | None) -> torch.Tensor:
        ctx.process_set, ctx.shape = process_set, tensor.shape
        result: torch.Tensor = synchronize(operations.allgather_async(tensor, process_set=process_set))
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        # Every process used every row: a row's gradient is the sum over the processes, and goes to the row's owner.
        total = allreduce(gradients[0], op=Sum, process_set=ctx.process_set)
        rows = ctx.shape[0] if ctx.shape else 1
        lane = lane_of(ctx.process_set)
        counts = lane.submit(lambda: operations._rows_of_all(lane.comm, [rows])).result()[:, 0]
        before = int(counts[: lane.comm.rank].sum())
        return total[before : before + rows].reshape(ctx.shape), None


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root_rank: int, process_set: ProcessSet | None) -> torch.Tensor:
        ctx.root, ctx.process_set = operations._rank_in(process_set, root_rank), process_set
        handle = operations.broadcast_async(tensor, root_rank, process_set=process_set)
        result: torch.Tensor = synchronize(handle)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        total = allreduce(gradients[0], op=Sum, process_set=ctx.process_set)
        here = lane_of(ctx.process_set).comm.rank == ctx.root
        return (total if here else torch.zeros_like(total)), None, None


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp | str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
) -> torch.Tensor:
    """Reduce a tensor over all processes; differentiable.

    Parameters
    ----------
    name
        What compressors with a memory keep it under; of no other use here.
    compression
        `Compression.none`, ``fp16`` or ``bf16``, a class like these, or a compressor of `ringleader.compress`.
    op
        `Average` (if not given), `Sum`, `Min`, `Max` or `Product`.
    prescale_factor, postscale_factor
        Factors before and after the reduction.

    Returns
    -------
    Tensor
        A new one of the same shape, equal on all processes.

    Raises
    ------
    InvalidArgument, UnsupportedType
        Nothing was sent.
    MismatchError
        The processes disagree, also about the order of operations.

    Examples
    --------
    >>> import torch, ringleader.horovod.torch as hvd
    >>> hvd.init(rank=0, size=1)
    >>> hvd.allreduce(torch.ones(2), op=hvd.Sum)
    tensor([1., 1.])
    >>> hvd.shutdown()
    """
    options = {
        "average": average,
        "name": name,
        "compression": compression,
        "op": op,
        "prescale_factor": prescale_factor,
        "postscale_factor": postscale_factor,
        "process_set": process_set,
    }
    result: torch.Tensor = _AllReduce.apply(tensor, options)  # type: ignore[no-untyped-call]
    return result


def allreduce_(tensor: torch.Tensor, *arguments: Any, **named: Any) -> torch.Tensor:
    """Reduce in place. Arguments as for `operations.allreduce_async_`; not differentiable."""
    result: torch.Tensor = synchronize(operations.allreduce_async_(tensor, *arguments, **named))
    return result


def grouped_allreduce(tensors: Sequence[torch.Tensor], *arguments: Any, **named: Any) -> list[torch.Tensor]:
    """Reduce several tensors, those of one type in one operation; not differentiable."""
    result: list[torch.Tensor] = synchronize(operations.grouped_allreduce_async(tensors, *arguments, **named))
    return result


def grouped_allreduce_(tensors: Sequence[torch.Tensor], *arguments: Any, **named: Any) -> list[torch.Tensor]:
    """Reduce several tensors in place, those of one type in one operation."""
    result: list[torch.Tensor] = synchronize(operations.grouped_allreduce_async_(tensors, *arguments, **named))
    return result


def allgather(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet | None = None) -> torch.Tensor:
    """Join the tensors of all processes along the first dimension, in which they may differ; differentiable.

    Examples
    --------
    >>> import torch, ringleader.horovod.torch as hvd
    >>> hvd.init(rank=0, size=1)
    >>> hvd.allgather(torch.ones(2, 1)).shape
    torch.Size([2, 1])
    >>> hvd.shutdown()
    """
    result: torch.Tensor = _AllGather.apply(tensor, process_set)  # type: ignore[no-untyped-call]
    return result


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet | None = None
) -> torch.Tensor:
    """A copy of the root's tensor, on all processes; differentiable."""
    result: torch.Tensor = _Broadcast.apply(tensor, root_rank, process_set)  # type: ignore[no-untyped-call]
    return result


def broadcast_(tensor: torch.Tensor, root_rank: int, *arguments: Any, **named: Any) -> torch.Tensor:
    """Overwrite the tensor with the root's."""
    result: torch.Tensor = synchronize(operations.broadcast_async_(tensor, root_rank, *arguments, **named))
    return result


def alltoall(tensor: torch.Tensor, splits: Any = None, *arguments: Any, **named: Any) -> Any:
    """Exchange slices; with `splits` the result is (tensor, rows received from each process)."""
    return synchronize(operations.alltoall_async(tensor, splits, *arguments, **named))


def reducescatter(tensor: torch.Tensor, *arguments: Any, **named: Any) -> torch.Tensor:
    """Reduce, and get this process's share of the first dimension."""
    result: torch.Tensor = synchronize(operations.reducescatter_async(tensor, *arguments, **named))
    return result
