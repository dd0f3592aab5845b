"""The store's server and the handshake under hostile traffic: the server lives, memory is flat, ranks are served.

The state machine is driven in this process over socket pairs, so that every event is one of a seed; a smaller part goes
over real sockets, with the listener and its limits. What genuine clients see is compared with a plain dictionary.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import random
import resource
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from meeting_support import PROMPT, wait_until

from ringleader.errors import RendezvousError
from ringleader.runtime import storeserver
from ringleader.runtime.handshake import Busy, Conversation, Hello, Purpose, accepting, converse, initiating
from ringleader.runtime.storeserver import (
    ADD,
    BAD,
    DELETE,
    FULL,
    GET,
    GROUP,
    INT,
    LENGTH,
    MISSING,
    OK,
    REQUEST,
    SET,
    TRY,
    StoreEngine,
    TcpStoreServer,
    Values,
)
from ringleader.runtime.tcpstore import TcpStoreClient

SECRET = b"0123456789abcdef"
LONG = bool(os.environ.get("RINGLEADER_LONG_TESTS"))
HELLO = Hello(Purpose.STORE, GROUP, 3).pack(bytes(32))


def frame(operation: int, key: bytes, argument: bytes = b"") -> bytes:
    body = REQUEST.pack(operation, len(key)) + key + argument
    return LENGTH.pack(len(body)) + body


def resident() -> int:
    """Bytes of memory that this process has."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


# ------------------------------------------------------------------------------------------- the state machine, by seed


class Party:
    """The other end of a connection to the engine."""

    def __init__(self, engine: StoreEngine, source: str) -> None:
        self.sock, theirs = socket.socketpair()
        self.sock.setblocking(False)
        engine.make_room()
        engine.admit(theirs, source)
        self.identified = False

    def say(self, data: bytes) -> bool:
        """Whether the engine still listens; what does not fit is not said."""
        try:
            self.sock.send(data)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True

    def hear(self) -> bytes | None:
        """What there is to read; None after the end."""
        try:
            return self.sock.recv(1 << 20) or None
        except BlockingIOError:
            return b""
        except OSError:
            return None

    def identify(self, engine: StoreEngine) -> None:
        steps = initiating(SECRET, Hello(Purpose.STORE, GROUP, 3), -1)
        conversation = Conversation(self.sock, steps, float("inf"))
        for _ in range(10):
            if conversation.advance():
                self.identified = True
                return
            engine.turn(0)
        raise AssertionError("the engine did not answer a genuine client")


class Genuine(Party):
    """A rank: its requests are right, and its answers are compared with a dictionary's."""

    def __init__(self, engine: StoreEngine, name: str, model: dict[str, bytes]) -> None:
        super().__init__(engine, "genuine")
        self.identify(engine)
        self.name, self.model = name, model

    def ask(self, engine: StoreEngine, operation: int, key: str, argument: bytes = b"") -> tuple[int, bytes]:
        assert self.say(frame(operation, key.encode(), argument))
        data = bytearray()
        for _ in range(1000):
            engine.turn(0)
            part = self.hear()
            assert part is not None, "a genuine client was dropped"
            data += part
            if len(data) >= 4 and len(data) == 4 + LENGTH.unpack_from(data)[0]:
                return data[4], bytes(data[5:])
        raise AssertionError("a genuine client got no answer")

    def use(self, engine: StoreEngine, chance: random.Random) -> None:
        key = f"{self.name}/{chance.randrange(5)}"
        event = chance.randrange(4)
        if event == 0:
            value = chance.randbytes(chance.choice((0, 8, 8, 100, 70_000)))
            assert self.ask(engine, SET, key, value) == (OK, b"")
            self.model[key] = value
        elif event == 1:
            want = (MISSING, b"") if key not in self.model else (OK, self.model[key])
            assert self.ask(engine, TRY, key) == want
        elif event == 2:
            assert self.ask(engine, DELETE, key) == (OK, b"")
            self.model.pop(key, None)
        else:
            old = self.model.get(key, bytes(8))
            amount = chance.choice((1, -1, 2**63 - 1, -(2**63), chance.randrange(-(2**40), 2**40)))
            status, answer = self.ask(engine, ADD, key, INT.pack(amount))
            if len(old) != 8:
                assert (status, answer) == (BAD, b"does not hold an integer")
            elif not -(2**63) <= INT.unpack(old)[0] + amount < 2**63:
                assert status == BAD and b"64 bits" in answer
            else:
                self.model[key] = INT.pack(INT.unpack(old)[0] + amount)
                assert (status, answer) == (OK, self.model[key])


