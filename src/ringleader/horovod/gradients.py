"""The operations that wait, with the gradients that Horovod gives them.

Horovod's rule: what joins, copies or reduces forward averages backward, so a gradient is that of the *mean* of the
processes' losses where an average or a copy was taken, whatever their number; a sum is reduced by a sum again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ringleader import compress, errors
from ringleader.horovod import operations
from ringleader.horovod.compression import Compression
from ringleader.horovod.operations import Average, Sum, scaled, synchronize
from ringleader.horovod.session import ProcessSet, lane_of
from ringleader.runtime.dtypes import ReduceOp

__all__ = [
    "allgather",
    "allreduce",
    "allreduce_",
    "alltoall",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "reducescatter",
]


class _AllReduce(torch.autograd.Function):
    """Backward the same reduction; what a compressor of `ringleader.compress` loses is not differentiated."""

    @staticmethod
    def forward(ctx: Any, options: dict[str, Any], forward_only: dict[str, Any], *tensors: torch.Tensor) -> Any:
        ctx.options = options
        if len(tensors) == 1:
            return synchronize(operations.allreduce_async(tensors[0], **options, **forward_only))
        return tuple(synchronize(operations.grouped_allreduce_async(tensors, **options, **forward_only)))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return None, None, *grouped_allreduce(gradients, **ctx.options)


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, process_set: ProcessSet | None, *tensors: torch.Tensor) -> Any:
        joined = synchronize(operations._gather(process_set, tensors))
        here = lane_of(process_set).comm.rank
        ctx.process_set = process_set
        ctx.own = [(sum(rows[:here]), rows[here], x.shape) for x, (_, rows) in zip(tensors, joined, strict=True)]
        return tuple(x for x, _ in joined)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        means = grouped_allreduce(gradients, op=Average, process_set=ctx.process_set)
        return None, *(x[at : at + n].reshape(shape) for x, (at, n, shape) in zip(means, ctx.own, strict=True))


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root_rank: int, process_set: ProcessSet | None) -> torch.Tensor:
        ctx.root, ctx.process_set = operations._rank_in(process_set, root_rank), process_set
        handle = operations.broadcast_async(tensor, root_rank, process_set=process_set)
        result: torch.Tensor = synchronize(handle)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        mean = allreduce(gradients[0], op=Average, process_set=ctx.process_set)
        here = lane_of(ctx.process_set).comm.rank == ctx.root
        return (mean if here else torch.zeros_like(mean)), None, None


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, splits: Any, process_set: ProcessSet | None) -> Any:
        result, received = synchronize(operations.alltoall_async(tensor, splits, process_set=process_set))
        ctx.received, ctx.process_set = received, process_set
        ctx.mark_non_differentiable(received)
        return result, received

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return alltoall(gradients[0], ctx.received, process_set=ctx.process_set)[0], None, None


class _ReduceScatter(torch.autograd.Function):
    """Backward every process gets the gradients of all shares; those of a sum times the number of processes."""

    @staticmethod
    def forward(ctx: Any, options: dict[str, Any], *tensors: torch.Tensor) -> Any:
        ctx.options = options
        return tuple(synchronize(operations.grouped_reducescatter_async(tensors, **options)))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        options = ctx.options
        factor = options["prescale_factor"] * options["postscale_factor"]
        if options["op"] is Sum:
            factor *= lane_of(options["process_set"]).comm.size
        return None, *grouped_allgather([scaled(x, factor) for x in gradients], process_set=options["process_set"])


def _between(
    compression: Any,
    tensors: Sequence[torch.Tensor],
    scales: tuple[float, float],
    run: Callable[[list[torch.Tensor], tuple[float, float]], Sequence[torch.Tensor]],
) -> list[torch.Tensor]:
    """Compress, `run`, decompress, each of which autograd sees; factors are applied to what is not compressed."""
    if compression is Compression.none:
        return list(run(list(tensors), scales))
    sent = [compression.compress(scaled(x, scales[0])) for x in tensors]
    results = run([x for x, _ in sent], (1.0, 1.0))
    return [
        scaled(compression.decompress(x, context), scales[1]) for x, (_, context) in zip(results, sent, strict=True)
    ]


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
    """Reduce a tensor over all processes; differentiable: its gradient is reduced in the same way.

    Parameters
    ----------
    name
        What compressors with a memory keep it under; of no other use here.
    compression
        `Compression.none`, ``fp16`` or ``bf16``, a class like these, or a compressor of `ringleader.compress`. The
        first ones compress gradients as well; with the last these travel as they are.
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
    return grouped_allreduce([tensor], average, name, compression, op, prescale_factor, postscale_factor, process_set)[
        0
    ]


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
    compression: Any = Compression.none,
) -> torch.Tensor:
    """Reduce in place. Arguments as for `operations.allreduce_async_`; not differentiable, as in Horovod."""
    handle = operations.allreduce_async_(
        tensor, average, name, op, prescale_factor, postscale_factor, process_set, compression
    )
    result: torch.Tensor = synchronize(handle)
    return result


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp | str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
) -> list[torch.Tensor]:
    """Reduce several tensors, those of one type in one operation; differentiable. See `allreduce`.

    Examples
    --------
    >>> import torch, ringleader.horovod.torch as hvd
    >>> hvd.init(rank=0, size=1)
    >>> hvd.grouped_allreduce([torch.ones(2), torch.zeros(1)], op=hvd.Sum)
    [tensor([1., 1.]), tensor([0.])]
    >>> hvd.shutdown()
    """
    operator = operations._operator(op, average)
    many = [operations._dense(x, f"{name or 'tensor'} {i}") for i, x in enumerate(tensors)]

    def run(sent: list[torch.Tensor], scales: tuple[float, float]) -> Sequence[torch.Tensor]:
        options = {
            "op": operator,
            "prescale_factor": scales[0],
            "postscale_factor": scales[1],
            "process_set": process_set,
        }
        forward_only = {"name": name, "compression": lossy}
        found: Any = _AllReduce.apply(options, forward_only, *sent)  # type: ignore[no-untyped-call]
        return found if isinstance(found, tuple) else (found,)

    lossy: Any = Compression.none
    around: Any = compression
    if isinstance(compression, compress.Compressor):
        lossy, around = compression, Compression.none
    return _between(around, many, (prescale_factor, postscale_factor), run)


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
    compression: Any = Compression.none,
) -> list[torch.Tensor]:
    """Reduce several tensors in place, those of one type in one operation; not differentiable, as in Horovod."""
    handle = operations.grouped_allreduce_async_(
        tensors, average, name, op, prescale_factor, postscale_factor, process_set, compression
    )
    result: list[torch.Tensor] = synchronize(handle)
    return result


