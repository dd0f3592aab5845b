"""Operations that are started later than they are called, and whose results travel to a device."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

import torch

from ringleader import _core, errors
from ringleader.torch import futures
from ringleader.torch.devices.device import Device, Event
from ringleader.torch.errors import torch_error
from ringleader.torch.work import RingleaderWork

__all__ = ["LaterWork", "device_error"]


def device_error(error: BaseException) -> BaseException:
    """The error to give to a program where a device failed in an operation."""
    wrapped = errors.InternalError(
        f"a tensor could not be brought to the host or back: {type(error).__name__}: {error}"
    )
    wrapped.__cause__ = error
    return torch_error(wrapped)


class LaterWork(RingleaderWork):
    """Stands for operations that a `Pump` starts.

    `wait()` blocks the host until the operations are complete and the copies to the device are enqueued; for those, it
    makes the calling thread's current stream wait, on the device.

    Parameters
    ----------
    device
        Whose tensors hold the result; None if those are on the host.
    finale
        Called once all operations have succeeded, before the work is complete.
    where
        The accelerators on which those tensors are.
    stream
        The device's stream that brings the results; default: `Device.up`.
    abandon
        Called with a reason where the device fails: the other ranks are in an operation that this one will not join.

    Attributes
    ----------
    arrivals
        Events after which the results are on the device; filled as operations complete.
    """

    def __init__(
        self,
        device: Device | None,
        finale: Callable[[], object] | None = None,
        where: Sequence[torch.device] = (),
        abandon: Callable[[str], object] = lambda reason: None,
        stream: Any = None,
    ) -> None:
        super().__init__(None, [])
        self._done = False
        if finale is not None:
            self._finally(finale)
        self._device, self._where, self._abandon, self._stream = device, where, abandon, stream
        self._started = threading.Event()
        self._children: Sequence[RingleaderWork] = ()
        self._starting = threading.Lock()
        self.arrivals: list[Event] = []
        self._pid = os.getpid()

    # ------------------------------------------------------------------------------------------------- the pump

    def begin(self, start: Callable[[], Iterable[RingleaderWork]]) -> None:
        """Start the operations; what `start` raises becomes the error of this work. Called once, never raises."""
        children: list[RingleaderWork] = []
        try:
            for child in start():
                children.append(child)  # one by one: what was started before an error is waited for
        except errors.RingleaderError as error:
            children.append(RingleaderWork(None, [], torch_error(error)))
        except Exception as error:
            children.append(RingleaderWork(None, [], device_error(error)))
            self._abandon(f"{type(error).__name__}: {error}")
        with self._starting:
            self._children = children
            self._started.set()
            future = self._future
        if future is not None:
            futures.complete(self, future)

    # ------------------------------------------------------------------------------------------- native side

    def natives(self) -> list[_core.Work]:
        """Those of all its operations, once they are started."""
        return [native for child in self._children for native in child.natives()]

    def _await(self, limit: float) -> bool:
        if os.getpid() != self._pid:
            raise errors.ForkError("the operation is the parent process's: a forked child does not get its result")
        deadline = futures.deadline_after(limit)
        if not self._started.wait(limit or None):
            return False
        for child in self._children:
            # Children wait in order and raise in order; a limit of 0 is none.
            if not child._done and not child._await(futures.left_until(deadline)):
                return False
            child.wait()
        return True

    def _poll(self) -> bool:
        if os.getpid() != self._pid:  # the pump is the parent's
            return True
        return self._started.is_set() and all(child.is_completed() for child in self._children)

    def _settle(self, error: BaseException | None) -> None:
        if not self._done:
            if error is None and len(self._children) == 1:
                self._source = self._children[0].source_rank()
            super()._settle(error)

    # --------------------------------------------------------------------------------------------- for torch

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the completion as described above; raises as `RingleaderWork.wait` does."""
        super().wait(timeout)
        if self._device is not None:
            stream = self._device.current()
            for event in self.arrivals:
                self._device.wait(stream, event)
        return True

    def is_completed(self) -> bool:
        """Whether it is over, and the results are on the device. Never waits."""
        return super().is_completed() and (self._error is not None or all(event.query() for event in self.arrivals))

    def get_future(self) -> futures.WorkFuture:
        """A future of the result tensors. On a device it is torch's kind that knows of streams."""
        with self._starting:
            if self._future is not None:
                return self._future
            self._future = futures.WorkFuture(self._callback_thread, self._where, self._device)
            started = self._started.is_set()
        if started:
            futures.complete(self, self._future)
        return self._future

    def completing(self) -> AbstractContextManager[Any]:
        """The stream to be in when its future is completed: the one that brings the results, not the program's own."""
        device = self._device
        return nullcontext() if device is None else device.scope(self._stream or device.up)
