"""Events of torch's profiler: ``ringleader:all_reduce`` and so on, one per operation, with the shapes of its inputs.

Like those of torch's own backends, an event lasts until the operation is complete, and it is asynchronous: it is left
out of the nesting of a thread's events. The profiler takes an event for that if its end is told by another thread than
its start; so there is a thread that does nothing else, made by the first event. Without a profiler an operation pays
for one question.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from torch._C._autograd import _profiler_enabled

__all__ = ["Recording", "profiling"]

profiling = _profiler_enabled
"""Whether a profiler records the calling thread."""

_ender: ThreadPoolExecutor | None = None


def _forget() -> None:
    global _ender
    _ender = None  # a forked child has no threads but its own


os.register_at_fork(after_in_child=_forget)


class Recording:
    """An operation's event; it begins here.

    Parameters
    ----------
    title
        The event's name.
    inputs
        A tensor, or lists of tensors, whose shapes the event shows; anything else is left out.
    """

    def __init__(self, title: str, inputs: object) -> None:
        self._lock = threading.Lock()
        over: torch.futures.Future[None] = torch.futures.Future()
        record = torch._C._autograd._record_function_with_args_enter(title, *_tensors(inputs))
        # Ends the event when the future is completed, by whichever thread, for the profiler of this thread.
        torch.ops.profiler._call_end_callbacks_on_jit_fut._RecordFunction(record, over)
        self._over: torch.futures.Future[None] | None = over

    def end(self) -> None:
        """End it, once: it is in the trace of a profiler that stops after this returns."""
        global _ender
        with self._lock:
            if self._over is None:
                return
            if _ender is None:
                _ender = ThreadPoolExecutor(1, "ringleader-profiling")
            _ender.submit(self._over.set_result, None).result()
            self._over = None


def _tensors(inputs: Any) -> Iterator[Tensor]:
    if isinstance(inputs, Tensor):
        yield inputs
    elif isinstance(inputs, (list, tuple)):
        for each in inputs:
            yield from _tensors(each)
