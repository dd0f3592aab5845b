"""Every store behaves alike, and the network one survives strangers."""

from __future__ import annotations

import gc
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta

import pytest
from meeting_support import PROMPT, free_port, wait_until

from ringleader.errors import ClosedError, CollectiveTimeout, RendezvousError
from ringleader.runtime import storeserver
from ringleader.runtime.filestore import FileStore
from ringleader.runtime.handshake import AuthenticationError
from ringleader.runtime.store import LocalStore, PrefixStore, TorchStore, backoff, ranks_text, wait_for_ranks
from ringleader.runtime.storeserver import TcpStoreServer
from ringleader.runtime.tcpstore import TcpStoreClient

SECRET = b"0123456789abcdef"


@pytest.fixture
def server():
    with_server = TcpStoreServer([("127.0.0.1", 0)], SECRET)
    yield with_server
    with_server.close()


@pytest.fixture
def client(server):
    made = TcpStoreClient(["127.0.0.1"], server.port, SECRET, 5)
    yield made
    made.close()


def torch_store(kind: str, path):
    dist = pytest.importorskip("torch.distributed")
    if kind == "hash":
        return dist.HashStore()
    if kind == "file":
        return dist.FileStore(str(path / "torch-store"), 1)
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=5))


@pytest.fixture(params=["local", "tcp", "file", "prefix", "torch-hash", "torch-file", "torch-tcp"])
def store(request, tmp_path):
    if request.param == "tcp":
        yield request.getfixturevalue("client")
    elif request.param == "file":
        made = FileStore("job", 0, 5, base=tmp_path)
        yield made
        made.close()
    elif request.param.startswith("torch"):
        yield TorchStore(torch_store(request.param.removeprefix("torch-"), tmp_path))
    else:
        yield LocalStore() if request.param == "local" else PrefixStore("p", LocalStore())


# ------------------------------------------------------------------------------------------------------- all stores


def test_set_get_replace_delete(store):
    value = bytes(range(256)) * 5
    store.set("a/b c/é", value)
    assert store.get("a/b c/é", 1) == value
    store.set("a/b c/é", b"")
    assert store.get("a/b c/é", 0) == b""
    store.set("other", b"x")
    store.delete("other")
    store.delete("never there")
    with pytest.raises(CollectiveTimeout, match=r"other' was not set within 0.1 s"):
        store.get("other", 0.1)


def test_add(store):
    assert [store.add("n", 2), store.add("n", -5), store.add("m", 7)] == [2, -3, 7]


def test_get_waits_for_another_thread(store):
    started = time.monotonic()
    timer = threading.Timer(0.2, store.set, ("late", b"here"))
    timer.start()
    assert store.get("late", 60) == b"here"
    assert 0.15 < time.monotonic() - started < PROMPT
    timer.join()


def test_missing_ranks_are_all_named_with_one_deadline(store):
    for rank in (0, 1, 3):
        store.set(f"r{rank}", b"%d" % rank)
    started = time.monotonic()
    with pytest.raises(
        CollectiveTimeout, match=re.escape("ranks 2, 4 did not arrive at the start within 0.4 s (have: 0, 1, 3)")
    ) as e:
        wait_for_ranks(store, lambda r: f"r{r}", range(5), 0.4)
    assert e.value.ranks == (2, 4)
    assert 0.35 < time.monotonic() - started < PROMPT
    assert wait_for_ranks(store, lambda r: f"r{r}", [0, 1, 3], 1) == {0: b"0", 1: b"1", 3: b"3"}


def test_prefixes_keep_apart():
    shared = LocalStore()
    first, second = PrefixStore("a", shared), PrefixStore("b", shared)
    first.set("k", b"1")
    with pytest.raises(CollectiveTimeout):
        second.get("k", 0)


@pytest.mark.parametrize(
    ("ranks", "text"), [([], ""), ([5], "5"), ([0, 1], "0, 1"), ([0, 1, 2, 4, 6, 7, 8, 9], "0-2, 4, 6-9")]
)
def test_ranks_text(ranks, text):
    assert ranks_text(ranks) == text


def test_backoff_looks_once_without_time_and_last_at_the_deadline():
    assert len(list(backoff(time.monotonic()))) == 1
    deadline = time.monotonic() + 0.1
    times = [time.monotonic() for _ in backoff(deadline)]
    assert times[-1] >= deadline and len(times) > 3


# ---------------------------------------------------------------------------------------------------- the TCP store


def test_adds_from_many_clients_are_atomic(server):
    def count():
        mine = TcpStoreClient(["127.0.0.1"], server.port, SECRET, 5)
        for _ in range(50):
            mine.add("n", 1)
        mine.close()

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check = TcpStoreClient(["127.0.0.1"], server.port, SECRET, 5)
    assert check.add("n", 0) == 400
    check.close()


