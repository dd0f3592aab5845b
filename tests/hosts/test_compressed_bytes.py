"""What compressed all-reduces send: by the engine's counters, by ``tc -s`` on the link, and by the formulas."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from .conftest import Hosts, outputs

FRAME_HEADERS = 14 + 20 + 32  # Ethernet, IPv4, TCP with time stamps
CALLS = 5
SIDE = 1000

REDUCE = """
import json, subprocess
import numpy as np, ringleader as rl
from ringleader.compress import ErrorFeedback, Int8, OneBit, PowerSGD, TopK

def link():
    said = subprocess.run(["tc", "-s", "-j", "qdisc", "show", "dev", "eth0"], capture_output=True, check=True).stdout
    return np.array([json.loads(said)[0][name] for name in ("bytes", "packets")])

ways = {"none": None, "int8": ErrorFeedback(Int8()), "onebit": ErrorFeedback(OneBit()),
        "topk": ErrorFeedback(TopK(ratio=0.01)), "powersgd": ErrorFeedback(PowerSGD(rank=4))}
found = {}
with rl.init() as comm:
    random = np.random.default_rng(comm.rank)
    for name, how in ways.items():
        comm.all_reduce(random.standard_normal((side, side), np.float32), "avg", compression=how)
        comm.barrier()
        before, counted = link(), comm.counters()["bytes_sent_net"]
        comm.barrier()
        for _ in range(calls):
            comm.all_reduce(random.standard_normal((side, side), np.float32), "avg", compression=how)
        comm.barrier()
        found[name] = [*(link() - before).tolist(), comm.counters()["bytes_sent_net"] - counted]
        comm.barrier()
print(json.dumps(found))
"""


def test_counters_agree_with_the_link_and_the_formulas(hosts: Hosts) -> None:
    if not shutil.which("tc"):
        pytest.skip("needs tc (iproute2)")
    for host in range(hosts.count):
        limits = ["rate", "2gbit", "burst", "1mb", "latency", "20ms"]
        command = ["tc", "-n", hosts.name(host), "qdisc", "replace", "dev", "eth0", "root", "tbf", *limits]
        if subprocess.run(command, capture_output=True, timeout=20).returncode:
            pytest.skip("the kernel has no tbf")
    results = outputs(hosts.start_job(f"calls, side = {CALLS}, {SIDE}\n{REDUCE}", [1, 1]))
    sent: dict[str, list[float]] = {}
    for code, out, err in results:
        assert code == 0, err
        for name, (nbytes, packets, counted) in json.loads(out).items():
            payload = nbytes - FRAME_HEADERS * packets
            assert payload == pytest.approx(counted, rel=0.03), name
            sent.setdefault(name, []).append(counted / CALLS)
    elements = SIDE * SIDE
    # 2 (n - 1) / n = 1: with two ranks each sends what it has once.
    for rank in range(2):
        plain = sent["none"][rank]
        assert plain == pytest.approx(4 * elements, rel=0.01)
        assert plain / sent["int8"][rank] > 3.9
        assert plain / sent["onebit"][rank] > 30
        assert plain / sent["topk"][rank] > 45
        # Each message has a header; there are few.
        assert 4 * 4 * 2 * SIDE <= sent["powersgd"][rank] < 4 * 4 * 2 * SIDE + 2000