def nonsense(chance: random.Random) -> bytes:
    """What a member must not send, or a stranger may."""
    key = chance.randbytes(chance.randrange(6))
    good = frame(chance.randrange(0, 8), key, chance.randbytes(chance.choice((0, 1, 8, 40))))
    kind = chance.randrange(8)
    if kind == 0:
        return chance.randbytes(chance.randrange(1, 200))
    if kind == 1:  # a length that is none
        return struct.pack("!I", chance.choice((0, 1, 2, 2**31, 2**32 - 1, 17 << 20))) + chance.randbytes(20)
    if kind == 2:  # a key longer than its frame
        return LENGTH.pack(10) + REQUEST.pack(chance.randrange(1, 6), 60_000) + chance.randbytes(7)
    if kind == 3:  # a whole frame but for its end
        return good[: chance.randrange(len(good))]
    if kind == 4:  # two requests at once, the first of which may wait
        return frame(GET, b"never") + good
    if kind == 5:  # a sum that leaves 64 bits
        return frame(ADD, b"sum", INT.pack(2**63 - 1)) * 2
    if kind == 6:
        return HELLO[: chance.randrange(1, len(HELLO))] if chance.random() < 0.5 else HELLO
    broken = bytearray(good)
    broken[chance.randrange(len(broken))] ^= 1 << chance.randrange(8)
    return bytes(broken)


def check_tables(engine: StoreEngine) -> None:
    """The invariants of the engine's tables, whatever has happened."""
    connections = engine._connections
    assert all(c.open and c.sock.fileno() >= 0 for c in connections)
    assert {c for c in connections if c.handshake is not None} == set(engine._lobby._stays)
    assert engine._lobby.strangers <= engine._lobby.room
    parked = {(key, c) for key, waiting in engine._waiting.items() for c in waiting}
    assert parked == {(c.parked, c) for c in connections if c.parked is not None}
    assert all(engine._waiting.values())
    assert {k.data for k in engine._selector.get_map().values()} == connections
    values = engine._values
    assert values.used == sum(storeserver._cost(k, v) for k, v in values._values.items())


def hostile_round(
    engine: StoreEngine, parties: list[Party], chance: random.Random, genuine: list[Genuine], most: int
) -> None:
    """One event."""
    event = chance.random()
    if not parties or event < 0.25:
        if engine.make_room():
            parties.append(Party(engine, chance.choice(("flood", "flood", "scanner"))))
            if chance.random() < 0.2:
                parties[-1].identify(engine)
    elif event < 0.6:
        party = chance.choice(parties)
        if not party.say(nonsense(chance)):
            party.sock.close()
            parties.remove(party)
    elif event < 0.7:
        chance.choice(genuine).use(engine, chance)
    elif event < 0.85:
        engine.turn(0)
    else:
        party = parties.pop(chance.randrange(len(parties)))
        if chance.random() < 0.3:  # reset instead of an orderly end
            party.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        party.sock.close()
    while len(parties) > most:
        parties.pop(0).sock.close()


EVENTS = 4_000_000 if LONG else 100_000


