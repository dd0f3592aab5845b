"""Mutual authentication of a connected stream socket (Unix or TCP) with the job's secret.

Four messages of fixed size; nothing is ever read beyond them, so the socket can be handed on afterwards:

    initiator -> acceptor   hello      magic, version, purpose, index, rank, group, key id, nonce, tag
    acceptor  -> initiator  challenge  the same fields of the acceptor, with its own nonce
    initiator -> acceptor   HMAC-SHA256(key, "initiator" + hello + challenge)
    acceptor  -> initiator  status, HMAC-SHA256(key, "acceptor" + status + hello + challenge)

Invariants. Each side proves that it knows the secret for two fresh nonces, its role, both ranks, the group, the purpose
and the version, so no message can be replayed, reflected or moved to another connection. The initiator proves first: a
stranger who connects learns a nonce, and which key is meant: `key id` is a random name of a key, which both sides can
look up where strangers cannot (`keys.py`), or zeros for a secret that was given. It says nothing of the key.

`tag` is an HMAC of the rest of the hello, where the initiator knows the key already, else zeros. It proves nothing, as
it may have been recorded, but strangers cannot make it: who has the right one is not turned away for lack of room.

An acceptor without room for another stranger says `BUSY` in place of its next message (`turn_away`). Nobody can prove
that it is busy, so an initiator may only try again, which it would do as well if it were hung up on.

The protocol is written once, as generators that yield what to do next: bytes to send, or how many to receive.
`Conversation` runs one on a non-blocking socket, so one selector can drive many and a slow stranger delays nobody.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import hmac
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Generic, TypeVar

from ringleader.errors import RendezvousError

__all__ = [
    "STRANGER_LIMIT", "AuthenticationError", "Busy", "Conversation", "Hello", "Purpose", "UnknownKey", "accepting",
    "converse", "initiating", "turn_away",
]  # fmt: skip

MAGIC = b"RNGLEADR"
VERSION = 2
# Seconds that an accepted connection has to authenticate. Real ranks need milliseconds.
STRANGER_LIMIT = 5.0

_HELLO = struct.Struct("!8sHHHi16s16s32s16s")
_TAG_BYTES = 16
_MAC_BYTES = 32
_NONCE_BYTES = 32
_BUSY = b"RNGLBUSY".ljust(_HELLO.size, b"\0")

T = TypeVar("T")
Step = bytes | int
Steps = Generator[Step, bytes, T]


class AuthenticationError(RendezvousError):
    """The other side does not know the secret, does not speak the protocol, or is not who was expected."""


class UnknownKey(AuthenticationError):
    """The other side means a key that this process cannot read."""


class Busy(ConnectionError):
    """The other side has no room for another connection just now."""

    def __init__(self) -> None:
        super().__init__("too many connections at once there, of strangers perhaps")


class Purpose(enum.IntEnum):
    """What a connection is for."""

    STORE = 1
    SHM = 2
    CONTROL = 3
    P2P = 4
    DATA = 5


class _Status(enum.IntEnum):
    WELCOME = 1
    WRONG_SECRET = 2
    NOT_EXPECTED = 3
    BUSY = 4


@dataclass(frozen=True)
class Hello:
    """Who speaks: rank, group and what the connection is for (`index` numbers connections of one purpose)."""

    purpose: Purpose
    group: str
    rank: int
    index: int = 0

    def pack(self, nonce: bytes, secret: bytes | None = None) -> bytes:
        """The fixed-size message, with the tag of a secret."""
        group = group_digest(self.group)
        message = _HELLO.pack(MAGIC, VERSION, self.purpose, self.index, self.rank, group, b"", nonce, b"")
        return message if secret is None else message[:-_TAG_BYTES] + _tag(secret, message)


def group_digest(group: str) -> bytes:
    """16 bytes that stand for a group's name in messages."""
    return hashlib.sha256(group.encode()).digest()[:16]


