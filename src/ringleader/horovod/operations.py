"""The operations, as Horovod names them. All processes of a set start them in the same order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import torch

from ringleader import compress, errors
from ringleader.horovod.compression import Compression
from ringleader.horovod.session import ProcessSet, lane_of
from ringleader.runtime.communicator import Communicator
from ringleader.runtime.dtypes import ReduceOp

__all__ = [
    "Adasum",
    "Average",
    "Handle",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather_async",
    "allreduce_async",
    "allreduce_async_",
    "alltoall_async",
    "barrier",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "poll",
    "reducescatter_async",
    "synchronize",
]

Average, Sum, Min, Max, Product = ReduceOp.AVG, ReduceOp.SUM, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PROD
Adasum = "adasum"
"""Horovod's name for a reduction that Ringleader does not have; giving it is an error."""

Handle = Future
"""What ``*_async`` functions return, for `synchronize` and `poll`."""


def _operator(op: ReduceOp | str | None, average: bool | None) -> ReduceOp:
    if average is not None:
        if op is not None:
            raise errors.InvalidArgument("op and average are both given; expected op alone (average is its old form)")
        op = Average if average else Sum
    op = Average if op is None else op
    if isinstance(op, ReduceOp) and op in (Average, Sum, Min, Max, Product):
        return op
    raise errors.InvalidArgument(f"op is {op!r}; expected Average, Sum, Min, Max or Product")


def _scale(x: torch.Tensor, factor: float) -> None:
    if factor != 1.0:
        x.copy_(x.mul(factor) if x.is_floating_point() or x.is_complex() else x.double().mul(factor))


def _on_host(x: torch.Tensor) -> torch.Tensor:
    """The elements where the engine reaches them: itself on the CPU, else a copy."""
    return x.detach() if x.is_cpu else x.detach().cpu()


def _dense(x: torch.Tensor, what: str) -> torch.Tensor:
    if not isinstance(x, torch.Tensor) or x.layout is not torch.strided:
        kind = f"layout {x.layout}" if isinstance(x, torch.Tensor) else f"type {type(x).__name__}"
        raise errors.UnsupportedType(f"{what} has {kind}; expected a dense torch tensor (sparse_as_dense, to_dense())")
    return x


def _reduce(
    comm: Communicator,
    x: torch.Tensor,
    op: ReduceOp,
    scales: tuple[float, float],
    compression: Any,
    name: str | None,
) -> torch.Tensor:
    """Reduce in place, on the set's thread."""
    values = _on_host(x)
    _scale(values, scales[0])
    if isinstance(compression, compress.Compressor):
        comm.all_reduce(values, op, compression=compression.at(name or f"unnamed {tuple(x.shape)}"))
    else:
        sent, context = compression.compress(values)
        comm.all_reduce(sent, op)
        if sent is not values:
            values.copy_(compression.decompress(sent, context))
    _scale(values, scales[1])
    if values.data_ptr() != x.data_ptr():
        x.detach().copy_(values)
    return x


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
    compression: Any = Compression.none,
) -> Handle[torch.Tensor]:
    """Start to reduce a tensor in place; see `allreduce`.

    Examples
    --------
    >>> import torch, ringleader.horovod.torch as hvd
    >>> hvd.init(rank=0, size=1)
    >>> hvd.synchronize(hvd.allreduce_async_(torch.ones(2), op=hvd.Sum, postscale_factor=0.5))
    tensor([0.5000, 0.5000])
    >>> hvd.shutdown()
    """
    operator, x = _operator(op, average), _dense(tensor, name or "tensor")
    lane, scales = lane_of(process_set), (prescale_factor, postscale_factor)
    return lane.submit(lambda: _reduce(lane.comm, x, operator, scales, compression, name))


def allreduce_async(tensor: torch.Tensor, *arguments: Any, **named: Any) -> Handle[torch.Tensor]:
    """Start to reduce; the result is a new tensor. Arguments as for `allreduce_async_`."""
    return allreduce_async_(_dense(tensor, "tensor").detach().clone(), *arguments, **named)


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
    compression: Any = Compression.none,
) -> Handle[list[torch.Tensor]]:
    """Start to reduce several tensors in place, those of one type in one operation.

    Raises
    ------
    UnsupportedType
        One is not a dense torch tensor.
    """
    many = [_dense(x, f"tensor {i}") for i, x in enumerate(tensors)]
    operator, lane, scales = _operator(op, average), lane_of(process_set), (prescale_factor, postscale_factor)

    def work() -> list[torch.Tensor]:
        by_type: dict[torch.dtype, list[torch.Tensor]] = {}
        for x in many:
            by_type.setdefault(x.dtype, []).append(x)
        for dtype, group in by_type.items():
            joined = torch.cat([_on_host(x).reshape(-1) for x in group])
            _reduce(lane.comm, joined, operator, scales, compression, f"{name} {dtype}")
            for x, part in zip(group, torch.split(joined, [x.numel() for x in group]), strict=True):
                x.detach().copy_(part.view(x.shape))
        return many

    return lane.submit(work)


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor], *arguments: Any, **named: Any
) -> Handle[list[torch.Tensor]]:
    """Start to reduce several tensors; the results are new tensors. Arguments as for `grouped_allreduce_async_`."""
    copies = [_dense(x, f"tensor {i}").detach().clone() for i, x in enumerate(tensors)]
    return grouped_allreduce_async_(copies, *arguments, **named)


