"""The thread that starts operations whose tensors are still on their way from a device.

A native operation begins when it is started: its memory must be ready then. The caller does not wait for that, this
thread does; it starts one operation after the other, in the order in which they were called. What would otherwise be
started at once waits its turn here while others are waiting, so the order stays the same on all ranks.

Invariant: the thread waits for this rank's devices only, never for other ranks. So it cannot be part of a deadlock that
a program does not have by itself: whoever calls in a legal order has all its operations started.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from ringleader.torch import futures

__all__ = ["Pump", "pumping"]

_JOIN_LIMIT = 1.0


class _Local(threading.local):
    active: bool = False


_local = _Local()


def pumping() -> bool:
    """Whether the calling thread is one of these: what it calls is started at once."""
    return _local.active


class Pump:
    """Runs what it is given, in order, on a thread that is made when first needed.

    Parameters
    ----------
    name
        Of the thread.
    owner
        Name of the group whose callbacks' communicator is used (`futures.callback_owner`), or None.
    """

    def __init__(self, name: str, owner: str | None = None) -> None:
        self._name, self._owner = name, owner
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._waiting = 0

    @property
    def busy(self) -> bool:
        """Whether something was given to it that has not yet run."""
        return self._waiting > 0

    def put(self, work: Callable[[], None]) -> None:
        """Run `work` after all that was put before. It must not raise."""
        with self._lock:
            self._waiting += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"ringleader-{self._name}", daemon=True)
                self._thread.start()
        self._queue.put(work)

    def _run(self) -> None:
        _local.active = True
        futures.act_for(self._owner)
        while (work := self._queue.get()) is not None:
            work()
            del work  # not kept alive while this thread waits for the next one
            with self._lock:
                self._waiting -= 1

    def close(self) -> None:
        """End the thread after what it was given. Waits a second for it at most: a device may be stuck."""
        thread = self._thread
        if thread is not None:
            self._queue.put(None)
            if thread is not threading.current_thread():
                thread.join(_JOIN_LIMIT)
