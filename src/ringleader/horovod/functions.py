"""Parameters, optimizers and objects of one process for all."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from ringleader import errors
from ringleader.horovod import operations
from ringleader.horovod.session import ProcessSet, lane_of

__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[Any], root_rank: int = 0, process_set: ProcessSet | None = None
) -> None:
    """Give all processes the root's tensors, in place.

    Parameters
    ----------
    params
        A model's ``state_dict()``, ``named_parameters()`` or ``parameters()``, with the same names and shapes on all
        processes. The entries of a mapping travel in the order of their names.

    Raises
    ------
    InvalidArgument
        Something that is neither.
    MismatchError
        Shapes or types differ.

    Examples
    --------
    >>> import torch, ringleader.horovod.torch as hvd
    >>> hvd.init(rank=0, size=1)
    >>> hvd.broadcast_parameters(torch.nn.Linear(2, 2).state_dict(), root_rank=0)
    >>> hvd.shutdown()
    """
    items: list[Any]
    if isinstance(params, Mapping):
        items = sorted(params.items(), key=lambda item: str(item[0]))
    elif isinstance(params, Iterable) and not isinstance(params, torch.Tensor):
        items = [(None, item) if isinstance(item, torch.Tensor) else item for item in params]
    else:
        items = [params]
    if not all(isinstance(item, tuple) and len(item) == 2 for item in items):
        raise errors.InvalidArgument(
            f"params is {type(params).__name__} and holds something else than tensors or (name, tensor) pairs; "
            "expected state_dict(), named_parameters() or parameters()"
        )
    started = [
        operations.broadcast_async_(value, root_rank, name, process_set)
        for name, value in items
        if isinstance(value, torch.Tensor)
    ]
    for handle in started:
        operations.synchronize(handle)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int = 0,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet | None = None,
) -> None:
    """Give all processes the root's optimizer state, also where they have none yet (before the first step).

    `model` is Horovod's; nothing has to be known of it here.

    Raises
    ------
    InvalidArgument
        An optimizer without a state dict that can be sent, such as LBFGS.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise errors.InvalidArgument(
            "optimizer is LBFGS, whose state has no place per parameter; broadcast it yourself"
        )
    mine = operations._rank_in(process_set, root_rank) == lane_of(process_set).comm.rank
    state = broadcast_object(optimizer.state_dict() if mine else None, root_rank, process_set=process_set)
    if not mine:
        optimizer.load_state_dict(state)


def broadcast_object(
    obj: Any = None, root_rank: int = 0, name: str | None = None, process_set: ProcessSet | None = None
) -> Any:
    """The root's object, on all processes. It travels as a pickle: the job's processes trust each other.

    Examples
    --------
    >>> import ringleader.horovod.torch as hvd
    >>> hvd.init(rank=0, size=1)
    >>> hvd.broadcast_object({"epoch": 3})
    {'epoch': 3}
    >>> hvd.shutdown()
    """
    lane, root = lane_of(process_set), operations._rank_in(process_set, root_rank)
    mine = _packed(obj) if lane.comm.rank == root else None

    def work() -> bytes:
        count = np.array([0 if mine is None else len(mine)], np.int64)
        lane.comm.broadcast(count, root)
        data = np.zeros(int(count[0]), np.uint8) if mine is None else np.frombuffer(bytearray(mine), np.uint8)
        lane.comm.broadcast(data, root)
        return data.tobytes()

    data = lane.submit(work).result()
    return obj if mine is not None else _unpacked(data)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet | None = None) -> list[Any]:
    """The objects of all processes, by rank. They travel as pickles, as in `broadcast_object`.

    Examples
    --------
    >>> import ringleader.horovod.torch as hvd
    >>> hvd.init(rank=0, size=1)
    >>> hvd.allgather_object("a")
    ['a']
    >>> hvd.shutdown()
    """
    block = torch.frombuffer(bytearray(_packed(obj)), dtype=torch.uint8)
    sizes = operations.synchronize(
        operations.allgather_async(torch.tensor([block.numel()]), process_set=process_set)
    ).tolist()
    joined = operations.synchronize(operations.allgather_async(block, process_set=process_set))
    return [_unpacked(bytes(part.tolist())) for part in joined.split(sizes)]


def _packed(obj: Any) -> bytes:
    buffer = io.BytesIO()
    try:
        torch.save(obj, buffer)  # like pickle, and tensors whatever their device
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise errors.InvalidArgument(f"the object of type {type(obj).__name__} cannot be pickled: {error}") from error
    return buffer.getvalue()


def _unpacked(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)
