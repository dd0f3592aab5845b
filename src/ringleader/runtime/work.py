"""Operations in flight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ringleader import _core, errors

__all__ = ["InFlight", "LiveWorks", "Work"]


class InFlight(Protocol):
    """What a `Work` needs of an operation: the engine's own works, and those of `ringleader.runtime.compressed`."""

    source: int
    tag: int
    nbytes: int

    def wait(self, timeout: float) -> bool:
        """Whether it is complete after so many seconds (0: no limit); raises its error."""

    def poll(self) -> bool:
        """Whether it is over."""

    def error(self) -> BaseException | None:
        """Its error, if it is over and failed."""


class Work:
    """An operation that was started with ``async_op=True``, `isend`, `irecv` or ``start()``.

    The arrays involved are kept alive until the operation is complete, also if the `Work` is dropped. The result is
    defined once `wait` or `result` has returned (or `is_completed` has returned True).

    Examples
    --------
    >>> import numpy as np, ringleader as rl
    >>> with rl.init(rank=0, size=1) as comm:
    ...     work = comm.all_reduce(np.arange(3), async_op=True)
    ...     work.wait(timeout=10)
    array([0, 1, 2])
    """

    __slots__ = ("_core", "_keep", "_live", "_result", "_stores")

    def __init__(
        self,
        work: _core.Work | InFlight,
        live: LiveWorks,
        result: Any,
        keep: tuple[Any, ...],
        stores: Sequence[Callable[[], object]] = (),
    ) -> None:
        self._core = work
        self._live = live
        self._result = result
        self._keep = keep
        self._stores = stores
        live.add(self)

    def _finish(self, success: bool = True) -> None:
        """Copy back from temporaries, once, and let go of the arrays."""
        stores, self._stores, self._keep = self._stores, (), ()
        self._live.discard(self)
        if success:
            for store in stores:
                store()

    def wait(self, timeout: float | None = None) -> Any:
        """Wait for completion and return the result array.

        Parameters
        ----------
        timeout
            Seconds to wait at most; None waits as long as the operation's own deadline allows.

        Raises
        ------
        CollectiveTimeout
            Not complete within `timeout`; the operation goes on and can be waited for again.
        RingleaderError
            The operation failed.
        """
        if timeout is not None and timeout <= 0:
            done = self._core.poll() and self._core.wait(0)
        else:
            done = self._core.wait(timeout or 0)
        if not done:
            raise errors.CollectiveTimeout(
                f"the operation is not complete after {timeout} s; it is still running, wait again"
            )
        self._finish()
        return self._result

    def result(self) -> Any:
        """The same as ``wait()``."""
        return self.wait()

    def is_completed(self) -> bool:
        """Whether the operation is over, in success or failure. Never waits."""
        if not self._core.poll():
            return False
        self._finish(success=self._core.error() is None)
        return True

    def exception(self) -> BaseException | None:
        """The error of a failed operation; None while it runs or if it succeeded. Never waits."""
        return self._core.error() if self._core.poll() else None

    @property
    def source(self) -> int:
        """Rank that a completed receive came from, else -1."""
        return self._core.source

    @property
    def tag(self) -> int:
        """Tag of a completed receive."""
        return self._core.tag

    @property
    def nbytes(self) -> int:
        """Bytes that a completed receive delivered."""
        return self._core.nbytes


class LiveWorks:
    """Keeps works (and so their arrays) alive until they are complete.

    A work leaves when it is waited for; each addition also lets completed ones go from the front, and sweeps all of
    them when their number has doubled since the last sweep. So what is held is in proportion to what is really in
    flight.
    """

    __slots__ = ("_limit", "_works")

    def __init__(self) -> None:
        self._works: dict[int, Work] = {}  # insertion order; single operations on it are atomic
        self._limit = 64

    def add(self, work: Work) -> Work:
        """Hold `work` until it is complete."""
        try:
            while self._works and next(iter(self._works.values())).is_completed():
                pass  # completion removed it
        except (RuntimeError, StopIteration):  # another thread changed the dictionary: the next call prunes
            pass
        if len(self._works) >= self._limit:
            for live in list(self._works.values()):
                live.is_completed()
            self._limit = 64 + 2 * len(self._works)
        self._works[id(work)] = work
        return work

    def discard(self, work: Work) -> None:
        """Let `work` go."""
        self._works.pop(id(work), None)

    def __len__(self) -> int:
        return len(self._works)