def test_large_values_and_limits(client):
    big = os.urandom(8 << 20)
    client.set("big", big)
    assert client.get("big", 5) == big
    with pytest.raises(ValueError, match="limit"):
        client.set("k", bytes(storeserver.MAX_VALUE + 1))
    with pytest.raises(ValueError, match="limit"):
        client.set("k" * 2000, b"")
    client.set("text", b"not a number")
    with pytest.raises(ValueError, match="integer"):
        client.add("text", 1)


def test_wrong_secret_is_told_at_once(server):
    started = time.monotonic()
    with pytest.raises(AuthenticationError, match=r"secret differs.*RINGLEADER_SECRET"):
        TcpStoreClient(["127.0.0.1"], server.port, b"another secret..", 60, rank=3)
    assert time.monotonic() - started < PROMPT


def garbage(port: int) -> list[socket.socket]:
    """Strangers of many kinds; those that stay are returned."""
    stay = []
    for payload in (
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        os.urandom(5000),
        b"RNGLEADR",
        b"\0" * 98,
        b"RNGLEADR" + b"\0" * 90,
    ):
        sock = socket.create_connection(("127.0.0.1", port))
        try:
            sock.sendall(payload)
        except OSError:
            continue
        stay.append(sock)
    # A reset: the kernel sends RST instead of FIN.
    reset = socket.create_connection(("127.0.0.1", port))
    reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    reset.close()
    return stay


def test_strangers_do_not_disturb(server, client):
    strangers = [sock for _ in range(20) for sock in garbage(server.port)]
    assert client.add("n", 1) == 1
    fresh = TcpStoreClient(["127.0.0.1"], server.port, SECRET, 5)
    assert fresh.add("n", 1) == 2
    fresh.close()
    for sock in strangers:
        sock.close()


def test_silent_strangers_are_dropped(server, client, monkeypatch):
    monkeypatch.setattr(storeserver, "STRANGER_LIMIT", 0.3)
    sock = socket.create_connection(("127.0.0.1", server.port))
    sock.settimeout(10)
    assert sock.recv(1) == b""  # hung up on
    sock.close()
    assert client.add("n", 1) == 1


def test_authenticated_nonsense_ends_that_connection_only(server, client):
    other = TcpStoreClient(["127.0.0.1"], server.port, SECRET, 5)
    (raw,) = other._idle
    raw.setblocking(True)
    raw.sendall(b"\xff" * 64)
    raw.settimeout(10)
    assert raw.recv(1) == b""
    other.close()
    assert client.add("n", 1) == 1


def test_a_client_that_leaves_while_waiting_is_forgotten(server, client):
    with pytest.raises(CollectiveTimeout):
        client.get("never", 0.1)
    assert wait_until(lambda: not server._engine._waiting)
    assert client.add("n", 1) == 1


def test_client_waits_for_a_server_that_comes_up_late():
    port = free_port()
    servers: list[TcpStoreServer] = []
    timer = threading.Timer(0.4, lambda: servers.append(TcpStoreServer([("127.0.0.1", port)], SECRET)))
    timer.start()
    late = TcpStoreClient(["127.0.0.1"], port, SECRET, 30)
    late.set("a", b"1")
    late.close()
    timer.join()
    servers[0].close()


def test_nobody_there():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        with pytest.raises(
            RendezvousError, match=rf"rank 2 could not reach the store at 127.0.0.1:{port} within 0.5 s"
        ) as e:
            TcpStoreClient(["127.0.0.1"], port, SECRET, 0.5, rank=2)
    assert e.value.ranks == (0,)


@pytest.mark.parametrize("behaviour", ["silent", "hangs up", "talks"])
def test_busy_port_is_reported_by_server_and_clients_within_5_s(behaviour):
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    held = []

    def other_program():
        while True:
            try:
                conn, _ = listener.accept()
            except OSError:
                return
            if behaviour == "hangs up":
                conn.close()
            else:
                if behaviour == "talks":
                    conn.sendall(b"SSH-2.0-OpenSSH_9.2p1 Debian\r\n" * 9)
                held.append(conn)

    thread = threading.Thread(target=other_program, daemon=True)
    thread.start()
    with pytest.raises(RendezvousError, match=f"127.0.0.1:{port} is busy.*MASTER_PORT"):
        TcpStoreServer([("127.0.0.1", port)], SECRET)
    started = time.monotonic()
    with pytest.raises(RendezvousError, match=f"127.0.0.1:{port}"):
        TcpStoreClient(["127.0.0.1"], port, SECRET, 60, rank=1)
    assert time.monotonic() - started < PROMPT
    for conn in held:
        conn.close()
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(10)


def test_ipv6_and_several_addresses():
    if not socket.has_ipv6 or not os.path.exists("/proc/net/if_inet6"):
        pytest.skip("no IPv6 here")
    server = TcpStoreServer([("127.0.0.1", 0), ("::1", 0)], SECRET)
    for host in ("::1", "127.0.0.1", "localhost"):
        client = TcpStoreClient([host], server.port, SECRET, 5)
        client.add("n", 1)
        client.close()
    server.close()


