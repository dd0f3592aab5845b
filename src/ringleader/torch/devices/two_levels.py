"""Which calls of a process group are run in two levels."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor

from ringleader.torch.devices.hierarchy import Hierarchy
from ringleader.torch.devices.staging import root_of
from ringleader.torch.tensors import equal_sizes

__all__ = ["offer"]


def offer(hierarchy: Hierarchy, name: str, arguments: dict[str, Any]) -> Any:
    """The work of a call that the hierarchy takes, else None. The answer is the same on all ranks.

    Parameters
    ----------
    name
        The method of `Collectives` that was called.
    arguments
        By their names, see `staging.arguments_of`.
    """
    taken = _OFFERS[name](hierarchy, arguments) if name in _OFFERS else None
    if taken is not None and name in ("allreduce", "broadcast"):
        taken.outputs = arguments["tensors"]
    return taken


def _single(value: Any) -> Any:
    """The one item of a list with an item per device, or the value itself; None for any other list."""
    if isinstance(value, (list, tuple)):
        return value[0] if len(value) == 1 else None
    return value


def _op(arguments: dict[str, Any]) -> Any:
    opts = arguments.get("opts")
    return dist.ReduceOp.SUM if opts is None else getattr(opts, "reduceOp", opts)


def _all_reduce(hierarchy: Hierarchy, arguments: dict[str, Any]) -> Any:
    x, op = _single(arguments["tensors"]), _op(arguments)
    return hierarchy.all_reduce(x, op, True) if isinstance(x, Tensor) and hierarchy.takes(x, op) else None


def _average(hierarchy: Hierarchy, arguments: dict[str, Any]) -> Any:
    x = arguments["x"]
    if not hierarchy.takes(x):
        return None
    work = hierarchy.all_reduce(x, dist.ReduceOp.AVG, True)
    work.outputs = x
    return work


def _broadcast(hierarchy: Hierarchy, arguments: dict[str, Any]) -> Any:
    x = _single(arguments["tensors"])
    return hierarchy.broadcast(x, root_of(arguments), True) if isinstance(x, Tensor) and hierarchy.takes(x) else None


def _all_gather(hierarchy: Hierarchy, arguments: dict[str, Any]) -> Any:
    out, x = arguments["output"], arguments["input"]
    fits = hierarchy.takes(x) and out.dtype is x.dtype and out.numel() == hierarchy.size * x.numel()
    return hierarchy.all_gather(out, x, True) if fits else None


def _all_gather_list(hierarchy: Hierarchy, arguments: dict[str, Any]) -> Any:
    x = arguments["inputs"]
    outs = arguments["outputs"] if isinstance(x, Tensor) else _single(arguments["outputs"])
    x = _single(x)
    if not isinstance(x, Tensor) or not hierarchy.takes(x) or not _row(outs, x, hierarchy.size):
        return None
    return hierarchy.all_gather_list(outs, x)


def _reduce_scatter(hierarchy: Hierarchy, arguments: dict[str, Any]) -> Any:
    out, x, op = arguments["output"], arguments["input"], _op(arguments)
    fits = hierarchy.takes(x, op) and out.dtype is x.dtype and x.numel() == hierarchy.size * out.numel()
    return hierarchy.reduce_scatter(out, x, op, True) if fits else None


def _reduce_scatter_list(hierarchy: Hierarchy, arguments: dict[str, Any]) -> Any:
    out, op = arguments["outputs"], _op(arguments)
    xs = arguments["inputs"] if isinstance(out, Tensor) else _single(arguments["inputs"])
    out = _single(out)
    if not isinstance(out, Tensor) or not hierarchy.takes(out, op) or not _row(xs, out, hierarchy.size):
        return None
    return hierarchy.reduce_scatter_list(out, list(xs), op)


def _row(tensors: Any, like: Tensor, size: int) -> bool:
    """Whether it is a list with a tensor of this size and type for each rank; what is not goes the usual way."""
    return (
        isinstance(tensors, (list, tuple))
        and len(tensors) == size
        and equal_sizes([like, *tensors])
        and all(x.dtype is like.dtype for x in tensors)
    )


_OFFERS = {
    "allreduce": _all_reduce,
    "average": _average,
    "broadcast": _broadcast,
    "all_gather_single": _all_gather,
    "allgather": _all_gather_list,
    "reduce_scatter_single": _reduce_scatter,
    "reduce_scatter": _reduce_scatter_list,
}
