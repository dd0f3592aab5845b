"""Jobs over several hosts (network namespaces)."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from .conftest import Hosts, outputs

COLLECTIVES = """
import json, numpy as np, ringleader as rl
with rl.init() as comm:
    n, r = comm.size, comm.rank
    x = np.arange(100_003, dtype=np.float64) % 97 + r
    comm.all_reduce(x)
    want = sum(np.arange(100_003, dtype=np.float64) % 97 + q for q in range(n))
    gathered = comm.all_gather(np.array([r, r * r]))
    parts = comm.reduce_scatter(np.arange(n * 5.0) + r)
    message = np.zeros(70_000)
    works = [comm.isend(np.full(70_000, float(r)), (r + 1) % n), comm.irecv(message, (r - 1) % n)]
    for work in works:
        work.wait(30)
    comm.barrier()
    print(json.dumps({
        "rank": r, "nodes": comm.nodes, "sum": bool(np.array_equal(x, want)), "gathered": gathered[:, 1].tolist(),
        "part": parts.tolist(), "message": message[[0, -1]].tolist(), "net": comm.counters()["bytes_sent_net"],
    }))
"""

TRAIN = """
import os, sys, json, torch, torch.distributed as dist
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(3)
backend = sys.argv[1] if len(sys.argv) > 1 else "BACKEND"
dist.init_process_group(backend)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 3)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
generator = torch.Generator().manual_seed(dist.get_rank())
losses = []
for step in range(12):
    x = torch.randn(16, 20, generator=generator)
    loss = nn.functional.mse_loss(model(x), x[:, :3].sin())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(json.dumps(losses), flush=True)
del model, optimizer, loss
dist.destroy_process_group()
if backend == "gloo":  # a thread that it leaves running aborts some processes while Python ends
    os._exit(0)
"""


def test_collectives_over_two_hosts_of_two_ranks(hosts: Hosts) -> None:
    results = outputs(hosts.start_job(COLLECTIVES, [2, 2]))
    for rank, (code, out, err) in enumerate(results):
        assert code == 0, err
        seen = json.loads(out)
        assert seen["nodes"] == [0, 0, 1, 1]
        assert seen["sum"]
        assert seen["gathered"] == [0, 1, 4, 9]
        assert seen["part"] == [4.0 * (rank * 5 + i) + 6 for i in range(5)]
        assert seen["message"] == [float((rank - 1) % 4)] * 2
    # Something really crossed the network.
    assert sum(json.loads(out)["net"] for _, out, _ in results) > 100_003 * 8


@pytest.mark.slow
def test_two_hosts_train_together_as_over_gloo(hosts: Hosts) -> None:
    pytest.importorskip("torch")
    losses = {}
    for backend in ("ringleader", "gloo"):
        environment = {"GLOO_SOCKET_IFNAME": "eth0"}
        results = outputs(hosts.start_job(TRAIN.replace("BACKEND", backend), [1, 1], environment))
        for code, _, err in results:
            assert code == 0, err
        losses[backend] = [json.loads(out) for _, out, _ in results]
    for ours, theirs in zip(losses["ringleader"], losses["gloo"], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-6)
    assert losses["ringleader"][0][-1] < losses["ringleader"][0][0]


LOOP = """
import sys, time, numpy as np, ringleader as rl
comm = rl.init()
x = np.ones(1_000_000, np.float32)
print("ready", flush=True)
started = time.monotonic()
try:
    while time.monotonic() - started < 60:
        x[:] = 1
        comm.all_reduce(x)
except rl.errors.RingleaderError as error:
    print(type(error).__name__, error.ranks, str(error), flush=True)
"""


def test_a_rank_killed_on_another_host_is_named_within_5_seconds(hosts: Hosts) -> None:
    processes = hosts.start_job(LOOP, [1, 1])
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ready"
    time.sleep(0.5)
    processes[1].send_signal(signal.SIGKILL)
    killed = time.monotonic()
    out, err = processes[0].communicate(timeout=50)
    assert time.monotonic() - killed < 20  # 5 s to notice, and a loaded machine; the loop goes on for 60 s
    assert "PeerLost (1,)" in out, out + err
    assert "rank 1" in out


def test_an_explicit_wrong_interface_is_an_error_not_a_hang(hosts: Hosts) -> None:
    for code, _, err in outputs(
        hosts.start_job("import ringleader as rl; rl.init()", [1, 1], {"RINGLEADER_SOCKET_IFNAME": "nope0"})
    ):
        assert code != 0
        assert "nope0" in err
        assert "eth0" in err  # the interfaces that there are


@pytest.mark.parametrize("insecure", [False, True])
def test_two_hosts_without_a_secret_are_refused_unless_that_is_asked_for(hosts: Hosts, insecure: bool) -> None:
    script = "import numpy as np, ringleader as rl\nwith rl.init() as c: print(c.all_reduce(np.ones(1))[0])"
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": hosts.address(0), "MASTER_PORT": "29651"}
    if insecure:
        common["RINGLEADER_INSECURE"] = "1"
    zero, one = (hosts.start(rank, script, env={**common, "RANK": str(rank)}) for rank in range(2))
    out, err = one.communicate(timeout=100)
    if insecure:
        assert out == "2.0\n" and zero.communicate(timeout=100)[0] == "2.0\n", err
        return
    zero.kill()
    zero.communicate()
    assert one.returncode != 0 and "another host" in err and "RINGLEADER_SECRET_FILE" in err, err


TRACED = """
import json, numpy as np, ringleader as rl
with rl.init() as comm:
    comm.all_reduce(np.ones(3))
    print(json.dumps([[each.kind for each in comm.recorded().operations], comm.counters()["operations"]]))
"""


def test_a_traced_job_begins_with_barriers_that_are_not_the_programs(hosts: Hosts, tmp_path: Path) -> None:
    """They tell how far apart the hosts' clocks are, also if the program's ranks come late always."""
    for code, text, errors in outputs(hosts.start_job(TRACED, [1, 1], env={"RINGLEADER_TRACE": str(tmp_path)})):
        assert code == 0, errors
        kinds, operations = json.loads(text)
        assert kinds == ["barrier"] * 8 + ["all_reduce"] and operations == 1
    assert len(list(tmp_path.glob("*.flight"))) == 2
