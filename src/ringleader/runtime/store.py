"""Key-value stores through which ranks find each other: the interface, helpers, and the adapter for torch's stores.

The project's own stores are in `tcpstore.py` (authenticated) and `filestore.py` (one host, no address needed).
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

from ringleader.errors import CollectiveTimeout, RendezvousError

__all__ = [
    "LocalStore",
    "PrefixStore",
    "Store",
    "StoreLost",
    "TorchStore",
    "backoff",
    "leave_word",
    "no_longer_than",
    "ranks_text",
    "seconds_left",
    "wait_for_ranks",
]

_until: ContextVar[float | None] = ContextVar("ringleader_store_until", default=None)


@contextlib.contextmanager
def no_longer_than(deadline: float) -> Iterator[None]:
    """Requests in this block end by then (`time.monotonic()`), also those that have no limit of their own."""
    outer = _until.get()
    token = _until.set(deadline if outer is None else min(deadline, outer))
    try:
        yield
    finally:
        _until.reset(token)


def seconds_left(most: float) -> float:
    """Seconds that a request may take: `most`, or less in a block of `no_longer_than`; never nothing at all."""
    until = _until.get()
    return most if until is None else min(most, max(0.1, until - time.monotonic()))


class StoreLost(RendezvousError):
    """The store is gone, with the process that served it."""


class Store(Protocol):
    """What Ringleader needs of a store. All ranks of a job see the same keys; methods may be called from any thread."""

    def set(self, key: str, value: bytes) -> None:
        """Set a key, replacing an earlier value."""

    def get(self, key: str, timeout: float) -> bytes:
        """The value of a key, waiting up to `timeout` seconds (0 = look once) until it is set.

        Raises
        ------
        CollectiveTimeout
            If it was not set in time.
        RendezvousError
            If the store is lost.
        """

    def add(self, key: str, amount: int) -> int:
        """Atomically add to an integer (0 if not set) and return the new value."""

    def delete(self, key: str) -> None:
        """Remove a key, if it is there."""

    def close(self) -> None:
        """Give back what this process holds of the store. Idempotent."""


def leave_word(store: Store, key: str, value: bytes) -> bool:
    """Have `value` appended to a key when this process ends without having closed the store; false if it cannot."""
    able = getattr(store, "leave_word", None)
    return able is not None and able(key, value) is not False


def backoff(deadline: float, first: float = 0.0005, longest: float = 0.05) -> Iterator[None]:
    """Yield at once, then after pauses that grow, for the last time at the deadline (`time.monotonic()`)."""
    pause = first
    while True:
        yield
        left = deadline - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(pause, left))
        pause = min(longest, pause * 1.5)


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks in growing order as text, runs shortened.

    Examples
    --------
    >>> ranks_text([0, 1, 3, 5, 6, 7])
    '0, 1, 3, 5-7'
    """
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def wait_for_ranks(
    store: Store,
    key: Callable[[int], str],
    ranks: Sequence[int],
    timeout: float,
    check: Callable[[], None] | None = None,
    what: str = "the start",
    limit: float | None = None,
    here: Sequence[int] = (),
) -> dict[int, bytes]:
    """Get one key per rank with one deadline for all.

    Parameters
    ----------
    key
        The key of a rank.
    timeout
        Seconds for all together.
    check
        Called at least every quarter of a second; may raise to end the wait.
    what
        What the ranks are expected at, for the message.
    limit
        The whole time limit, for the message, where part of it has passed already.
    here
        Ranks that need no key because they are known to be here, for the message.

    Raises
    ------
    CollectiveTimeout
        Naming all the ranks that are missing; `ranks` holds them too.
    """
    deadline = time.monotonic() + timeout
    found: dict[int, bytes] = {}
    for rank in ranks:
        while rank not in found:
            left = deadline - time.monotonic()
            try:
                found[rank] = store.get(key(rank), max(0.0, min(0.25, left)))
            except CollectiveTimeout:
                if check is not None:
                    check()
                if left <= 0:
                    break
    missing = [rank for rank in ranks if rank not in found]
    if missing:
        noun = "rank" if len(missing) == 1 else "ranks"
        have = f"(have: {ranks_text(sorted({*found, *here})) or 'none'})"
        raise CollectiveTimeout(
            f"{noun} {ranks_text(missing)} did not arrive at {what} within {limit or timeout:.1f} s {have}; "
            "is it still running? `start_timeout=` (RINGLEADER_STORE_TIMEOUT) sets the limit of init()",
            missing,
        )
    return found


