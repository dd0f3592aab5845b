"""Forming groups: ranks as threads over a local store, with real sockets between them.

The native communicator is replaced by a recorder here, because these tests look at what it would be given; with the
real one groups are formed in test_bootstrap_processes.py.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from meeting_support import PROMPT, wait_until

from ringleader.errors import CollectiveTimeout, InvalidArgument, OutOfMemory, RendezvousError, RingleaderError
from ringleader.runtime import bootstrap, links
from ringleader.runtime.addresses import interfaces
from ringleader.runtime.bootstrap import Card, connect_group, node_ids
from ringleader.runtime.config import Config
from ringleader.runtime.handshake import AuthenticationError
from ringleader.runtime.store import LocalStore

SECRET = b"0123456789abcdef"
TCP = Config(transport="tcp")
IPV6 = any(a.ip == "::1" for i in interfaces() for a in i.addresses)


class Recorder:
    """Takes the place of the native communicator: keeps what `connect` is given."""

    def __init__(self, rank: int, local_ranks: int) -> None:  # of this host, with or without shared memory
        self.rank, self.local_ranks, self.closed = rank, local_ranks, False
        self.sockets: list[list[socket.socket]] = []

    def control_offset(self) -> int:
        return 4096 * (self.rank + 1)

    def connect(self, nodes, peers, control_offsets, sockets, names) -> None:
        self.nodes, self.peers, self.offsets, self.names = nodes, peers, control_offsets, names
        self.sockets = [[socket.socket(fileno=fd) for fd in row] for row in sockets]

    def close(self, timeout: float = 2.0) -> None:
        self.closed = True
        for row in self.sockets:
            for sock in row:
                sock.close()


def form(n, *, configs=None, timeout=20.0, delays=None, secrets=None, factory=None, group="g", store=None):
    """What each rank gets: a `Connected`, or the error."""
    store = store or LocalStore()

    def rank_body(rank):
        time.sleep((delays or {}).get(rank, 0))
        try:
            return connect_group(
                store,
                rank,
                n,
                group_id=group,
                secret=(secrets or {}).get(rank, SECRET),
                config=(configs or {}).get(rank, TCP),
                timeout=timeout,
                native_comm_factory=lambda here: (factory or Recorder)(rank, len(here.ranks)),
            )
        except RingleaderError as error:
            return error

    with ThreadPoolExecutor(n) as pool:
        return list(pool.map(rank_body, range(n)))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def card(rank: int, **changes: object) -> Card:
    return replace(Card(rank, "h", 1, "host-a", "net", True, "auto", 2, f"{rank:032x}"), **changes)


# --------------------------------------------------------------------------------------------------------- the layout


@pytest.mark.parametrize(
    ("hosts", "shm", "nodes"),
    [
        ("aaaa", "1111", [0, 0, 0, 0]),
        ("abab", "1111", [0, 1, 0, 1]),
        ("aabb", "1011", [0, 1, 2, 2]),
        ("aaa", "000", [0, 1, 2]),
        ("baa", "111", [0, 1, 1]),
    ],
)
def test_nodes_follow_from_the_cards_alone(hosts, shm, nodes):
    cards = [card(r, host=h, shm=s == "1") for r, (h, s) in enumerate(zip(hosts, shm, strict=True))]
    assert node_ids(cards) == nodes


def speakers(cards, rank):
    return bootstrap._Plan(cards, node_ids(cards), rank).processes


def test_processes_that_have_met_need_no_new_connection():
    cards = [card(0), card(1), card(2)]
    a, b, c = (x.identity for x in cards)
    assert speakers(cards, 1) == {a: 0, c: 2}
    met = [replace(cards[0], known=(b, c)), replace(cards[1], known=(a,)), replace(cards[2], known=(a,))]
    assert speakers(met, 0) == {} and speakers(met, 1) == {c: 2} and speakers(met, 2) == {b: 1}
    # Only one side still holds the old connection: both must make a new one.
    half = [replace(met[0]), replace(cards[1]), met[2]]
    assert speakers(half, 0) == {b: 1} and speakers(half, 1)[a] == 0


def test_ranks_that_are_threads_share_their_process_connection():
    cards = [card(0, identity="aa"), card(1, identity="bb"), card(2, identity="aa"), card(3, identity="bb")]
    assert speakers(cards, 0) == {"bb": 1} and speakers(cards, 1) == {"aa": 0}
    assert speakers(cards, 2) == speakers(cards, 3) == {}


# ------------------------------------------------------------------------------------------------- network connections


@pytest.mark.parametrize("n", [2, 5])
def test_every_pair_gets_its_connections_in_order(n):
    configs = {r: replace(TCP, min_nchannels=3) for r in range(n)}
    configs[1] = replace(TCP, min_nchannels=3, max_nchannels=5)
    groups = form(n, configs=configs)
    assert [g.nodes for g in groups] == [list(range(n))] * n
    assert all(g.channels == 3 and g.core.local_ranks == n for g in groups)
    for rank, g in enumerate(groups):
        assert [len(row) for row in g.core.sockets] == [0 if peer == rank else 5 for peer in range(n)]
        assert g.core.offsets == [4096 * (r + 1) for r in range(n)]
        assert g.core.peers == [p if r == rank else None for r, p in enumerate(g.core.peers)]
        assert all(f"rank {r} (host " in name for r, name in enumerate(g.names))
        for peer, row in enumerate(g.core.sockets):
            for index, sock in enumerate(row):
                sock.sendall(f"{rank}>{peer}#{index}".encode())
    for rank, g in enumerate(groups):
        for peer, row in enumerate(g.core.sockets):
            for index, sock in enumerate(row):
                sock.settimeout(5)
                assert sock.recv(100).decode() == f"{peer}>{rank}#{index}"
        g.core.close()


def test_channels_are_the_lowest_of_all():
    groups = form(3, configs={0: TCP, 1: replace(TCP, max_nchannels=1), 2: replace(TCP, min_nchannels=4)})
    assert [g.channels for g in groups] == [1, 1, 1]
    for g in groups:
        g.core.close()


def test_ranks_of_one_process_share_memory_without_a_socket():
    before = descriptors()
    groups = form(3, configs={r: Config() for r in range(3)})
    assert [g.nodes for g in groups] == [[0, 0, 0]] * 3
    assert all(len({id(p) for p in g.core.peers}) == 1 and g.core.local_ranks == 3 for g in groups)
    assert all(row == [] for g in groups for row in g.core.sockets)
    assert descriptors() <= before + 1  # the arena, if this was its first use


def test_one_rank_needs_no_store():
    class NoStore:
        def __getattr__(self, name):
            raise AssertionError(f"{name} was used")

    (group,) = form(1, store=NoStore())
    assert (group.nodes, group.core.offsets, group.core.sockets) == ([0], [4096], [[]])


def test_the_store_is_left_clean():
    store = LocalStore()
    for g in form(4, store=store):
        g.core.close()
    assert store._values == {}


def test_nothing_leaks_on_success_or_failure():
    def out_of_memory(rank, local):
        if rank == 1:
            raise OutOfMemory("needed 5, free 3")
        return Recorder(rank, local)

    form(3)
    before, threads = descriptors(), threading.active_count()
    for i in range(5):
        for g in form(3, group=f"good{i}"):
            g.core.close()
        form(3, group=f"bad{i}", factory=out_of_memory)
        form(3, group=f"secret{i}", secrets={2: b"another secret.."})
    assert wait_until(lambda: descriptors() <= before and threading.active_count() <= threads), (
        descriptors() - before,
        threading.active_count() - threads,
    )


# ------------------------------------------------------------------------------------------------------------ failures


def test_a_late_rank_is_named_by_all():
    started = time.monotonic()
    results = form(4, timeout=1.5, delays={2: 2.5})
    elapsed = time.monotonic() - started
    assert all(isinstance(r, CollectiveTimeout) and r.ranks == (2,) for r in results), results
    for rank in (0, 1, 3):
        assert "rank 2 did not arrive at group 'g' within 1.5 s (have: 0, 1, 3)" in str(results[rank])
    assert elapsed < PROMPT  # the late one learns it from the store, it does not wait on
    assert all(not isinstance(g, RingleaderError) for g in form(4, timeout=20.0, delays={2: 0.5}, group="patient"))


def test_rank_0_is_late():
    results = form(3, timeout=0.5, delays={0: 1.2})
    assert all(isinstance(r, CollectiveTimeout) and 0 in r.ranks for r in results), results
    assert "rank 0 did not arrive" in str(results[1]) and "(have: 1, 2)" in str(results[2])


def test_the_failure_of_one_rank_is_raised_by_all_at_once():
    made: list[Recorder] = []

    def factory(rank, local):
        if rank == 2:
            raise OutOfMemory("a staging slot needs 5 bytes, 3 are free")
        made.append(Recorder(rank, local))
        return made[-1]

    started = time.monotonic()
    results = form(4, timeout=60.0, factory=factory)
    assert time.monotonic() - started < PROMPT
    assert isinstance(results[2], OutOfMemory)
    for rank in (0, 1, 3):
        assert "5 bytes, 3 are free" in str(results[rank]) and "reported by rank 2" in str(results[rank])
        assert results[rank].ranks == (2,)
    assert all(recorder.closed for recorder in made)


def test_a_wrong_secret_is_told_to_the_rank_that_has_it():
    results = form(3, timeout=30.0, secrets={2: b"another secret.."})
    assert isinstance(results[2], AuthenticationError) and "secret differs" in str(results[2])
    assert "RINGLEADER_SECRET" in str(results[2])
    assert all(isinstance(r, RendezvousError) for r in results)


def test_a_wrong_interface_is_an_error_everywhere():
    results = form(2, configs={0: TCP, 1: replace(TCP, socket_ifname="nope0")}, timeout=30.0)
    assert isinstance(results[1], InvalidArgument)
    for error in results:
        assert "RINGLEADER_SOCKET_IFNAME=nope0" in str(error) and "127.0.0.1" in str(error)


def test_shm_was_demanded_but_is_not_possible():
    results = form(3, configs={0: Config(transport="shm"), 1: TCP, 2: Config()}, timeout=30.0)
    for error in results:
        assert "RINGLEADER_TRANSPORT=shm" in str(error) and "rank 1 (host" in str(error)
    assert isinstance(results[0], InvalidArgument)


def test_slots_of_different_sizes_are_refused():
    # Ranks would look for each other's data in the wrong places.
    for config in (Config(), TCP):
        results = form(3, configs={0: config, 1: config, 2: replace(config, buffsize=128 << 10)})
        for error in results:
            assert isinstance(error, InvalidArgument)
            assert "RINGLEADER_BUFFSIZE" in str(error)
            assert "524288" in str(error) and "rank 2 (host" in str(error) and "131072" in str(error)


@pytest.mark.skipif(not IPV6, reason="no IPv6 here")
def test_families():
    four, six = replace(TCP, socket_family="AF_INET"), replace(TCP, socket_family="AF_INET6")
    for g in form(3, configs={0: six, 1: TCP, 2: six}):
        families = {sock.family for row in g.core.sockets for sock in row}
        assert socket.AF_INET6 in families
        g.core.close()
    results = form(2, configs={0: four, 1: six}, timeout=30.0, group="apart")
    for error in results:
        assert isinstance(error, RendezvousError)
        assert "no address family in common" in str(error) and "127.0.0.1" in str(error) and "::1" in str(error)


def test_unreachable_peer_is_an_error_with_both_sides(monkeypatch):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        real = bootstrap._targets

        def nowhere(plan, ends, peer, selection):
            return [
                links.Target(socket.AF_INET, ("127.0.0.1", port), f"127.0.0.1:{port}")
                for _ in real(plan, ends, peer, selection)
            ]

        monkeypatch.setattr(bootstrap, "_targets", nowhere)
        results = form(2, timeout=30.0)
    for error in results:
        assert re.search(rf"rank 1 cannot connect to rank 0 \(127.0.0.1:{port}: Connection refused", str(error))
        assert "this rank listens at lo (127.0.0.1" in str(error)


def test_the_next_candidate_is_tried(monkeypatch):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        dead = closed.getsockname()
        real = bootstrap._targets
        monkeypatch.setattr(bootstrap, "_targets", lambda *a: [links.Target(socket.AF_INET, dead, "dead"), *real(*a)])
        for g in form(3, timeout=30.0):
            g.core.close()


def test_strangers_at_the_listeners_do_not_disturb(monkeypatch):
    real = bootstrap._listen
    strangers: list[socket.socket] = []

    def listen_among_strangers(*args):
        unix, tcp, selection = real(*args)
        for _, listener in tcp:
            for payload in (b"", b"GET / HTTP/1.0\r\n\r\n", os.urandom(4000), b"RNGLEADR", b"RNGLEADR" + bytes(58)):
                sock = socket.create_connection(listener.getsockname()[:2])
                sock.sendall(payload)
                strangers.append(sock)
        return unix, tcp, selection

    monkeypatch.setattr(bootstrap, "_listen", listen_among_strangers)
    monkeypatch.setattr(links, "STRANGER_LIMIT", 60.0)
    started = time.monotonic()
    for g in form(3, timeout=90.0):
        assert not isinstance(g, RingleaderError), g
        g.core.close()
    assert time.monotonic() - started < PROMPT  # nobody waited for a stranger's limit
    for sock in strangers:
        sock.close()


def test_a_second_claim_of_a_rank_is_refused():
    """Two processes that believe to be rank 1: one of them joins, the other is told."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    where = listener.getsockname()
    target = links.Target(socket.AF_INET, where, "there")
    keys = {links.Key(1, links.Purpose.CONTROL), links.Key(2, links.Purpose.CONTROL)}
    common = {"secret": SECRET, "group": "g", "timeout": 60.0, "check": lambda: None, "advice": "none"}
    results: list[object] = []

    def refused():
        return [r for r in results if isinstance(r, AuthenticationError)]

    def claim(rank):
        if rank == 2:
            wait_until(refused)  # both claims of rank 1 have been looked at
        try:
            socks = links.establish([], set(), {links.Key(0, links.Purpose.CONTROL): [target]}, rank=rank, **common)
            results.append(next(iter(socks.values())))
        except RingleaderError as error:
            results.append(error)

    claims = [threading.Thread(target=claim, args=(rank,)) for rank in (1, 1, 2)]
    for thread in claims:
        thread.start()
    accepted = links.establish([listener], keys, {}, rank=0, **common)
    for thread in claims:
        thread.join()
    (error,) = refused()
    assert "another process running with the same rank" in str(error)
    assert set(accepted) == keys
    for sock in [listener, *accepted.values(), *(r for r in results if isinstance(r, socket.socket))]:
        sock.close()
