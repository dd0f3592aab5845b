"""What one rank carries between hosts: a part of a tensor, on a device and in memory that the engine can reach."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ringleader.runtime.communicator import Communicator
from ringleader.torch.devices.device import Device, Event
from ringleader.torch.devices.memory import buffers_of

__all__ = ["Part"]


class Part:
    """This rank's part of a tensor.

    On the CPU `value` is registered memory, in which the engine works. On a device there is host memory beside it.

    Parameters
    ----------
    comm
        The communicator of the rail.
    device
        Where the part is.
    count
        Its elements.
    like
        A tensor of its type, where it is.
    """

    def __init__(self, comm: Communicator, device: Device, count: int, like: Tensor) -> None:
        self._comm, self._device = comm, device
        self._buffers: list[Tensor] = []
        self._host = self._memory(count, like.dtype)
        self._apart = not like.is_cpu
        self.value = torch.empty(count, dtype=like.dtype, device=like.device) if self._apart else self._host
        self._ready: Event | None = None

    def _memory(self, count: int, dtype: torch.dtype) -> Tensor:
        nbytes = count * dtype.itemsize
        buffer = buffers_of(self._device).take(max(1, nbytes))
        self._buffers.append(buffer)
        return buffer[:nbytes].view(dtype)

    def fetch(self) -> None:
        """Enqueue the copy to the host."""
        if self._apart:
            self._host.copy_(self.value, non_blocking=True)
            self._ready = self._device.record(self._device.current())

    def _wait(self) -> None:
        if self._ready is not None:
            self._ready.synchronize()

    def between(self, verb: Callable[[Communicator, Tensor], Any]) -> None:
        """Run a collective of the rail in place, after `fetch`, and enqueue the copy back."""
        self._wait()
        verb(self._comm, self._host)
        if self._apart:
            self.value.copy_(self._host, non_blocking=True)

    def send(self, x: Tensor, verb: Callable[[Communicator, Tensor, Tensor], Any]) -> None:
        """Run a collective of the rail from `x` into this part."""
        source = x.view(-1)
        if self._apart:
            source = self._memory(x.numel(), x.dtype)
            source.copy_(x.view(-1), non_blocking=True)
            self._device.record(self._device.current()).synchronize()
        verb(self._comm, source, self._host)
        if self._apart:
            self.value.copy_(self._host, non_blocking=True)

    def receive(self, x: Tensor, verb: Callable[[Communicator, Tensor, Tensor], Any]) -> None:
        """Run a collective of the rail from this part into `x`."""
        self.fetch()
        self._wait()
        target = self._memory(x.numel(), x.dtype) if self._apart else x
        verb(self._comm, self._host, target)
        if self._apart:
            x.copy_(target, non_blocking=True)

    def release(self) -> None:
        """Give the host memory back, once the device is done with it."""
        done = self._device.record(self._device.current())
        for buffer in self._buffers:
            buffers_of(self._device).give(buffer, [done])
        self._buffers = []
