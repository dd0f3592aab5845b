"""Operations in flight."""

from __future__ import annotations

from typing import Any, Protocol

from ringleader import _core, errors

__all__ = ["InFlight", "Work"]


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

    The result is in its array when the operation completes, whether or not anybody looks at the `Work`, and nothing is
    written there afterwards. Operations of one communicator complete in the order of the calls (messages by
    themselves), so after a later one, a barrier say, the results of all earlier ones are there. The arrays involved are
    kept alive until then, also if the `Work` is dropped. At most 1024 operations wait for their turn: the next call
    then waits too.

    Examples
    --------
    >>> import numpy as np, ringleader as rl
    >>> with rl.init(rank=0, size=1) as comm:
    ...     work = comm.all_reduce(np.arange(3), async_op=True)
    ...     work.wait(timeout=10)
    array([0, 1, 2])
    """

    __slots__ = ("_core", "_result")

    def __init__(self, work: _core.Work | InFlight, result: Any) -> None:
        self._core = work
        self._result = result

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
        return self._result

    def result(self) -> Any:
        """The same as ``wait()``."""
        return self.wait()

    def is_completed(self) -> bool:
        """Whether the operation is over, in success or failure. Never waits."""
        return self._core.poll()

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
