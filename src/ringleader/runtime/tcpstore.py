"""The project's own store: a small authenticated key-value server and its client.

Every connection first proves that it knows the secret (`handshake.py`). Then requests and answers, each one frame:

    request  u32 length, u8 operation, u16 length of the key, key, argument
    answer   u32 length, u8 status, value

The server is one thread with a selector. A `get` of a missing key parks the connection until the key is set; the limit is
the client's business, which leaves by closing the connection. What strangers send is bounded in bytes and in time.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Sequence

from ringleader.errors import ClosedError, CollectiveTimeout, RendezvousError
from ringleader.runtime.config import logger
from ringleader.runtime.environment import format_hostport
from ringleader.runtime.handshake import (
    STRANGER_LIMIT,
    AuthenticationError,
    Conversation,
    Hello,
    Purpose,
    accepting,
    converse,
    initiating,
)

__all__ = ["TcpStoreClient", "TcpStoreServer"]

_GROUP = "store"
_LENGTH = struct.Struct("!I")
_REQUEST = struct.Struct("!BH")
_INT = struct.Struct("!q")
_SET, _GET, _TRY, _ADD, _DELETE = range(1, 6)
_OK, _MISSING, _BAD = range(3)
_MAX_KEY = 1024
_MAX_VALUE = 16 << 20
_MAX_FRAME = _MAX_VALUE + _MAX_KEY + _REQUEST.size
_MAX_STRANGERS = 256
# A server of ours answers a handshake within milliseconds; whoever is silent for longer is somebody else.
_ANSWER_LIMIT = 4.0


class _Connection:
    """One client of the server: a handshake, then frames."""

    def __init__(self, sock: socket.socket, peer: str, handshake: Conversation[Hello]) -> None:
        self.sock = sock
        self.peer = peer
        self.handshake: Conversation[Hello] | None = handshake
        self.incoming = bytearray()
        self.outgoing = bytearray()
        self.parked: str | None = None


class TcpStoreServer:
    """Serves a store until closed.

    Parameters
    ----------
    addresses
        (host, port) pairs to listen at; port 0 picks a free one, the same for all.
    secret
        Clients must know it.

    Raises
    ------
    RendezvousError
        If a port is busy or an address is not this host's.

    Examples
    --------
    >>> server = TcpStoreServer([("127.0.0.1", 0)], secret=b"sixteen bytes or more")
    >>> client = TcpStoreClient(["127.0.0.1"], server.port, secret=b"sixteen bytes or more", timeout=5)
    >>> client.add("counter", 2)
    2
    >>> client.close(), server.close()
    (None, None)
    """

    def __init__(self, addresses: Sequence[tuple[str, int]], secret: bytes) -> None:
        self._secret = secret
        self._values: dict[str, bytes] = {}
        self._connections: set[_Connection] = set()
        self._waiting: dict[str, list[_Connection]] = {}
        self._closing = False
        with contextlib.ExitStack() as stack:
            self._selector = stack.enter_context(selectors.DefaultSelector())
            self._wake_read, self._wake_write = socket.socketpair()
            stack.callback(self._wake_read.close)
            stack.callback(self._wake_write.close)
            self._selector.register(self._wake_read, selectors.EVENT_READ)
            self._listeners: list[socket.socket] = []
            self.port = addresses[0][1]
            for host, port in addresses:
                listener = stack.enter_context(_listen(host, port or self.port))
                self.port = listener.getsockname()[1]
                self._listeners.append(listener)
                self._selector.register(listener, selectors.EVENT_READ)
            stack.pop_all()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._serve, name="ringleader-store", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving. Idempotent; clients that are still connected lose the store."""
        if self._closing:
            return
        self._closing = True
        if self._pid == os.getpid():  # a forked child has no such thread, and must not wake the parent's
            self._wake_write.send(b"x")
            self._thread.join()
        self._wake_write.close()

    # -------------------------------------------------------------------------------------------- the server's thread

    def _serve(self) -> None:
        try:
            while not self._closing:
                strangers = any(c.handshake is not None for c in self._connections)
                for key, _ in self._selector.select(0.5 if strangers else None):
                    if key.data is not None:
                        self._step(key.data)
                    elif key.fileobj in self._listeners:
                        assert isinstance(key.fileobj, socket.socket)
                        self._accept(key.fileobj)
                if strangers:
                    for connection in list(self._connections):
                        if connection.handshake is not None and connection.handshake.overdue:
                            self._drop(connection, "did not authenticate in time")
        finally:
            for connection in list(self._connections):
                self._drop(connection)
            for sock in (*self._listeners, self._wake_read):
                sock.close()
            self._selector.close()

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, address = listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                logger("NET").warning("store: out of file descriptors; new connections wait")
                time.sleep(0.05)
            return
        strangers = [c for c in self._connections if c.handshake is not None]
        if len(strangers) >= _MAX_STRANGERS:
            oldest = min(strangers, key=lambda c: c.handshake.deadline if c.handshake else 0.0)
            self._drop(oldest, "gave way to newer connections without having authenticated")
        steps = accepting(self._secret, _GROUP, -1, lambda hello: hello.purpose is Purpose.STORE)
        handshake = Conversation(sock, steps, time.monotonic() + STRANGER_LIMIT)
        connection = _Connection(sock, str(address[0]), handshake)
        self._connections.add(connection)
        self._selector.register(sock, selectors.EVENT_READ, connection)

    def _drop(self, connection: _Connection, why: str | None = None) -> None:
        if why is not None:
            logger("NET").info("store: dropped a connection from %s: it %s", connection.peer, why)
        if connection.parked is not None:
            self._waiting[connection.parked].remove(connection)
        self._connections.discard(connection)
        self._selector.unregister(connection.sock)
        connection.sock.close()

    def _step(self, connection: _Connection) -> None:
        """Serve what a connection is ready for; any misbehaviour ends it, and it alone."""
        try:
            if connection.handshake is not None:
                if not connection.handshake.advance():
                    writing = connection.handshake.wants_write
                    self._watch(connection, selectors.EVENT_WRITE if writing else selectors.EVENT_READ)
                    return
                connection.handshake = None
                self._watch(connection, selectors.EVENT_READ)
                return
            if not connection.outgoing:
                data = connection.sock.recv(1 << 16)
                if not data:
                    self._drop(connection)
                    return
                connection.incoming += data
                self._answer_all(connection)
            if connection.outgoing:
                del connection.outgoing[: connection.sock.send(connection.outgoing)]
                if not connection.outgoing:
                    self._answer_all(connection)
            self._watch(connection, selectors.EVENT_WRITE if connection.outgoing else selectors.EVENT_READ)
        except BlockingIOError:
            return
        except AuthenticationError as error:
            logger("NET").warning("store: refused a connection from %s: %s", connection.peer, error)
            self._drop(connection)
        except (OSError, EOFError):
            self._drop(connection)
        except ValueError as error:
            self._drop(connection, f"sent a bad request: {error}")

    def _watch(self, connection: _Connection, events: int) -> None:
        if self._selector.get_key(connection.sock).events != events:
            self._selector.modify(connection.sock, events, connection)

    def _answer_all(self, connection: _Connection) -> None:
        """Answer complete requests in order, one at a time: the next only when the answer before is out."""
        incoming = connection.incoming
        while not connection.outgoing and connection.parked is None and len(incoming) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(incoming)
            if not _REQUEST.size <= length <= _MAX_FRAME:
                raise ValueError(f"a frame of {length} bytes")
            if len(incoming) < _LENGTH.size + length:
                return
            frame = bytes(incoming[_LENGTH.size : _LENGTH.size + length])
            del incoming[: _LENGTH.size + length]
            self._answer(connection, frame)
        if connection.parked is not None and incoming:
            raise ValueError("a request while another was waiting")

    def _answer(self, connection: _Connection, frame: bytes) -> None:
        operation, key_length = _REQUEST.unpack_from(frame)
        key = frame[_REQUEST.size : _REQUEST.size + key_length].decode()
        argument = frame[_REQUEST.size + key_length :]
        if operation == _SET:
            self._put(key, argument)
            _reply(connection, _OK)
        elif operation in (_GET, _TRY):
            if (value := self._values.get(key)) is not None:
                _reply(connection, _OK, value)
            elif operation == _TRY:
                _reply(connection, _MISSING)
            else:
                connection.parked = key
                self._waiting.setdefault(key, []).append(connection)
        elif operation == _ADD and len(argument) == _INT.size:
            old = self._values.get(key, _INT.pack(0))
            if len(old) != _INT.size:
                _reply(connection, _BAD)
                return
            new = _INT.pack(_INT.unpack(old)[0] + _INT.unpack(argument)[0])
            self._put(key, new)
            _reply(connection, _OK, new)
        elif operation == _DELETE:
            self._values.pop(key, None)
            _reply(connection, _OK)
        else:
            raise ValueError(f"operation {operation}")

    def _put(self, key: str, value: bytes) -> None:
        self._values[key] = value
        for connection in self._waiting.pop(key, ()):
            connection.parked = None
            _reply(connection, _OK, value)
            self._watch(connection, selectors.EVENT_WRITE)