def allgather(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet | None = None) -> torch.Tensor:
    """Join the tensors of all processes along the first dimension, in which they may differ; differentiable.

    The gradient is the mean of what the processes have for this process's rows.

    Examples
    --------
    >>> import torch, ringleader.horovod.torch as hvd
    >>> hvd.init(rank=0, size=1)
    >>> hvd.allgather(torch.ones(2, 1)).shape
    torch.Size([2, 1])
    >>> hvd.shutdown()
    """
    return grouped_allgather([tensor], name, process_set)[0]


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet | None = None
) -> list[torch.Tensor]:
    """Join each of several tensors with those of the other processes; differentiable. See `allgather`."""
    return list(_AllGather.apply(process_set, *tensors))  # type: ignore[no-untyped-call]


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet | None = None
) -> torch.Tensor:
    """A copy of the root's tensor, on all processes; differentiable.

    The root's gradient is the mean of what all processes have for their copies; the others' is zero.
    """
    result: torch.Tensor = _Broadcast.apply(tensor, root_rank, process_set)  # type: ignore[no-untyped-call]
    return result


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet | None = None
) -> torch.Tensor:
    """Overwrite the tensor with the root's; not differentiable, as in Horovod."""
    result: torch.Tensor = synchronize(operations.broadcast_async_(tensor, root_rank, name, process_set))
    return result


def alltoall(
    tensor: torch.Tensor, splits: Any = None, name: str | None = None, process_set: ProcessSet | None = None
) -> Any:
    """Exchange slices; differentiable. With `splits` the result is (tensor, rows received from each process)."""
    result = _AllToAll.apply(tensor, splits, process_set)  # type: ignore[no-untyped-call]
    return result[0] if splits is None else result


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp | str | None = None,
    process_set: ProcessSet | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduce, and get this process's share of the first dimension; differentiable.

    The gradient joins those of all shares, times the factors, and for `Sum` times the number of processes.

    Examples
    --------
    >>> import torch, ringleader.horovod.torch as hvd
    >>> hvd.init(rank=0, size=1)
    >>> hvd.reducescatter(torch.ones(2), op=hvd.Sum, postscale_factor=3)
    tensor([3., 3.])
    >>> hvd.shutdown()
    """
    return grouped_reducescatter([tensor], name, compression, op, process_set, prescale_factor, postscale_factor)[0]


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp | str | None = None,
    process_set: ProcessSet | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Reduce and scatter several tensors, those of one type in one operation; differentiable. See `reducescatter`.

    Raises
    ------
    InvalidArgument
        A compressor of `ringleader.compress`, which is for all-reduce.
    """
    if isinstance(compression, compress.Compressor):
        raise errors.InvalidArgument(
            f"compression is {compression!r}; expected Compression.none, fp16 or bf16, or a class like these"
        )
    operator = operations._operator(op, None)

    def run(sent: list[torch.Tensor], scales: tuple[float, float]) -> Sequence[torch.Tensor]:
        options = {
            "op": operator,
            "process_set": process_set,
            "prescale_factor": scales[0],
            "postscale_factor": scales[1],
        }
        found: tuple[torch.Tensor, ...] = _ReduceScatter.apply(options, *sent)  # type: ignore[no-untyped-call]
        return found

    return _between(compression, tensors, (prescale_factor, postscale_factor), run)
