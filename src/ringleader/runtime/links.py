"""Makes many authenticated connections at once: one event loop for listening, connecting and all handshakes.

No peer waits for another: a rank that is slow, a stranger that is silent or an address that leads nowhere delays only
its own connection.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ringleader.errors import CollectiveTimeout, RendezvousError
from ringleader.runtime.config import logger
from ringleader.runtime.handshake import (
    STRANGER_LIMIT,
    AuthenticationError,
    Conversation,
    Hello,
    Purpose,
    accepting,
    initiating,
)
from ringleader.runtime.store import ranks_text

__all__ = ["Key", "Target", "establish"]

_CONNECT_LIMIT = 3.0
_PASSES = 3
_PAUSE = 0.2


class Key(NamedTuple):
    """One connection: with whom, what for, which one."""

    rank: int
    purpose: Purpose
    number: int = 0


class Target(NamedTuple):
    """A place to connect to."""

    family: int
    address: Any
    text: str


@dataclass(eq=False)
class _Outgoing:
    key: Key
    targets: Sequence[Target]
    position: int = 0
    passes: int = 0
    not_before: float = 0.0
    deadline: float = 0.0
    sock: socket.socket | None = None
    conversation: Conversation[None] | None = None
    failures: dict[str, str] = field(default_factory=dict)


@dataclass(eq=False)
class _Incoming:
    sock: socket.socket
    conversation: Conversation[Hello]
    peer: str


class _Loop:
    """State of one `establish` call; owns every socket until it is handed over."""

    def __init__(
        self, secret: bytes, group: str, rank: int, accept: set[Key], advice: str, stack: contextlib.ExitStack
    ) -> None:
        self.secret, self.group, self.rank, self.advice = secret, group, rank, advice
        self.missing = set(accept)
        self.ready: dict[Key, socket.socket] = {}
        self.outgoing: list[_Outgoing] = []
        self.incoming: set[_Incoming] = set()
        self.refused: list[str] = []
        self.selector = stack.enter_context(selectors.DefaultSelector())
        stack.callback(self._close_all)

    def _close_all(self) -> None:
        for sock in [*self.ready.values(), *(i.sock for i in self.incoming)]:
            sock.close()
        for out in self.outgoing:
            if out.sock is not None:
                out.sock.close()

    # ------------------------------------------------------------------------------------------------------ accepting

    def accept(self, listener: socket.socket) -> None:
        try:
            sock, address = listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise RendezvousError(
                    f"rank {self.rank}: out of file descriptors while connecting the group ({error}); raise `ulimit -n`"
                ) from error
            return
        steps = accepting(self.secret, self.group, self.rank, lambda hello: _key(hello) in self.missing)
        conversation = Conversation(sock, steps, time.monotonic() + STRANGER_LIMIT)
        peer = f"{address[0]}" if isinstance(address, tuple) else "this host"
        incoming = _Incoming(sock, conversation, peer)
        self.incoming.add(incoming)
        self.selector.register(sock, selectors.EVENT_READ, incoming)

    def advance_incoming(self, item: _Incoming) -> None:
        try:
            if not item.conversation.advance():
                self._watch(item.sock, item.conversation.wants_write, item)
                return
        except AuthenticationError as error:
            logger("NET").warning("rank %d refused a connection from %s: %s", self.rank, item.peer, error)
            self.refused.append(str(error))
            self.drop(item)
            return
        except (OSError, EOFError):
            self.drop(item)
            return
        self._forget(item)
        key = _key(item.conversation.result)
        self.missing.discard(key)
        self.ready[key] = item.sock

    def drop(self, item: _Incoming) -> None:
        self._forget(item)
        item.sock.close()

    def _forget(self, item: _Incoming) -> None:
        self.selector.unregister(item.sock)
        self.incoming.discard(item)

    def _watch(self, sock: socket.socket, write: bool, item: object) -> None:
        events = selectors.EVENT_WRITE if write else selectors.EVENT_READ
        if self.selector.get_key(sock).events != events:
            self.selector.modify(sock, events, item)

    # ----------------------------------------------------------------------------------------------------- connecting

    def start(self, out: _Outgoing) -> None:
        """Begin to connect to the present target."""
        target = out.targets[out.position]
        out.sock = socket.socket(target.family, socket.SOCK_STREAM)
        out.sock.setblocking(False)
        out.deadline = time.monotonic() + _CONNECT_LIMIT
        code = out.sock.connect_ex(target.address)
        if code not in (0, errno.EINPROGRESS):
            self.failed(out, os.strerror(code))
            return
        self.selector.register(out.sock, selectors.EVENT_WRITE, out)

    def advance_outgoing(self, out: _Outgoing) -> None:
        assert out.sock is not None
        try:
            if out.conversation is None:
                if code := out.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    raise OSError(code, os.strerror(code))
                me = Hello(out.key.purpose, self.group, self.rank, out.key.number)
                # Who listens there is known from the store, so its answer may take as long as the group may.
                out.conversation = Conversation(out.sock, initiating(self.secret, me, out.key.rank), float("inf"))
            if not out.conversation.advance():
                self._watch(out.sock, out.conversation.wants_write, out)
                return
        except AuthenticationError as error:
            raise AuthenticationError(
                f"rank {self.rank}, connecting to rank {out.key.rank} at {out.targets[out.position].text}: {error}"
            ) from error
        except (OSError, EOFError) as error:
            self.failed(out, getattr(error, "strerror", None) or str(error))
            return
        self.selector.unregister(out.sock)
        self.outgoing.remove(out)
        self.ready[out.key] = out.sock

    def failed(self, out: _Outgoing, why: str) -> None:
        """Go on to the next target, later again to the first, and give up after some passes."""
        assert out.sock is not None
        with contextlib.suppress(KeyError):
            self.selector.unregister(out.sock)
        out.sock.close()
        out.sock = out.conversation = None
        out.failures[out.targets[out.position].text] = why
        out.position += 1
        if out.position < len(out.targets):
            return
        out.position, out.passes, out.not_before = 0, out.passes + 1, time.monotonic() + _PAUSE
        if out.passes == _PASSES:
            tried = "; ".join(f"{text}: {reason}" for text, reason in out.failures.items())
            raise RendezvousError(
                f"rank {self.rank} cannot connect to rank {out.key.rank} ({tried}); {self.advice}", (out.key.rank,)
            )

    def tend(self) -> None:
        """What depends on time: start or give up attempts, and drop strangers."""
        now = time.monotonic()
        for out in list(self.outgoing):
            if out.sock is None and now >= out.not_before:
                self.start(out)
            elif out.sock is not None and out.conversation is None and now >= out.deadline:
                self.failed(out, f"no answer within {_CONNECT_LIMIT:.0f} s")
        for item in list(self.incoming):
            if item.conversation.overdue:
                self.drop(item)

    def timeout_error(self, timeout: float) -> CollectiveTimeout:
        """Who is missing, and who was turned away."""
        absent = sorted({key.rank for key in self.missing} | {out.key.rank for out in self.outgoing})
        notes = f"; refused meanwhile: {'; '.join(dict.fromkeys(self.refused))}" if self.refused else ""
        return CollectiveTimeout(
            f"rank {self.rank} got no connection with {'rank' if len(absent) == 1 else 'ranks'} {ranks_text(absent)} "
            f"within {timeout:.1f} s{notes}; {self.advice}",
            absent,
        )


def _key(hello: Hello) -> Key:
    return Key(hello.rank, hello.purpose, hello.index)


def establish(
    listeners: Sequence[socket.socket],
    accept: set[Key],
    connect: Mapping[Key, Sequence[Target]],
    *,
    secret: bytes,
    group: str,
    rank: int,
    timeout: float,
    check: Callable[[], None],
    advice: str,
) -> dict[Key, socket.socket]:
    """Accept and make the given connections; all come back authenticated, non-blocking, and owned by the caller.

    Parameters
    ----------
    listeners
        Listening sockets, non-blocking; stay the caller's.
    accept, connect
        Connections that peers make to this rank, and that this rank makes to targets, tried in order.
    check
        Called every quarter of a second; may raise to end the wait.
    advice
        What to try when it fails, for messages.

    Raises
    ------
    CollectiveTimeout
        Naming the ranks with which there is no connection.
    RendezvousError
        If no target of a peer can be reached, or authentication fails.
    """
    deadline = time.monotonic() + timeout
    next_check = time.monotonic() + 0.25
    with contextlib.ExitStack() as stack:
        loop = _Loop(secret, group, rank, accept, advice, stack)
        loop.outgoing = [_Outgoing(key, targets) for key, targets in connect.items()]
        for listener in listeners:
            loop.selector.register(listener, selectors.EVENT_READ)
        next_tend = 0.0
        while True:
            if (now := time.monotonic()) >= next_tend:
                loop.tend()
                next_tend = now + 0.05
            if not loop.missing and not loop.outgoing:
                break
            for ready, _ in loop.selector.select(0.05):
                item = ready.data
                if isinstance(item, _Incoming):
                    loop.advance_incoming(item)
                elif isinstance(item, _Outgoing):
                    loop.advance_outgoing(item)
                else:
                    assert isinstance(ready.fileobj, socket.socket)
                    loop.accept(ready.fileobj)
            now = time.monotonic()
            if now >= deadline:
                raise loop.timeout_error(timeout)
            if now >= next_check:
                check()
                next_check = time.monotonic() + 0.25
        handed_over, loop.ready = loop.ready, {}
    return handed_over
