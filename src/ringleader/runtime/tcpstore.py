"""The project's own store, client side; the protocol is described in `storeserver.py`."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import select
import socket
import time
import weakref
from collections.abc import Callable, Sequence

from ringleader.errors import ClosedError, CollectiveTimeout, RendezvousError
from ringleader.runtime.environment import format_hostport
from ringleader.runtime.handshake import (
    AuthenticationError,
    Busy,
    Hello,
    Purpose,
    UnknownKey,
    converse,
    initiating,
)
from ringleader.runtime.store import StoreLost, seconds_left
from ringleader.runtime.storeserver import (
    ADD,
    BAD,
    CANCEL,
    DELETE,
    FULL,
    GET,
    GROUP,
    INT,
    LENGTH,
    MAX_KEY,
    MAX_VALUE,
    MISSING,
    OK,
    REQUEST,
    SET,
    TRY,
    WILL,
)

__all__ = ["TcpStoreClient"]

# A server of ours answers a handshake within milliseconds; whoever is silent for longer is somebody else.
_ANSWER_LIMIT = 4.0
_REQUEST_LIMIT = 30.0
_UNKNOWN_LIMIT = 1.0
_OTHER_PORT = "choose another MASTER_PORT (or RINGLEADER_STORE)"


class TcpStoreClient:
    """A client of `TcpStoreServer`. Safe for threads: each request takes an idle connection or makes one.

    Parameters
    ----------
    hosts
        Names or addresses to try in order.
    secret
        The server's key, or a function that finds it by the id that the server tells, see `keys.key_finder`.
    rank
        Own rank, for the server's log.
    timeout
        Seconds to wait for the server to come up.

    Raises
    ------
    RendezvousError
        If nobody listens there in time, if somebody else does (found within 5 s), or if the secrets differ.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        port: int,
        secret: bytes | Callable[[bytes], bytes],
        timeout: float,
        rank: int = 0,
    ) -> None:
        self._hosts = list(hosts)
        self._port = port
        self._secret = secret
        self._keys: dict[bytes, bytes] = {}  # by id, those that were found
        self._key = None if callable(secret) else secret
        self._rank = rank
        self._idle: list[socket.socket] = []
        self._will: socket.socket | None = None
        self._closed = False
        self._met = False
        self._pid = os.getpid()
        self._idle.append(self._connect(timeout))
        self._met = True
        _clients.add(self)

    @property
    def key(self) -> bytes:
        """The server's key."""
        assert self._key is not None
        return self._key

    def _find(self, key_id: bytes) -> bytes:
        """The key that the server means. The last one is kept: who knows it from the start is believed in a flood."""
        assert callable(self._secret)
        if key_id not in self._keys:
            self._keys[key_id] = self._secret(key_id)
        self._key = self._keys[key_id]
        return self._key

    @property
    def _where(self) -> str:
        return format_hostport(self._hosts[0], self._port)

    def _connect(self, timeout: float) -> socket.socket:
        """Connect and authenticate; a refused connection is retried (the server may not be up) until the deadline."""
        deadline = time.monotonic() + timeout
        vanished_since: float | None = None
        unknown_since: float | None = None
        reason = "no attempt was made"
        while True:
            for host in self._hosts:
                try:
                    return self._connect_once(host, deadline)
                except (EOFError, ConnectionResetError, BrokenPipeError):
                    # Somebody accepted and hung up: our server going down or coming up, or somebody else's.
                    reason = "whoever listens there hangs up and is not a Ringleader store"
                    vanished_since = vanished_since or time.monotonic()
                    if time.monotonic() - vanished_since > _ANSWER_LIMIT - 1:
                        raise RendezvousError(f"{self._where}: {reason}; {_OTHER_PORT}") from None
                except Busy as error:  # a flood of strangers: our own limit is the only one that counts
                    reason, vanished_since = str(error), None
                except AuthenticationError as error:
                    # A server that is about to end takes its key away: the next one's may be there in a moment.
                    unknown_since = unknown_since or time.monotonic()
                    if not isinstance(error, UnknownKey) or time.monotonic() - unknown_since > _UNKNOWN_LIMIT:
                        raise type(error)(f"{self._where}: {error}") from error
                except RendezvousError:  # somebody else's port; it is an OSError too
                    raise
                except OSError as error:
                    reason = str(error)
                    if self._met and isinstance(error, ConnectionRefusedError):
                        raise self._lost(error) from error  # it was there: nobody listens any more
            if time.monotonic() >= deadline:
                raise RendezvousError(
                    f"rank {self._rank} could not reach the store at {self._where} within {timeout:.1f} s ({reason}); "
                    "is rank 0 running, and is MASTER_ADDR (or RINGLEADER_STORE) its host?",
                    (0,),
                )
            time.sleep(min(0.05, max(0.0, deadline - time.monotonic())))

    def _connect_once(self, host: str, deadline: float) -> socket.socket:
        now = time.monotonic()
        sock = socket.create_connection((host, self._port), timeout=max(0.05, min(2.0, deadline - now)))
        try:
            if sock.getsockname() == sock.getpeername():
                # TCP's simultaneous open: with no listener, an ephemeral port may connect to itself.
                raise ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            secret = self._find if callable(self._secret) else self._secret
            steps = initiating(secret, Hello(Purpose.STORE, GROUP, self._rank), -1, self._key)
            try:
                converse(sock, steps, time.monotonic() + seconds_left(_ANSWER_LIMIT))
            except TimeoutError:
                raise RendezvousError(
                    f"{format_hostport(host, self._port)} is busy: somebody listens there who does not answer as a "
                    f"Ringleader store; {_OTHER_PORT}"
                ) from None
            return sock
        except BaseException:
            sock.close()
            raise

    def _lost(self, error: Exception) -> StoreLost:
        return StoreLost(
            f"lost the store at {self._where} ({error}); did the process that serves it (rank 0) end?", (0,)
        )

    def _request(self, operation: int, key: str, argument: bytes = b"", timeout: float | None = None) -> bytes | None:
        """The answer; None if the key is missing, for `timeout` seconds. A connection that fails is closed."""
        sock = self._borrow()
        try:
            answer = self._ask(sock, operation, key, argument, timeout)
        except BaseException:
            sock.close()
            raise
        self._give_back(sock)
        if answer[0] == BAD:
            raise ValueError(f"key {key!r} {answer[1:].decode()}")
        if answer[0] == FULL:
            raise RendezvousError(f"the store at {self._where} is full: {answer[1:].decode()}")
        return None if answer[0] == MISSING else answer[1:]

    def _ask(
        self, sock: socket.socket, operation: int, key: str, argument: bytes, timeout: float | None = None
    ) -> bytes:
        name = key.encode()
        if len(name) > MAX_KEY or len(argument) > MAX_VALUE:
            raise ValueError(
                f"key of {len(name)} bytes (limit {MAX_KEY}), value of {len(argument)} (limit {MAX_VALUE})"
            )
        body = REQUEST.pack(operation, len(name)) + name + argument
        try:
            sock.settimeout(seconds_left(_REQUEST_LIMIT))
            sock.sendall(LENGTH.pack(len(body)) + body)
            if timeout is not None and not _readable(sock, timeout):
                # The answer is the value if that was faster, else that there is none: the connection stays in order.
                sock.sendall(_word(CANCEL))
            (length,) = LENGTH.unpack(_receive(sock, LENGTH.size))
            if not 1 <= length <= 1 + MAX_VALUE:
                raise EOFError(f"it sent an answer of {length} bytes")
            return _receive(sock, length)
        except TimeoutError:
            raise RendezvousError(
                f"the store at {self._where} does not answer; is the process that serves it stopped, or its host gone?"
            ) from None
        except (OSError, EOFError) as error:
            raise self._lost(error) from error

    def _borrow(self) -> socket.socket:
        if self._closed:
            raise ClosedError("the store was closed")
        with contextlib.suppress(IndexError):
            return self._idle.pop()
        return self._connect(seconds_left(_REQUEST_LIMIT))

    def _give_back(self, sock: socket.socket) -> None:
        if self._idle or self._closed:
            sock.close()
        else:
            self._idle.append(sock)

    def set(self, key: str, value: bytes) -> None:
        """See `Store`."""
        self._request(SET, key, value)

    def get(self, key: str, timeout: float) -> bytes:
        """See `Store`."""
        value = self._request(GET, key, timeout=timeout) if timeout > 0 else self._request(TRY, key)
        if value is None:
            raise CollectiveTimeout(f"key {key!r} was not set within {timeout:.1f} s")
        return value

    def add(self, key: str, amount: int) -> int:
        """See `Store`."""
        if not -(1 << 63) <= amount < 1 << 63:
            raise ValueError(f"amount {amount} for key {key!r} does not fit into 64 bits")
        value = self._request(ADD, key, INT.pack(amount))
        assert value is not None
        return int(INT.unpack(value)[0])

    def delete(self, key: str) -> None:
        """See `Store`."""
        self._request(DELETE, key)

    def leave_word(self, key: str, value: bytes) -> None:
        """Have `value` appended to a key when this process is gone without having closed the client. Once.

        The word hangs on a connection of its own, which nothing but the end of this process closes: a request that is
        interrupted closes the connection that it uses.
        """
        sock = self._connect(seconds_left(_REQUEST_LIMIT))
        try:
            answer = self._ask(sock, WILL, key, value)
            if answer[0] != OK:
                raise RendezvousError(f"the store at {self._where} refused a word for later: {answer[1:].decode()}")
        except BaseException:
            sock.close()
            raise
        self._will = sock

    def close(self) -> None:
        """See `Store`."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()
        if self._will is not None:
            with contextlib.suppress(OSError):  # without an answer: its end follows at once
                self._will.send(_word(WILL))
            self._will.close()

    def _disown(self) -> None:
        """In a forked child: the connections are the parent's, whose death must be noticed while the child lives."""
        for sock in (*self._idle, self._will):
            if sock is not None:
                sock.close()
        self._idle, self._will, self._pid = [], None, os.getpid()


_clients: weakref.WeakSet[TcpStoreClient] = weakref.WeakSet()


def _disown_all() -> None:
    for client in list(_clients):
        client._disown()


os.register_at_fork(after_in_child=_disown_all)


def _word(operation: int) -> bytes:
    """A request of nothing but its operation."""
    return LENGTH.pack(REQUEST.size) + REQUEST.pack(operation, 0)


def _readable(sock: socket.socket, timeout: float) -> bool:
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    return bool(poller.poll(math.ceil(1000 * seconds_left(timeout))))


def _receive(sock: socket.socket, count: int) -> bytes:
    """Exactly `count` bytes. The server answers at once, so the limit is a generous one."""
    data = bytearray()
    deadline = time.monotonic() + seconds_left(_REQUEST_LIMIT)
    while len(data) < count:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        sock.settimeout(left)
        part = sock.recv(min(count - len(data), 1 << 20))
        if not part:
            raise EOFError("it closed the connection")
        data += part
    return bytes(data)
