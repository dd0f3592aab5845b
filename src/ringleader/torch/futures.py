"""Futures of works, and the threads on which they are completed.

Two kinds of threads, all made when first needed:

- One *completer* per process sets the values of futures as operations complete.
- One *callback thread* per group runs what Python code chains with ``then``, in the order in which it was chained. That
  order is the same on all ranks, while the order of completions and of the main thread's own calls is not. Collectives
  called in a callback travel on a communicator of their own (`process_group.Channel`), so they cannot get in between
  those that other threads call. Without this, hooks such as PowerSGD's, which call collectives in callbacks while the
  backward pass starts further ones, would meet in different orders on different ranks.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch.futures

from ringleader import _core

if TYPE_CHECKING:
    from ringleader.torch.devices.device import Device
    from ringleader.torch.work import RingleaderWork

__all__ = [
    "CallbackThread",
    "WorkFuture",
    "act_for",
    "callback_owner",
    "complete",
    "complete_later",
    "deadline_after",
    "left_until",
    "tensors_in",
]

_JOIN_LIMIT = 1.0


class _Failure:
    """The value of a future whose operation failed.

    Python code that asks for the value gets the error raised. C++ code (DDP's reducer) looks for tensors in the value,
    by pickling it or by casting it, and shows the text; so both ways end in an error that tells the reason.
    """

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.silent = False

    def __str__(self) -> str:
        return f"the result of a failed operation ({type(self.error).__name__}: {self.error})"

    def __reduce_ex__(self, protocol: object) -> Any:
        if self.silent:
            return str, ("",)
        raise self.error


def _raise_failure(value: Any) -> Any:
    raise value.error


class WorkFuture(torch.futures.Future[Any]):
    """A future whose ``then`` callbacks run on the callback thread of its group.

    Parameters
    ----------
    thread
        That thread; None: torch calls them.
    devices
        Accelerators on which its value is: torch then makes the streams of whoever waits for it wait.
    device
        The same as staging knows it. Callbacks run in a stream beside the program's own.
    """

    def __init__(
        self, thread: CallbackThread | None, devices: Sequence[torch.device] = (), device: Device | None = None
    ) -> None:
        super().__init__(devices=list(devices))
        self.devices, self.device = devices, device
        self._callback_thread = thread

    def scope(self) -> AbstractContextManager[Any]:
        """The stream in which its callbacks run."""
        return nullcontext() if self.device is None else self.device.scope(self.device.back)

    def fail(self, error: BaseException) -> None:
        """Complete it with an error."""
        self._set_unwrap_func(_raise_failure)
        failure = _Failure(error)
        failure.silent = bool(self.devices)  # such a future looks for tensors in its value when it gets it
        self.set_result(failure)
        failure.silent = False

    def then(self, callback: Callable[[Any], Any]) -> Any:
        """A future of what `callback` returns, which is called with this one once it is completed."""
        if self._callback_thread is None:
            return super().then(callback)
        return self._callback_thread.chain(self, callback)


def _resolve(work: RingleaderWork, future: WorkFuture) -> None:
    with work.completing():
        try:
            work.wait()
        except Exception as error:
            future.fail(error)
        else:
            future.set_result(work.outputs)


class _Completer:
    """The thread that completes futures in the order in which their works complete."""

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)
        atexit.register(self.close)

    def _reset(self) -> None:
        """Also in a forked child, where another thread of the parent may have held the lock."""
        self._lock = threading.Lock()
        self._queue = _core.CompletionQueue()
        self._pending: dict[int, list[Any]] = {}
        self._tokens = itertools.count(1)
        self._thread: threading.Thread | None = None
        self._closed = False

    def complete(self, work: RingleaderWork, future: WorkFuture) -> None:
        """Complete `future` when `work` is complete; keeps both alive until then."""
        natives = work.natives()
        # The completer never waits for itself.
        if not natives or self._closed or self._thread is threading.current_thread() or work.is_completed():
            _resolve(work, future)
            return
        if self._thread is None:
            self._start()
        token = next(self._tokens)
        self._pending[token] = [len(natives), work, future]
        for native in natives:
            self._queue.watch(native, token)

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="ringleader-futures", daemon=True)
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        while True:
            token = self._queue.next(3600.0)
            if token < 0:
                if self._closed:
                    return
                continue
            entry = self._pending[token]
            entry[0] -= 1
            if entry[0] == 0:
                del self._pending[token]
                _, work, future = entry
                _resolve(work, future)
                del work, future  # not kept alive while this thread waits for the next one
            del entry

    def close(self) -> None:
        """End the thread: one that is still in native code when the interpreter is taken down would crash it."""
        self._closed = True
        self._queue.close()
        if self._thread is not None:
            self._thread.join(_JOIN_LIMIT)


_completer = _Completer()


def complete_later(work: RingleaderWork, thread: CallbackThread | None) -> WorkFuture:
    """A future that is completed when `work` is, with the list of its result tensors."""
    future = WorkFuture(thread)
    _completer.complete(work, future)
    return future


def complete(work: RingleaderWork, future: WorkFuture) -> None:
    """Complete `future` when `work`, which has been started, is complete."""
    _completer.complete(work, future)


def deadline_after(limit: float) -> float:
    """The moment `limit` seconds from now; 0 means no limit, as everywhere here."""
    return time.monotonic() + limit if limit else 0.0


def left_until(deadline: float) -> float:
    """Seconds left, as a limit: 0 if there is no deadline, and never 0 if there is one."""
    return max(1e-3, deadline - time.monotonic()) if deadline else 0.0


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """All tensors of nested lists."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors_in(each)


class _Local(threading.local):
    owner: str | None = None


_local = _Local()


def callback_owner() -> str | None:
    """On a callback thread the name of its group, else None."""
    return _local.owner


def act_for(owner: str | None) -> None:
    """Let the calling thread's collectives be those of the callbacks of a group."""
    _local.owner = owner


class CallbackThread:
    """Runs the callbacks of one group's futures, in the order in which they were chained.

    Parameters
    ----------
    name
        The group's; the same on all ranks.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.RLock()  # the group's finalizer closes it, in the middle of anything
        self._closed = False
        self._pid = os.getpid()

    def chain(self, future: Any, callback: Callable[[Any], Any]) -> WorkFuture:
        """Call `callback` with `future` once that is completed, after all that was chained before."""
        result = WorkFuture(self, getattr(future, "devices", ()), getattr(future, "device", None))
        with self._lock:
            if not self._closed:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name=f"ringleader-then-{self._name}", daemon=True)
                    self._thread.start()
                self._queue.put((future, callback, result))
                return result
        self._call(future, callback, result)  # the group is gone: nothing can come in between any more
        return result

    @staticmethod
    def _call(future: Any, callback: Callable[[Any], Any], result: WorkFuture) -> None:
        with result.scope():
            with contextlib.suppress(Exception):  # the callback gets to see it, as with any future
                future.wait()
            try:
                value = callback(future)
            except Exception as error:
                result.fail(error)
            else:
                result.set_result(value)

    def _run(self) -> None:
        act_for(self._name)
        while (entry := self._queue.get()) is not None:
            self._call(*entry)
            del entry

    def close(self) -> None:
        """End the thread after what was chained so far. Does not wait."""
        if os.getpid() != self._pid:  # a forked child has no such thread, and perhaps a lock that nobody will release
            return
        with self._lock:
            self._closed = True
            self._queue.put(None)
