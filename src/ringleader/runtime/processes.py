"""The other processes of this host that this one has met: their arenas and the sockets that tell that they live.

Process-wide: a pair of processes shares one Unix socket and one mapping per side, however many groups it is in, so a
group over shared memory needs no descriptors of its own.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ringleader.errors import CollectiveTimeout, RendezvousError, RingleaderError

if TYPE_CHECKING:
    from ringleader._core import PeerProcess

__all__ = ["exchange_arenas", "expect_ranks", "find_process", "known_processes", "my_identity", "wait_for_process"]

# Where launchers tell how many ranks are on this host.
_LOCAL_SIZES = ("RINGLEADER_LOCAL_SIZE", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
# More ranks than this share no host that has fewer cores.
_MANY = 64

_ARENA = struct.Struct("!16sQ")
_CREDENTIALS = struct.Struct("=iII")

_changed = threading.Condition()
_known: dict[bytes, PeerProcess] = {}
# Two groups that were connected at once by two threads may have made two sockets between a pair of processes. Each side
# may have kept another one, so none may be closed: the other side would take that for our death.
_spare: dict[bytes, list[socket.socket]] = {}


def _forget_all() -> None:
    """In a forked child the parent's peers are not this process's."""
    global _changed
    _changed = threading.Condition()
    _known.clear()
    _spare.clear()


os.register_at_fork(after_in_child=_forget_all)


def expect_ranks(size: int) -> None:
    """Tell, before the first use of shared memory, how many ranks of `size` may be on this host: each maps all others'.

    What a launcher says counts, else all of them, as far as there are cores.
    """
    from ringleader import _core

    told = next((os.environ[name] for name in _LOCAL_SIZES if os.environ.get(name, "").isdecimal()), None)
    _core.arena_expect(int(told) if told else min(size, max(_MANY, os.cpu_count() or 1)))


def my_identity() -> bytes:
    """Identity of this process's arena."""
    from ringleader import _core

    return _core.arena_info()[2]


def known_processes() -> list[bytes]:
    """Identities of the live processes met so far; forgets the dead."""
    with _changed:
        for identity in [identity for identity, process in _known.items() if not process.alive]:
            del _known[identity]
            for sock in _spare.pop(identity, ()):
                sock.close()
        return list(_known)


def find_process(identity: bytes) -> PeerProcess | None:
    """A process met before, or this one itself."""
    from ringleader import _core

    if identity == my_identity():
        return _core.PeerProcess.find(identity)
    with _changed:
        return _known.get(identity)


def wait_for_process(identity: bytes, timeout: float, check: Callable[[], None]) -> PeerProcess:
    """A process that another thread of this one is about to meet."""
    deadline = time.monotonic() + timeout
    while (process := find_process(identity)) is None:
        if time.monotonic() >= deadline:
            raise CollectiveTimeout(f"another thread of this process did not connect its peer within {timeout:.1f} s")
        check()
        with _changed:
            _changed.wait(0.1)
    return process


def _check_user(sock: socket.socket) -> int:
    """The peer's process number (0 if in another namespace), after making sure that it is this user's."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    if uid != os.geteuid():
        raise RendezvousError(
            f"the peer runs as user {uid}, this process as {os.geteuid()}; set RINGLEADER_SHM_DISABLE=1 to connect "
            "them through the network"
        )
    return int(pid)


def exchange_arenas(
    socks: dict[bytes, socket.socket], timeout: float, check: Callable[[], None] = lambda: None
) -> None:
    """Exchange arena descriptors over connected, authenticated Unix sockets, by the peer's identity; takes the sockets.

    First sends to all, then receives from all, so no cycle of waiting can arise. `check` is called every quarter of a
    second; it may raise to end the wait.

    Raises
    ------
    RendezvousError
        If a peer is another user's or not the process it was announced as, or hangs up.
    """
    from ringleader import _core

    arena_fd, arena_size, identity = _core.arena_info()
    deadline = time.monotonic() + timeout
    left = dict(socks)
    try:
        pids = {peer: _check_user(sock) for peer, sock in left.items()}
        for sock in left.values():
            sock.settimeout(max(0.001, deadline - time.monotonic()))
            socket.send_fds(sock, [_ARENA.pack(identity, arena_size)], [arena_fd])
        for peer in list(left):
            _await_word(left[peer], deadline, check)
            fd, size = _receive_arena(left[peer], peer)
            left[peer].setblocking(False)
            _meet(peer, fd, size, left.pop(peer), pids[peer])
    except (TimeoutError, OSError) as error:
        if isinstance(error, RingleaderError):
            raise
        raise RendezvousError(
            f"a peer of this host did not pass its memory on ({error}); RINGLEADER_SHM_DISABLE=1 does without"
        ) from error
    finally:
        for sock in left.values():
            sock.close()


def _await_word(sock: socket.socket, deadline: float, check: Callable[[], None]) -> None:
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    while not poller.poll(250):
        check()
        if time.monotonic() >= deadline:
            raise TimeoutError("it did not answer in time")
    sock.setblocking(False)


def _receive_arena(sock: socket.socket, expected: bytes) -> tuple[int, int]:
    message, fds, _, _ = socket.recv_fds(sock, _ARENA.size, 1, socket.MSG_CMSG_CLOEXEC)
    try:
        if len(message) != _ARENA.size or len(fds) != 1:
            raise RendezvousError(
                "a peer of this host hung up, or this process is out of file descriptors (`ulimit -n`), while "
                "descriptors were exchanged"
            )
        identity, size = _ARENA.unpack(message)
        if identity != expected:
            raise RendezvousError("a peer of this host is not the process that it announced itself as")
    except RendezvousError:
        for fd in fds:
            os.close(fd)
        raise
    return fds[0], int(size)


def _meet(identity: bytes, arena_fd: int, arena_size: int, sock: socket.socket, pid: int) -> None:
    from ringleader import _core

    with _changed:
        present = _known.get(identity)
        if present is not None and present.alive:
            os.close(arena_fd)
            _spare.setdefault(identity, []).append(sock)
        else:
            _known[identity] = _core.PeerProcess(identity, arena_fd, arena_size, sock.detach(), pid)
        _changed.notify_all()