def _rows_of_all(comm: Communicator, own: Sequence[int]) -> np.ndarray[Any, Any]:
    """The numbers that each process tells, shape (size, len(own))."""
    return np.asarray(comm.all_gather(np.array(own, np.int64))).reshape(comm.size, len(own))


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet | None = None
) -> Handle[torch.Tensor]:
    """Start to join the tensors of all processes along the first dimension, in which they may differ."""
    x, lane = _dense(tensor, name or "tensor").detach(), lane_of(process_set)

    def work() -> torch.Tensor:
        comm = lane.comm
        rows = _on_host(x if x.dim() else x.reshape(1)).contiguous()
        counts = _rows_of_all(comm, [rows.shape[0]])[:, 0].tolist()
        block = torch.zeros((max(counts), *rows.shape[1:]), dtype=rows.dtype)
        block[: rows.shape[0]] = rows
        gathered = torch.empty((comm.size, *block.shape), dtype=rows.dtype)
        comm.all_gather(block, gathered)
        return torch.cat([gathered[r, :count] for r, count in enumerate(counts)]).to(x.device)

    return lane.submit(work)


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet | None = None
) -> Handle[torch.Tensor]:
    """Start to give all processes the root's tensor, in place. `root_rank` is a rank of the job, as with Horovod."""
    x, lane = _dense(tensor, name or "tensor"), lane_of(process_set)
    root = _rank_in(process_set, root_rank)

    def work() -> torch.Tensor:
        values = _on_host(x)
        lane.comm.broadcast(values, root)
        if values.data_ptr() != x.data_ptr():
            x.detach().copy_(values)
        return x

    return lane.submit(work)


def broadcast_async(tensor: torch.Tensor, *arguments: Any, **named: Any) -> Handle[torch.Tensor]:
    """Start to give all processes a copy of the root's tensor. Arguments as for `broadcast_async_`."""
    return broadcast_async_(_dense(tensor, "tensor").detach().clone(), *arguments, **named)


def _rank_in(process_set: ProcessSet | None, root_rank: int) -> int:
    ranks = None if process_set is None else process_set.ranks
    members = list(range(lane_of(process_set).comm.size)) if ranks is None else ranks
    if root_rank not in members:
        raise errors.InvalidArgument(f"root_rank is {root_rank}; expected one of {members}")
    return members.index(root_rank)


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> Handle[Any]:
    """Start to send slices along the first dimension, ``splits[r]`` rows to process r; without `splits` equal ones."""
    x, lane = _dense(tensor, name or "tensor").detach(), lane_of(process_set)
    n, given = lane.comm.size, splits is not None
    rows = x.shape[0] if x.dim() else 0
    if splits is None and rows % n:
        raise errors.InvalidArgument(f"the first dimension is {rows}; expected a multiple of {n}, or splits")
    counts = [int(c) for c in splits] if splits is not None else [rows // n] * n
    if len(counts) != n or min(counts) < 0 or sum(counts) != rows:
        raise errors.InvalidArgument(f"splits are {counts}; expected {n} numbers that sum to {rows}")

    def work() -> Any:
        comm = lane.comm
        table = _rows_of_all(comm, counts)
        block = torch.zeros((n, int(table.max()), *x.shape[1:]), dtype=x.dtype)
        for r, part in enumerate(torch.split(_on_host(x), counts)):
            block[r, : counts[r]] = part
        received = torch.empty_like(block)
        comm.all_to_all(block, received)
        here = table[:, comm.rank].tolist()
        result = torch.cat([received[r, :count] for r, count in enumerate(here)]).to(x.device)
        return (result, torch.tensor(here, dtype=torch.int32)) if given else result

    return lane.submit(work)


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp | str | None = None,
    process_set: ProcessSet | None = None,
) -> Handle[torch.Tensor]:
    """Start to reduce; each process gets its share of the first dimension, the first ones a row more if need be."""
    x, lane, operator = _dense(tensor, name or "tensor").detach(), lane_of(process_set), _operator(op, None)
    if x.dim() == 0:
        raise errors.InvalidArgument("the tensor has no dimension; expected at least one to scatter along")

    def work() -> torch.Tensor:
        comm = lane.comm
        less, more = divmod(x.shape[0], comm.size)
        block = torch.zeros((comm.size, less + (more > 0), *x.shape[1:]), dtype=x.dtype)
        counts = [less + (r < more) for r in range(comm.size)]
        for r, part in enumerate(torch.split(_on_host(x), counts)):
            block[r, : counts[r]] = part
        mine = torch.empty(block.shape[1:], dtype=x.dtype)
        comm.reduce_scatter(block, mine, operator)
        return mine[: counts[comm.rank]].to(x.device)

    return lane.submit(work)


def synchronize(handle: Handle[Any]) -> Any:
    """Wait for an operation and return its result.

    Raises
    ------
    RingleaderError
        The operation failed.
    """
    return handle.result()


def poll(handle: Handle[Any]) -> bool:
    """Whether `synchronize` would not wait."""
    return handle.done()


def barrier(process_set: ProcessSet | None = None) -> None:
    """Wait until all processes of the set have come here."""
    lane = lane_of(process_set)
    run: Callable[[], Any] = lane.comm.barrier
    lane.submit(run).result()
