"""Send and receive between two ranks."""

from __future__ import annotations

from typing import Any, Final

from ringleader import _core, errors
from ringleader.runtime import arrays
from ringleader.runtime.runner import seconds
from ringleader.runtime.work import Work

__all__ = ["ANY_SOURCE", "Messages"]

ANY_SOURCE: Final = -1


class Messages:
    """Point-to-point messages.

    They run beside the collectives, in no order with them. Between two ranks, messages of one tag arrive in the order
    in which they were sent. A receive must offer at least as many bytes as the message has.
    """

    _core: _core.Communicator
    rank: int
    size: int

    def _check_usable(self) -> None:
        raise NotImplementedError

    def _check_peer(self, peer: int, what: str, any_source: bool = False) -> int:
        if (
            isinstance(peer, int)
            and not isinstance(peer, bool)
            and (0 <= peer < self.size or (any_source and peer == -1))
        ):
            return peer
        also = " or ringleader.ANY_SOURCE" if any_source else ""
        raise errors.InvalidArgument(f"{what} is {peer!r}; expected a rank from 0 to {self.size - 1}{also}")

    def isend(self, x: Any, dest: int, tag: int = 0, *, timeout: float | None = None) -> Work:
        """Start sending `x` to rank `dest`; it must be left alone until the `Work` is complete.

        Examples
        --------
        >>> import numpy as np, ringleader as rl
        >>> def exchange(comm):
        ...     x, y = np.array([comm.rank]), np.empty(1, int)
        ...     works = [comm.isend(x, 1 - comm.rank), comm.irecv(y, 1 - comm.rank)]
        ...     for work in works:
        ...         work.wait()
        ...     return y[0]
        """
        self._check_usable()
        self._check_peer(dest, "dest")
        buffer = arrays.source(x)
        if buffer.load is not None:
            buffer.load()
        work = self._core.isend(buffer.ptr, buffer.nbytes, dest, _check_tag(tag), seconds(timeout), buffer.keep)
        return Work(work, x)

    def irecv(self, x: Any, source: int = ANY_SOURCE, tag: int = 0, *, timeout: float | None = None) -> Work:
        """Start receiving into `x` from rank `source`.

        The `Work`'s ``wait()`` returns `x`; its ``source`` and ``nbytes`` tell what came.

        Raises
        ------
        MismatchError
            From ``wait``: the message is longer than `x`.
        """
        self._check_usable()
        self._check_peer(source, "source", any_source=True)
        buffer = arrays.target(x, "x (receives the message)")
        stores = () if buffer.store is None else (buffer.store,)
        if buffer.load is not None:
            buffer.load()  # a shorter message leaves the rest as it was
        work = self._core.irecv(
            buffer.ptr, buffer.nbytes, source, _check_tag(tag), seconds(timeout), buffer.keep, stores
        )
        return Work(work, x)

    def send(self, x: Any, dest: int, tag: int = 0, *, timeout: float | None = None) -> None:
        """Send `x` to rank `dest`; returns when `x` may be changed again.

        Examples
        --------
        >>> import numpy as np, ringleader as rl
        >>> def relay(comm):
        ...     x = np.arange(4) if comm.rank == 0 else np.empty(4, int)
        ...     if comm.rank == 0:
        ...         comm.send(x, dest=1, tag=7)
        ...     elif comm.rank == 1:
        ...         sender = comm.recv(x, source=rl.ANY_SOURCE, tag=7)
        ...     return x
        """
        self.isend(x, dest, tag, timeout=timeout).wait()

    def recv(self, x: Any, source: int = ANY_SOURCE, tag: int = 0, *, timeout: float | None = None) -> int:
        """Receive into `x` from rank `source`; returns the rank it came from."""
        work = self.irecv(x, source, tag, timeout=timeout)
        work.wait()
        return work.source


def _check_tag(tag: int) -> int:
    if isinstance(tag, bool) or not isinstance(tag, int) or not 0 <= tag < 2**31:
        raise errors.InvalidArgument(f"tag is {tag!r}; expected an integer from 0 to 2**31 - 1")
    return tag
