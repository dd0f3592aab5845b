"""How ranks come by the secret: what is made for them, who can read it, and what is refused."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from meeting_support import PROMPT, Event, free_port, wait_until

from ringleader.errors import InvalidArgument, RendezvousError
from ringleader.runtime import keys
from ringleader.runtime.config import Config
from ringleader.runtime.environment import Launch, detect
from ringleader.runtime.handshake import AuthenticationError, UnknownKey
from ringleader.runtime.job import open_job
from ringleader.runtime.keys import (
    find_key,
    given_key,
    key_finder,
    make_key,
    secret_key,
    store_key,
    tell_secret,
    understand_secret,
)
from ringleader.runtime.store import LocalStore, TorchStore
from ringleader.runtime.storeserver import TcpStoreServer
from ringleader.runtime.tcpstore import TcpStoreClient

CONFIG = Config()
SECRET = "0123456789abcdef of a test"


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    """Keys of these tests lie in a directory of their own."""
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    return runtime


@pytest.fixture
def elsewhere(monkeypatch):
    """A function that makes this process one in another network namespace."""
    return lambda: monkeypatch.setattr(keys, "network_id", lambda: "another")


# ----------------------------------------------------------------------------------------------------------- the file


def test_a_key_is_found_by_its_user_alone(places):
    made = make_key(29500)
    assert made.path.parent == places and made.path.stat().st_mode & 0o777 == 0o600
    assert find_key(made.key_id, 29500) == made.key and len(made.key) == 32
    assert find_key(bytes(16), 29500) is None
    # A server at another port could pass on what it is told to the one whose key it is.
    assert find_key(made.key_id, 29501) is None and find_key(made.key_id, None) is None
    assert made.key.hex() not in repr(made)
    made.path.chmod(0o640)
    assert find_key(made.key_id, 29500) is None
    made.path.chmod(0o600)
    moved = made.path.with_name("moved")
    made.path.rename(moved)
    made.path.symlink_to(moved)
    assert find_key(made.key_id, 29500) is None
    moved.rename(made.path)
    assert find_key(made.key_id, 29500) == made.key
    made.remove()
    made.remove()
    assert find_key(made.key_id, 29500) is None and list(places.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="to become another user needs root")
def test_another_user_does_not_get_it(places):
    places.chmod(0o755)
    for parent in places.parents[:3]:
        parent.chmod(parent.stat().st_mode | 0o055)
    made, foreign = make_key(1), make_key(1)
    os.chown(foreign.path, 65534, 65534)
    assert find_key(foreign.key_id, 1) is None  # nor does one that another user has put there count
    pid = os.fork()
    if pid == 0:
        os.setgid(65534)
        os.setuid(65534)
        try:
            made.path.read_bytes()
            os._exit(2)
        except PermissionError:
            os._exit(0 if find_key(made.key_id, 1) is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_another_network_namespace_is_another_host(elsewhere):
    made = make_key(None)
    elsewhere()
    assert find_key(made.key_id, None) is None


def test_keys_of_the_dead_are_removed_and_those_of_the_living_are_not(places):
    program = "import os; from ringleader.runtime.keys import make_key; make_key(1); os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == -signal.SIGKILL
    (left,) = places.iterdir()
    (places / f"{keys._prefix()}odd").write_text("not a key\n")
    living = make_key(1)
    assert not left.exists()
    assert find_key(make_key(1).key_id, 1) is not None and living.path.exists()


def test_the_next_directory_is_tried_and_none_is_an_error_with_advice(places, tmp_path, monkeypatch):
    nowhere = places / "nowhere"
    monkeypatch.setattr(keys, "_places", lambda home: iter([nowhere, places]))
    assert make_key(1).path.parent == places
    monkeypatch.setattr(keys, "_places", lambda home: iter([nowhere]))
    with pytest.raises(RendezvousError, match=r"nowhere: No such file.*RINGLEADER_SECRET_FILE"):
        make_key(1)


# -------------------------------------------------------------------------------------------------------------- given


def test_a_file_of_a_secret(tmp_path):
    file = tmp_path / "secret"
    file.write_text(SECRET + "\n")
    file.chmod(0o600)
    assert given_key(None, Config(secret_file=str(file))) == secret_key(SECRET) == given_key(SECRET, CONFIG)
    for mode, fine in ((0o644, False), (0o620, False), (0o640, True), (0o400, True)):
        file.chmod(mode)
        with contextlib.nullcontext() if fine else pytest.raises(InvalidArgument, match=f"mode {mode:04o}.*chmod 600"):
            given_key(None, Config(secret_file=str(file)))
    with pytest.raises(InvalidArgument, match="both set"):
        given_key(None, Config(secret=SECRET, secret_file=str(file)))
    with pytest.raises(InvalidArgument, match=r"cannot be read: No such file"):
        given_key(None, Config(secret_file=str(tmp_path / "none")))
    file.chmod(0o600)
    file.write_text("short")
    with pytest.raises(InvalidArgument, match="5 bytes; expected at least 16"):
        given_key(None, Config(secret_file=str(file)))


# ------------------------------------------------------------------------------------------------------ the TCP store


def served(launch, config=CONFIG, given=None):
    """A server as rank 0 of this launch makes it, and what closes it."""
    stack = contextlib.ExitStack()
    key, key_id = store_key(launch, given, config, stack)
    server = TcpStoreServer([("127.0.0.1", launch.master_port)], key, key_id)
    stack.callback(server.close)
    return server, stack


def client(launch, config=CONFIG, given=None, rank=1):
    return TcpStoreClient(["127.0.0.1"], launch.master_port, key_finder(launch, given, config), PROMPT, rank)


def plain(rank=1):
    return Launch(rank, 2, master_addr="127.0.0.1", master_port=free_port(), job_id="port-29500")


def test_who_knows_the_port_and_the_name_does_not_get_in():
    launch = plain()
    server, stack = served(launch)
    with stack:
        mine = client(launch)
        mine.set("a", b"1")
        assert len(mine.key) == 32
        for name in (launch.job_id, f"port-{launch.master_port}", "default"):
            guess = hashlib.sha256(b"ringleader job\0" + name.encode()).digest()
            with pytest.raises(AuthenticationError, match="secret differs"):
                TcpStoreClient(["127.0.0.1"], server.port, guess, PROMPT)
        mine.close()
    assert list(keys._places(False).__next__().iterdir()) == []


def test_several_hosts_without_a_secret_are_refused_with_advice(elsewhere, caplog):
    launch = plain()
    _, stack = served(launch)
    elsewhere()
    with stack, caplog.at_level(logging.WARNING), pytest.raises(UnknownKey) as error:
        client(launch)
    text = str(error.value)
    assert "\n" not in text and "another host" in text and "RINGLEADER_SECRET_FILE" in text
    assert "torchrun" in text and "RINGLEADER_INSECURE=1" in text
    assert any("needs a secret" in r.getMessage() for r in caplog.records)  # rank 0 hears of it too


def test_several_hosts_of_slurm_share_the_home_directory(elsewhere, tmp_path):
    launch = Launch(1, 2, master_addr="127.0.0.1", master_port=free_port(), job_id="slurm-1.0", slurm=True)
    _, stack = served(launch)
    folder = tmp_path / "home" / ".config" / "ringleader" / "keys"
    assert folder.stat().st_mode & 0o777 == 0o700 and len(list(folder.iterdir())) == 1
    elsewhere()
    with stack:
        client(launch).close()
    assert list(folder.iterdir()) == []


def test_insecure_is_said_by_all_or_none():
    launch = plain()
    insecure = Config(insecure=True)
    _, stack = served(launch, insecure)
    with stack:
        client(launch, insecure).close()
        with pytest.raises(AuthenticationError, match="rank 0 has RINGLEADER_INSECURE=1 and rank 1 has not"):
            client(launch)
        with pytest.raises(AuthenticationError, match="rank 1 was given a secret and rank 0 was not"):
            client(launch, given=secret_key(SECRET))
    _, stack = served(launch)
    with stack, pytest.raises(AuthenticationError, match="rank 1 has RINGLEADER_INSECURE=1 and rank 0 has not"):
        client(launch, insecure)
    _, stack = served(launch, given=secret_key(SECRET))
    with stack:
        client(launch, given=secret_key(SECRET)).close()
        with pytest.raises(AuthenticationError, match="rank 0 was given a secret and rank 1 was not"):
            client(launch)


def test_a_server_that_names_the_key_of_another_port_learns_nothing():
    """A stranger could listen first at a job's port, and pass on what ranks say to another job of the same user."""
    other = plain()
    _, stack = served(other)
    launch = plain()
    listener = socket.create_server(("127.0.0.1", launch.master_port))
    passed_on: list[bytes] = []

    def relay() -> None:
        with contextlib.suppress(OSError):
            while True:
                rank, _ = listener.accept()
                with rank, socket.create_connection(("127.0.0.1", other.master_port)) as job:
                    job.sendall(rank.recv(98))
                    rank.sendall(job.recv(98))
                    passed_on.append(rank.recv(32))

    thread = threading.Thread(target=relay)
    thread.start()
    with stack, pytest.raises(UnknownKey):
        client(launch)
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(PROMPT)
    assert passed_on and set(passed_on) == {b""}


