"""One rank over torch.distributed (Gloo): runs cases by `rl.torch.run`, and what the tests of its errors need."""

from __future__ import annotations

import os
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from cases import Case, contribution, expected, input_size, output_size
from numpy.typing import NDArray

import ringleader as rl
from ringleader.algorithms import build
from ringleader.errors import RingleaderError
from ringleader.schedule import Schedule

torch.set_num_threads(1)
_schedule = lru_cache(maxsize=256)(build)


def _join(folder: str) -> int:
    """This rank, in a process group that is made at the first call."""
    rank, size = int(os.environ["RINGLEADER_RANK"]), int(os.environ["RINGLEADER_SIZE"])
    if not dist.is_initialized():
        dist.init_process_group("gloo", init_method=f"file://{Path(folder) / 'meet'}", rank=rank, world_size=size)
    return rank


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _array(tensor: torch.Tensor, dtype: np.dtype[Any]) -> NDArray[Any]:
    flat = tensor.reshape(-1)
    return (flat.view(torch.int16) if tensor.dtype is torch.bfloat16 else flat).numpy().view(dtype)


def run_case(rank: int, case: Case, check: bool) -> str | None:
    """What is wrong with the outcome, or None."""
    schedule: Schedule = _schedule(case.collective, case.algorithm, case.n, case.root)
    if case.collective == "barrier":
        return None if rl.torch.run(schedule, None, check=check) is None else "barrier returned something"
    mine = contribution(case, rank, input_size(case))
    wanted = expected(case, rank)
    op: Any = rl.premul_sum(case.factor) if case.op == "premul_sum" else "sum" if case.op == "none" else case.op
    tensor: torch.Tensor | None = _tensor(mine.copy())
    assert tensor is not None
    out = None
    separate = case.collective not in ("all_reduce", "reduce", "broadcast")
    if separate and (case.in_place or case.collective == "scatter"):
        out = torch.zeros(output_size(case), dtype=tensor.dtype)
    if case.collective == "scatter" and rank != case.root:
        tensor = None
    result = rl.torch.run(schedule, tensor, None, op, out=out, check=check)
    if (result is None) != (wanted is None):
        return f"returned {type(result).__name__}, expected {type(wanted).__name__}"
    if result is not None and wanted is not None:
        got = _array(result, case.numpy_dtype)
        if not np.array_equal(got, wanted):
            return f"has {got[:8]}..., expected {wanted[:8]}..."
        if result is not (out if out is not None else result if separate else tensor):
            return "the result is elsewhere"
    changes = case.collective in ("all_reduce", "broadcast") or (case.collective == "reduce" and rank == case.root)
    if tensor is not None and not changes and not np.array_equal(_array(tensor, case.numpy_dtype), mine):
        return "the input was changed"
    return None


def run_batch(folder: str, batch: list[Case]) -> list[str]:
    """The failures of this rank. Every tenth call compares what the ranks ask for."""
    rank = _join(folder)
    failures = []
    for index, case in enumerate(batch):
        try:
            problem = run_case(rank, case, index % 10 == 0)
        except RingleaderError as error:
            problem = f"{type(error).__name__}: {error}"
        if problem is not None:
            failures.append(f"rank {rank} of {case}: {problem}")
    return failures


def result_of(folder: str, schedule: Schedule, inputs: list[Any], dtype: str, op: str) -> bytes | None:
    """This rank's result, bit by bit; inputs are bit patterns of the type."""
    rank = _join(folder)
    tensor = torch.from_numpy(inputs[rank].copy()).view(getattr(torch, dtype))
    result = rl.torch.run(schedule, tensor, None, op)
    return None if result is None else bytes(result.view(torch.uint8).numpy().tobytes())


def in_subgroup(folder: str, ranks: list[int]) -> list[float] | None:
    """Sums over some of the ranks, whose numbers in the group are not those in the world."""
    rank = _join(folder)
    group = dist.new_group(ranks)
    if rank not in ranks:
        return None
    tensor = torch.tensor([1.0 + rank, 10.0 * rank])
    rl.torch.run(build("all_reduce", "ring", len(ranks)), tensor, group)
    return [float(value) for value in tensor]


def barrier_times(folder: str, name: str) -> tuple[float, float]:
    """When this rank comes to a barrier, and when it may go on, by the clock of the machine. The last rank is late."""
    rank = _join(folder)
    schedule = build("barrier", name, dist.get_world_size())
    rl.torch.run(schedule, None)  # all are here
    if rank == dist.get_world_size() - 1:
        time.sleep(0.3)
    came = time.monotonic()
    rl.torch.run(schedule, None, check=False)
    return came, time.monotonic()


def error_of(folder: str, arguments: list[tuple[Schedule, Any, str]]) -> str:
    """The error of a call whose arguments differ between ranks."""
    rank = _join(folder)
    schedule, array, op = arguments[rank]
    try:
        rl.torch.run(schedule, None if array is None else torch.from_numpy(array), None, op)
    except RingleaderError as error:
        return f"{type(error).__name__}{list(error.ranks)}: {error}"
    return "no error"
