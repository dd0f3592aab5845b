"""The operations, as Horovod names them. All processes of a set start them in the same order."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import torch

from ringleader import compress, errors
from ringleader.horovod.compression import Compression
from ringleader.horovod.session import ProcessSet, global_process_set, lane_of
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
    "grouped_allgather_async",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter_async",
    "poll",
    "reducescatter_async",
    "sparse_allreduce_async",
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


def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    """``factor * x`` in the type of x; differentiable."""
    if factor == 1.0:
        return x
    return x.mul(factor) if x.is_floating_point() or x.is_complex() else x.double().mul(factor).to(x.dtype)


def _scale(x: torch.Tensor, factor: float) -> None:
    if factor != 1.0:
        x.copy_(scaled(x, factor))


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
    if isinstance(compression, compress.Compressor) and not values.is_floating_point():
        compression = Compression.none  # as with Compression.fp16 integers travel as they are
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


def _told(comm: Communicator, what: str, tensors: Sequence[torch.Tensor], own: Sequence[int]) -> Any:
    """The numbers that each process tells, shape (size, len(own)), once all agree about types and later dimensions.

    All find a disagreement at once, from the same numbers and before data moves, so the set's operations go on.
    """
    kinds = [zlib.crc32(repr((str(x.dtype), tuple(x.shape[1:]))).encode()) for x in tensors]
    table = np.asarray(comm.all_gather(np.array([*own, *kinds], np.int64))).reshape(comm.size, -1)
    theirs = table[:, len(own) :]
    for i, x in enumerate(tensors):
        others = [r for r in range(comm.size) if theirs[r, i] != kinds[i]]
        if others:
            raise errors.MismatchError(
                f"{what}: tensor {i} is {x.dtype} of shape {tuple(x.shape)} here, and ranks {others} have another type "
                "or other dimensions after the first; expected the same on all ranks",
                others,
            )
    return table[:, : len(own)]


def _gather(
    process_set: ProcessSet | None, tensors: Sequence[torch.Tensor]
) -> Handle[list[tuple[torch.Tensor, list[int]]]]:
    """Start to join each tensor with those of the other processes; with the results come all processes' rows."""
    lane = lane_of(process_set)
    rows = [x if x.dim() else x.reshape(1) for x in (_dense(x, f"tensor {i}").detach() for i, x in enumerate(tensors))]

    def work() -> list[tuple[torch.Tensor, list[int]]]:
        comm = lane.comm
        table = _told(comm, "allgather", rows, [x.shape[0] for x in rows])
        return [(_gathered(comm, x, table[:, i].tolist()), table[:, i].tolist()) for i, x in enumerate(rows)]

    return lane.submit(work)


def _gathered(comm: Communicator, x: torch.Tensor, counts: list[int]) -> torch.Tensor:
    block = torch.zeros((max(counts), *x.shape[1:]), dtype=x.dtype)
    block[: x.shape[0]] = _on_host(x)
    gathered = torch.empty((comm.size, *block.shape), dtype=x.dtype)
    comm.all_gather(block, gathered)
    return torch.cat([gathered[r, :count] for r, count in enumerate(counts)]).to(x.device)


