"""All-reduce of compressed arrays: the calls. See docs/compression.md."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from ringleader import errors
from ringleader.compress.base import Compressor, Floats, Keyed, as_floats, no_compressor
from ringleader.compress.pieces import Pieces
from ringleader.runtime import arrays
from ringleader.runtime.compressed.cost import pays
from ringleader.runtime.compressed.described import AS_IT_IS, describe, same_on_all
from ringleader.runtime.compressed.lane import lane_of, lane_or_none
from ringleader.runtime.compressed.reduction import Reduction
from ringleader.runtime.dtypes import ReduceOp, parse_op
from ringleader.runtime.work import Work

if TYPE_CHECKING:
    from ringleader.runtime.communicator import Communicator

__all__ = ["all_reduce", "all_reduce_pieces", "all_reduce_vector", "pays", "transaction"]


def all_reduce(
    comm: Communicator,
    x: Any,
    op: ReduceOp | str,
    compression: Compressor | Keyed,
    out: Any = None,
    async_op: bool = False,
    timeout: float | None = None,
    dense: bool = False,
) -> Any:
    """Sum or average `x` over all ranks, compressed; what `Communicator.all_reduce` does with ``compression=``.

    With `async_op` it runs beside the caller and gives a `Work`. What a compressor remembers
    does not change on a rank where the call fails.

    Parameters
    ----------
    dense
        Send everything as it is, with what error feedback remembers of the array: for a change to calls without
        compression.

    Raises
    ------
    InvalidArgument
        Another operation than sum or average, or no compressor.
    UnsupportedType
        No real floating-point numbers.

    Examples
    --------
    >>> import ringleader as rl
    >>> from ringleader.compress import FP16
    >>> with rl.init(rank=0, size=1) as comm:
    ...     all_reduce(comm, np.ones(2, np.float32), "avg", FP16())
    array([1., 1.], dtype=float32)
    """
    operator = parse_op(op)
    if operator not in (ReduceOp.SUM, ReduceOp.AVG):
        raise errors.InvalidArgument(f"op is {operator.name!r}; compressed arrays can be reduced with 'sum' or 'avg'")
    compressor, key = (compression.compressor, compression.key) if isinstance(compression, Keyed) else (compression, "")
    if not isinstance(compressor, Compressor):
        raise errors.InvalidArgument(f"compression is {compression!r}; {no_compressor(compression)}")
    target = x if out is None else out
    arrays.target(target, "x (reduced in place)" if out is None else "out")  # refuses what cannot be written to
    shape = arrays.user_shape(x)
    if arrays.user_shape(target) != shape:
        raise errors.InvalidArgument(f"out has shape {arrays.user_shape(target)}; expected the input's, {shape}")
    values, average = _floats_of(x), operator is ReduceOp.AVG

    def run(over: Communicator) -> None:
        room = _as_vector(target)
        result = all_reduce_vector(over, values, average, compressor, key, shape, timeout, room, dense)
        if room is None:
            _store(target, result.reshape(shape))

    try:
        comm._check_usable()
    except errors.AbortedError:
        with same_on_all(comm, describe("all_reduce", average, compressor, key, shape)):
            raise
    if async_op:
        lane = lane_of(comm, timeout)
        return Work(lane.start(lambda: run(lane.comm)), target)
    if (earlier := lane_or_none(comm)) is not None:
        earlier.drain()  # what was started may compress the same array
    run(comm)
    return target


def _is_torch(x: Any) -> bool:
    tensor = arrays.torch_tensor_type()
    return tensor is not None and isinstance(x, tensor)


def _floats_of(x: Any) -> Floats:
    """The elements as float32; of torch's tensors too."""
    if not _is_torch(x):
        return as_floats(x)
    if not x.is_floating_point():
        raise errors.UnsupportedType(f"x has elements of type {x.dtype}; compressors take floating-point numbers")
    return as_floats(x.detach().float().resolve_neg().numpy())


def _as_vector(target: Any) -> Floats | None:
    """The target's memory, where the result can be written to it directly."""
    array: Any = target
    if _is_torch(target):
        plain = target.dtype is sys.modules["torch"].float32 and not target.is_neg()
        array = target.detach().numpy() if plain else None
    if isinstance(array, np.ndarray) and array.dtype == np.float32 and array.flags.c_contiguous:
        return array.reshape(-1)
    return None


def _store(target: Any, result: Floats) -> None:
    if _is_torch(target):
        target.detach().copy_(sys.modules["torch"].from_numpy(result))
    else:
        np.asarray(target)[...] = result


def all_reduce_vector(
    comm: Communicator,
    x: Floats,
    average: bool,
    compressor: Compressor,
    key: str = "",
    shape: tuple[int, ...] = (),
    timeout: float | None = None,
    out: Floats | None = None,
    dense: bool = False,
) -> Floats:
    """The mean or the sum over all ranks of a contiguous vector, which is left as it is unless it is `out`.

    Parameters
    ----------
    key
        Which array this is, for compressors that remember something about each.
    shape
        Shape of the array that the vector was made of.
    out
        For the result, shape (elements,), contiguous; may be `x`. If the call fails while there is something to be
        received it is left as it is (but not where the array is sent uncompressed).
    dense
        See `all_reduce`.

    Returns
    -------
    array
        `out` or a new one, shape (elements,), with equal bits on all ranks.
    """
    if comm.size > 1:
        room = None if out is None else Pieces([out])
        result = _reduce(comm, Pieces([x]), average, compressor, key, shape or x.shape, timeout, room, dense)
        return result.joined()
    if out is None:
        return x.copy()
    if out.ctypes.data != x.ctypes.data:
        out[:] = x
    return out


def all_reduce_pieces(
    comm: Communicator, x: Pieces, average: bool, compressor: Compressor, key: str = "", timeout: float | None = None
) -> None:
    """Replace an array that lies in several pieces by its mean or sum over all ranks; see `all_reduce_vector`.

    Examples
    --------
    >>> import ringleader as rl
    >>> from ringleader.compress import FP16
    >>> with rl.init(rank=0, size=1) as comm:
    ...     all_reduce_pieces(comm, Pieces([np.ones(2, np.float32)]), True, FP16())
    """
    if comm.size > 1:
        _reduce(comm, x, average, compressor, key, (x.size,), timeout, x, False)


def _reduce(
    comm: Communicator,
    x: Pieces,
    average: bool,
    compressor: Compressor,
    key: str,
    shape: tuple[int, ...],
    timeout: float | None,
    out: Pieces | None,
    dense: bool,
) -> Pieces:
    description = describe("all_reduce", average, compressor, key, shape)
    with same_on_all(comm, description), transaction(compressor, key):
        whole = dense or x.size == 0 or not pays(comm, compressor, x.size)
        reduction = Reduction(comm, average, compressor, key, timeout, description + AS_IT_IS * whole, out)
        return reduction.dense(x) if whole else reduction.run(x, shape)


@contextmanager
def transaction(compressor: Compressor, key: str) -> Iterator[None]:
    """What the compressor remembers of an array changes only if the body succeeds.

    Examples
    --------
    >>> from ringleader.compress import ErrorFeedback, TopK
    >>> codec = ErrorFeedback(TopK(k=1))
    >>> try:
    ...     with transaction(codec, "w"):
    ...         payload = codec.stage(np.float32([3, 2]), "w")
    ...         raise TimeoutError
    ... except TimeoutError:
    ...     codec.error("w", 2)
    array([0., 0.], dtype=float32)
    """
    mark = compressor.mark(key)
    try:
        yield
    except BaseException:
        compressor.roll_back(key, mark)
        raise
    compressor.commit(key)