@dataclass(frozen=True)
class _Claim:
    """A received hello, not yet proved."""

    purpose: int
    index: int
    rank: int
    group: bytes
    key_id: bytes

    @classmethod
    def unpack(cls, message: bytes) -> _Claim:
        magic, version, purpose, index, rank, group, key_id, _, _ = _HELLO.unpack(message)
        if magic != MAGIC:
            raise AuthenticationError(f"the other side does not speak Ringleader's protocol (it began with {magic!r})")
        if version != VERSION:
            raise AuthenticationError(
                f"the other side speaks protocol version {version}, this side {VERSION}; install one version everywhere"
            )
        return cls(purpose, index, rank, group, key_id)


def _mac(secret: bytes, role: bytes, *parts: bytes) -> bytes:
    return hmac.new(secret, b"ringleader handshake " + role + b"".join(parts), hashlib.sha256).digest()


def _tag(secret: bytes, hello: bytes) -> bytes:
    return _mac(secret, b"hello", hello[:-_TAG_BYTES])[:_TAG_BYTES]


def initiating(
    secret: bytes | Callable[[bytes], bytes], me: Hello, peer_rank: int, guess: bytes | None = None
) -> Steps[None]:
    """The connecting side. A `secret` that is a function finds the key that the acceptor's key id means; `guess` is
    what it will probably be.

    Raises
    ------
    AuthenticationError
        If the other side is a stranger, refuses us, or is not rank `peer_rank` of the same group.
    Busy
        If it has no room just now.
    """
    hello = me.pack(os.urandom(_NONCE_BYTES), guess if callable(secret) else secret)
    yield hello
    challenge = yield _HELLO.size
    if challenge == _BUSY:
        raise Busy
    claim = _Claim.unpack(challenge)
    if callable(secret):
        secret = secret(claim.key_id)
    yield _mac(secret, b"initiator", hello, challenge)
    verdict = yield 1
    if verdict[0] == _Status.BUSY:
        raise Busy
    if verdict[0] == _Status.WRONG_SECRET:
        raise AuthenticationError(
            f"rank {me.rank} was refused: its secret differs from the other side's; RINGLEADER_SECRET (or `secret=`) "
            "must be the same on all ranks"
        )
    proof = yield _MAC_BYTES
    if not hmac.compare_digest(proof, _mac(secret, b"acceptor", verdict, hello, challenge)):
        raise AuthenticationError("the other side does not know the job's secret")
    if verdict[0] != _Status.WELCOME:
        raise AuthenticationError(
            f"rank {me.rank} was not expected there ({me.purpose.name.lower()} connection of group {me.group!r}): is "
            "another process running with the same rank?"
        )
    if (claim.rank, claim.group) != (peer_rank, group_digest(me.group)):
        raise AuthenticationError(f"expected rank {peer_rank} of group {me.group!r}, but rank {claim.rank} answered")


def accepting(
    secret: bytes,
    group: str,
    rank: int,
    expected: Callable[[Hello], bool],
    key_id: bytes = b"",
    believe: Callable[[], None] = lambda: None,
) -> Steps[Hello]:
    """The accepting side; returns who connected. `expected` may still refuse a peer that has proved itself.

    `believe` is called if the hello has the right tag.

    Raises
    ------
    AuthenticationError
        If the peer is a stranger, does not know the secret, or was not expected.
    """
    hello = yield _HELLO.size
    claim = _Claim.unpack(hello)
    if hmac.compare_digest(hello[-_TAG_BYTES:], _tag(secret, hello)):
        believe()
    challenge = _HELLO.pack(
        MAGIC, VERSION, claim.purpose, claim.index, rank, group_digest(group), key_id, os.urandom(_NONCE_BYTES), b""
    )
    yield challenge
    proof = yield _MAC_BYTES
    if not hmac.compare_digest(proof, _mac(secret, b"initiator", hello, challenge)):
        yield bytes([_Status.WRONG_SECRET])
        raise AuthenticationError(f"a connection that claimed to be rank {claim.rank} did not know the job's secret")
    known = claim.purpose in set(Purpose) and claim.group == group_digest(group)
    peer = Hello(Purpose(claim.purpose), group, claim.rank, claim.index) if known else None
    welcome = peer is not None and expected(peer)
    verdict = bytes([_Status.WELCOME if welcome else _Status.NOT_EXPECTED])
    yield verdict + _mac(secret, b"acceptor", verdict, hello, challenge)
    if peer is None or not welcome:
        raise AuthenticationError(f"a connection of rank {claim.rank} was not expected (purpose {claim.purpose})")
    return peer


