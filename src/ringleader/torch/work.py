"""Operations in flight, as torch sees them: works and the futures made of them.

Copies back into the user's tensors are part of the native work: they are made before anybody can see that it is
complete. Only copies to devices are made in Python, by whoever notices the completion first: a thread that waits, one
that polls, or the thread that completes futures (`futures.py`).
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ringleader import _core, errors
from ringleader.torch.errors import torch_error
from ringleader.torch.futures import CallbackThread, WorkFuture, complete_later
from ringleader.torch.profiling import Recording

__all__ = ["CompositeWork", "Holder", "RingleaderWork", "seconds_of"]

Store = Callable[[], object]

# torch 2.6's C++ (DDP, functional collectives) holds the C++ half of a work only: if Python's half is gone when it
# waits, it waits in the base class, for ever. From 2.7 on it holds both.
_HALF_HELD = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 7)
_REMEMBERED = 1024  # completed works that stay for it
# A work that Python hands to C++ is still held by half: the sum of ones with which DDP's join context counts the ranks
# that have data, and which the reducer asks for during the backward pass. Works of so few elements stay for a while.
_FEW_ELEMENTS = 16
_FEW_REMEMBERED = 256


def seconds_of(limit: timedelta | None) -> float:
    """Seconds of a time limit; 0 for torch's ways to say that there is none (None, 0 and -1 ms)."""
    seconds = limit.total_seconds() if limit else 0.0
    return seconds if seconds > 0 else 0.0


