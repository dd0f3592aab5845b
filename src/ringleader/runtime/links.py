"""Makes many authenticated connections at once: one event loop for listening, connecting and all handshakes.

No peer waits for another: a rank that is slow, a stranger that is silent or an address that leads nowhere delays only
its own connection. Strangers are bounded in number and time (`lobby.py`); a peer that is hung up on, or told that there
is no room, tries again until the group's own limit.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ringleader.errors import CollectiveTimeout, RendezvousError
from ringleader.runtime.config import logger
from ringleader.runtime.handshake import (
    STRANGER_LIMIT,
    AuthenticationError,
    Busy,
    Conversation,
    Hello,
    Purpose,
    accepting,
    initiating,
    turn_away,
)
from ringleader.runtime.lobby import Complaints, Lobby, room_for_strangers
from ringleader.runtime.store import ranks_text

__all__ = ["Key", "Target", "establish"]

_CONNECT_LIMIT = 3.0
_PASSES = 3
_PAUSE = 0.2
_REST = 0.02  # seconds without accepting where there is no room or no descriptor
_BATCH = 32  # connections that are accepted before those that are there are served again
_MOST_REFUSALS = 20  # that a time-out's message tells of
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
# A listener that cannot take another connection now: no reason to give up the address.
_CROWDED = (errno.EAGAIN, errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED)
_CREDENTIALS = struct.Struct("=iII")


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
    peer: str
    conversation: Conversation[Hello]


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
        self.lobby: Lobby[_Incoming] = Lobby(room_for_strangers())
        self.complaints = Complaints(logger("NET"))
        self.refused: list[str] = []
        self.resting: list[socket.socket] = []  # listeners that are not looked at until `rest_ends`
        self.rest_ends = 0.0
        self.selector = stack.enter_context(selectors.DefaultSelector())
        stack.callback(self._close_all)

    def _close_all(self) -> None:
        for sock in [*self.ready.values(), *(i.sock for i in self.incoming)]:
            sock.close()
        for out in self.outgoing:
            if out.sock is not None:
                out.sock.close()

    # ------------------------------------------------------------------------------------------------------ accepting

    def listen(self, listener: socket.socket) -> None:
        self.selector.register(listener, selectors.EVENT_READ)

    def accept(self, listener: socket.socket) -> None:
        """Accept a few; where there is no room or no descriptor for more, they wait in the kernel's queue."""
        for _ in range(_BATCH):
            if self.lobby.full and not self._make_room():
                self._rest(listener)
                return
            try:
                sock, address = listener.accept()
            except OSError as error:
                if error.errno in _NO_DESCRIPTOR:
                    self._out_of_descriptors(error)
                    self._rest(listener)
                return  # else nobody is left, or the one that was there has gone
            self._admit(sock, address)

    def _admit(self, sock: socket.socket, address: Any) -> None:
        if sock.family == socket.AF_UNIX:
            raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            if (user := _CREDENTIALS.unpack(raw)[1]) != os.geteuid():
                self.complaints.warn("rank %d refused a connection from user %d of this host", self.rank, user)
                sock.close()
                return
        now = time.monotonic()
        steps = accepting(
            self.secret, self.group, self.rank, lambda hello: _key(hello) in self.missing,
            believe=lambda: self.lobby.believe(item),
        )  # fmt: skip
        peer = f"{address[0]}" if isinstance(address, tuple) else "this host"
        item = _Incoming(sock, peer, Conversation(sock, steps, now + STRANGER_LIMIT))
        self.incoming.add(item)
        self.lobby.enter(item, peer, now, now + STRANGER_LIMIT)
        self.selector.register(sock, selectors.EVENT_READ, item)
        self.advance_incoming(item)  # most have said their first word by now, or have left again

    def _make_room(self) -> bool:
        """Whether a stranger has given way."""
        victim = self.lobby.give_way(time.monotonic())
        if victim is None:
            return False
        turn_away(victim.conversation)
        self.drop(victim)
        return True

    def _out_of_descriptors(self, error: OSError) -> None:
        """Let a stranger give its descriptor; where there is none, the limit is too low for the group."""
        if not self.lobby:
            raise RendezvousError(
                f"rank {self.rank}: out of file descriptors while connecting the group ({error}); raise `ulimit -n`"
            ) from error
        self.complaints.warn("rank %d: %s; new connections wait (`ulimit -n`)", self.rank, error.strerror)
        self._make_room()

    def _rest(self, listener: socket.socket) -> None:
        self.selector.unregister(listener)
        self.resting.append(listener)
        self.rest_ends = time.monotonic() + _REST

    def advance_incoming(self, item: _Incoming) -> None:
        """Whatever goes wrong ends this connection, and nothing else."""
        heard = item.conversation.heard
        try:
            if not item.conversation.advance():
                if item.conversation.heard != heard:
                    self.lobby.speaks(item, time.monotonic())
                self._watch(item.sock, item.conversation.wants_write, item)
                return
        except AuthenticationError as error:
            self.complaints.warn("rank %d refused a connection from %s: %s", self.rank, item.peer, error)
            if len(self.refused) < _MOST_REFUSALS and str(error) not in self.refused:
                self.refused.append(str(error))
            self.drop(item)
            return
        except (OSError, EOFError):
            self.drop(item)
            return
        except Exception:  # a fault of ours: still only this connection's
            logger("NET").exception("rank %d dropped a connection from %s", self.rank, item.peer)
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
        self.lobby.leave(item)

    def _watch(self, sock: socket.socket, write: bool, item: object) -> None:
        events = selectors.EVENT_WRITE if write else selectors.EVENT_READ
        if self.selector.get_key(sock).events != events:
            self.selector.modify(sock, events, item)

    # ----------------------------------------------------------------------------------------------------- connecting

    def start(self, out: _Outgoing) -> None:
        """Begin to connect to the present target."""
        target = out.targets[out.position]
        try:
            out.sock = socket.socket(target.family, socket.SOCK_STREAM)
        except OSError as error:
            if error.errno not in _NO_DESCRIPTOR:
                raise
            self._out_of_descriptors(error)
            out.not_before = time.monotonic() + _REST
            return
        out.sock.setblocking(False)
        out.deadline = time.monotonic() + _CONNECT_LIMIT
        code = out.sock.connect_ex(target.address)
        if code not in (0, errno.EINPROGRESS):
            self.failed(out, os.strerror(code), code in _CROWDED)
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
            again = isinstance(error, (EOFError, Busy)) or error.errno in _CROWDED
            self.failed(out, getattr(error, "strerror", None) or str(error), again)
            return
        self.selector.unregister(out.sock)
        self.outgoing.remove(out)
        self.ready[out.key] = out.sock

    def failed(self, out: _Outgoing, why: str, crowded: bool = False) -> None:
        """Go on to the next target, later again to the first; give up after some passes in which nobody was there."""
        assert out.sock is not None
        with contextlib.suppress(KeyError):
            self.selector.unregister(out.sock)
        out.sock.close()
        out.sock = out.conversation = None
        out.failures[out.targets[out.position].text] = why
        if crowded:  # this one can be reached: the group's limit alone counts
            out.not_before = time.monotonic() + _PAUSE
            return
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
        for item in self.lobby.overdue(now):
            self.drop(item)

    def timeout_error(self, timeout: float) -> CollectiveTimeout:
        """Who is missing, and who was turned away."""
        absent = sorted({key.rank for key in self.missing} | {out.key.rank for out in self.outgoing})
        notes = f"; refused meanwhile: {'; '.join(self.refused)}" if self.refused else ""
        for out in self.outgoing:
            notes += f"; rank {out.key.rank}: {'; '.join(out.failures.values())}" if out.failures else ""
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
            loop.listen(listener)
        next_tend = 0.0
        while True:
            if (now := time.monotonic()) >= next_tend:
                loop.tend()
                next_tend = now + 0.05
            if not loop.missing and not loop.outgoing:
                break
            if loop.resting and now >= loop.rest_ends:
                while loop.resting:
                    loop.listen(loop.resting.pop())
            # Listeners last: to accept one may mean to drop another, which then is not to be touched any more.
            accepting_at = []
            for ready, _ in loop.selector.select(_REST if loop.resting else 0.05):
                if isinstance(ready.data, _Incoming):
                    loop.advance_incoming(ready.data)
                elif isinstance(ready.data, _Outgoing):
                    loop.advance_outgoing(ready.data)
                else:
                    assert isinstance(ready.fileobj, socket.socket)
                    accepting_at.append(ready.fileobj)
            for listener in accepting_at:
                loop.accept(listener)
            now = time.monotonic()
            if now >= deadline:
                raise loop.timeout_error(timeout)
            if now >= next_check:
                check()
                next_check = time.monotonic() + 0.25
        handed_over, loop.ready = loop.ready, {}
    return handed_over
