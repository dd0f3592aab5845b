"""The UCX transport between processes: beside shared memory, killed peers, disagreement, and a machine without UCX."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from meeting_support import PROMPT, Event

import ringleader as rl

TLS = [
    pytest.param({"UCX_TLS": "tcp,self"}, id="tcp"),
    pytest.param({"UCX_TLS": "sm,self"}, id="sm"),
]


def _sums(rounds: int) -> Any:
    comm = rl.init(timeout=60)
    rng = np.random.default_rng(comm.rank)
    for count in (1, 1000, 300_001, 1_000_003)[:rounds]:
        x = rng.integers(-1000, 1000, count)
        everyone = comm.all_gather(x)
        assert np.array_equal(comm.all_reduce(x.copy()), everyone.reshape(comm.size, count).sum(axis=0))
    request = comm.isend(np.arange(5.0), (comm.rank + 1) % comm.size, tag=3)
    got = np.empty(5)
    comm.recv(got, (comm.rank - 1) % comm.size, tag=3)
    request.wait()
    counters = comm.counters()
    comm.close()
    return got.tolist(), counters["bytes_sent_net"], counters["bytes_received_net"]


@pytest.mark.ucx
@pytest.mark.parametrize("env", TLS)
def test_collectives_go_over_ucx_and_messages_beside_them(env: dict[str, str]) -> None:
    results = rl.spawn(_sums, 3, 4, transport="ucx", env=env, timeout=150)
    assert [got for got, _, _ in results] == [[0.0, 1.0, 2.0, 3.0, 4.0]] * 3
    assert sum(sent for _, sent, _ in results) == sum(received for _, _, received in results) > 10_000_000


@pytest.mark.ucx
def test_net_setting_replaces_only_the_network_half() -> None:
    results = rl.spawn(_sums, 2, 3, env={"RINGLEADER_NET": "ucx"}, timeout=150)
    assert [sent for _, sent, _ in results] == [0, 0]  # one host: shared memory
    env = {"RINGLEADER_NET": "ucx", "RINGLEADER_SHM_DISABLE": "1", "UCX_TLS": "tcp,self"}
    results = rl.spawn(_sums, 2, 3, env=env, timeout=150)
    assert all(sent > 1_000_000 for _, sent, _ in results)


def _loop_until_loss(victim: int) -> Any:
    comm = rl.init(timeout=60)
    x = np.ones(1 << 20, np.float32)
    comm.all_reduce(x, "max")
    started = time.monotonic()
    try:
        while True:
            comm.all_reduce(x, "max")
            if comm.rank == victim and time.monotonic() - started > 0.2:
                os.kill(os.getpid(), signal.SIGKILL)
    except rl.errors.RingleaderError as error:
        kind, text, ranks = type(error).__name__, str(error), list(error.ranks)
    smaller = comm.shrink(timeout=20)
    total = smaller.all_reduce(np.ones(3)).tolist()
    smaller.close()
    comm.close()
    return kind, text, ranks, total


@pytest.mark.ucx
@pytest.mark.parametrize("env", TLS)
def test_survivors_of_a_killed_rank_name_it_and_go_on(env: dict[str, str]) -> None:
    with rl.WorkerGroup(3, transport="ucx", env=env) as workers:
        outcomes = workers.outcomes(_loop_until_loss, 1, timeout=150, grace=40)
    for outcome in (outcomes[0], outcomes[2]):
        assert not outcome.failed, outcome.error
        kind, text, ranks, total = outcome.value
        assert kind in ("PeerLost", "AbortedError"), text
        assert "rank 1" in text and 1 in ranks
        assert total == [2.0] * 3


def _disagree() -> str:
    comm = rl.init(timeout=60)
    try:
        comm.all_reduce(np.ones(4 + comm.rank, np.float32))
    except rl.errors.RingleaderError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


@pytest.mark.ucx
@pytest.mark.parametrize("env", TLS)
def test_disagreement_shows_both_sides(env: dict[str, str]) -> None:
    texts = rl.spawn(_disagree, 2, transport="ucx", env=env, timeout=150)
    assert any(text.startswith("MismatchError") for text in texts), texts
    for text in texts:  # the abort of the one who sees it first may be the other's error
        assert text.startswith(("MismatchError", "AbortedError")), texts
        assert "(4,)" in text and "(5,)" in text, texts


def _one_late(folder: str) -> bool:
    """Rank 0 sends and goes away from the library until the others have all; they must not wait for it."""
    comm = rl.init(timeout=60)
    have = [Event(folder, rank) for rank in range(comm.size)]
    x = np.full(200_000, float(comm.rank))
    comm.barrier()
    comm.broadcast(x, root=0)
    have[comm.rank].set()
    in_time = all(event.wait() for event in have) if comm.rank == 0 else True
    comm.barrier()
    comm.close()
    assert x[0] == 0.0
    return in_time


@pytest.mark.ucx
@pytest.mark.parametrize("env", TLS)
def test_a_completed_operation_needs_nothing_more_from_the_sender(env: dict[str, str], tmp_path: Path) -> None:
    assert rl.spawn(_one_late, 3, str(tmp_path), transport="ucx", env=env, timeout=150) == [True] * 3


def _encoded() -> list[bytes]:
    """Results of every wire format: small, many fragments, chunks that no block divides."""
    comm = rl.init(timeout=60)
    rng = np.random.default_rng(comm.rank)
    results = []
    for wire in ("bf16", "f16", "int8", "onebit"):
        for count in (1, 5003, 1_500_001):
            x = rng.standard_normal(count).astype(np.float32)
            results.append(comm.all_reduce(x, wire=wire, algorithm="ring").tobytes())
            results.append(comm.reduce_scatter(np.repeat(x[:5000], comm.size), wire=wire).tobytes())
    sent = comm.counters()["bytes_sent_net"]
    comm.close()
    return [*results, sent.to_bytes(8, "little")]


@pytest.fixture(scope="module")
def over_tcp() -> list[list[bytes]]:
    return rl.spawn(_encoded, 3, transport="tcp", timeout=150)


@pytest.mark.ucx
@pytest.mark.parametrize("env", TLS)
def test_wire_formats_give_the_bits_of_tcp(env: dict[str, str], over_tcp: list[list[bytes]]) -> None:
    over_ucx = rl.spawn(_encoded, 3, transport="ucx", env=env, timeout=150)
    assert over_ucx == over_tcp  # the bytes sent too
    assert over_ucx[0][0] == over_ucx[1][0]


def _wait_for_late(folder: str) -> Any:
    comm = rl.init(timeout=60)
    gave_up = {rank: Event(folder, rank) for rank in (0, 2)}
    comm.barrier()
    if comm.rank == 1:
        assert all(event.wait() for event in gave_up.values())
    started = time.monotonic()
    try:
        comm.all_reduce(np.ones(300_000), timeout=1.0)
    except rl.errors.RingleaderError as error:
        return type(error).__name__, str(error), time.monotonic() - started
    finally:
        if comm.rank in gave_up:
            gave_up[comm.rank].set()
    return "no error"


@pytest.mark.ucx
@pytest.mark.parametrize("env", TLS)
def test_a_late_rank_is_named_when_the_time_is_up(env: dict[str, str], tmp_path: Path) -> None:
    outcomes = rl.spawn(_wait_for_late, 3, str(tmp_path), transport="ucx", env=env, timeout=150)
    for kind, text, elapsed in (outcomes[0], outcomes[2]):
        assert kind in ("CollectiveTimeout", "AbortedError"), text
        assert "rank 1" in text and "all_reduce" in text
        assert elapsed < PROMPT
    assert max(elapsed for *_, elapsed in (outcomes[0], outcomes[2])) > 0.9


def _error_of_init() -> str:
    try:
        rl.init(start_timeout=20)
    except rl.errors.InvalidArgument as error:
        return str(error)
    return "no error"


def test_without_the_library_every_rank_learns_what_to_do() -> None:
    env = {"RINGLEADER_UCX_LIBRARY": "/nonexistent/libucp.so.0"}
    for text in rl.spawn(_error_of_init, 2, transport="ucx", env=env, timeout=150):
        assert "/nonexistent/libucp.so.0: " in text
        assert "pip install libucx-cu12" in text and "RINGLEADER_UCX_LIBRARY" in text


def _init_with_own_net() -> str:
    rank = int(os.environ["RINGLEADER_RANK"])
    try:
        rl.init(start_timeout=20, shm_disable=True, net="ucx" if rank else "tcp")
    except rl.errors.InvalidArgument as error:
        return str(error)
    return "no error"


def test_ranks_that_disagree_about_the_network_are_told() -> None:
    for text in rl.spawn(_init_with_own_net, 2, timeout=150):
        assert "RINGLEADER_NET" in text and "uses tcp" in text and "uses ucx" in text
