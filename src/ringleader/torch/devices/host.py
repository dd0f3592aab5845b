"""Devices made of the CPU: one that does everything at once, and one with streams that run by themselves."""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

__all__ = ["HostDevice", "StreamThreads"]


class _Past:
    """An event that has happened."""

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True


_PAST = _Past()


class HostDevice:
    """The CPU as it is: the calling thread is its only stream, so work is done when it is enqueued."""

    down: Any = None
    up: Any = None
    lane: Any = None
    back: Any = None

    def current(self) -> Any:
        """The calling thread."""
        return None

    def scope(self, stream: Any) -> AbstractContextManager[Any]:
        """Nothing."""
        return nullcontext()

    def enqueue(self, stream: Any, work: Callable[[], object]) -> None:
        """Do it now."""
        work()

    def record(self, stream: Any) -> Any:
        """All that was enqueued is done."""
        return _PAST

    def wait(self, stream: Any, event: Any) -> None:
        """Wait here."""
        event.synchronize()

    def uses(self, x: torch.Tensor, stream: Any) -> None:
        """Python's references are enough."""

    def refuse_capture(self) -> None:
        """Nothing records the CPU."""

    def register(self, memory: torch.Tensor) -> bool:
        """The CPU reaches all memory."""
        return True

    def unregister(self, ptr: int) -> None:
        """Nothing to take back."""

    def pinned(self, nbytes: int) -> torch.Tensor:
        """Ordinary memory."""
        return torch.empty(nbytes, dtype=torch.uint8)


class _Point:
    """An event of a `_Stream`. What went wrong before it in its stream is raised by whoever waits for it."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._problem: BaseException | None = None

    def reach(self, problem: BaseException | None) -> None:
        self._problem = problem
        self._reached.set()

    def synchronize(self) -> None:
        self._reached.wait()
        if self._problem is not None:
            raise self._problem

    def query(self) -> bool:
        return self._reached.is_set()


def _work_off(todo: queue.SimpleQueue[Any]) -> None:
    problem: BaseException | None = None
    while (item := todo.get()) is not None:
        work, point = item
        if point is not None:
            point.reach(problem)
        elif problem is None:  # as on a GPU: after an error nothing more is done
            try:
                work()
            except Exception as error:
                problem = error
        del item, work, point


class _Stream:
    """A thread that works off a queue."""

    def __init__(self) -> None:
        self._todo: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=_work_off, args=(self._todo,), name="ringleader-stream", daemon=True).start()
        weakref.finalize(self, self._todo.put, None)

    def enqueue(self, work: Callable[[], object]) -> None:
        self._todo.put((work, None))

    def record(self) -> _Point:
        point = _Point()
        self._todo.put((None, point))
        return point


class StreamThreads(HostDevice):
    """The CPU as a device with asynchronous streams: each of `down` and `up` is a thread with a queue.

    The program's own stream is the calling thread, as on the CPU. It behaves towards the rest of the package as a GPU
    does - copies are under way while the program goes on, and are seen only after a wait for their event - so it shows
    where a wait is missing.

    Parameters
    ----------
    latency
        Seconds that each piece of work waits before it is done.
    registers
        Whether host memory can be registered.

    Examples
    --------
    >>> import torch
    >>> device, x = StreamThreads(latency=0.01), torch.zeros(2)
    >>> device.enqueue(device.up, lambda: x.fill_(1))
    >>> event = device.record(device.up)
    >>> device.wait(device.current(), event)
    >>> x
    tensor([1., 1.])
    """

    def __init__(self, latency: float = 0.0, registers: bool = True) -> None:
        self.down, self.up = _Stream(), _Stream()
        self._latency, self._registers = latency, registers

    def enqueue(self, stream: Any, work: Callable[[], object]) -> None:
        """Let the stream do it."""
        if stream is None:
            work()
        elif self._latency:
            stream.enqueue(lambda: time.sleep(self._latency))
            stream.enqueue(work)
        else:
            stream.enqueue(work)

    def record(self, stream: Any) -> Any:
        """An event at the present end of the stream."""
        return _PAST if stream is None else stream.record()

    def wait(self, stream: Any, event: Any) -> None:
        """Let the stream wait; the calling thread if it is that."""
        if stream is None:
            event.synchronize()
        else:
            stream.enqueue(event.synchronize)

    def register(self, memory: torch.Tensor) -> bool:
        """As it was told."""
        return self._registers