# ------------------------------------------------------------------------------------------------- through other stores


def through(store, launches, config=CONFIG, private=False):
    """Every rank's secret, or its error."""
    results = []
    with contextlib.ExitStack() as stack:
        for launch in launches:
            try:
                if launch.rank == 0:
                    told, secret = tell_secret(launch, config, None, private, stack)
                    store.set("secret", told)
                else:
                    secret = understand_secret(store.get("secret", 5.0), launch, config, None, private)
                results.append(secret)
            except RendezvousError as error:
                results.append(error)
    return results


def test_a_store_that_others_can_read_holds_no_key():
    torch = pytest.importorskip("torch.distributed")
    store = TorchStore(torch.HashStore())
    zero, one = through(store, [Launch(0, 2), Launch(1, 2)])
    assert zero == one and len(zero) == 32
    told = store.get("secret", 0)
    assert told.startswith(b"file:") and zero not in told and zero.hex().encode() not in told
    # Gone with the job, and an old id is of no use.
    assert isinstance(through(store, [Launch(1, 2)])[0], UnknownKey)


def test_a_key_that_somebody_has_put_into_an_open_store_is_not_taken():
    store = LocalStore()
    store.set("secret", b"made:" + bytes(32))
    assert "RINGLEADER_INSECURE" in str(through(store, [Launch(1, 2)])[0])
    assert through(store, [Launch(1, 2)], private=True) == [bytes(32)]  # a store of the caller's own