def _then(handle: Handle[Any], change: Callable[[Any], Any]) -> Handle[Any]:
    """A handle for what `change` makes of a result. It runs on the set's thread and must not fail."""
    after: Handle[Any] = Future()

    def finish(done: Handle[Any]) -> None:
        error = done.exception()
        if error is None:
            after.set_result(change(done.result()))
        else:
            after.set_exception(error)

    handle.add_done_callback(finish)
    return after


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet | None = None
) -> Handle[torch.Tensor]:
    """Start to join the tensors of all processes along the first dimension, in which they may differ."""
    return _then(_gather(process_set, [tensor]), lambda joined: joined[0][0])


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet | None = None
) -> Handle[list[torch.Tensor]]:
    """Start to join each of several tensors with those of the other processes, as `allgather_async` does with one."""
    return _then(_gather(process_set, tensors), lambda joined: [x for x, _ in joined])


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp | str | None = None,
    process_set: ProcessSet | None = None,
) -> Callable[[], torch.Tensor]:
    """Start to add up sparse tensors: all processes' indices and values are gathered.

    Returns
    -------
    callable
        It waits, and returns a sparse tensor (not coalesced) of the same shape.

    Raises
    ------
    InvalidArgument
        `op` is neither `Sum` nor `Average`.
    UnsupportedType
        The tensor is not of layout torch.sparse_coo.
    """
    operator = _operator(op, None)
    if operator not in (Average, Sum):
        raise errors.InvalidArgument(f"op is {operator!r}; expected Average or Sum for sparse tensors")
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.sparse_coo:
        raise errors.UnsupportedType(f"{name or 'tensor'} is not sparse; expected layout torch.sparse_coo")
    x = tensor.detach()
    size = lane_of(process_set).comm.size
    handle = _gather(process_set, [x._indices().t().contiguous(), x._values()])

    def result() -> torch.Tensor:
        (indices, _), (values, _) = synchronize(handle)
        if operator is Average:
            values = values / size
        return torch.sparse_coo_tensor(indices.t(), values, x.shape, device=x.device, check_invariants=True)

    return result


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet | None = None
) -> Handle[torch.Tensor]:
    """Start to give all processes the root's tensor, in place. `root_rank` is a rank of the job, as with Horovod."""
    x, lane = _dense(tensor, name or "tensor"), lane_of(process_set)
    root = _rank_in(process_set, root_rank)

    def work() -> torch.Tensor:
        # A root sends and goes on, so it would not hear of others that wait for another root or type.
        rows = x.shape[0] if x.dim() else -1
        roots = _told(lane.comm, "broadcast", [x], [root, rows])
        others = [r for r in range(lane.comm.size) if roots[r].tolist() != [root, rows]]
        if others:
            raise errors.MismatchError(
                f"broadcast: rank {root} is the root of a tensor of shape {tuple(x.shape)} here, and ranks {others} "
                f"say (root, rows) {[roots[r].tolist() for r in others]}; expected the same on all ranks",
                others,
            )
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
    members = (process_set or global_process_set).ranks
    if members is None or root_rank not in members:
        raise errors.InvalidArgument(f"root_rank is {root_rank}; expected one of {members}")
    return members.index(root_rank)


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> Handle[tuple[torch.Tensor, torch.Tensor]]:
    """Start to send slices along the first dimension, ``splits[r]`` rows to process r; without `splits` equal ones.

    The result is the tensor, and the rows received from each process: of the type and on the device of `splits`
    where that is a tensor, else int32.
    """
    x, lane = _dense(tensor, name or "tensor").detach(), lane_of(process_set)
    n = lane.comm.size
    rows = x.shape[0] if x.dim() else 0
    if splits is None and rows % n:
        raise errors.InvalidArgument(f"the first dimension is {rows}; expected a multiple of {n}, or splits")
    if isinstance(splits, torch.Tensor) and (splits.is_floating_point() or splits.is_complex()):
        raise errors.InvalidArgument(f"splits are {splits.dtype}; expected a tensor of integers")
    counts = [int(c) for c in splits] if splits is not None else [rows // n] * n
    if len(counts) != n or min(counts) < 0 or sum(counts) != rows:
        raise errors.InvalidArgument(f"splits are {counts}; expected {n} numbers that sum to {rows}")
    of_splits = splits if isinstance(splits, torch.Tensor) else torch.empty(0, dtype=torch.int32)

    def work() -> tuple[torch.Tensor, torch.Tensor]:
        comm = lane.comm
        table = _told(comm, "alltoall", [x], counts)
        block = torch.zeros((n, int(table.max()), *x.shape[1:]), dtype=x.dtype)
        for r, part in enumerate(torch.split(_on_host(x), counts)):
            block[r, : counts[r]] = part
        received = torch.empty_like(block)
        comm.all_to_all(block, received)
        here = table[:, comm.rank].tolist()
        result = torch.cat([received[r, :count] for r, count in enumerate(here)]).to(x.device)
        return result, of_splits.new_tensor(here)

    return lane.submit(work)


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp | str | None = None,
    process_set: ProcessSet | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle[torch.Tensor]:
    """Start to reduce; each process gets its share of the first dimension, the first ones a row more if need be."""
    started = grouped_reducescatter_async([tensor], name, op, process_set, prescale_factor, postscale_factor)
    return _then(started, lambda parts: parts[0])


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: ReduceOp | str | None = None,
    process_set: ProcessSet | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle[list[torch.Tensor]]:
    """Start to reduce and scatter several tensors, those of one type in one operation; see `reducescatter_async`.

    Raises
    ------
    InvalidArgument
        A tensor without dimensions.
    UnsupportedType
        One is not a dense torch tensor.
    """
    many = [_dense(x, f"tensor {i}").detach() for i, x in enumerate(tensors)]
    operator, lane = _operator(op, None), lane_of(process_set)
    for i, x in enumerate(many):
        if x.dim() == 0:
            raise errors.InvalidArgument(f"tensor {i} has no dimension; expected at least one to scatter along")

    def work() -> list[torch.Tensor]:
        comm = lane.comm
        results: list[torch.Tensor] = [torch.empty(0)] * len(many)
        by_type: dict[torch.dtype, list[int]] = {}
        for i, x in enumerate(many):
            by_type.setdefault(x.dtype, []).append(i)
        for members in by_type.values():
            blocks = [_shares(scaled(_on_host(many[i]), prescale_factor), comm.size) for i in members]
            joined = torch.cat([block.reshape(comm.size, -1) for block in blocks], dim=1)
            mine = torch.empty(joined.shape[1], dtype=joined.dtype)
            comm.reduce_scatter(joined, mine, operator)
            _scale(mine, postscale_factor)
            parts = torch.split(mine, [block[0].numel() for block in blocks])
            for i, block, part in zip(members, blocks, parts, strict=True):
                less, more = divmod(many[i].shape[0], comm.size)
                own = part.view(block.shape[1:])[: less + (comm.rank < more)]
                results[i] = own.clone().to(many[i].device)
        return results

    return lane.submit(work)


def _shares(x: torch.Tensor, n: int) -> torch.Tensor:
    """The rows of each process, filled up with zeros to equally many: shape (n, rows, ...)."""
    less, more = divmod(x.shape[0], n)
    if not more:
        return x.reshape(n, less, *x.shape[1:])
    block = x.new_zeros((n, less + 1, *x.shape[1:]))
    block[:more] = x[: more * (less + 1)].reshape(more, less + 1, *x.shape[1:])
    block[more:, :less] = x[more * (less + 1) :].reshape(n - more, less, *x.shape[1:])
    return block


def synchronize(handle: Handle[Any]) -> Any:
    """Wait for an operation and return its result.

    Raises
    ------
    HorovodInternalError
        The operation failed; it is a `ringleader.errors.RingleaderError` too.
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
