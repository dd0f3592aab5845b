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

_MOST = 400  # iterations of a block
_PROBED = 3  # iterations that tell how many fit into a block
_LONG = 5e-3  # seconds


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
        self._took: dict[Trial, float] = {}

    def measure(self, trials: Sequence[Trial], seconds: float, blocks: int) -> Times:
        """Measure all trials, `seconds` for each block of each; all ranks call it and get the same.

        Parameters
        ----------
        trials
            Of one size or of several.
        seconds
            Of a block; it has one or two iterations even if they take longer.
        blocks
            Times that all trials are gone through, in another order each time.
        """
        began = time.perf_counter()
        self._make_room(max(trial.nbytes for trial in trials))
        ready = [self._ready(trial) for trial in trials]
        took = self._estimates(trials, ready)
        counts = [max(1 if t > _LONG else 2, min(int(seconds / t), _MOST)) for t in took]
        order = np.arange(len(ready))
        shuffle = np.random.default_rng(len(ready))  # the same on all ranks: they must run the same trials
        mine = np.zeros((len(ready), blocks))
        for block in range(blocks):
            shuffle.shuffle(order)
            for number in order:
                plan, address = ready[number]
                self.comm.barrier()
                if took[number] < _LONG:  # else what ran before has left nothing in the caches that matters
                    plan.run(*address)
                mine[number, block] = _middle(_run(plan, address, counts[number])) / 1e9
        slowest = self.comm.all_reduce(mine, "max")
        self._took |= {trial: float(np.median(row)) for trial, row in zip(trials, slowest, strict=True)}
        elapsed = exchange(self.comm, time.perf_counter() - began)[0]
        return Times(tuple(map(tuple, slowest.tolist())), elapsed)

    def _make_room(self, nbytes: int) -> None:
        # Zeros stay zeros whatever is reduced, so no number becomes slow or infinite. They are written, so that the
        # pages are there.
        floats = max(nbytes // 4, self.comm.size)
        if self._memory.shape[1] < floats:
            self._memory = np.empty((2, floats), np.float32)
            self._memory.fill(0)

    def _ready(self, trial: Trial) -> tuple[_core.Plan, tuple[int, int]]:
        if trial not in self._plans:
            self._plans[trial] = _plan(self.comm, trial)
        first, second = (int(row.ctypes.data) for row in self._memory)
        return self._plans[trial], (first, second if Collective(trial.collective).blocked else first)

    def _estimates(self, trials: Sequence[Trial], ready: Sequence[tuple[_core.Plan, tuple[int, int]]]) -> list[float]:
        """About how long each trial takes, in seconds; the same on every rank."""
        for runs in (1, _PROBED):  # what turns out to be short is asked again: the first run is never typical
            probed = np.zeros(len(ready))
            for number, (trial, (plan, address)) in enumerate(zip(trials, ready, strict=True)):
                known = self._took.get(trial)
                if known is None or (runs > 1 and known < _LONG):
                    self.comm.barrier()
                    probed[number] = float(np.median(_run(plan, address, runs))) / 1e9
            slowest = self.comm.all_reduce(probed, "max").tolist()
            self._took |= {trial: t for trial, t in zip(trials, slowest, strict=True) if t > 0}
        return [max(self._took[trial], 1e-7) for trial in trials]


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
