"""Host memory of staged tensors: used again, given back, and none where no device needs it."""

from __future__ import annotations

import gc
import threading
from typing import Any

import torch
import torch.distributed as dist

from ringleader.torch.devices import HostBuffers, HostDevice, StreamThreads


def test_host_memory_is_used_again_after_its_events() -> None:
    device = StreamThreads()
    buffers = HostBuffers(device, kept=16384)
    first = buffers.take(5000)
    assert first.numel() == 8192 and first.data_ptr() % 4096 == 0
    copied = threading.Event()
    device.enqueue(device.up, copied.wait)
    event = device.record(device.up)
    buffers.give(first, [event])
    other = buffers.take(5000)
    assert other.data_ptr() != first.data_ptr()
    copied.set()
    event.synchronize()
    assert buffers.take(8192).data_ptr() == first.data_ptr()
    for buffer in [buffers.take(8192) for _ in range(5)]:
        buffers.give(buffer, [])
    assert buffers._kept == 16384


def test_registered_memory_is_given_back() -> None:
    class Counting(HostDevice):
        def __init__(self) -> None:
            self.now: set[int] = set()

        def register(self, memory: torch.Tensor) -> bool:
            self.now.add(memory.data_ptr())
            return True

        def unregister(self, ptr: int) -> None:
            self.now.remove(ptr)

    from ringleader import _core

    device = Counting()
    gc.collect()  # what earlier tests have left goes now
    used = _core.arena_used()
    buffers = HostBuffers(device, kept=0)
    view = buffers.take(10000)[100:200].view(torch.float32)
    assert len(device.now) == 1 and _core.arena_used() > used
    del view
    assert not device.now and _core.arena_used() == used


def test_cpu_groups_have_no_detour() -> None:
    dist.init_process_group("ringleader", store=dist.HashStore(), rank=0, world_size=1)
    group: Any = dist.distributed_c10d._get_default_group()
    try:
        assert group._detour is None or torch.cuda.is_available()
        assert torch.device("cpu") in group._device_types
    finally:
        dist.destroy_process_group()