def _reply(connection: _Connection, status: int, value: bytes = b"") -> None:
    connection.outgoing += _LENGTH.pack(1 + len(value)) + bytes([status]) + value


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)[0][4])
        sock.listen(1024)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        at = format_hostport(host, port)
        if error.errno == errno.EADDRINUSE:
            raise RendezvousError(
                f"{at} is busy: another process listens there; choose another MASTER_PORT (or RINGLEADER_STORE)"
            ) from error
        raise RendezvousError(f"cannot listen at {at}: {error}") from error
    return sock


class TcpStoreClient:
    """A client of `TcpStoreServer`. Safe for threads: each request takes an idle connection or makes one.

    Parameters
    ----------
    hosts
        Names or addresses to try in order.
    rank
        Own rank, for the server's log.
    timeout
        Seconds to wait for the server to come up.

    Raises
    ------
    RendezvousError
        If nobody listens there in time, if somebody else does (found within 5 s), or if the secrets differ.
    """

    def __init__(self, hosts: Sequence[str], port: int, secret: bytes, timeout: float, rank: int = 0) -> None:
        self._hosts = list(hosts)
        self._port = port
        self._secret = secret
        self._rank = rank
        self._idle: list[socket.socket] = []
        self._closed = False
        self._pid = os.getpid()
        self._idle.append(self._connect(timeout))

    @property
    def _where(self) -> str:
        return format_hostport(self._hosts[0], self._port)

    def _connect(self, timeout: float) -> socket.socket:
        """Connect and authenticate. A refused connection is retried (the server may not be up yet) until the deadline."""
        deadline = time.monotonic() + timeout
        vanished_since: float | None = None
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
                except AuthenticationError as error:
                    raise AuthenticationError(f"{self._where}: {error}") from error
                except OSError as error:
                    reason = str(error)
            if time.monotonic() >= deadline:
                raise RendezvousError(
                    f"rank {self._rank} could not reach the store at {self._where} within {timeout:.1f} s ({reason}); is "
                    "rank 0 running, and is MASTER_ADDR (or RINGLEADER_STORE) its host?",
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
            steps = initiating(self._secret, Hello(Purpose.STORE, _GROUP, self._rank), -1)
            try:
                converse(sock, steps, time.monotonic() + _ANSWER_LIMIT)
            except TimeoutError:
                raise RendezvousError(
                    f"{format_hostport(host, self._port)} is busy: somebody listens there who does not answer as a "
                    f"Ringleader store; {_OTHER_PORT}"
                ) from None
            return sock
        except BaseException:
            sock.close()
            raise

    def _request(self, operation: int, key: str, argument: bytes = b"", timeout: float | None = None) -> bytes | None:
        """Send one request; None if the key is missing. A connection that fails or is left waiting is closed."""
        name = key.encode()
        if len(name) > _MAX_KEY or len(argument) > _MAX_VALUE:
            raise ValueError(
                f"key of {len(name)} bytes (limit {_MAX_KEY}), value of {len(argument)} (limit {_MAX_VALUE})"
            )
        body = _REQUEST.pack(operation, len(name)) + name + argument
        sock = self._borrow()
        try:
            sock.settimeout(30.0)
            sock.sendall(_LENGTH.pack(len(body)) + body)
            deadline = None if timeout is None else time.monotonic() + timeout
            (length,) = _LENGTH.unpack(_receive(sock, _LENGTH.size, deadline))
            answer = _receive(sock, length, time.monotonic() + 30.0)
        except TimeoutError:
            sock.close()
            if timeout is None:
                raise RendezvousError(f"the store at {self._where} does not answer") from None
            raise CollectiveTimeout(f"key {key!r} was not set within {timeout:.1f} s") from None
        except (OSError, EOFError) as error:
            sock.close()
            raise RendezvousError(
                f"lost the store at {self._where} ({error}); did the process that serves it (rank 0) end?", (0,)
            ) from error
        except BaseException:
            sock.close()
            raise
        self._give_back(sock)
        if answer[0] == _BAD:
            raise ValueError(f"key {key!r} does not hold an integer")
        return None if answer[0] == _MISSING else answer[1:]

    def _borrow(self) -> socket.socket:
        if self._closed:
            raise ClosedError("the store was closed")
        if self._pid != os.getpid():  # the parent's connections are not a forked child's to use
            self._idle, self._pid = [], os.getpid()
        with contextlib.suppress(IndexError):
            return self._idle.pop()
        return self._connect(30.0)

    def _give_back(self, sock: socket.socket) -> None:
        if self._idle or self._closed:
            sock.close()
        else:
            self._idle.append(sock)

    def set(self, key: str, value: bytes) -> None:
        """See `Store`."""
        self._request(_SET, key, value)

    def get(self, key: str, timeout: float) -> bytes:
        """See `Store`."""
        value = self._request(_TRY, key)
        if value is None and timeout > 0:
            value = self._request(_GET, key, timeout=timeout)
        if value is None:
            raise CollectiveTimeout(f"key {key!r} was not set within {timeout:.1f} s")
        return value

    def add(self, key: str, amount: int) -> int:
        """See `Store`."""
        value = self._request(_ADD, key, _INT.pack(amount))
        assert value is not None
        return int(_INT.unpack(value)[0])

    def delete(self, key: str) -> None:
        """See `Store`."""
        self._request(_DELETE, key)

    def close(self) -> None:
        """See `Store`."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()


_OTHER_PORT = "choose another MASTER_PORT (or RINGLEADER_STORE)"


def _receive(sock: socket.socket, count: int, deadline: float | None) -> bytes:
    """Exactly `count` bytes. A deadline of None is a generous one: the server answers at once."""
    data = bytearray()
    deadline = time.monotonic() + 30.0 if deadline is None else deadline
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