def test_server_that_ends_is_told(server, client):
    client.set("a", b"1")
    server.close()
    server.close()
    with pytest.raises(RendezvousError, match="lost the store"):
        client.get("a", 5)


def test_a_server_whose_thread_has_ended_closes_quietly(server):
    """The thread may see that it has to end before `close` wakes it: then nobody is there to be woken."""
    server._closing = True
    socket.create_connection(("127.0.0.1", server.port)).close()  # wakes the thread
    assert wait_until(lambda: not server._thread.is_alive())
    server._closing = False
    server.close()
    server.close()


def test_closed_client(client):
    client.close()
    client.close()
    with pytest.raises(ClosedError):
        client.set("a", b"")


def test_nothing_leaks():
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    gc.collect()
    before, threads = descriptors(), threading.active_count()
    for _ in range(50):
        server = TcpStoreServer([("127.0.0.1", 0)], SECRET)
        client = TcpStoreClient(["127.0.0.1"], server.port, SECRET, 5)
        client.add("n", 1)
        with pytest.raises(AuthenticationError):
            TcpStoreClient(["127.0.0.1"], server.port, SECRET + b"x", 5)
        client.close()
        server.close()
    # Fewer are none of ours: what earlier tests have left may end meanwhile.
    assert wait_until(lambda: descriptors() <= before and threading.active_count() <= threads), (
        descriptors() - before,
        threading.active_count() - threads,
    )


def test_fork_does_not_share_the_connection(server, client):
    client.set("a", b"1")
    pid = os.fork()
    if pid == 0:
        # In the child: a request of its own, then out without any clean-up.
        os._exit(0 if client.get("a", 5) == b"1" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert client.get("a", 5) == b"1"


def test_ctrl_c_ends_a_wait(server):
    program = (
        "import sys; from ringleader.runtime.tcpstore import TcpStoreClient\n"
        f"c = TcpStoreClient(['127.0.0.1'], {server.port}, {SECRET!r}, 5)\n"
        "print('waiting', flush=True); c.get('never', 60)"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "waiting\n"
    time.sleep(0.2)
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=40)
    assert "KeyboardInterrupt" in errors


# --------------------------------------------------------------------------------------------------- the directory


def test_directory_is_private_and_removed_by_the_last(tmp_path):
    first = FileStore("job", 0, 5, base=tmp_path)
    second = FileStore("job", 1, 5, base=tmp_path)
    assert first.path == second.path and (first.path.stat().st_mode & 0o777) == 0o700
    first.set("k", b"1")
    first.close()
    assert second.get("k", 1) == b"1"  # survives rank 0
    second.close()
    second.close()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RendezvousError, match="gone"):
        second.get("k", 5)


def test_jobs_do_not_meet(tmp_path):
    one, two = FileStore("one", 0, 5, base=tmp_path), FileStore("two", 0, 5, base=tmp_path)
    one.set("k", b"1")
    with pytest.raises(CollectiveTimeout):
        two.get("k", 0)
    one.close()
    two.close()


def test_rank_0_is_missing(tmp_path):
    with pytest.raises(CollectiveTimeout, match=r"rank 0 did not create .* within 0.3 s") as e:
        FileStore("job", 1, 0.3, base=tmp_path)
    assert e.value.ranks == (0,)


def test_live_job_of_the_same_name_is_refused(tmp_path):
    first = FileStore("job", 0, 5, base=tmp_path)
    with pytest.raises(RendezvousError, match="live job of the same name"):
        FileStore("job", 0, 5, base=tmp_path)
    first.close()
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_the_dead_are_removed_and_those_of_the_living_are_not(tmp_path):
    program = (
        "import os, sys, pathlib; from ringleader.runtime.filestore import FileStore\n"
        "base = pathlib.Path(sys.argv[1])\n"
        "for name in ('same', 'other'): FileStore(name, 0, 5, base=base).set('old', b'1')\n"
        "os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)]).returncode == -signal.SIGKILL
    alive = FileStore("alive", 0, 5, base=tmp_path)
    foreign = tmp_path / "someone-else"
    foreign.mkdir()
    with pytest.raises(CollectiveTimeout):
        FileStore("same", 1, 0.2, base=tmp_path)  # a rank must not join a dead job
    fresh = FileStore("same", 0, 5, base=tmp_path)
    with pytest.raises(CollectiveTimeout):
        fresh.get("old", 0)
    assert {p.name for p in tmp_path.iterdir()} == {alive.path.name, fresh.path.name, "someone-else"}
    fresh.close()
    alive.close()


def test_a_directory_open_to_others_is_not_used(tmp_path):
    store = FileStore("job", 0, 5, base=tmp_path)
    store.path.chmod(0o755)
    with pytest.raises(RendezvousError, match="open to others"):
        FileStore("job", 1, 5, base=tmp_path)
    store.close()
