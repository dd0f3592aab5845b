"""The same schedules by point-to-point messages of any MPI, through mpi4py.

Each step of the schedule is a set of `Isend` and `Irecv`, then one `Waitall`; reductions are this rank's own, in the
order that the schedule says, so the result has the same bits as that of every other executor.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ringleader._lazy import install
from ringleader.errors import InvalidArgument, MismatchError, RingleaderError
from ringleader.executors.arithmetic import NONE, dtype_of
from ringleader.executors.p2p import Message, execute, share_of
from ringleader.schedule import Collective, Schedule

if TYPE_CHECKING:
    from ringleader.runtime.dtypes import ReduceOp

__all__ = ["run"]

Array = NDArray[Any]

# Every MPI has at least these tags. Messages with equal tags between two ranks do not overtake each other, and both
# sides post them in the order of the schedule, so tags may come round again.
TAGS = 1 << 15


def run(
    schedule: Schedule,
    array: Array | None = None,
    comm: Any = None,
    op: ReduceOp | str = "sum",
) -> Array | None:
    """Run a schedule on this process's array; every process of the communicator must call it.

    The ranks first agree on what they run (one small all-gather): a contradiction is an error on all of them, before
    any data moves.

    Parameters
    ----------
    schedule
        Any schedule for ``comm.Get_size()`` ranks, equal on all of them.
    array
        This rank's input, of any shape that is contiguous or not: ``count`` elements for all_reduce, broadcast, reduce,
        all_gather and gather; ``n * count`` for reduce_scatter, all_to_all and scatter. Broadcast and scatter read the
        root's only, others may give None. None for barrier. Never written to.
    comm
        A communicator of mpi4py; default ``MPI.COMM_WORLD``.
    op
        Reduction: ``"sum"``, ``"avg"``, ... or what `ringleader.premul_sum` returns. Not looked at by collectives that
        only move data.

    Returns
    -------
    numpy.ndarray or None
        A new array: of the input's shape for all_reduce, reduce and broadcast (where the rank gave one); flat, with
        ``count`` elements, for reduce_scatter and scatter; flat, with ``n * count``, for all_gather, gather and
        all_to_all. None for barrier, and away from the root of reduce and gather.

    Raises
    ------
    InvalidArgument
        No mpi4py, a schedule for another number of ranks, an array that is missing or does not divide. On all ranks.
    MismatchError
        The ranks differ in schedule, size, type or operation. On all ranks.
    UnsupportedType
        The reduction is not offered for the type.
    ScheduleError
        The schedule breaks a rule, or does not do what its collective promises.

    Notes
    -----
    Messages use the tags 0 to 32767 of `comm`; give a duplicate (``comm.Dup()``) if messages of your own are under way.

    References
    ----------
    MPI Forum: MPI: A Message-Passing Interface Standard, version 4.1, 2023; section 3.5 on the order of messages.

    Examples
    --------
    Started by ``mpirun -n 4 python script.py``::

        import numpy as np
        import ringleader as rl
        from ringleader.algorithms import build

        total = rl.executors.mpi.run(build("all_reduce", "ring", 4), np.arange(1000.0), op="sum")
    """
    comm = _import_mpi().COMM_WORLD if comm is None else comm
    rank = comm.Get_rank()
    calls = comm.allgather(_described(schedule, array, comm.Get_size(), rank, op))
    _agree(calls)
    return _run(schedule, array, comm, calls[schedule.root if _root_only(schedule) else rank])


class _Call(NamedTuple):
    """One rank's call. `size` and `dtype` are None where the rank gives no array."""

    schedule: str
    fingerprint: str
    size: int | None
    dtype: np.dtype[Any] | None
    op: ReduceOp | None
    problem: str | None


