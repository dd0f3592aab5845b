"""The project's own store, server side: a small authenticated key-value server.

Every connection first proves that it knows the secret (`handshake.py`). Then requests and answers, each one frame:

    request  u32 length, u8 operation, u16 length of the key, key, argument
    answer   u32 length, u8 status, value

The server is one thread with a selector. A `get` of a missing key parks the connection until the key is set; the limit
is the client's business, which sends `CANCEL`: a parked connection then gets `MISSING`, otherwise the value is on its
way already. What a client has left with `WILL` is appended to the key when its connection ends, unless it has taken it
back before, by a `WILL` of no bytes: so those that wait learn that a process is gone.

Invariants. Whatever one connection does, the server and all other connections go on: every step of a connection is
guarded as a whole, and what ends it ends it alone. What strangers hold is bounded in number, bytes and time
(`lobby.py`); what members hold is bounded in bytes: `MAX_KEY` and `MAX_VALUE` for each entry, `MAX_STORE` for all, one
request and one answer for each connection.
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
from collections.abc import Callable, Sequence

from ringleader.errors import RendezvousError
from ringleader.runtime.config import logger
from ringleader.runtime.environment import format_hostport
from ringleader.runtime.handshake import (
    STRANGER_LIMIT,
    AuthenticationError,
    Conversation,
    Hello,
    Purpose,
    accepting,
    turn_away,
)
from ringleader.runtime.lobby import Complaints, Lobby, room_for_strangers

__all__ = ["StoreEngine", "TcpStoreServer"]

# The protocol, shared with the client.
GROUP = "store"
LENGTH = struct.Struct("!I")
REQUEST = struct.Struct("!BH")
INT = struct.Struct("!q")
SET, GET, TRY, ADD, DELETE, CANCEL, WILL = range(1, 8)
# BAD and FULL carry the reason as text.
OK, MISSING, BAD, FULL = range(4)
MAX_KEY = 1024
MAX_VALUE = 16 << 20
MAX_STORE = 256 << 20

_CANCEL = LENGTH.pack(REQUEST.size) + REQUEST.pack(CANCEL, 0)

_MAX_WILL = 4096
_MAX_FRAME = MAX_VALUE + MAX_KEY + REQUEST.size
_MAX_INT = (1 << 63) - 1
_ENTRY = 256  # bytes that an entry takes beside its key and value, about
_AT_ONCE = 1 << 16  # an answer up to this size is one piece
_BATCH = 64  # connections that are accepted before members are served
_PAUSE = 0.02  # seconds without accepting where there is no room
# Rounds of accepting: so many at once, and so many a second. A start needs few; in a flood each takes many strangers,
# and the job's own threads are interrupted less often.
_ROUNDS, _ROUNDS_PER_SECOND = 200.0, 100.0


class Values:
    """The entries of a store, bounded in bytes. A request that would exceed the bound changes nothing."""

    def __init__(self, limit: int = MAX_STORE) -> None:
        self._values: dict[str, bytes] = {}
        self._limit = limit
        self.used = 0

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: str) -> bytes | None:
        """The value, None if there is none."""
        return self._values.get(key)

    def set(self, key: str, value: bytes) -> str | None:
        """Set it; or the reason why there is no room for it."""
        old = self._values.get(key)
        more = len(value) - len(old) if old is not None else _cost(key, value)
        if more > 0 and self.used + more > self._limit:
            return (
                f"it holds {len(self._values)} keys and {self.used >> 20} MiB of its {self._limit >> 20} MiB, and "
                f"{len(value)} bytes for key {key[:80]!r} do not fit"
            )
        self._values[key] = value
        self.used += more
        return None

    def delete(self, key: str) -> None:
        """Remove it, if it is there."""
        value = self._values.pop(key, None)
        if value is not None:
            self.used -= _cost(key, value)


def _cost(key: str, value: bytes) -> int:
    return _ENTRY + len(key) + len(value)


class _Connection:
    """One client of the server: a handshake, then frames. `rank` is known once it has authenticated."""

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self.sock = sock
        self.peer = peer
        self.handshake: Conversation[Hello] | None = None
        self.rank: int | None = None
        self.incoming = bytearray()
        self.outgoing: list[memoryview] = []
        self.parked: str | None = None
        self.will: tuple[str, bytes] | None = None
        self.open = True
        self.events = 0  # for which the selector watches it; 0: it does not know it


class StoreEngine:
    """The server without listeners and thread: serves the connected sockets that it is given, one `turn` at a time.

    Parameters
    ----------
    secret
        Clients must know it.
    key_id
        Tells clients which key that is, see `handshake.py`.
    room
        How many strangers there is room for.
    """

    def __init__(self, secret: bytes, key_id: bytes = b"", room: int | None = None) -> None:
        self._secret, self._key_id = secret, key_id
        self._values = Values()
        self._connections: set[_Connection] = set()
        self._waiting: dict[str, dict[_Connection, None]] = {}
        self._lobby: Lobby[_Connection] = Lobby(room or room_for_strangers())
        self._complaints = Complaints(logger("NET"))
        self._selector = selectors.DefaultSelector()

    def register(self, sock: socket.socket, ready: Callable[[], None]) -> None:
        """Have `ready` called in a turn in which the socket is readable."""
        self._selector.register(sock, selectors.EVENT_READ, ready)

    def unregister(self, sock: socket.socket) -> None:
        """Take it back."""
        self._selector.unregister(sock)

    def make_room(self) -> bool:
        """Whether there is room for a stranger, another one having to leave for it if need be."""
        if not self._lobby.full:
            return True
        victim = self._lobby.give_way(time.monotonic())
        if victim is None:
            return False
        if victim.handshake is not None:
            turn_away(victim.handshake)
        self._drop(victim, "gave way to a newer connection without having authenticated")
        return True

    def admit(self, sock: socket.socket, peer: str) -> None:
        """Take a connected socket, and what it has sent already."""
        now = time.monotonic()
        try:
            connection = _Connection(sock, peer)
            steps = accepting(
                self._secret, GROUP, -1, lambda hello: hello.purpose is Purpose.STORE, self._key_id,
                lambda: self._lobby.believe(connection),
            )  # fmt: skip
            connection.handshake = Conversation(sock, steps, now + STRANGER_LIMIT)
        except Exception:
            sock.close()
            raise
        self._connections.add(connection)
        self._lobby.enter(connection, peer, now, now + STRANGER_LIMIT)
        self._step(connection)  # most have said their first word by now, or have left again

    def turn(self, longest: float | None = None) -> None:
        """Wait until something is to be done, at most `longest` seconds, and do all of it."""
        deadline = self._lobby.next_deadline()
        if deadline is not None:
            until = max(0.0, deadline - time.monotonic())
            longest = until if longest is None else min(longest, until)
        ready = [key.data for key, _ in self._selector.select(longest)]
        # Members first: strangers must not keep them waiting. A connection may have been dropped by an earlier step of
        # this turn: then it is no longer open, and not to be touched.
        for of_members in (True, False):
            for item in ready:
                if isinstance(item, _Connection) and item.open and (item.handshake is None) is of_members:
                    self._step(item)
        for item in ready:
            if not isinstance(item, _Connection):
                item()
        for connection in self._lobby.overdue(time.monotonic()):
            self._drop(connection, "did not authenticate in time")

    def close(self) -> None:
        """Drop all connections."""
        for connection in list(self._connections):
            connection.will = None  # it is the server that leaves
            self._drop(connection)
        self._selector.close()

    # ---------------------------------------------------------------------------------------------------- connections

    def _drop(self, connection: _Connection, why: str | None = None) -> None:
        """End a connection: the only place where that happens. Idempotent."""
        if not connection.open:
            return
        connection.open = False
        if why is not None:
            logger("NET").debug("store: dropped a connection from %s: it %s", connection.peer, why)
        self._unpark(connection)
        self._lobby.leave(connection)
        self._connections.discard(connection)
        with contextlib.suppress(KeyError):  # not there any more, if watching it differently failed
            if connection.events:
                self._selector.unregister(connection.sock)
        connection.sock.close()
        if connection.will is not None:
            (key, value), connection.will = connection.will, None
            value = (self._values.get(key) or b"") + value
            if len(value) <= MAX_VALUE and (refusal := self._put(key, value)) is not None:
                logger("NET").error("store: cannot tell that rank %s is gone: %s", connection.rank, refusal)

    def _unpark(self, connection: _Connection) -> bool:
        """Let it wait no longer; whether it did."""
        if connection.parked is None:
            return False
        waiting = self._waiting[connection.parked]
        del waiting[connection]
        if not waiting:
            del self._waiting[connection.parked]
        connection.parked = None
        return True

    def _step(self, connection: _Connection) -> None:
        """Serve what a connection is ready for; whatever goes wrong ends this connection, and nothing else."""
        try:
            if connection.handshake is not None:
                self._shake_hands(connection, connection.handshake)
            else:
                self._serve(connection)
        except AuthenticationError as error:
            self._complaints.warn("store: refused a connection from %s: %s", connection.peer, error)
            self._drop(connection)
        except (OSError, EOFError):
            if connection.handshake is not None and connection.handshake.heard and any(self._key_id):
                self._complaints.warn(
                    "store: a connection from %s left when it was told which key is meant; a rank on another host "
                    "needs a secret (RINGLEADER_SECRET_FILE)",
                    connection.peer,
                )
            self._drop(connection)
        except ValueError as error:
            self._complaints.warn("store: dropped rank %s: it sent a bad request: %s", connection.rank, error)
            self._drop(connection)
        except Exception:  # a fault of ours or a lack of memory: still not the others' affair
            logger("NET").exception("store: dropped a connection from %s", connection.peer)
            self._drop(connection)

    def _shake_hands(self, connection: _Connection, handshake: Conversation[Hello]) -> None:
        heard = handshake.heard
        if handshake.advance():
            connection.handshake, connection.rank = None, handshake.result.rank
            self._lobby.leave(connection)
            with contextlib.suppress(OSError):  # a socket of another family has no such options
                connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                # Half a minute after a host has vanished without a word its connections end, and so tell of its ranks.
                connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4)):
                    connection.sock.setsockopt(socket.IPPROTO_TCP, option, value)
            self._watch(connection)
        else:
            if handshake.heard != heard:
                self._lobby.speaks(connection, time.monotonic())
            self._watch(connection, handshake.wants_write)

    def _serve(self, connection: _Connection) -> None:
        if not connection.outgoing:
            try:
                data = connection.sock.recv(1 << 16)
            except BlockingIOError:
                return
            if not data:
                self._drop(connection)
                return
            connection.incoming += data
            self._answer_all(connection)
        self._send(connection)
        self._watch(connection, bool(connection.outgoing))

    def _send(self, connection: _Connection) -> None:
        """Send answers as long as the socket takes them; a request is answered when all before it are."""
        while connection.outgoing:
            try:
                sent = connection.sock.send(connection.outgoing[0])
            except BlockingIOError:
                return
            if sent == len(connection.outgoing[0]):
                del connection.outgoing[0]
            else:
                connection.outgoing[0] = connection.outgoing[0][sent:]
            if not connection.outgoing:
                self._answer_all(connection)

    def _watch(self, connection: _Connection, write: bool = False) -> None:
        events = selectors.EVENT_WRITE if write else selectors.EVENT_READ
        if connection.events != events:
            (self._selector.modify if connection.events else self._selector.register)(
                connection.sock, events, connection
            )
            connection.events = events

    # ------------------------------------------------------------------------------------------------------- requests

    def _answer_all(self, connection: _Connection) -> None:
        """Answer complete requests in order, one at a time."""
        incoming = connection.incoming
        while not connection.outgoing and len(incoming) >= LENGTH.size:
            if connection.parked is not None:
                if not incoming.startswith(_CANCEL):
                    break
                self._unpark(connection)
                _reply(connection, MISSING)
                del incoming[: len(_CANCEL)]
                break
            (length,) = LENGTH.unpack_from(incoming)
            if not REQUEST.size <= length <= _MAX_FRAME:
                raise ValueError(f"a frame of {length} bytes")
            if len(incoming) < LENGTH.size + length:
                return
            frame = bytes(incoming[LENGTH.size : LENGTH.size + length])
            del incoming[: LENGTH.size + length]
            self._answer(connection, frame)
        if connection.parked is not None and not _CANCEL.startswith(incoming):
            raise ValueError("a request while another was waiting")

    def _answer(self, connection: _Connection, frame: bytes) -> None:
        operation, key_length = REQUEST.unpack_from(frame)
        if key_length > min(MAX_KEY, len(frame) - REQUEST.size):
            raise ValueError(f"a key of {key_length} bytes in a frame of {len(frame)}")
        key = frame[REQUEST.size : REQUEST.size + key_length].decode()
        argument = frame[REQUEST.size + key_length :]
        if len(argument) > MAX_VALUE:
            raise ValueError(f"a value of {len(argument)} bytes")
        if operation == SET:
            self._set(connection, key, argument)
        elif operation in (GET, TRY):
            if (value := self._values.get(key)) is not None:
                _reply(connection, OK, value)
            elif operation == TRY:
                _reply(connection, MISSING)
            else:
                connection.parked = key
                self._waiting.setdefault(key, {})[connection] = None
        elif operation == ADD and len(argument) == INT.size:
            self._add(connection, key, INT.unpack(argument)[0])
        elif operation == DELETE:
            self._values.delete(key)
            _reply(connection, OK)
        elif operation == WILL and len(argument) <= _MAX_WILL:
            connection.will = (key, argument) if argument else None
            _reply(connection, OK)
        elif operation == CANCEL:
            pass  # the value was faster
        else:
            raise ValueError(f"operation {operation} with {len(argument)} bytes")

    def _add(self, connection: _Connection, key: str, amount: int) -> None:
        old = self._values.get(key)
        if old is not None and len(old) != INT.size:
            _reply(connection, BAD, b"does not hold an integer")
            return
        before = 0 if old is None else INT.unpack(old)[0]
        if not -_MAX_INT - 1 <= before + amount <= _MAX_INT:
            _reply(connection, BAD, b"holds %d; with %d added it would not fit into 64 bits" % (before, amount))
            return
        new = INT.pack(before + amount)
        self._set(connection, key, new, new)

    def _set(self, connection: _Connection, key: str, value: bytes, answer: bytes = b"") -> None:
        if (refusal := self._put(key, value)) is not None:
            _reply(connection, FULL, refusal.encode())
        else:
            _reply(connection, OK, answer)

    def _put(self, key: str, value: bytes) -> str | None:
        """Set a key and answer those that wait for it; or the reason why there is no room."""
        if (refusal := self._values.set(key, value)) is not None:
            return refusal
        for waiting in self._waiting.pop(key, ()):
            waiting.parked = None
            try:
                _reply(waiting, OK, value)
                self._watch(waiting, write=True)
            except Exception:  # its trouble is not that of who sets the key
                logger("NET").exception("store: dropped a connection from %s", waiting.peer)
                self._drop(waiting)
        return None


def _reply(connection: _Connection, status: int, value: bytes = b"") -> None:
    """Queue an answer. A large value is not copied: a thousand ranks may get the same one."""
    head = LENGTH.pack(1 + len(value)) + bytes([status])
    if len(value) <= _AT_ONCE:
        connection.outgoing.append(memoryview(head + value))
    else:
        connection.outgoing += [memoryview(head), memoryview(value)]


class TcpStoreServer:
    """Serves a store until closed.

    Parameters
    ----------
    addresses
        (host, port) pairs to listen at; port 0 picks a free one, the same for all.
    secret
        Clients must know it.
    key_id
        Tells clients which key that is, see `handshake.py`.

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

    def __init__(self, addresses: Sequence[tuple[str, int]], secret: bytes, key_id: bytes = b"") -> None:
        self._closing = False
        self._listeners: list[socket.socket] = []
        self._resting: list[socket.socket] = []  # listeners that are not looked at for a moment
        self._rest_ends = 0.0
        self._rounds, self._counted = _ROUNDS, time.monotonic()
        self._complaints = Complaints(logger("NET"))
        with contextlib.ExitStack() as stack:
            self._engine = StoreEngine(secret, key_id)
            stack.callback(self._engine.close)
            self._wake_read, self._wake_write = socket.socketpair()
            stack.callback(self._wake_read.close)
            stack.callback(self._wake_write.close)
            self._engine.register(self._wake_read, lambda: None)  # `_closing` is set before anything is written
            self.port = addresses[0][1]
            for host, port in addresses:
                listener = stack.enter_context(_listen(host, port or self.port))
                self.port = listener.getsockname()[1]
                self._listeners.append(listener)
                self._watch(listener)
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
                try:
                    self._engine.turn(max(0.0, self._rest_ends - time.monotonic()) if self._resting else None)
                    if self._resting and time.monotonic() >= self._rest_ends:
                        self._wake_listeners()
                except Exception:  # no connection's step raises; whatever else does must not end the server
                    logger("NET").exception("store: an error in the server, which goes on")
                    time.sleep(_PAUSE)
        finally:
            self._engine.close()
            for sock in (*self._listeners, self._wake_read):
                sock.close()

    def _watch(self, listener: socket.socket) -> None:
        self._engine.register(listener, lambda: self._accept(listener))

    def _accept(self, listener: socket.socket) -> None:
        """Accept a few; where there is no room or no descriptor for more, they wait in the kernel's queue."""
        now = time.monotonic()
        self._rounds = min(_ROUNDS, self._rounds + (now - self._counted) * _ROUNDS_PER_SECOND) - 1
        self._counted = now
        if self._rounds < 1:
            self._rest(listener, 1 / _ROUNDS_PER_SECOND)
        for _ in range(_BATCH):
            if not self._engine.make_room():
                self._rest(listener)
                return
            try:
                sock, address = listener.accept()
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
                    self._complaints.warn("store: %s; new connections wait (`ulimit -n`)", error.strerror)
                    self._rest(listener)
                return  # else nobody is left, or the one that was there has gone
            try:
                self._engine.admit(sock, str(address[0]))
            except OSError:  # it has gone
                sock.close()

    def _rest(self, listener: socket.socket, seconds: float = _PAUSE) -> None:
        if listener not in self._resting:
            self._engine.unregister(listener)
            self._resting.append(listener)
        self._rest_ends = time.monotonic() + seconds

    def _wake_listeners(self) -> None:
        while self._resting:
            self._watch(self._resting[-1])
            self._resting.pop()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)[0][4])
        sock.listen(4096)
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
