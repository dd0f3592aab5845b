"""What the robustness tests share: worker groups that several tests use, and this process's communicators."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ringleader as rl

# Read when tests are collected: while they run, the environment has no RINGLEADER_ variables (tests/conftest.py).
LONG = os.environ.get("RINGLEADER_LONG_TESTS") == "1"

_world: rl.Communicator | None = None
_parts: dict[tuple[int, ...], rl.Communicator | None] = {}


def world(timeout: float = 120) -> rl.Communicator:
    """This process's communicator of all ranks, made anew after a failure (which all ranks must have seen)."""
    global _world
    if _world is None or _world.state != "live":
        _parts.clear()
        _world = rl.init(timeout=timeout)
    return _world


def part(ranks: Sequence[int]) -> rl.Communicator | None:
    """The group of these ranks, kept; None for others."""
    comm, key = world(), tuple(ranks)
    if key not in _parts or (comm.rank in key and _parts[key].state != "live"):  # type: ignore[union-attr]
        _parts[key] = comm.subgroup(ranks)
    return _parts[key]


def names_for(collective: str, n: int) -> list[str]:
    """Algorithms of a collective that can run over n ranks."""
    from ringleader.algorithms import check, names

    found = []
    for name in names(collective):
        try:
            check(collective, name, n)
        except rl.errors.InvalidArgument:
            continue
        found.append(name)
    return found


def leave_world() -> None:
    """Forget the communicators: the next `world()` makes new ones."""
    global _world
    if _world is not None:
        _world.close()
    _world = None
    _parts.clear()


class Workers:
    """Processes that the tests of a module share; started again after a test that broke them."""

    def __init__(self, n: int, transport: str) -> None:
        self.n = n
        self.transport = transport
        self._group: rl.WorkerGroup | None = None

    def run(self, fn: Any, *args: Any, timeout: float = 150) -> list[Any]:
        if self._group is None:
            self._group = rl.WorkerGroup(self.n, transport=self.transport)
        try:
            return self._group.run(fn, *args, timeout=timeout)
        except BaseException:
            self.close()
            raise

    def outcomes(self, fn: Any, *args: Any, timeout: float = 150, grace: float = 60) -> list[Any]:
        """Like `run` for functions that kill ranks: the next call starts new processes."""
        try:
            if self._group is None:
                self._group = rl.WorkerGroup(self.n, transport=self.transport)
            return self._group.outcomes(fn, *args, timeout=timeout, grace=grace)
        finally:
            self.close()

    def close(self) -> None:
        if self._group is not None:
            self._group.close(force=True)
            self._group = None


def free_memory() -> int:
    """Bytes that can be had without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


def descriptors() -> int:
    """Open files of this process."""
    return len(os.listdir("/proc/self/fd"))


def resident() -> int:
    """Resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