class RingleaderWork(dist.Work):
    """One operation of a process group.

    Parameters
    ----------
    native
        The operation in flight, or None if it is over.
    outputs
        The tensors that hold the result, the value of the future.
    error
        Why it failed, for an operation that is over.
    """

    # Here, not in __init__: one is made for every operation, and most never have these.
    _stores: Sequence[Store] = ()
    _error: BaseException | None = None
    _future: WorkFuture | None = None
    _callback_thread: CallbackThread | None = None
    _lock: threading.Lock | None = None
    _inference = False
    _source = -1
    _recording: Recording | None = None

    def __init__(
        self,
        native: _core.Work | None,
        outputs: list[torch.Tensor],
        error: BaseException | None = None,
    ) -> None:
        super().__init__()
        self._native = native
        self.outputs = outputs
        self._done = native is None
        if error is not None:
            self._error = error

    def _finally(self, store: Store) -> None:
        """Let `store` be called after the completion, before this work is complete."""
        self._stores = (store,)
        self._lock = threading.Lock()
        # In the caller's mode, whichever thread does it: only so it may write to its tensors.
        self._inference = torch.is_inference_mode_enabled()

    # ------------------------------------------------------------------------------------------- native side

    def natives(self) -> list[_core.Work]:
        """The native works that all must complete."""
        return [self._native] if self._native is not None else []

    def _await(self, limit: float) -> bool:
        """Wait natively; False if it is still running after `limit` seconds (0 = no limit). Raises its error."""
        return self._native is None or self._native.wait(limit)

    def _poll(self) -> bool:
        return self._native is None or self._native.poll()

    def _finish(self, error: BaseException | None) -> None:
        """Do what comes after the completion, once, then call it complete."""
        if self._lock is None:
            self._settle(error)
        else:
            with self._lock:
                self._settle(error)

    def _settle(self, error: BaseException | None) -> None:
        if self._done:
            return
        if self._native is not None:
            self._source = self._native.source
        if error is None and self._stores:
            try:
                with torch.inference_mode(self._inference):
                    for store in self._stores:
                        store()
            except Exception as problem:  # whoever waits gets to know, nobody else
                error = problem
        self._error = None if error is None else torch_error(error)
        self._stores = ()
        if self._recording is not None:
            self._recording.end()
        self._done = True
        self._native = None

    def record(self, recording: Recording) -> None:
        """Let a profiler's event last until the completion."""
        self._recording = recording
        if not self._done:
            self.get_future()  # so that somebody notices the completion when it happens
        if self._done:
            recording.end()

    # --------------------------------------------------------------------------------------------- for torch

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the completion.

        Raises
        ------
        CollectiveTimeout
            Not complete within `timeout`; the operation goes on. Or the operation's own limit passed.
        RingleaderError
            The operation failed.
        """
        if not self._done:
            limit = seconds_of(timeout)
            try:
                complete = self._await(limit)
            except errors.RingleaderError as error:
                self._finish(error)
            else:
                if not complete:
                    raise torch_error(
                        errors.CollectiveTimeout(
                            f"the operation is not complete after {limit} s; it is still running, wait again"
                        )
                    )
                self._finish(None)
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """Whether it is over, in success or failure. Never waits."""
        if not self._done and self._poll():
            try:
                self._await(0)
            except errors.RingleaderError as error:
                self._finish(error)
            else:
                self._finish(None)
        return self._done

    def is_success(self) -> bool:
        """Whether it is over and did not fail."""
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        """The error of a failed operation, else None. Never waits."""
        return self._error if self.is_completed() else None

    def result(self) -> list[torch.Tensor]:
        """Wait, and return the tensors that hold the result."""
        self.wait()
        return self.outputs

    def synchronize(self) -> None:
        """Wait for the completion."""
        self.wait()

    block_current_stream = synchronize  # the CPU has one stream: this thread

    def source_rank(self) -> int:
        """Rank that a completed receive came from, else -1."""
        return self._source

    _source_rank = source_rank

    def completing(self) -> AbstractContextManager[Any]:
        """What to be in while its future is completed."""
        return nullcontext()

    def get_future(self) -> WorkFuture:
        """A `torch.futures.Future` of the list of result tensors.

        Its ``then`` callbacks may call collectives, see `futures`.
        """
        if self._future is None:
            self._future = complete_later(self, self._callback_thread)
        return self._future


class CompositeWork(RingleaderWork):
    """Several operations as one; it fails with the first error among them, in their order."""

    def __init__(self, children: Sequence[RingleaderWork], outputs: list[torch.Tensor], store: Store | None = None):
        super().__init__(None, outputs)
        self._children = children
        self._done = False
        if store is not None:
            self._finally(store)

    def natives(self) -> list[_core.Work]:
        """Those of all its operations."""
        return [native for child in self._children for native in child.natives()]

    def _await(self, limit: float) -> bool:
        deadline = time.monotonic() + limit
        for child in self._children:
            if child._done:
                complete = True
            elif limit == 0:
                complete = child._await(0)
            else:
                # A wait of 0 would have no limit; what is complete returns at once.
                complete = child._await(max(1e-3, deadline - time.monotonic()))
            if not complete:
                return False
            child.wait()  # what comes after it, and its error
        return True

    def _poll(self) -> bool:
        return all(child.is_completed() for child in self._children)


class Holder:
    """What is in flight in a group; and works that C++ holds by half, kept alive for it.

    Each addition lets completed ones go from the front, and sweeps all of them when their number has doubled since the
    last sweep. Of a native work only the native part is held, whose memory goes when it completes.
    """

    def __init__(self) -> None:
        self._live: dict[int, _core.Work | RingleaderWork] = {}  # single operations on it are atomic
        self._limit = 64
        self._completed: deque[RingleaderWork] | None = deque(maxlen=_REMEMBERED) if _HALF_HELD else None
        self._released = 0
        self._small: deque[RingleaderWork] = deque(maxlen=_FEW_REMEMBERED)

    def hold(self, work: RingleaderWork) -> RingleaderWork:
        """Hold `work` until it is complete, and return it."""
        live = self._live
        try:
            while live and _over(first := next(iter(live.values()))):
                self._release(first)
        except (RuntimeError, StopIteration):  # another thread changed the dictionary: the next call prunes
            pass
        if len(live) >= self._limit:
            self.sweep()
            self._limit = 64 + 2 * len(live)
        held = work._native if self._completed is None and work._native is not None else work
        live[id(held)] = held
        if len(work.outputs) == 1 and work.outputs[0].numel() <= _FEW_ELEMENTS:
            self._small.append(work)
        return work

    def remember(self) -> None:
        """Keep the latest completed works: C++ holds but its half of them, and asks it later."""
        if self._completed is None:
            self._completed = deque(maxlen=_REMEMBERED)

    def drain(self, limit: float) -> None:
        """Wait until all are complete, in success or failure, or `limit` seconds have passed."""
        deadline = time.monotonic() + limit
        for each in list(self._live.values()):
            left = deadline - time.monotonic()
            if left < 1e-3:  # a limit of 0 is none
                break
            with suppress(Exception):  # who waits for the work gets to know
                if isinstance(each, RingleaderWork):
                    each.wait(timedelta(seconds=left))
                else:
                    each.wait(left)
        self.sweep()
        self._forget_tensors()

    def sweep(self) -> None:
        """Let go of all that is complete."""
        for each in list(self._live.values()):
            if _over(each):
                self._release(each)

    def _release(self, work: _core.Work | RingleaderWork) -> None:
        self._live.pop(id(work), None)
        if self._completed is not None and isinstance(work, RingleaderWork):
            self._completed.append(work)
            self._released += 1
            if self._released % 64 == 0:
                self._forget_tensors()

    def _forget_tensors(self) -> None:
        """Let go of the results of completed works that nobody else in Python has: C++ only waits for them."""
        for each in list(self._completed or ()):
            if sys.getrefcount(each) <= 4:  # in the deque, in the list, in `each`, as argument
                each.outputs, each._future = [], None


def _over(held: _core.Work | RingleaderWork) -> bool:
    return held.is_completed() if isinstance(held, RingleaderWork) else held.poll()
