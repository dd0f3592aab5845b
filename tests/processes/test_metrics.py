"""RINGLEADER_METRICS: what Prometheus reads is what the communicators count, and nothing that fails ends a job."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from meeting_support import PROMPT, free_port, wait_until

import ringleader as rl

parser = pytest.importorskip("prometheus_client.parser")


def values(text: str, name: str) -> dict[tuple[str, ...], float]:
    """Samples of a name by group, rank and peer."""
    return {
        tuple(sample.labels.get(label, "") for label in ("group", "rank", "peer")): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    }


def _served(port: int) -> str:
    with rl.init() as comm:
        for _ in range(7):
            comm.all_reduce(np.ones(100_000))
        comm.barrier()
        part = comm.subgroup([0, 1])
        assert part is not None
        part.barrier()
        with urllib.request.urlopen(f"http://127.0.0.1:{port + comm.rank}/metrics", timeout=PROMPT) as answer:
            text = str(answer.read().decode())
        sent = values(text, "ringleader_sent_bytes_total")
        other = str(1 - comm.rank)
        assert sent["world", str(comm.rank), other] == comm.counters()["bytes_sent_net"]
        comm.barrier()
        return text


def test_prometheus_reads_what_is_counted() -> None:
    port = free_port()
    for rank, text in enumerate(rl.spawn(_served, 2, port, transport="tcp", env={"RINGLEADER_METRICS": f":{port}"})):
        operations = values(text, "ringleader_operations_total")
        assert operations["world", str(rank), ""] == 8
        assert sorted(operations.values()) == [1, 8]  # the part has had one
        assert values(text, "ringleader_live")["world", str(rank), ""] == 1
        assert values(text, "ringleader_sent_bytes_total")["world", str(rank), str(1 - rank)] > 7 * 400_000
        assert values(text, "ringleader_rtt_seconds")["world", str(rank), str(1 - rank)] > 0


PROGRAM = """
import sys, time, numpy as np, ringleader as rl
with rl.init(rank=0, size=1) as comm:
    print(comm.all_reduce(np.ones(1)), flush=True)
    sys.stdin.read(1)
"""


def start(where: str) -> subprocess.Popen[str]:
    env = {**os.environ, "RINGLEADER_METRICS": where, "RINGLEADER_DEBUG": "WARN"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], text=True, env=env, **pipes)
    assert process.stdout is not None and process.stdout.readline() == "[1.]\n"
    return process


def test_a_file_is_written_as_a_whole(tmp_path: Path) -> None:
    process = start(f"{tmp_path}/%h-%p.prom")
    path = tmp_path / f"{socket.gethostname()}-{process.pid}.prom"
    try:
        assert wait_until(path.exists, PROMPT)
        assert list(values(path.read_text(), "ringleader_live").values()) == [1.0]
    finally:
        _, errors = process.communicate("x", timeout=PROMPT)
    assert process.returncode == 0 and "RINGLEADER_METRICS" not in errors


def test_what_cannot_be_is_a_warning(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for where in (f"127.0.0.1:{taken.getsockname()[1]}", "127.0.0.1:99999", f"{tmp_path}/none/file"):
            _, errors = start(where).communicate("x", timeout=PROMPT)
            assert errors.count("(RINGLEADER_METRICS)") == 1, errors
