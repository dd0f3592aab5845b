"""Changes of the choice: what they were, and a mark in the trace."""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass

from ringleader.runtime.monitor.network import format_rate

__all__ = ["Marks", "Switch"]


@dataclass(frozen=True)
class Switch:
    """A change of the choice.

    Attributes
    ----------
    call
        Number of the call, of all calls of the object, that is the first to run `after`.
    time
        `time.time()` of the decision.
    nbytes
        Size of the arrays that it is about.
    before, after
        Names of candidates.
    reason
        Why, with predicted times.
    bandwidth
        Bytes per second of the slowest line, as measured at the time.
    """

    call: int
    time: float
    nbytes: int
    before: str
    after: str
    reason: str
    bandwidth: float

    def __str__(self) -> str:
        where = f"call {self.call}, {self.nbytes} bytes, {format_rate(self.bandwidth)}"
        return f"{where}: {self.before} -> {self.after} ({self.reason})"


class Marks:
    """Marks in the trace of torch's profiler; it records some threads only, so one may leave marks for another."""

    def __init__(self) -> None:
        self._left: deque[str] = deque(maxlen=16)

    def add(self, text: str) -> None:
        """A mark for the trace, now if this thread is recorded."""
        if _recorded():
            _mark(text)
        else:
            self._left.append(text)

    def flush(self) -> None:
        """Leave the marks of other threads, if this one is recorded; else they are forgotten."""
        while self._left:
            text = self._left.popleft()
            if _recorded():
                _mark(text)


def _recorded() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.autograd._profiler_enabled())


def _mark(text: str) -> None:
    with sys.modules["torch"].profiler.record_function(text):
        pass