class LocalStore:
    """A store within one process, for ranks that are threads and for jobs of one rank."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: bytes) -> None:
        """See `Store`."""
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str, timeout: float) -> bytes:
        """See `Store`."""
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._values, timeout):
                raise CollectiveTimeout(f"key {key!r} was not set within {timeout:.1f} s")
            return self._values[key]

    def add(self, key: str, amount: int) -> int:
        """See `Store`."""
        with self._changed:
            value = int(self._values.get(key, b"0")) + amount
            self.set(key, str(value).encode())
            return value

    def delete(self, key: str) -> None:
        """See `Store`."""
        with self._changed:
            self._values.pop(key, None)

    def close(self) -> None:
        """See `Store`."""


class PrefixStore:
    """A store inside another: all keys get a prefix. Closing it leaves the other open."""

    def __init__(self, prefix: str, store: Store) -> None:
        self.prefix = prefix
        self.store = store

    def set(self, key: str, value: bytes) -> None:
        """See `Store`."""
        self.store.set(f"{self.prefix}/{key}", value)

    def get(self, key: str, timeout: float) -> bytes:
        """See `Store`."""
        return self.store.get(f"{self.prefix}/{key}", timeout)

    def add(self, key: str, amount: int) -> int:
        """See `Store`."""
        return self.store.add(f"{self.prefix}/{key}", amount)

    def delete(self, key: str) -> None:
        """See `Store`."""
        self.store.delete(f"{self.prefix}/{key}")

    def leave_word(self, key: str, value: bytes) -> bool:
        """See the function of this name."""
        return leave_word(self.store, f"{self.prefix}/{key}", value)

    def close(self) -> None:
        """See `Store`."""


class TorchStore:
    """Any `torch.distributed.Store` as a `Store`. The torch store stays the caller's.

    torch's own blocking `get` sleeps in C++, deaf to Ctrl-C, for the store's own time limit; so this polls with
    `check`, which never waits. The same holds for every call of a FileStore whose file somebody has removed (the last
    rank to leave does): that is found out first.
    """

    def __init__(self, store: Any, prefix: str = "ringleader") -> None:
        self._store = store
        self._prefix = prefix
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        path = getattr(store, "path", None)  # of a FileStore, which has made the file by now
        self._path = path if isinstance(path, str) else None

    def _key(self, key: str) -> str:
        if self._path is not None and not os.path.exists(self._path):
            raise RendezvousError(f"the torch store is lost: its file {self._path} was removed")
        return f"{self._prefix}/{key}"

    def _lost(self, error: Exception) -> RendezvousError:
        return RendezvousError(
            f"the torch store failed: {error}; did the process that serves it (rank 0 or torchrun) end?"
        )

    def set(self, key: str, value: bytes) -> None:
        """See `Store`."""
        try:
            self._store.set(self._key(key), value)
        except RuntimeError as error:
            raise self._lost(error) from error

    def get(self, key: str, timeout: float) -> bytes:
        """See `Store`."""
        try:
            for _ in backoff(time.monotonic() + timeout):
                name = self._key(key)
                if self._store.check([name]):
                    return bytes(self._store.get(name))
        except RuntimeError as error:
            raise self._lost(error) from error
        raise CollectiveTimeout(f"key {key!r} was not set within {timeout:.1f} s")

    def add(self, key: str, amount: int) -> int:
        """See `Store`."""
        try:
            return int(self._store.add(self._key(key), amount))
        except RuntimeError as error:
            raise self._lost(error) from error

    def delete(self, key: str) -> None:
        """See `Store`. Some torch stores cannot delete; then the key stays."""
        try:
            self._store.delete_key(self._key(key))
        except (RuntimeError, NotImplementedError):
            return

    def close(self) -> None:
        """See `Store`."""
