"""The arena and peer processes through the binding, with real processes on the other side."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from numpy.typing import NDArray

from ringleader import _core, errors

MIB = 1 << 20
HELLO = struct.Struct("=16sQQi")  # identity, arena size, inode of its file, pid

# A peer: makes an arena, shows 1000 numbers in it, and answers "done" once it sees them changed.
PEER = """
import ctypes, os, socket, struct, sys
import numpy as np
from ringleader import _core
link = socket.socket(fileno=int(sys.argv[1]))
fd, size, identity = _core.arena_info()
ptr = _core.arena_alloc(8000)
words = np.ctypeslib.as_array((ctypes.c_int64 * 1000).from_address(ptr))
words[:] = np.arange(1000) ** 2 + 5
socket.send_fds(link, [struct.pack("=16sQQi", identity, size, os.fstat(fd).st_ino, os.getpid())], [fd])
if link.recv(1):
    link.send(b"y" if (words == np.arange(1000) - 3).all() else b"n")
link.recv(1)
"""


def array(ptr: int, count: int) -> NDArray[np.uint8]:
    return np.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(ptr))


def blocks() -> int:
    return os.fstat(_core.arena_info()[0]).st_blocks * 512


def eventually(condition: Callable[[], bool]) -> bool:
    limit = time.monotonic() + 10
    while not condition():
        if time.monotonic() > limit:
            return False
        time.sleep(0.001)
    return True


@contextmanager
def running_peer() -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(60)
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
        process = subprocess.Popen(
            [sys.executable, "-c", PEER, str(theirs.fileno())], pass_fds=[theirs.fileno()], env=environment
        )
        theirs.close()
        try:
            yield process, ours
        finally:
            ours.close()
            process.kill()
            process.wait()


def attach(ours: socket.socket) -> tuple[_core.PeerProcess, int]:
    """The peer on the other end of `ours`, whose descriptor is given away, and the inode of its arena."""
    message, descriptors, _, _ = socket.recv_fds(ours, HELLO.size, 1)
    identity, size, inode, pid = HELLO.unpack(message)
    assert os.fstat(descriptors[0]).st_ino == inode
    return _core.PeerProcess(identity, descriptors[0], size, os.dup(ours.fileno()), pid), inode


def mapped(inode: int) -> tuple[int, int]:
    """First address and length of this process's mapping of the file with that inode."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            fields = line.split()
            if int(fields[4]) == inode:
                first, last = (int(part, 16) for part in fields[0].split("-"))
                return first, last - first
    return 0, 0


def test_arena_memory_is_zero_aligned_and_returned() -> None:
    fd, size, identity = _core.arena_info()
    assert (fd, size, identity) == _core.arena_info()
    assert len(identity) == 16
    assert os.fstat(fd).st_size == size
    gc.collect()  # what earlier tests have left goes now
    used, held = _core.arena_used(), blocks()
    for nbytes, align in [(1, 64), (100, 64), (5000, 4096), (3 * MIB + 7, 64), (10, 2 * MIB)]:
        ptr = _core.arena_alloc(nbytes, align)
        assert ptr % align == 0
        assert _core.arena_contains(ptr, nbytes)
        view = array(ptr, nbytes)
        assert not view.any()
        view[:] = np.arange(nbytes) % 251
        assert blocks() > held or nbytes <= 4096  # a small one may lie in a page that is held already
        _core.arena_free(ptr)
        assert _core.arena_used() == used
        assert eventually(lambda: blocks() <= held)


def test_other_memory_is_not_contained() -> None:
    other = np.zeros(10)
    assert not _core.arena_contains(other.ctypes.data, other.nbytes)
    ptr = _core.arena_alloc(64)
    assert not _core.arena_contains(ptr, 1 << 62)
    _core.arena_free(ptr)


