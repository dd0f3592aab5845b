"""``ringleader monitor``: what it shows of ranks that tell, and what it says where nobody does."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import ringleader as rl
from ringleader.cli.main import main
from ringleader.cli.monitor import picture
from ringleader.runtime.monitor.network import Network, Peer
from ringleader.runtime.monitor.publish import Publisher, Snapshot, read_snapshots


def snapshots(size: int, age: float = 0.0) -> list[Snapshot]:
    """As many ranks would write them."""
    found = []
    for rank in range(size):
        others = [other for other in range(size) if other != rank]
        measured = (1e-3, 1e-4, 2e-4, 0, 3, 0.25, 0.1)
        peers = tuple(Peer(r, f"rank {r}", "network", 1 << 20, 2 << 20, 1e6 * (r + 1), *measured) for r in others)
        network, now = Network(rank, size, "world", 2.0, 20, 5e6, peers), time.time() - age
        found.append(Snapshot("train", f"host{rank}", 100 + rank, now, network, network, "ring"))
    return found


def shown(group: object) -> str:
    console = Console(width=200, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(group)
    return console.export_text()


def test_few_ranks_have_a_line_for_each_pair_and_many_have_one_each() -> None:
    text = shown(picture(snapshots(3)))
    assert "train, world: 3 of 3 ranks" in text
    assert text.count("Mbit/s") == 6
    assert "host2, 102" in text
    text = shown(picture(snapshots(6)))
    assert "10.0" in text  # operations a second
    assert text.count("0: 8 Mbit/s") == 5  # the slowest of all but rank 0
    assert shown(picture(snapshots(6), peers=True)).count("network") == 30
    assert "silent for 9" in shown(picture(snapshots(2, age=9.2)))
    assert "no rank tells" in shown(picture([]))


def test_attached_to_a_directory_and_to_a_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with rl.init(rank=0, size=1) as comm:
        comm.all_reduce(np.ones(3))
        publisher = Publisher(comm, tmp_path, interval=60)
        publisher.write()
        assert main(["monitor", str(tmp_path), "--once", "--json"]) == 0
        (line,) = capsys.readouterr().out.splitlines()
        row = json.loads(line)
        assert (row["pid"], row["rank"], row["size"], row["operations"]) == (os.getpid(), 0, 1, 1)
        monkeypatch.setenv("RINGLEADER_MONITOR", str(tmp_path))
        assert main(["monitor", str(os.getpid()), "--once"]) == 0
        assert "1 of 1 ranks" in capsys.readouterr().out
        assert main(["monitor", "another job", "--once"]) == 2
        assert "nobody tells of another job" in capsys.readouterr().err
        (snapshot,) = read_snapshots(tmp_path)
        assert replace(snapshot, time=0.0).choice.startswith("all_reduce of 24 bytes")
        publisher.stop()
    assert main(["monitor", str(tmp_path), "--once"]) == 2
    assert "RINGLEADER_MONITOR=1" in capsys.readouterr().err


def test_ranks_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["monitor", "-n", "2", "--once", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["rank"] for row in rows] == [0, 1]
    assert all(row["peers"][0]["way"] == "network" for row in rows)
    assert main(["monitor", "somewhere", "-n", "2"]) == 2