@pytest.fixture
def quick_graces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strangers give way at once: events of the seed, not the clock, decide who is there."""
    monkeypatch.setattr("ringleader.runtime.lobby.GRACE", 0.0)


def test_a_hundred_thousand_hostile_events(quick_graces: None) -> None:
    chance = random.Random(10)
    engine = StoreEngine(SECRET, room=24)
    model: dict[str, bytes] = {}
    genuine = [Genuine(engine, f"rank{i}", model) for i in range(3)]
    parties: list[Party] = []
    settled = 0
    for i in range(EVENTS):
        hostile_round(engine, parties, chance, genuine, most=60)
        if i % 1000 == 0:
            engine.turn(0)
            check_tables(engine)
        if i == EVENTS // 4:
            gc.collect()
            settled = resident()
    for party in parties:
        party.sock.close()
    for _ in range(5):
        engine.turn(0)
    check_tables(engine)
    assert len(engine._connections) == len(genuine) and engine._waiting == {}
    for rank in genuine:
        for key, value in model.items():
            if key.startswith(rank.name):
                assert rank.ask(engine, TRY, key) == (OK, value)
    gc.collect()
    grown = resident() - settled
    assert grown < 8 << 20, f"{grown >> 10} KiB more after {EVENTS} events than after a quarter of them"
    engine.close()
    for rank in genuine:
        rank.sock.close()


@pytest.mark.parametrize("count", range(len(HELLO) + 40))
def test_closed_at_every_byte_of_the_handshake(count: int) -> None:
    """And nothing of it stays."""
    engine = StoreEngine(SECRET)
    party = Party(engine, "stranger")
    party.say((HELLO + bytes(40))[:count])
    engine.turn(0)
    party.sock.close()
    engine.turn(0)
    assert not engine._connections and not len(engine._lobby)
    engine.close()


def test_closed_at_every_byte_of_every_request() -> None:
    engine = StoreEngine(SECRET)
    witness = Genuine(engine, "witness", {})
    requests = [
        frame(SET, b"k", b"value"), frame(GET, b"missing"), frame(GET, b"k"), frame(TRY, b"k"),
        frame(ADD, b"n", INT.pack(1)), frame(DELETE, b"k"),
    ]  # fmt: skip
    for request in requests:
        for count in range(len(request) + 1):
            party = Party(engine, "member")
            party.identify(engine)
            party.say(request[:count])
            engine.turn(0)
            party.sock.close()
            engine.turn(0)
            assert len(engine._connections) == 1 and not engine._waiting
    assert witness.ask(engine, TRY, "n") == (OK, INT.pack(1))
    engine.close()
    witness.sock.close()


def test_one_that_is_dropped_while_it_is_ready_is_not_touched_again(quick_graces: None) -> None:
    """The table is full and all in it are ready: for each newcomer one of them goes, in the same turn."""
    engine = StoreEngine(SECRET, room=8)
    for _ in range(50):
        strangers = [Party(engine, "flood") for _ in range(8)]
        listener, caller = socket.socketpair()
        newcomers: list[Party] = []

        def accept(listener: socket.socket = listener, newcomers: list[Party] = newcomers) -> None:
            listener.recv(100)
            newcomers.extend(Party(engine, "flood") for _ in range(8))

        engine.register(listener, accept)
        for party in strangers:
            party.sock.close()
        caller.send(b"x")
        engine.turn(0)
        engine.unregister(listener)
        for sock in (listener, caller, *(party.sock for party in newcomers)):
            sock.close()
        engine.turn(0)
        assert not engine._connections
    engine.close()


def test_the_bound_of_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    values = Values(limit=10_000)
    assert values.set("a", bytes(9000)) is None
    refusal = values.set("b", bytes(5000))
    assert refusal is not None and "5000 bytes for key 'b' do not fit" in refusal
    assert values.get("b") is None and values.get("a") == bytes(9000)
    assert values.set("a", bytes(10)) is None and values.set("b", bytes(5000)) is None  # replaced and freed
    values.delete("a")
    values.delete("b")
    values.delete("never there")
    assert values.used == 0
    keys = 0
    while values.set(f"k{keys}", b"") is None:
        keys += 1
    assert keys <= 10_000 // 256  # a key costs, however short

    monkeypatch.setattr(storeserver.Values.__init__, "__defaults__", (1 << 20,))
    server = TcpStoreServer([("127.0.0.1", 0)], SECRET)
    client = TcpStoreClient(["127.0.0.1"], server.port, SECRET, 5)
    client.set("small", b"1")
    with pytest.raises(RendezvousError, match=r"the store at .* is full: it holds 1 keys .* key 'large' do not fit"):
        client.set("large", bytes(2 << 20))
    with pytest.raises(ValueError, match="64 bits"):
        client.add("n", 2**63)
    assert client.add("n", 2**63 - 1) == 2**63 - 1
    with pytest.raises(ValueError, match="would not fit into 64 bits"):
        client.add("n", 1)
    assert client.get("small", 1) == b"1"
    client.close()
    server.close()
    assert FULL != BAD


# ----------------------------------------------------------------------------------------------------- real sockets


@pytest.fixture
def server() -> Iterator[TcpStoreServer]:
    made = TcpStoreServer([("127.0.0.1", 0)], SECRET)
    yield made
    made.close()


FLOOD = """
import os, random, socket, struct, sys, time
port, seconds, kind = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
hello = bytes.fromhex(sys.argv[4])
chance, held, made = random.Random(1), [], 0
print("flooding", flush=True)
ends = time.monotonic() + seconds
while time.monotonic() < ends:
    sock = socket.socket()
    sock.settimeout(1)
    try:
        sock.connect(("127.0.0.1", port))
        made += 1
        which = chance.randrange(5) if kind == "mixed" else ("leave", "silent", "hello", "garbage", "reset").index(kind)
        if which == 2:
            sock.sendall(hello)
        elif which == 3:
            sock.sendall(os.urandom(200))
        elif which == 4:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if which in (1, 2):
            held.append(sock)
            if len(held) > 600:
                held.pop(0).close()
        else:
            sock.close()
    except OSError:
        sock.close()