class _Mpi:
    """Messages over a communicator of mpi4py."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self._mpi = _import_mpi()

    def exchange(self, sends: Sequence[tuple[Message, Array]], receives: Sequence[tuple[Message, Array]]) -> None:
        """Start all, wait for all."""
        byte = self._mpi.BYTE
        requests = [self._comm.Irecv([it.view(np.uint8), byte], m.peer, m.order % TAGS) for m, it in receives]
        requests += [self._comm.Isend([it.view(np.uint8), byte], m.peer, m.order % TAGS) for m, it in sends]
        self._mpi.Request.Waitall(requests)


def _import_mpi() -> Any:
    try:
        return importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py is there, but it finds no MPI
        raise InvalidArgument(
            f"this needs mpi4py and an MPI ({error}); {install('mpi', 'mpi4py')}, and see docs/mpi.md"
        ) from error


def _run(schedule: Schedule, array: Array | None, comm: Any, call: _Call) -> Array | None:
    """What `run` does once the ranks agree; `call` is this rank's, or the root's if only that counts."""
    from ringleader.runtime import dtypes

    rank = comm.Get_rank()
    share = share_of(schedule, rank)
    code, factor = (NONE, 1.0) if call.op is None else (call.op.code, call.op.factor)
    if call.size is None or call.dtype is None:  # a barrier
        return execute(share, None, 0, dtypes.BYTES, code, factor, _Mpi(comm))
    dtype_code = dtypes.code_of_numpy(call.dtype)
    if call.op is not None:
        dtypes.check_supported(dtype_code, call.dtype.name, call.op)
    storage = dtype_of(dtype_code)  # bytes, for what can only be moved
    flat = None if array is None else np.ascontiguousarray(array, call.dtype).reshape(-1).view(storage)
    count = call.size * (call.dtype.itemsize // storage.itemsize) // (schedule.n if _divides(schedule) else 1)
    result = execute(share, flat, count, dtype_code, code, factor, _Mpi(comm))
    if result is None:
        return None
    result = result.view(call.dtype)
    keeps_shape = schedule.collective in (Collective.ALL_REDUCE, Collective.REDUCE, Collective.BROADCAST)
    return result.reshape(array.shape) if keeps_shape and array is not None else result


def _root_only(schedule: Schedule) -> bool:
    return schedule.collective in (Collective.BROADCAST, Collective.SCATTER)


def _divides(schedule: Schedule) -> bool:
    return schedule.collective in (Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL, Collective.SCATTER)


def _described(schedule: Schedule, array: Array | None, ranks: int, rank: int, op: ReduceOp | str) -> _Call:
    """This rank's call, or what is wrong with it."""
    from ringleader.runtime import dtypes

    size = dtype = operation = problem = None
    try:
        if schedule.collective.reduces and schedule.collective is not Collective.BARRIER:
            operation = dtypes.parse_op(op)
        _check(schedule, array, ranks, rank)
        if array is not None:
            size, dtype = array.size, array.dtype.newbyteorder("=")
            dtypes.code_of_numpy(dtype)  # refuses Python objects
    except RingleaderError as error:
        problem = str(error)
    return _Call(f"{schedule!r} with root {schedule.root}", schedule.fingerprint, size, dtype, operation, problem)


def _check(schedule: Schedule, array: Array | None, ranks: int, rank: int) -> None:
    if schedule.n != ranks:
        raise InvalidArgument(f"{schedule!r} is for {schedule.n} ranks; the communicator has {ranks}")
    if schedule.collective is Collective.BARRIER:
        if array is not None:
            raise InvalidArgument("a barrier takes no array; give None")
    elif array is None:
        if not _root_only(schedule) or rank == schedule.root:
            raise InvalidArgument(f"{schedule.collective} needs an array on this rank; got None")
    elif not isinstance(array, np.ndarray):
        raise InvalidArgument(f"array is a {type(array).__name__}; expected a numpy.ndarray")
    elif _divides(schedule) and array.size % schedule.n:
        raise InvalidArgument(f"{array.size} elements cannot be divided among ranks; give a multiple of {schedule.n}")


def _agree(calls: Sequence[_Call]) -> None:
    """Raise the same error on all ranks unless all calls are fine and fit together."""
    bad = [rank for rank, call in enumerate(calls) if call.problem is not None]
    if bad:
        raise InvalidArgument(f"rank {bad[0]}: {calls[bad[0]].problem}", bad)
    for what in ("fingerprint", "op", "dtype", "size"):
        told = [(rank, call) for rank, call in enumerate(calls) if getattr(call, what) is not None]
        for rank, call in told[1:]:
            first, other = told[0]
            if getattr(call, what) != getattr(other, what):
                shown = "schedule" if what == "fingerprint" else what
                raise MismatchError(
                    f"{shown} is {getattr(other, shown)} on rank {first}, but {getattr(call, shown)} on rank {rank}; "
                    "all ranks must give the same",
                    [rank],
                )
