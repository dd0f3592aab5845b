"""Four processes that import torch once and run many checks; each check makes and destroys its own process group."""

from __future__ import annotations

import contextlib
import inspect
import os
import tempfile
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from meeting_support import Event

import ringleader as rl

torch.set_num_threads(1)

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
"""The release of torch, for what only later ones have."""

_PATHS = [*map(str, Path(__file__).parents[:2]), *filter(None, [os.environ.get("PYTHONPATH")])]
ENV = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(_PATHS)}


class Ranks:
    """A worker group that is started again after a test that broke it."""

    def __init__(self, size: int = 4, **env: str | None) -> None:
        self.size = size
        self._env = {**ENV, **env}
        self._group: rl.WorkerGroup | None = None

    def run(self, fn: Any, *args: Any, timeout: float = 150.0) -> list[Any]:
        """`fn(store_path, *args)` on every rank."""
        if self._group is None:
            self._group = rl.WorkerGroup(self.size, env=self._env)
        with tempfile.TemporaryDirectory() as folder:
            try:
                return self._group.run(fn, f"{folder}/store", *args, timeout=timeout, grace=15.0)
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        if self._group is not None:
            self._group.close(force=True)
            self._group = None


def place() -> tuple[int, int]:
    return int(os.environ["RINGLEADER_RANK"]), int(os.environ["RINGLEADER_SIZE"])


def timed_barrier(seconds: float) -> None:
    """`torch.distributed.barrier` with a time limit, which early releases have in the group's method only."""
    if "timeout" in inspect.signature(dist.barrier).parameters:
        dist.barrier(timeout=timedelta(seconds=seconds))
    else:
        options = dist.BarrierOptions()
        options.timeout = timedelta(seconds=seconds)
        dist.group.WORLD.barrier(options).wait()


@contextlib.contextmanager
def joined(
    path: str, backend: str = "ringleader", seconds: float = 60.0, ranks: tuple[int, int] | None = None, **more: Any
) -> Iterator[tuple[int, int]]:
    """The default process group of all ranks; destroyed at the end."""
    rank, size = ranks or place()
    dist.init_process_group(
        backend,
        init_method=f"file://{path}-{backend}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=seconds),
        **more,
    )
    # Until all are in: where a test's first operation fails, its end would else reach ranks that still form the group.
    store = dist.distributed_c10d._get_default_store()
    store.set(f"in/{rank}", "")
    store.wait([f"in/{other}" for other in range(size)], timedelta(seconds=seconds))
    try:
        yield rank, size
    finally:
        dist.destroy_process_group()


def events(path: str, ranks: Iterable[int]) -> dict[int, Event]:
    """An event of each of the ranks, for a check that `Ranks.run` gave `path`."""
    return {rank: Event(Path(path).parent, rank) for rank in ranks}


def data(rank: int, shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Different on every rank and for every element; small integers, so that sums are exact in all types."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    x = torch.randint(1, 4, shape, generator=generator)
    return (x % 2 == 1) if dtype is torch.bool else x.to(dtype)
