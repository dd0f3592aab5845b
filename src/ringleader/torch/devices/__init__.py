"""Tensors of GPUs in the collectives of the backend, and groups with another backend inside each host.

See docs/gpu.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringleader._lazy import lazily
from ringleader.torch.devices.device import Device, Event, device_of, kinds, register_device
from ringleader.torch.devices.host import HostDevice, StreamThreads
from ringleader.torch.devices.memory import HostBuffers

__all__ = ["Device", "Event", "HostBuffers", "HostDevice", "StreamThreads", "device_of", "kinds", "register_device"]

if not TYPE_CHECKING:  # a type checker shall see what there is, and nothing else
    __getattr__, __dir__ = lazily(__name__)
