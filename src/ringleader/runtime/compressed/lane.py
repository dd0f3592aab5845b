"""Compressed collectives beside the caller (``async_op=True``).

One of them is several exchanges with work between them, and the caller goes on with other collectives meanwhile. So
that all ranks see each exchange in the same order, those started here run one after another on a thread, over a
communicator of their own, which the first such call forms.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from ringleader import _core, errors

if TYPE_CHECKING:
    from ringleader.runtime.communicator import Communicator

__all__ = ["Lane", "Pending", "lane_of", "lane_or_none"]


class Pending:
    """An operation on the thread: what `Work` needs of it.

    Examples
    --------
    >>> pending = Pending(lambda: None)
    >>> pending.run()
    >>> pending.poll(), pending.wait(0)
    (True, True)
    """

    source = tag = -1
    nbytes = 0

    def __init__(self, call: Callable[[], object], turn: _core.Turn | None = None) -> None:
        self._call: Callable[[], object] | None = call
        self._turn = turn
        self.over = threading.Event()
        self._error: BaseException | None = None
        self._pid = os.getpid()

    def run(self) -> None:
        """Run it, and keep its error."""
        try:
            if self._call is not None:
                self._call()
        except BaseException as error:
            self._error = error
        self._call = None  # and the arrays that it holds
        self.over.set()
        if self._turn is not None:
            self._turn.end()

    def wait(self, timeout: float) -> bool:
        """See `InFlight`."""
        if not self.poll() and not self.over.wait(timeout or None):
            return False
        if (error := self.error()) is not None:
            raise error
        return True

    def poll(self) -> bool:
        """See `InFlight`."""
        return self.over.is_set() or os.getpid() != self._pid

    def error(self) -> BaseException | None:
        """See `InFlight`."""
        if self.over.is_set():
            return self._error
        if os.getpid() != self._pid:  # the thread is the parent's
            return errors.ForkError("the operation is the parent process's: a forked child does not get its result")
        return None


class Lane:
    """A communicator for what runs beside another one, and the thread that runs it."""

    def __init__(self, beside: Communicator, timeout: float | None) -> None:
        comm = beside.split(0, timeout=timeout)
        assert comm is not None
        self.comm: Communicator = comm
        self._core = beside._core
        self._last: Pending | None = None
        self._jobs: SimpleQueue[Pending | None] = SimpleQueue()
        threading.Thread(target=_serve, args=(self._jobs,), name=f"{comm.name}, compressed", daemon=True).start()
        weakref.finalize(self, self._jobs.put, None).atexit = False

    def start(self, call: Callable[[], object]) -> Pending:
        """Run a call after all earlier ones, and before what is called on the communicator beside this one from now on:
        its operations are complete in the order of the calls, those on the lane too."""
        pending = self._last = Pending(call, self._core.reserve())
        self._jobs.put(pending)
        return pending

    def drain(self) -> None:
        """Wait until all that was started is over, in success or failure: what compressors remember is settled then."""
        if self._last is not None:
            self._last.over.wait()

    def close(self, limit: float) -> None:
        """Leave the communicator, within so many seconds; what was started and is not over by then fails."""
        deadline = time.monotonic() + limit
        if self._last is not None:  # what comes after the exchange in flight, too: peers may be behind
            self._last.over.wait(limit)
        self.comm._leave(max(0.0, deadline - time.monotonic()))
        if self._last is not None:
            self._last.over.wait(max(0.0, deadline - time.monotonic()))


def _serve(jobs: SimpleQueue[Pending | None]) -> None:
    while (pending := jobs.get()) is not None:
        pending.run()
        del pending


_lanes: weakref.WeakKeyDictionary[Communicator, Lane] = weakref.WeakKeyDictionary()


def lane_of(comm: Communicator, timeout: float | None = None) -> Lane:
    """The lane beside a communicator; formed by the first call, which all ranks must make."""
    lane = _lanes.get(comm)
    if lane is None:
        lane = _lanes[comm] = Lane(comm, timeout)
    return lane


def lane_or_none(comm: Any) -> Lane | None:
    """The lane beside a communicator, if it was ever used.

    Examples
    --------
    >>> import ringleader as rl
    >>> with rl.init(rank=0, size=1) as comm:
    ...     print(lane_or_none(comm))
    None
    """
    return _lanes.get(comm)
