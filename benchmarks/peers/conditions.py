"""What a reader of the numbers has to know: the machine, versions, and what else ran."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from peers.limits import State
from peers.systems import version_of
from ringleader.cli.system import system_info

__all__ = ["Conditions", "busy_seconds"]


def busy_seconds(stat: str, ticks: int) -> float:
    """Seconds of all cores that were not idle, from the first line of /proc/stat.

    >>> busy_seconds("cpu  100 0 50 1000 7 0 50 0 0 0", ticks=100)
    2.0
    """
    user, nice, system, _idle, _iowait, irq, softirq = map(int, stat.split()[1:8])
    return (user + nice + system + irq + softirq) / ticks


def _busy() -> float:
    first = Path("/proc/stat").read_text().partition("\n")[0]
    return busy_seconds(first, os.sysconf("SC_CLK_TCK"))


class Conditions:
    """Of a run, from here until `lines`."""

    def __init__(self) -> None:
        self._began, self._busy = time.monotonic(), _busy()
        self._own = sum(os.times()[:4])
        self._load = os.getloadavg()[0]
        self.states: list[State] = []

    def lines(self, packages: Sequence[str], prefixes: Path) -> list[str]:
        """In words; to be asked for when the run's processes have ended."""
        info = system_info()
        seconds = time.monotonic() - self._began
        others = (_busy() - self._busy) - (sum(os.times()[:4]) - self._own)
        share = max(others, 0.0) / (seconds * (os.cpu_count() or 1))
        versions = [f"{package} {version_of(package, prefixes)}" for package in packages]
        lines = [
            f"{info['cpu']}, {info['usable_cores']} cores, {info['memory_gib']} GiB, {info['kernel']}, "
            f"kernels {info['isa']}, {info['compiler']}, Python {info['python']}, torch {info['torch']} (Gloo), "
            f"Ringleader {info['ringleader']}{''.join(', ' + version for version in versions)}.",
            f"{datetime.datetime.now(datetime.timezone.utc).date().isoformat()}, {seconds:.0f} s. Other work on the "
            f"machine: load average {self._load:.1f} when the run began, and during it other processes took "
            f"{share:.0%} of the cores' time.",
        ]
        if self.states:
            flags, copies, adds = (
                [getattr(state, name) for state in self.states] for name in ("flag_us", "copy_gbs", "add_gbs")
            )
            lines.append(
                f"Machine: flag round trip {min(flags):.2f} to {max(flags):.2f} us, median {np.median(flags):.2f}; one "
                f"thread copies {min(copies):.1f} to {max(copies):.1f} GB/s and adds {min(adds):.1f} to "
                f"{max(adds):.1f} GB/s of 32 MiB (bytes of one operand)."
            )
        return lines