def test_torchrun_over_several_hosts_carries_the_key_and_says_so(elsewhere, caplog):
    environ = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "n0",
               "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "none"}  # fmt: skip
    zero, one = detect(environ), detect({**environ, "RANK": "1"})
    assert zero.torchrun_hosts and not detect({**environ, "LOCAL_WORLD_SIZE": "2"}).torchrun_hosts
    elsewhere()
    with caplog.at_level(logging.WARNING):
        first, second = through(LocalStore(), [zero, one])
    assert first == second and any("everybody can read" in r.getMessage() for r in caplog.records)


def test_an_own_store_carries_the_key():
    store = LocalStore()
    with ThreadPoolExecutor(2) as ranks:
        jobs = list(ranks.map(lambda rank: open_job(rank, 2, store=store, config=CONFIG, timeout=30), range(2)))
    assert jobs[0].secret == jobs[1].secret
    for job in jobs:
        job.close()


# -------------------------------------------------------------------------------------------------------- whole starts

RANK = """
import resource, sys, numpy as np, ringleader as rl
from ringleader.runtime import bootstrap, keys
if "elsewhere" in sys.argv:
    keys.network_id = lambda: "another"
try:
    with rl.init(start_timeout=30) as comm:
        print("sum", comm.all_reduce(np.ones(1))[0])
except rl.errors.RingleaderError as error:
    print(type(error).__name__, error)
"""


