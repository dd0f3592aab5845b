"""What staging needs of a device: streams in which work is done in order, events, and host memory that it can reach.

Everything else in this package is written against `Device`. `cuda.py` has the one for GPUs; `host.py` those that do the
same on the CPU, so that the logic runs, and is tested, on machines without a GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from ringleader import errors

__all__ = ["Device", "Event", "device_of", "kinds", "register_device"]


class Event(Protocol):
    """A point in a stream."""

    def synchronize(self) -> None:
        """Block the calling thread until the stream has come to it."""

    def query(self) -> bool:
        """Whether the stream has come to it. Never blocks."""
        ...


class Device(Protocol):
    """One device of this process.

    Attributes
    ----------
    down, up
        Streams beside the program's own, for copies to the host and back.
    lane
        Another, for what hierarchical collectives do: it waits for other ranks, which the copies must not.
    back
        Another, in which callbacks of futures run.
    """

    down: Any
    up: Any
    lane: Any
    back: Any

    def current(self) -> Any:
        """The stream in which the calling thread's work on this device runs."""
        ...

    def scope(self, stream: Any) -> AbstractContextManager[Any]:
        """Within it, `stream` is the calling thread's current one."""
        ...

    def enqueue(self, stream: Any, work: Callable[[], object]) -> None:
        """Do `work` in `stream`, after what is in it."""

    def record(self, stream: Any) -> Event:
        """The point that `stream` has come to when all that is in it now is done."""
        ...

    def wait(self, stream: Any, event: Event) -> None:
        """Let `stream` wait for an event of any stream."""

    def uses(self, x: torch.Tensor, stream: Any) -> None:
        """Tell the allocator that `stream` uses a tensor that was made in another one."""

    def refuse_capture(self) -> None:
        """Raise InvalidArgument if the current stream is being recorded instead of run."""

    def register(self, memory: torch.Tensor) -> bool:
        """Let the device reach this host memory by itself; False if it cannot."""
        ...

    def unregister(self, ptr: int) -> None:
        """Take back `register`."""

    def pinned(self, nbytes: int) -> torch.Tensor:
        """Bytes of host memory that the device can reach, where `register` cannot."""
        ...


Maker = Callable[[torch.device], Device]

_makers: dict[str, Maker] = {}
_devices: dict[torch.device, Device] = {}
_lock = threading.Lock()
_probed = False


def register_device(kind: str, make: Maker | None) -> None:
    """Let the tensors of a kind of device take part in collectives, in process groups made from now on.

    CUDA (and ROCm, which torch calls so too) needs no call.

    Parameters
    ----------
    kind
        The device's type as torch names it, ``"cuda"`` or ``"xpu"`` for example.
    make
        Makes the `Device` of one of them; None takes the kind out.

    Examples
    --------
    >>> from ringleader.torch.devices import StreamThreads, kinds
    >>> register_device("cpu", lambda device: StreamThreads())  # CPU tensors travel as those of a GPU would
    >>> "cpu" in kinds()
    True
    >>> register_device("cpu", None)
    """
    if not isinstance(kind, str) or not kind:
        raise errors.InvalidArgument(f"kind is {kind!r}; expected a type of device, such as 'cuda'")
    _probe()
    with _lock:
        if make is None:
            _makers.pop(kind, None)
        else:
            _makers[kind] = make
        for device in [device for device in _devices if device.type == kind]:
            del _devices[device]


def _probe() -> None:
    """Find out once whether there is a GPU. Counting them does not start CUDA, so the process can still be forked."""
    global _probed
    if _probed:
        return
    _probed = True
    if (torch.version.cuda or torch.version.hip) and torch.cuda.device_count() > 0:
        from ringleader.torch.devices.cuda import CudaDevice

        _makers.setdefault("cuda", CudaDevice)


def kinds() -> tuple[str, ...]:
    """Types of the devices whose tensors are staged.

    Examples
    --------
    >>> kinds() in ((), ("cuda",))
    True
    """
    _probe()
    return tuple(_makers)


def device_of(x: torch.Tensor) -> Device | None:
    """The device that a tensor has to be staged from; None if there is none for it.

    Examples
    --------
    >>> import torch
    >>> print(device_of(torch.ones(1)))
    None
    """
    where = x.device
    if where.type not in _makers:
        return None
    device = _devices.get(where)
    if device is None:
        with _lock:
            if (device := _devices.get(where)) is None:
                device = _devices[where] = _makers[where.type](where)
    return device
