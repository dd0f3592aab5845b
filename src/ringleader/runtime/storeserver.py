"""The project's own store, server side: a small authenticated key-value server.

Every connection first proves that it knows the secret (`handshake.py`). Then requests and answers, each one frame:

    request  u32 length, u8 operation, u16 length of the key, key, argument
    answer   u32 length, u8 status, value

The server is one thread with a selector. A `get` of a missing key parks the connection until the key is set; the limit
is the client's business, which leaves by closing the connection. What strangers send is bounded in bytes and in time.
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

from ringleader.errors import RendezvousError
from ringleader.runtime.config import logger
from ringleader.runtime.environment import format_hostport
from ringleader.runtime.handshake import STRANGER_LIMIT, AuthenticationError, Conversation, Hello, Purpose, accepting

__all__ = ["TcpStoreServer"]

# The protocol, shared with the client.
GROUP = "store"
LENGTH = struct.Struct("!I")
REQUEST = struct.Struct("!BH")
INT = struct.Struct("!q")
SET, GET, TRY, ADD, DELETE = range(1, 6)
OK, MISSING, BAD = range(3)
MAX_KEY = 1024
MAX_VALUE = 16 << 20

_MAX_FRAME = MAX_VALUE + MAX_KEY + REQUEST.size
_MAX_STRANGERS = 256


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
    >>> from ringleader.runtime.tcpstore import TcpStoreClient
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
            with contextlib.suppress(BrokenPipeError):  # it was awake, has seen `_closing` and is gone
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
        steps = accepting(self._secret, GROUP, -1, lambda hello: hello.purpose is Purpose.STORE)
        handshake = Conversation(sock, steps, time.monotonic() + STRANGER_LIMIT)
        connection = _Connection(sock, str(address[0]), handshake)
        self._connections.add(connection)
        self._selector.register(sock, selectors.EVENT_READ, connection)

    def _drop(self, connection: _Connection, why: str | None = None) -> None:
        if why is not None:
            logger("NET").info("store: dropped a connection from %s: it %s", connection.peer, why)
        if connection.parked is not None:
            self._waiting[connection.parked].remove(connection)
            if not self._waiting[connection.parked]:
                del self._waiting[connection.parked]
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
        while not connection.outgoing and connection.parked is None and len(incoming) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(incoming)
            if not REQUEST.size <= length <= _MAX_FRAME:
                raise ValueError(f"a frame of {length} bytes")
            if len(incoming) < LENGTH.size + length:
                return
            frame = bytes(incoming[LENGTH.size : LENGTH.size + length])
            del incoming[: LENGTH.size + length]
            self._answer(connection, frame)
        if connection.parked is not None and incoming:
            raise ValueError("a request while another was waiting")

    def _answer(self, connection: _Connection, frame: bytes) -> None:
        operation, key_length = REQUEST.unpack_from(frame)
        key = frame[REQUEST.size : REQUEST.size + key_length].decode()
        argument = frame[REQUEST.size + key_length :]
        if operation == SET:
            self._put(key, argument)
            _reply(connection, OK)
        elif operation in (GET, TRY):
            if (value := self._values.get(key)) is not None:
                _reply(connection, OK, value)
            elif operation == TRY:
                _reply(connection, MISSING)
            else:
                connection.parked = key
                self._waiting.setdefault(key, []).append(connection)
        elif operation == ADD and len(argument) == INT.size:
            old = self._values.get(key, INT.pack(0))
            if len(old) != INT.size:
                _reply(connection, BAD)
                return
            new = INT.pack(INT.unpack(old)[0] + INT.unpack(argument)[0])
            self._put(key, new)
            _reply(connection, OK, new)
        elif operation == DELETE:
            self._values.pop(key, None)
            _reply(connection, OK)
        else:
            raise ValueError(f"operation {operation}")

    def _put(self, key: str, value: bytes) -> None:
        self._values[key] = value
        for connection in self._waiting.pop(key, ()):
            connection.parked = None
            _reply(connection, OK, value)
            self._watch(connection, selectors.EVENT_WRITE)


def _reply(connection: _Connection, status: int, value: bytes = b"") -> None:
    connection.outgoing += LENGTH.pack(1 + len(value)) + bytes([status]) + value


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