def start(rank, port, *arguments, script=RANK, **variables):
    env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.Popen(
        command, env={**env, **variables}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(ranks):
    return [rank.communicate(timeout=100) for rank in ranks]


def test_plain_variables_on_one_host_need_no_setting(places):
    port = free_port()
    for out, err in finish([start(rank, port) for rank in range(2)]):
        assert out == "sum 2.0\n", err
    assert list(places.iterdir()) == []


def test_a_file_for_two_hosts(places, tmp_path):
    file = tmp_path / "job.secret"
    file.write_text(SECRET)
    file.chmod(0o600)
    port = free_port()
    ranks = [start(rank, port, *["elsewhere"] * rank, RINGLEADER_SECRET_FILE=str(file)) for rank in range(2)]
    for out, err in finish(ranks):
        assert out == "sum 2.0\n", err


def test_a_rank_of_another_host_is_refused(places):
    port = free_port()
    zero, one = start(0, port), start(1, port, "elsewhere")
    out, err = one.communicate(timeout=100)
    zero.kill()
    zero.communicate()
    assert out.startswith("UnknownKey") and "RINGLEADER_SECRET_FILE" in out and out.count("\n") == 1, out + err


# Rank 1 connects when the strangers are there.
LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
import numpy as np, ringleader as rl
from pathlib import Path
from ringleader.runtime import bootstrap
sys.path.insert(0, sys.argv[2])
from meeting_support import Event
if sys.argv[3] == "1":
    real = bootstrap.establish
    def late(*given, **more):
        assert Event(sys.argv[1], "flooded").wait(60)
        return real(*given, **more)
    bootstrap.establish = late
with rl.init(start_timeout=60) as comm:
    print("sum", comm.all_reduce(np.ones(1))[0])
"""


def test_strangers_at_the_abstract_socket_under_a_low_limit_of_descriptors(tmp_path):
    port = free_port()
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    ranks = [start(r, port, str(tmp_path), folder, str(r), script=LIMITED, RINGLEADER_TRANSPORT="shm") for r in (0, 1)]
    held = []
    try:
        assert wait_until(lambda: abstract_names(ranks[0].pid), 60)
        (name,) = abstract_names(ranks[0].pid)
        for _ in range(300):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.setblocking(False)
            held.append(sock)
            assert wait_until(lambda sock=sock: connects(sock, name))
        Event(tmp_path, "flooded").set()
        for out, err in finish(ranks):
            assert out == "sum 2.0\n", err
            assert err.count("wait") < 12, err
    finally:
        for sock in held:
            sock.close()
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
                rank.communicate()


def connects(sock: socket.socket, name: str) -> bool:
    """Whether there was room for it in the kernel's queue."""
    with contextlib.suppress(BlockingIOError):
        sock.connect("\0" + name)
        return True
    return False


def abstract_names(pid: int) -> set[str]:
    """Names of Ringleader's abstract sockets that a process listens at."""
    folder, own = f"/proc/{pid}/fd", set()
    for fd in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            own.add(os.readlink(f"{folder}/{fd}"))
    with open("/proc/net/unix") as file:
        rows = [line.split() for line in file]
    return {row[7][1:] for row in rows if row[-1].startswith("@ringleader-") and f"socket:[{row[6]}]" in own}
