"""The machine's state: how long a flag takes to another core and back, and how fast memory copies.

Virtual machines change within minutes (their neighbours wake up, their cores move), by factors. Numbers taken in
different states cannot be compared; so each is printed beside the state that it was taken in. The probe knows nothing
of Ringleader: two processes on different cores, each spinning on a byte that the other one writes.
"""

from __future__ import annotations

import mmap
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from types import TracebackType

import numpy as np

from ringleader.cli import flag_echo

__all__ = ["Machine", "MachineState"]

_COPIED = 32 << 20
_TRIPS = 2000
_LIMIT = 0.1  # seconds for all trips: on a crowded machine a trip takes a time slice


@dataclass(frozen=True)
class MachineState:
    """`flag_us`: median microseconds of a flag's round trip (about 0.1 of them are Python's, NaN with one core only);
    `copy_gbs`: bytes copied by one thread between two 32 MiB arrays, in GB/s (best of three).
    """

    flag_us: float
    copy_gbs: float

    def __str__(self) -> str:
        return f"flag round trip {self.flag_us:.2f} us, memcpy {self.copy_gbs:.1f} GB/s"


class Machine:
    """Measures the state, any number of times; a context manager.

    Examples
    --------
    >>> with Machine() as machine:
    ...     machine.state().copy_gbs > 0
    True
    """

    def __init__(self) -> None:
        self._cores = sorted(os.sched_getaffinity(0))[:2]
        self._echo: subprocess.Popen[bytes] | None = None
        self._from = np.ones(_COPIED, np.uint8)
        self._to = np.ones(_COPIED, np.uint8)
        if len(self._cores) < 2:
            return
        descriptor = os.memfd_create("ringleader-probe")
        try:
            os.ftruncate(descriptor, mmap.PAGESIZE)
            self._flags = mmap.mmap(descriptor, mmap.PAGESIZE)
            self._echo = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    "-S",
                    flag_echo.__file__,
                    str(descriptor),
                    str(self._cores[1]),
                    str(os.getpid()),
                ],
                pass_fds=[descriptor],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        finally:
            os.close(descriptor)

    def state(self) -> MachineState:
        """Measure now; takes about 50 ms."""
        return MachineState(self._round_trip(), self._copy())

    def _copy(self) -> float:
        times = []
        for _ in range(3):
            began = time.perf_counter()
            np.copyto(self._to, self._from)
            times.append(time.perf_counter() - began)
        return _COPIED / min(times) / 1e9

    def _round_trip(self) -> float:
        if self._echo is None or self._echo.stdin is None or self._echo.stdout is None:
            return float("nan")
        mine = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self._cores[:1])
        try:
            self._flags[0] = self._flags[64] = 0
            self._echo.stdin.write(b"g")
            self._echo.stdin.flush()
            self._echo.stdout.read(1)  # it spins now
            return self._trips()
        finally:
            self._flags[0] = flag_echo.STOP
            self._echo.stdout.read(1)  # it has seen that
            os.sched_setaffinity(0, mine)

    def _trips(self) -> float:
        flags, clock, trips = self._flags, time.perf_counter_ns, []
        end = clock() + int(_LIMIT * 1e9)
        for trip in range(_TRIPS):
            flag = trip % 200 + 1
            began = clock()
            flags[0] = flag
            while flags[64] != flag:
                pass
            now = clock()
            trips.append(now - began)
            if now > end:
                break
        return statistics.median(trips) / 1e3

    def close(self) -> None:
        """End the other process."""
        if self._echo is not None:
            self._echo.communicate()  # closes its input, at which it ends
            self._flags.close()
            self._echo = None

    def __enter__(self) -> Machine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
