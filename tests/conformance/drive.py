"""Runs cases of the conformance suite on a communicator, in the rank's own process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from cases import Case, contribution, expected, input_size, output_size
from numpy.typing import NDArray

import ringleader as rl

GUARD = 64
FILL = 0xA5


class Guarded:
    """An array between guard words; `make` gives the memory: ``np.empty``, or registered memory."""

    def __init__(self, size: int, dtype: np.dtype[Any], make: Callable[..., Any], shift: int = 0) -> None:
        self.nbytes = size * dtype.itemsize
        self.start = GUARD + shift * dtype.itemsize
        self.raw: NDArray[np.uint8] = make(self.start + self.nbytes + GUARD, np.uint8)
        self.raw[:] = FILL
        self.array: NDArray[Any] = self.raw[self.start : self.start + self.nbytes].view(dtype)

    def intact(self) -> bool:
        return bool((self.raw[: self.start] == FILL).all() and (self.raw[self.start + self.nbytes :] == FILL).all())


def _call(comm: rl.Communicator, case: Case, x: Any, out: Any) -> Any:
    """Call the operation in the case's mode; returns the result."""
    op: Any = rl.premul_sum(case.factor) if case.op == "premul_sum" else case.op
    arguments: dict[str, Any] = {"algorithm": case.algorithm}
    if case.collective != "barrier":
        arguments["x"] = x
        if case.collective != "broadcast":
            arguments["out"] = out
    if case.op != "none":
        arguments["op"] = op
    if case.collective in ("reduce", "broadcast", "gather", "scatter"):
        arguments["root"] = case.root
    if case.mode == "persistent":
        return getattr(comm, f"{case.collective}_init")(**arguments)()
    if case.mode == "async":
        return getattr(comm, case.collective)(async_op=True, **arguments).wait(timeout=60)
    if case.mode == "again":
        copies = {name: it.copy() if isinstance(it, np.ndarray) else it for name, it in arguments.items()}
        getattr(comm, case.collective)(**copies)
    return getattr(comm, case.collective)(**arguments)


def run_case(comm: rl.Communicator, case: Case, registered: bool) -> str | None:
    """Run one case; what is wrong with the outcome, or None."""
    make = comm.empty if registered else np.empty
    rank, dtype = comm.rank, case.numpy_dtype
    if case.collective == "barrier":
        return None if _call(comm, case, None, None) is None else "barrier returned something"
    mine = contribution(case, rank, input_size(case))
    wanted = expected(case, rank)
    source = Guarded(mine.size, dtype, make, shift=case.count % 3)
    source.array[:] = mine
    target = Guarded(output_size(case), dtype, make)
    x: Any = source.array
    out: Any = target.array
    overwritten = case.collective == "broadcast"
    if case.collective in ("all_reduce", "reduce", "all_to_all") and case.in_place:
        out = None if case.collective != "all_to_all" else x
        overwritten = case.collective != "reduce" or rank == case.root
    elif case.collective in ("all_gather", "gather") and case.in_place and out is not None:
        x = out[rank * case.count : (rank + 1) * case.count]
        x[:] = mine
    elif case.collective == "reduce_scatter" and case.in_place:
        out = x[rank * case.count : (rank + 1) * case.count]
        overwritten = True
    if case.collective in ("reduce", "gather") and rank != case.root:
        out = None
        overwritten = False
    if case.collective == "scatter" and rank != case.root:
        x = None
    result = _call(comm, case, x, out)
    if wanted is None:
        if result is not None:
            return f"returned {type(result).__name__}, expected None"
    elif not np.array_equal(result.reshape(-1), wanted):
        wrong = np.flatnonzero(result.reshape(-1) != wanted)
        first = int(wrong[0])
        got = result.reshape(-1)[first]
        return f"{wrong.size} of {wanted.size} elements wrong; [{first}] is {got}, expected {wanted[first]}"
    elif dtype == np.bool_ and (result.view(np.uint8) > 1).any():
        return "a bool whose byte is neither 0 nor 1"
    if not overwritten and not np.array_equal(source.array, mine):
        return "the input was changed"
    if not (source.intact() and target.intact()):
        return "memory beside the arrays was changed"
    return None


_comm: rl.Communicator | None = None


def communicator() -> rl.Communicator:
    """This process's communicator of all ranks, made at the first call."""
    global _comm
    if _comm is None or _comm.state != "live":
        _comm = rl.init(timeout=60)
    return _comm


def run_cases(batch: list[Case], registered: bool = False) -> list[str]:
    """Run cases in order; the failures of this rank, with all that is needed to repeat them."""
    comm = communicator()
    failures = []
    for case in batch:
        try:
            problem = run_case(comm, case, registered)
        except Exception as error:
            failures.append(f"rank {comm.rank} of {case}: {type(error).__name__}: {error}")
            break  # the ranks may no longer be at the same case
        if problem is not None:
            failures.append(f"rank {comm.rank} of {case}: {problem}")
    return failures
