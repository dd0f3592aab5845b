"""Measuring plans: many contestants at once, in alternating blocks, straight in the engine.

What `measure` is for calls as users make them, this is for the tuner: schedules and protocols that no call can ask for,
many in one round, without the price of a Python call, which they would share anyway. The rest is the same: alternating
blocks, times of the slowest rank. A block's time is the mean of the middle half of its iterations: a median would
take one side where iterations are alternately long and short, a mean would be spoilt by one interruption.

Every rank makes the same calls and gets the same numbers, so that whoever decides by them decides alike everywhere.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringleader import _core
from ringleader.algorithms import algorithm_hash
from ringleader.cli.exchange import exchange
from ringleader.runtime.communicator import Communicator
from ringleader.runtime.dtypes import ReduceOp, code_of_name
from ringleader.runtime.plans import NO_OP
from ringleader.schedule import Collective
from ringleader.schedule.lower import lower
from ringleader.tune.trials import Trial, schedule_of

__all__ = ["Contest", "Times"]

_FEWEST, _MOST = 2, 400  # iterations of a block
_PROBED = 3  # iterations that tell how many fit into a block


@dataclass(frozen=True)
class Times:
    """Seconds per operation, of the slowest rank: one row per trial, one column per block; `elapsed` in all."""

    blocks: tuple[tuple[float, ...], ...]
    elapsed: float


class Contest:
    """One rank's part in measuring trials on a communicator."""

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self._memory = np.zeros((2, 1), np.float32)
        self._plans: dict[Trial, _core.Plan] = {}

    def measure(self, trials: Sequence[Trial], seconds: float, blocks: int) -> Times:
        """Measure all trials, `seconds` for each block of each; all ranks call it and get the same.

        Parameters
        ----------
        trials
            Of one size or of several.
        seconds
            Of a block; it has at least two iterations even if they take longer.
        blocks
            Times that all trials are gone through, in another order each time.
        """
        began = time.perf_counter()
        ready = [self._ready(trial) for trial in trials]
        counts = self._iterations(ready, seconds)
        order = np.arange(len(ready))
        shuffle = np.random.default_rng(len(ready))  # the same on all ranks: they must run the same trials
        mine = np.zeros((len(ready), blocks))
        for block in range(blocks):
            shuffle.shuffle(order)
            for number in order:
                plan, address = ready[number]
                self.comm.barrier()
                plan.run(*address)
                mine[number, block] = _middle(_run(plan, address, counts[number]))
        slowest = self.comm.all_reduce(mine, "max") / 1e9
        elapsed = exchange(self.comm, time.perf_counter() - began)[0]
        return Times(tuple(map(tuple, slowest.tolist())), elapsed)

    def _ready(self, trial: Trial) -> tuple[_core.Plan, tuple[int, int]]:
        if trial not in self._plans:
            self._plans[trial] = _plan(self.comm, trial)
        # Zeros stay zeros whatever is reduced, so no number becomes slow or infinite. They are written, so that the
        # pages are there.
        floats = max(trial.nbytes // 4, self.comm.size, 1)
        if self._memory.shape[1] < floats:
            self._memory = np.empty((2, floats), np.float32)
            self._memory.fill(0)
        first, second = (int(row.ctypes.data) for row in self._memory)
        return self._plans[trial], (first, second if Collective(trial.collective).blocked else first)

    def _iterations(self, ready: Sequence[tuple[_core.Plan, tuple[int, int]]], seconds: float) -> list[int]:
        """Iterations of a block of each trial, the same on every rank."""
        probed = np.zeros(len(ready))
        for number, (plan, address) in enumerate(ready):
            self.comm.barrier()
            plan.run(*address)
            probed[number] = float(np.median(_run(plan, address, _PROBED)))
        slowest = self.comm.all_reduce(probed, "max")
        return [int(count) for count in np.clip(seconds * 1e9 / np.maximum(slowest, 1.0), _FEWEST, _MOST)]


def _plan(comm: Communicator, trial: Trial) -> _core.Plan:
    collective = Collective(trial.collective)
    schedule = schedule_of(trial, comm.size, comm.nodes)
    lowered = lower(schedule, comm.nodes, push=trial.protocol != "pull")
    operation = ReduceOp.SUM.code if collective.reduces else NO_OP
    count, dtype = max(trial.nbytes // 4 // (comm.size if collective.blocked else 1), 1), "float32"
    if collective is Collective.BARRIER:
        count, dtype, operation = 1, "uint8", ReduceOp.BOR.code
    identity = algorithm_hash(f"{trial.algorithm}/{trial.protocol}/{trial.times}")
    return comm._core.plan(
        lowered, collective.code, count, code_of_name(dtype), operation, schedule.root, identity, None
    )


def _run(plan: _core.Plan, address: tuple[int, int], iterations: int) -> NDArray[np.int64]:
    """Nanoseconds of each of `iterations` iterations, back to back."""
    clock, run = time.perf_counter_ns, plan.run
    source, target = address
    stamps: list[Any] = [clock()]
    stamp = stamps.append
    for _ in range(iterations):
        run(source, target)
        stamp(clock())
    marks = np.array(stamps, np.int64)
    return marks[1:] - marks[:-1]


def _middle(times: NDArray[np.int64]) -> float:
    """The mean of the middle half."""
    ordered = np.sort(times)
    cut = len(ordered) // 4
    return float(ordered[cut : len(ordered) - cut].mean())