def test_too_large_a_request_names_the_bytes_and_leaves_all_as_it_was() -> None:
    gc.collect()
    used, held = _core.arena_used(), blocks()
    with open("/proc/meminfo") as meminfo:
        total = next(int(line.split()[1]) * 1024 for line in meminfo if line.startswith("MemTotal"))
    with pytest.raises(errors.OutOfMemory, match=rf"{total} bytes.*free are.*smaller buffers") as caught:
        _core.arena_alloc(total)
    assert isinstance(caught.value, MemoryError)
    assert (_core.arena_used(), blocks()) == (used, held)


def test_misuse_is_an_invalid_argument() -> None:
    with pytest.raises(errors.InvalidArgument, match="alignment is 48"):
        _core.arena_alloc(64, 48)
    with pytest.raises(errors.InvalidArgument, match="not of the shared-memory arena"):
        _core.arena_free(np.zeros(10).ctypes.data)
    ptr = _core.arena_alloc(64)
    _core.arena_free(ptr)
    with pytest.raises(errors.InvalidArgument, match="not allocated"):
        _core.arena_free(ptr)


def test_usable_cores_follow_the_affinity_mask() -> None:
    before = os.sched_getaffinity(0)
    assert 1 <= _core.usable_cores() <= len(before)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert _core.usable_cores() == 1
    finally:
        os.sched_setaffinity(0, before)


def test_a_peers_memory_is_read_and_written() -> None:
    with running_peer() as (process, ours):
        peer, inode = attach(ours)
        assert peer.alive
        first, length = mapped(inode)
        assert length > 2 * MIB
        window = array(first, 8 * MIB).view(np.int64)
        wanted = np.arange(1000, dtype=np.int64) ** 2 + 5
        starts = np.flatnonzero(window == 6)  # the second number; squares differ everywhere else
        start = next(int(at) - 1 for at in starts if (window[at - 1 : at + 999] == wanted).all())
        window[start : start + 1000] = np.arange(1000) - 3
        ours.send(b"x")
        assert ours.recv(1) == b"y"
        assert _core.PeerProcess.find(peer.identity) is peer
        del window, peer
        gc.collect()
        assert mapped(inode) == (0, 0)
        ours.close()
        assert process.wait(30) == 0


def test_a_killed_peer_is_noticed() -> None:
    with running_peer() as (process, ours):
        peer, _ = attach(ours)
        identity = peer.identity
        assert peer.alive
        process.send_signal(signal.SIGKILL)
        assert eventually(lambda: not peer.alive)
        assert _core.PeerProcess.find(identity) is None


def test_this_process_is_its_own_peer() -> None:
    identity = _core.arena_info()[2]
    own = _core.PeerProcess.find(identity)
    assert own is not None
    assert own.alive
    assert own.identity == identity
    assert _core.PeerProcess.find(bytes(16)) is None


def test_a_refused_peer_leaks_no_descriptor() -> None:
    def offer(identity: bytes, size: int) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            fd = os.memfd_create("arena")
            os.truncate(fd, 8192)
            _core.PeerProcess(identity, fd, size, ours.detach(), os.getpid())

    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(errors.InvalidArgument, match="8192 bytes, announced were 1048576"):
        offer(b"x" * 16, MIB)
    with pytest.raises(errors.InvalidArgument, match="not sealed"):
        offer(b"x" * 16, 8192)
    with pytest.raises(errors.InvalidArgument, match="identity has 3 bytes"):
        offer(b"abc", 8192)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_cannot_hurt_its_parent() -> None:
    ptr = _core.arena_alloc(2 * MIB)
    view = array(ptr, 2 * MIB)
    view[:] = 7
    identity, held = _core.arena_info()[2], blocks()
    with running_peer() as (_, ours):
        peer, _ = attach(ours)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                _core.arena_free(ptr)  # the parent's: ignored
                fresh = _core.arena_alloc(MIB)
                array(fresh, MIB)[:] = 1
                good = not peer.alive and _core.arena_info()[2] != identity and not _core.arena_contains(ptr, 1)
                del peer
                gc.collect()
                code = 0 if good and view[-1] == 7 else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert peer.alive
        assert blocks() == held
        assert (view == 7).all()
    _core.arena_free(ptr)