print(made, flush=True)
"""


@pytest.mark.parametrize("kind", ["leave", "silent", "hello", "mixed"])
def test_ranks_get_in_during_a_flood(server: TcpStoreServer, kind: str) -> None:
    command = [sys.executable, "-c", FLOOD, str(server.port), "60", kind, HELLO.hex()]
    flood = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert flood.stdout is not None and flood.stdout.readline() == "flooding\n"
        assert wait_until(lambda: len(server._engine._connections) > 20 or kind == "leave")
        for round_ in range(10):
            client = TcpStoreClient(["127.0.0.1"], server.port, SECRET, PROMPT, rank=round_)
            assert client.add("n", 1) == round_ + 1
            client.close()
    finally:
        flood.kill()
        flood.wait()
        assert flood.stdout is not None
        flood.stdout.close()
    assert server._thread.is_alive()
    assert server._engine._lobby.strangers <= server._engine._lobby.room


def test_who_is_in_mid_handshake_keeps_its_place(server: TcpStoreServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its proof comes late, after a flood that has filled the table many times over."""
    monkeypatch.setattr(storeserver, "STRANGER_LIMIT", 2 * PROMPT)  # the flood may take long on a busy machine
    slow = socket.create_connection(("127.0.0.1", server.port))
    steps = initiating(SECRET, Hello(Purpose.STORE, GROUP, 1), -1)
    slow.sendall(next(steps))  # no more: the challenge may have come by now, and is not answered yet
    assert wait_until(lambda: server._engine._lobby._believed == 1)
    room = server._engine._lobby.room
    held = []
    for _ in range(3 * room):
        sock = socket.socket()
        sock.setblocking(False)
        assert sock.connect_ex(("127.0.0.1", server.port)) in (0, errno.EINPROGRESS)
        held.append(sock)
    assert wait_until(lambda: server._engine._lobby.strangers == room)
    assert converse(slow, steps, time.monotonic() + PROMPT) is None
    for sock in (slow, *held):
        sock.close()


def test_who_has_to_give_way_is_told_so() -> None:
    engine = StoreEngine(SECRET, room=1)
    for begun in (False, True):
        party = Party(engine, "rank")
        steps = initiating(lambda _: SECRET, Hello(Purpose.STORE, GROUP, 1), -1)  # not believed yet
        conversation = Conversation(party.sock, steps, float("inf"))
        if begun:
            conversation.advance()
            engine.turn(0)
        (victim,) = engine._connections
        assert (victim.handshake.heard > 0) is begun
        stay = engine._lobby._stays[victim]
        stay.since -= 100.0
        assert engine.make_room() and not engine._connections
        with pytest.raises(Busy, match="too many connections"):
            for _ in range(3):
                conversation.advance()
        party.sock.close()
    engine.close()


def test_a_lack_of_descriptors_is_survived_without_spinning() -> None:
    program = """
import os, resource, socket, sys, threading, time
from ringleader.runtime.storeserver import TcpStoreServer
from ringleader.runtime.tcpstore import TcpStoreClient
secret = b"0123456789abcdef"
server = TcpStoreServer([("127.0.0.1", 0)], secret)
client = TcpStoreClient(["127.0.0.1"], server.port, secret, 5)
held = []
try:
    while True:
        held.append(os.dup(0))
except OSError:
    pass
os.close(held.pop())
late = socket.socket()
late.connect(("127.0.0.1", server.port))  # waits in the kernel's queue
began = time.process_time()
for i in range(50):
    assert client.add("n", 1) == i + 1
    time.sleep(0.02)
spent = time.process_time() - began
for fd in held:
    os.close(fd)
fresh = TcpStoreClient(["127.0.0.1"], server.port, secret, 20)
assert fresh.add("n", 0) == 50
print(spent)
"""
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))\n{program}"
    done = subprocess.run([sys.executable, "-c", limited], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 0.7, "the server spins while it has no descriptor"
    assert done.stderr.count("new connections wait") <= 5


def test_the_acceptor_never_fails_otherwise_than_by_its_own_errors() -> None:
    """Random words at every place of the handshake: refused, or an end, never an exception of another kind."""
    chance = random.Random(4)
    for _ in range(3000 if not LONG else 100_000):
        a, b = socket.socketpair()
        with a, b:
            a.setblocking(False)
            acceptor = Conversation(b, accepting(SECRET, GROUP, -1, lambda hello: True), float("inf"))
            try:
                for _ in range(4):
                    word = bytearray(HELLO if chance.random() < 0.7 else chance.randbytes(chance.randrange(1, 120)))
                    if chance.random() < 0.5:
                        word[chance.randrange(len(word))] ^= 1 << chance.randrange(8)
                    a.send(word)
                    assert not acceptor.advance()
            except (RendezvousError, EOFError, OSError):
                pass


def test_a_refused_flood_writes_few_lines(server: TcpStoreServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING"):
        for _ in range(300):
            with socket.create_connection(("127.0.0.1", server.port)) as sock:
                sock.sendall(b"GET / HTTP/1.1\r\n".ljust(len(HELLO)))
                sock.settimeout(PROMPT)
                with contextlib.suppress(ConnectionResetError):
                    assert sock.recv(1) == b""
    assert 1 <= len([r for r in caplog.records if "refused a connection" in r.getMessage()]) <= 12
    assert threading.active_count() < 50
