"""What is measured: points (ranks, transport, type, size, whether buffers are rewritten) and how long each may take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from peers.systems import System

__all__ = ["Place", "Plan", "Timing", "element_type", "iterations_of", "least_iterations", "plan", "timing"]

KIB, MIB = 1 << 10, 1 << 20
MOST_ITERATIONS = 2000  # of a block


class Place(NamedTuple):
    """Numbers of ranks over a transport: what is started together."""

    ranks: int
    transport: str

    def __str__(self) -> str:
        return f"{self.ranks} ranks, {'shared memory' if self.transport == 'shm' else 'TCP over loopback'}"


class Plan(NamedTuple):
    """A point; `dtype` is "float32" or "16-bit"."""

    place: Place
    dtype: str
    rewrite: bool
    nbytes: int


@dataclass(frozen=True)
class Timing:
    """Microseconds per call.

    `median`: of each block the median over its iterations of the slowest rank's time; of those the median.
    `fastest_block`, `slowest_block`: their extremes. `rank_median`: the same with each rank's own median, the slowest
    rank's taken afterwards. `mean` and `least` are of all iterations of the slowest rank.
    """

    median: float
    rank_median: float
    mean: float
    least: float
    fastest_block: float
    slowest_block: float
    iterations: int


def element_type(dtype: str, contestant: str) -> str:
    """The type that a contestant uses: the MPIs have float16 but not bfloat16.

    >>> element_type("16-bit", "mpi"), element_type("16-bit", "gloo"), element_type("float32", "mpi")
    ('float16', 'bfloat16', 'float32')
    """
    if dtype != "16-bit":
        return dtype
    return "float16" if contestant == "mpi" else "bfloat16"


def plan(
    places: Sequence[Place], sizes: Sequence[int], dtypes: Sequence[str], variants: Sequence[str], largest: int
) -> list[Plan]:
    """The points, those of a place together.

    Sizes go up to `largest` bytes summed over the ranks. 16-bit floats and rewritten buffers are measured in shared
    memory, from 64 KiB to a quarter of that: 16-bit floats with 2 ranks, rewritten buffers with float32.
    """
    points = []
    for place in places:
        fitting = [size for size in sizes if size * place.ranks <= largest]
        shm = place.transport == "shm"
        middle = [size for size in fitting if size >= 64 * KIB and size * place.ranks <= largest // 4]
        if "float32" in dtypes and "repeated" in variants:
            points += [Plan(place, "float32", False, size) for size in fitting]
        if "float32" in dtypes and "rewritten" in variants and shm:
            points += [Plan(place, "float32", True, size) for size in middle]
        if "16-bit" in dtypes and "repeated" in variants and shm and place.ranks == 2:
            points += [Plan(place, "16-bit", False, size) for size in middle]
    return points


def contestants_of(point: Plan, systems: Sequence[System]) -> list[tuple[System, str]]:
    """Who takes part, from the systems that run at the point's place."""
    return [(system, contestant) for system in systems for contestant in system.contestants]


def least_iterations(nbytes: int) -> int:
    """Of a block. Fewer would show how ranks get going after they waited for their turn, not how they run."""
    return 30 if nbytes <= 256 * KIB else 10 if nbytes <= 4 * MIB else 1


def iterations_of(seconds: float, blocks: int, slowest_us: float, least: int = 1) -> tuple[int, int]:
    """(blocks, iterations of each) that take about `seconds`; fewer blocks, at least 3, where single calls are long.

    >>> iterations_of(0.7, 7, 100.0), iterations_of(0.7, 7, 100e3), iterations_of(0.1, 7, 1e6, least=10)
    ((7, 1000), (7, 1), (3, 10))
    """
    calls = max(round(seconds * 1e6 / max(slowest_us, 0.01)), 1)
    blocks = min(blocks, max(calls, 3))
    return blocks, int(np.clip(round(calls / blocks), least, MOST_ITERATIONS))


def timing(blocks: Sequence[NDArray[np.float64]]) -> Timing:
    """From microseconds of each block, shape (ranks, iterations).

    >>> blocks = [np.array([[1.0, 2.0, 9.0], [3.0, 1.0, 9.0]]), np.array([[4.0, 4.0, 4.0], [4.0, 5.0, 4.0]])]
    >>> timing(blocks).median, timing(blocks).rank_median
    (3.5, 3.0)
    """
    slowest = [block.max(axis=0) for block in blocks]
    medians = [float(np.median(block)) for block in slowest]
    every = np.concatenate(slowest)
    return Timing(
        median=float(np.median(medians)),
        rank_median=float(np.median([np.median(block, axis=1).max() for block in blocks])),
        mean=float(every.mean()),
        least=float(every.min()),
        fastest_block=min(medians),
        slowest_block=max(medians),
        iterations=len(every),
    )
