"""One rank under mpirun: runs batches of cases that the test sends to rank 0, until there are no more."""

from __future__ import annotations

import sys
from functools import lru_cache
from multiprocessing.connection import Client
from typing import Any

import numpy as np
from cases import Case, contribution, expected, input_size
from mpi4py import MPI

import ringleader as rl
from ringleader.algorithms import build
from ringleader.errors import RingleaderError
from ringleader.schedule import Schedule

_schedule = lru_cache(maxsize=256)(build)


def run_case(comm: Any, case: Case) -> str | None:
    """What is wrong with the outcome, or None."""
    rank = comm.Get_rank()
    schedule: Schedule = _schedule(case.collective, case.algorithm, case.n, case.root)
    if case.collective == "barrier":
        return None if rl.executors.mpi.run(schedule, comm=comm) is None else "barrier returned something"
    mine = contribution(case, rank, input_size(case))
    copy = mine.copy()
    wanted = expected(case, rank)
    given = None if case.collective in ("broadcast", "scatter") and rank != case.root and case.in_place else mine
    op: Any = rl.premul_sum(case.factor) if case.op == "premul_sum" else "sum" if case.op == "none" else case.op
    result = rl.executors.mpi.run(schedule, given, comm, op)
    if (result is None) != (wanted is None):
        return f"returned {type(result).__name__}, expected {type(wanted).__name__}"
    if result is not None and wanted is not None and not np.array_equal(result, wanted):
        return f"has {result[:8]}..., expected {wanted[:8]}..."
    return None if np.array_equal(mine, copy) else "the input was changed"


def run_batch(comm: Any, batch: list[Case]) -> list[str]:
    """The failures of this rank."""
    failures = []
    for case in batch:
        try:
            problem = run_case(comm, case)
        except RingleaderError as error:
            problem = f"{type(error).__name__}: {error}"
        if problem is not None:
            failures.append(f"rank {comm.Get_rank()} of {case}: {problem}")
    return failures


def bits(comm: Any, schedule: Schedule, inputs: list[Any], op: str) -> bytes | None:
    """This rank's result."""
    result = rl.executors.mpi.run(schedule, inputs[comm.Get_rank()], comm, op)
    return None if result is None else result.tobytes()


def error_of(comm: Any, arguments: list[tuple[Schedule, Any, str]]) -> str:
    """The error of a call whose arguments differ between ranks."""
    schedule, array, op = arguments[comm.Get_rank()]
    try:
        rl.executors.mpi.run(schedule, array, comm, op)
    except RingleaderError as error:
        return f"{type(error).__name__}{list(error.ranks)}: {error}"
    return "no error"


def main() -> None:
    """Serve: a request names a function of this file and its arguments; the answer is what it returns on every rank."""
    comm = MPI.COMM_WORLD
    test = Client(sys.argv[1], "AF_UNIX") if comm.Get_rank() == 0 else None
    while True:
        request = comm.bcast(test.recv() if test else None)
        if request is None:
            return
        name, *arguments = request
        answers = comm.gather({"run_batch": run_batch, "bits": bits, "error_of": error_of}[name](comm, *arguments))
        if test:
            test.send(answers)


if __name__ == "__main__":
    main()
