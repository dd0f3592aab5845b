"""Host memory through which tensors of devices travel: registered with the device, and with the engine if possible.

A buffer is a piece of the arena, which the ranks of a host reach without a copy, pinned in place. Where the device
cannot pin it, a buffer is torch's own pinned memory; the engine then copies it into its slots.

Invariant: memory is given to another operation only when the device has come to the event after which it does not touch
it any more.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch

from ringleader.runtime import arrays
from ringleader.torch.devices.device import Device, Event

__all__ = ["HostBuffers", "buffers_of"]

_PAGE = 4096
_KEPT = 256 << 20


class HostBuffers:
    """Buffers of one device, kept for the next operation.

    Parameters
    ----------
    kept
        Most bytes that are kept while nobody uses them.

    Examples
    --------
    >>> from ringleader.torch.devices import HostDevice
    >>> buffers = HostBuffers(HostDevice())
    >>> first = buffers.take(1000)
    >>> buffers.give(first, [])
    >>> first.numel(), buffers.take(4000).data_ptr() == first.data_ptr()
    (4096, True)
    """

    def __init__(self, device: Device, kept: int = _KEPT) -> None:
        self._device = device
        self._limit = kept
        self._idle: dict[int, list[tuple[torch.Tensor, Sequence[Event]]]] = defaultdict(list)
        self._kept = 0
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> torch.Tensor:
        """At least so many bytes, as a tensor of bytes.

        Raises
        ------
        OutOfMemory
            There is no memory for it.
        """
        size = max(_PAGE, 1 << (nbytes - 1).bit_length())
        with self._lock:
            idle = self._idle[size]
            for index, (buffer, events) in enumerate(idle):
                if all(event.query() for event in events):
                    del idle[index]
                    self._kept -= size
                    return buffer
        return self._make(size)

    def give(self, buffer: torch.Tensor, events: Sequence[Event]) -> None:
        """Take a buffer back, to be used again after the events."""
        size = buffer.numel()
        with self._lock:
            if self._kept + size <= self._limit:
                self._kept += size
                self._idle[size].append((buffer, events))
                return
        for event in events:  # it is let go of here: not before the device is done
            event.synchronize()

    def _make(self, size: int) -> torch.Tensor:
        memory = arrays.empty(size, np.uint8, align=_PAGE)
        buffer = torch.from_numpy(memory)
        if not self._device.register(buffer):
            return self._device.pinned(size)
        # Unpinned before the arena has the pages back: `memory` lives until the finalizer has run.
        weakref.finalize(buffer.untyped_storage(), _unregister, self._device, memory, os.getpid()).atexit = False
        return buffer


def _unregister(device: Device, memory: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], pid: int) -> None:
    if os.getpid() == pid:
        device.unregister(arrays.numpy_address(memory))


_of_device: dict[int, tuple[Device, HostBuffers]] = {}
_lock = threading.Lock()


def buffers_of(device: Device) -> HostBuffers:
    """The buffers that all groups of this process use for a device.

    Examples
    --------
    >>> from ringleader.torch.devices import HostDevice
    >>> device = HostDevice()
    >>> buffers_of(device) is buffers_of(device)
    True
    """
    with _lock:
        found = _of_device.get(id(device))
        if found is None:  # the device is kept, so its number is not another's
            found = _of_device[id(device)] = (device, HostBuffers(device))
        return found[1]
