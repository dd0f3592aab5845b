"""How ranks wait: short slices of the core for those that do, and no way of waiting that keeps itself up."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from robustness_support import LONG

import ringleader as rl
from ringleader import _core
from ringleader.runtime.spawn import WorkerGroup

GRANTED = _core.time_slice_refusal(300) == ""
SLICE = 300_000


class _Attributes(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_uint32), ("policy", ctypes.c_uint32), ("flags", ctypes.c_uint64), ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32), ("runtime", ctypes.c_uint64), ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    ]  # fmt: skip


def slices() -> dict[int, int]:
    """Of every thread of this process, the kernel's slice in nanoseconds."""
    get = {"x86_64": 315, "aarch64": 275}[os.uname().machine]  # sched_getattr
    found = {}
    for task in Path("/proc/self/task").iterdir():
        attributes = _Attributes()
        if ctypes.CDLL(None).syscall(get, int(task.name), ctypes.byref(attributes), ctypes.sizeof(attributes), 0) == 0:
            found[int(task.name)] = attributes.runtime
    return found


def waits() -> dict[str, Any]:
    """What a rank sees of its slices before, during and after a communicator in which it waited."""
    me = threading.get_native_id()
    before = slices()
    with rl.init(timeout=60) as comm:
        x = np.ones(1000)
        for late in range(comm.size):  # each rank waits long enough to yield
            if comm.rank == late:
                time.sleep(0.05)
            comm.all_reduce(x)
        comm.all_reduce(x, async_op=True).wait()  # starts the engine's thread
        during = slices()
        child = subprocess.run(
            [sys.executable, "-c", "import test_waiting as t; print(t.slices()[t.os.getpid()])"],
            cwd=Path(__file__).parent, capture_output=True, text=True, check=True,
        )  # fmt: skip
    after = slices()
    return {
        "before": before[me], "during": during[me], "after": after[me], "child": int(child.stdout),
        "engine": [each for thread, each in during.items() if thread not in before],
        "left": [each for each in after.values() if each == SLICE],
    }  # fmt: skip


@pytest.mark.skipif(not GRANTED, reason="this kernel gives threads no slices")
def test_who_waits_has_a_short_slice_until_the_last_communicator_is_closed():
    with WorkerGroup(2, env={"RINGLEADER_TIME_SLICE": "300"}) as group:
        for seen in (*group.run(waits), *group.run(waits)):
            assert seen["during"] == SLICE and seen["engine"] and set(seen["engine"]) == {SLICE}
            assert seen["after"] == seen["before"] == seen["child"] != SLICE
            assert not seen["left"]


@pytest.mark.skipif(not GRANTED, reason="this kernel gives threads no slices")
def test_without_the_setting_nothing_is_touched():
    with WorkerGroup(2, env={"RINGLEADER_TIME_SLICE": "0"}) as group:
        for seen in group.run(waits):
            assert seen["before"] == seen["during"] == seen["after"] == seen["child"]
            assert set(seen["engine"]) == {seen["before"]}


def fresh_start(sizes: list[int], algorithm: str | None) -> list[float]:
    """The slowest rank's median time of an all-reduce of each size, over new connections."""
    took = []
    with rl.init(timeout=60) as comm:
        for size in sizes:
            x = np.ones(size // 4, np.float32)
            times = []
            for _ in range(40):
                begun = time.perf_counter()
                comm.all_reduce(x, algorithm=algorithm)
                times.append(time.perf_counter() - begun)
                x[:] = 1
            took.append(float(comm.all_reduce(np.array([median(times[3:])]), op="max")[0]))
    return took


@pytest.mark.skipif(not LONG, reason="a measurement, of minutes")
@pytest.mark.parametrize("transport", ["tcp", "shm"])
@pytest.mark.parametrize("algorithm", [None, "ring"])
def test_no_start_is_slow_for_good(transport, algorithm):
    sizes = [8, 64 << 10, 512 << 10, 1 << 20]
    for _ in range(3):
        with WorkerGroup(4, transport=transport) as group:
            starts = []
            for number in range(15):
                order = sizes if number % 2 == 0 else sizes[::-1]
                took = group.run(fresh_start, order, algorithm, timeout=120)[0]
                starts.append(took if order is sizes else took[::-1])
        ratios = [max(times) / median(times) for times in zip(*starts, strict=True)]
        # Other work on the machine may slow one start down; a mode that locks itself in does so every time.
        if max(ratios) <= 2.5:
            return
    pytest.fail(f"the slowest start took {ratios} of the median one, at sizes {sizes}")
