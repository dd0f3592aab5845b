"""Hosts of several ranks: what is chosen by itself sends little between them, in every format, with equal bits."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from .conftest import Hosts, outputs

SCRIPT = """
import hashlib, json, numpy as np, ringleader as rl

def digest(x):
    return hashlib.sha256(np.ascontiguousarray(x).tobytes()).hexdigest()

with rl.init(timeout=60) as comm:
    seen = []
    for size in (1000, 50_000, 400_000):
        mine = np.random.default_rng([comm.rank, size]).standard_normal(size, np.float32)
        want = sum(np.random.default_rng([r, size]).standard_normal(size, np.float32).astype(float)
                   for r in range(comm.size))
        for algorithm, wire in ((None, "f32"), ("ring", "f32"), (None, "int8")):
            x = mine.copy()
            before = comm.counters()["bytes_sent_net"]
            comm.all_reduce(x, algorithm=algorithm, wire=wire)
            sent = comm.counters()["bytes_sent_net"] - before
            error = float(np.abs(x - want).max())
            seen.append([size * 4, comm.last_choice.algorithm, wire, sent, error, digest(x)])
    print(json.dumps({"nodes": comm.nodes, "seen": seen}))
"""


@pytest.mark.parametrize("each", [(3, 3), (3, 2)])
def test_the_built_in_choice_crosses_the_network_least_often(hosts: Hosts, each: tuple[int, ...]) -> None:
    ranks = []
    for code, out, err in outputs(hosts.start_job(SCRIPT, each)):
        assert code == 0, err
        ranks.append(json.loads(out))
    assert ranks[0]["nodes"] == [0] * each[0] + [1] * each[1]
    for point in range(9):
        nbytes, algorithm, wire, *_ = ranks[0]["seen"][point]
        assert len({rank["seen"][point][5] for rank in ranks}) == 1  # all ranks hold the same bits
        assert max(rank["seen"][point][4] for rank in ranks) < (1e-3 if wire == "f32" else 0.5)
        by_rank = [rank["seen"][point][3] for rank in ranks]
        sent = sum(by_rank[: each[0]]), sum(by_rank[each[0] :])
        if algorithm == "ring":
            assert max(sent) > 1.5 * nbytes
            continue
        assert algorithm.partition(":")[0] in ("hierarchical", "hierarchical_leader")
        share = 1.0 if wire == "f32" else 0.27
        assert max(sent) < 1.01 * share * nbytes + 2000  # and the heads of the messages


WAITING = """
import time, numpy as np, ringleader as rl
with rl.init(timeout=60) as comm:
    x = np.full(1 << 20, comm.rank, np.float32)
    comm.all_reduce(x, "max")  # after it the speed of the line is known
    before, started = time.process_time(), time.perf_counter()
    for _ in range(6):
        comm.all_reduce(x, "max")
    print((time.process_time() - before) / (time.perf_counter() - started), x.min())
"""


@pytest.mark.skipif(shutil.which("tc") is None, reason="tc (iproute2) is needed to slow a line down")
def test_waiting_for_a_slow_line_leaves_the_core_to_others_also_beside_ranks_of_the_same_host(hosts: Hosts) -> None:
    for host in range(2):
        limits = ["root", "tbf", "rate", "200mbit", "burst", "50000", "latency", "50ms"]
        command = ["tc", "-n", hosts.name(host), "qdisc", "replace", "dev", "eth0", *limits]
        subprocess.run(command, check=True, capture_output=True, timeout=20)

    def share(env: dict[str, str]) -> float:
        """Of the core that a rank takes: the largest."""
        shares = []
        for code, out, err in outputs(hosts.start_job(WAITING, (2, 2), env)):
            assert code == 0, err
            taken, least = map(float, out.split())
            assert least == 3
            shares.append(taken)
        return max(shares)

    # What the system takes for the packets themselves is in both, and differs much from machine to machine. Where ranks
    # spin and yield between packets, they take five times what they take asleep.
    always_asleep = share({"RINGLEADER_SPIN_US": "0", "RINGLEADER_YIELD_US": "0"})
    assert share({}) < 2 * always_asleep + 0.04