class Conversation(Generic[T]):
    """Runs the steps of a protocol on a socket, which becomes non-blocking; never reads more than the steps ask for.

    Parameters
    ----------
    sock
        A connected stream socket; stays the caller's.
    steps
        A generator such as `initiating(...)`.
    deadline
        Time (`time.monotonic()`) at which `overdue` becomes true.
    """

    def __init__(self, sock: socket.socket, steps: Steps[T], deadline: float) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.deadline = deadline
        self._steps = steps
        self._outgoing = memoryview(b"")
        self._incoming = bytearray()
        self._missing = 0
        self.heard = 0  # whole messages received
        self._result: list[T] = []
        self._resume(None)

    def _resume(self, received: bytes | None) -> None:
        try:
            step = self._steps.send(received)  # type: ignore[arg-type]  # None starts a generator
        except StopIteration as stop:
            self._result.append(stop.value)
            return
        if isinstance(step, int):
            self._missing = step
        else:
            self._outgoing = memoryview(step)

    def advance(self) -> bool:
        """Do what can be done without blocking; true once complete.

        Raises
        ------
        AuthenticationError, EOFError, OSError
            From the steps, if the other side closed, if the connection broke.
        """
        while not self._result:
            try:
                if self._outgoing:
                    try:
                        self._outgoing = self._outgoing[self.sock.send(self._outgoing) :]
                    except (BrokenPipeError, ConnectionResetError):
                        self._outgoing = memoryview(b"")  # it has hung up: what it said before is still to be read
                    if not self._outgoing:
                        self._resume(b"")
                    continue
                data = self.sock.recv(self._missing - len(self._incoming))
            except BlockingIOError:
                return False
            if not data:
                raise EOFError("the other side closed the connection")
            self._incoming += data
            if len(self._incoming) == self._missing:
                received, self._incoming = bytes(self._incoming), bytearray()
                self.heard += 1
                self._resume(received)
        return True

    @property
    def wants_write(self) -> bool:
        """Whether it waits for the socket to become writable (else readable)."""
        return bool(self._outgoing)

    @property
    def overdue(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() >= self.deadline

    @property
    def result(self) -> T:
        """What the steps returned; only once complete."""
        return self._result[0]


def turn_away(conversation: Conversation[Hello]) -> None:
    """Tell an initiator that there is no room for it; the caller closes the socket then."""
    with contextlib.suppress(OSError):
        # What is unread when a socket is closed makes the kernel send a reset in place of what was sent last.
        conversation.sock.recv(_HELLO.size, socket.MSG_DONTWAIT)
    with contextlib.suppress(OSError):
        conversation.sock.send(bytes([_Status.BUSY]) if conversation.heard else _BUSY, socket.MSG_DONTWAIT)


def converse(sock: socket.socket, steps: Steps[T], deadline: float) -> T:
    """Run the steps to the end, waiting as needed (interruptible by signals).

    Raises
    ------
    TimeoutError
        When the deadline passes; otherwise as `Conversation.advance`.
    """
    conversation = Conversation(sock, steps, deadline)
    poller = select.poll()
    while not conversation.advance():
        poller.register(sock, select.POLLOUT if conversation.wants_write else select.POLLIN)
        if conversation.overdue:
            raise TimeoutError("the other side did not answer in time")
        poller.poll(max(1.0, 1000 * (deadline - time.monotonic())))
    return conversation.result
