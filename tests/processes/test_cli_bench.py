"""`ringleader bench` with real ranks: its table, its checks, its files, and the launchers."""

from __future__ import annotations

import csv
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest
from meeting_support import free_port

import ringleader.cli
from ringleader.cli.drive import LocalRanks
from ringleader.cli.machine import Machine
from ringleader.cli.main import main
from ringleader.cli.measure import Contestant, Point, Setup
from ringleader.cli.operands import places
from ringleader.cli.patterns import Patterns
from ringleader.errors import SpawnError
from ringleader.schedule import Collective

ROOT = Path(__file__).parents[2]
FEW = ["-n", "4", "--blocks", "2", "-w", "1"]


def ringleader_command(
    *arguments: str, launcher: tuple[str, ...] = (sys.executable,)
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*launcher, "-m", "ringleader", *arguments], capture_output=True, text=True, timeout=200, check=False
    )


def rows_of(output: str) -> list[list[str]]:
    return [line.split() for line in output.splitlines() if line.strip() and not line.startswith("#")]


def schema() -> dict:
    return json.loads((Path(ringleader.cli.__file__).parent / "bench.schema.json").read_text())


def test_types_and_operators_are_right(tmp_path):
    """Every pair that is offered; the table parses like that of nccl-tests; the file keeps its schema."""
    path = tmp_path / "bench.json"
    done = ringleader_command(
        "bench", "-b", "1000", "-e", "100K", "-f", "100", "-d", "float,bfloat16,half,int8,uint64,complex64",
        "-o", "all", *FEW, "--json", str(path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no progress bar into a pipe
    rows = rows_of(done.stdout)
    pairs = {(row[2], row[3]) for row in rows}
    assert {("bfloat16", "sum"), ("bfloat16", "prod"), ("half", "avg"), ("int8", "bxor"), ("complex64", "sum")} <= pairs
    assert ("float", "band") not in pairs and ("complex64", "max") not in pairs
    for row in rows:
        assert len(row) == 13 and row[4] == "-1"
        assert (row[8], row[12]) == ("0", "0")
        assert float(row[5]) > 0 and int(row[0]) in (1000, 100000)
    assert "# Out of bounds values : 0 OK" in done.stdout
    assert "2(n-1)/n" in done.stdout and "Rank   1 Pid" in done.stdout and "Machine before: flag" in done.stdout

    written = json.loads(path.read_text())
    jsonschema.validate(written, schema())
    assert written["out_of_bounds"] == 0
    assert len(written["results"]) == len(rows)
    assert {rank["transport"] for rank in written["ranks"]} == {"shm"}
    first = written["results"][0]
    assert first["dtype"] == "float32" and [m["contestant"]["in_place"] for m in first["measured"]] == [False, True]
    busbw = [m["busbw_gbs"] for r in written["results"] for m in r["measured"]]
    assert written["average_busbw_gbs"] == pytest.approx(sum(busbw) / len(busbw))


@pytest.mark.slow
def test_against_gloo_with_every_algorithm_over_tcp(tmp_path):
    plot = tmp_path / "bench.png"
    done = ringleader_command(
        "bench", "-b", "4K", "-e", "4K", "--algorithm", "all", "--vs", "gloo", "--transport", "tcp", "--ranks", "3",
        "-n", "2", "--blocks", "1", "-w", "0", "-m", "2", "--plot", str(plot),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = rows_of(done.stdout)
    from ringleader import algorithms

    assert [row[15] for row in rows] == list(algorithms.names("all_reduce"))
    for row in rows:
        gloo, ratio, in_place = float(row[13]), float(row[14]), float(row[9])
        assert ratio == pytest.approx(gloo / in_place, rel=0.02, abs=0.02)
        assert row[12] == "0"
    assert "transport tcp" in done.stdout
    assert plot.read_bytes().startswith(b"\x89PNG") and plot.stat().st_size > 10_000


def test_every_collective_is_right_in_every_way():
    """Both places, both memories, persistent or not, and Gloo, whose results are checked as well."""
    ranks = LocalRanks(Setup(protocol="pull", gloo=True), 3, 60)
    try:
        for collective in Collective:
            ways = [
                Contestant(in_place=way, registered=registered, persistent=persistent)
                for way in places(collective)
                for registered in (False, True)
                for persistent in (False, True)
            ]
            ways.append(Contestant("gloo", in_place=collective.value in ("all_reduce", "reduce", "broadcast")))
            point = Point(
                collective.value, 50_000, tuple(ways), dtype="int32", root=1, iterations=4, blocks=2, warmup=1
            )
            result = ranks.measure(point)
            assert [m.wrong for m in result.measured] == [0] * len(ways)
            assert result.root == (1 if collective.rooted else -1)
            for measured in result.measured:
                timing = measured.timing
                assert 0 < timing.least <= timing.median <= timing.slowest_block and timing.iterations == 4
                assert timing.fastest_block <= timing.median and timing.least <= timing.p99
            assert all(m.protocol == "pull" for m in result.measured[:-1])
    finally:
        ranks.close()


def test_a_failed_point_does_not_cost_the_next():
    ranks = LocalRanks(Setup(), 2, 60)
    try:
        wrong = Point("all_reduce", 1000, (Contestant(algorithm="no_such"),))
        right = Point("all_reduce", 1000, (Contestant(),), iterations=2, blocks=1)
        before = [rank["pid"] for rank in ranks.ranks()]
        with pytest.raises((SpawnError, ValueError), match="no_such"):
            ranks.measure(wrong)
        assert ranks.measure(right).measured[0].wrong == 0
        assert [rank["pid"] for rank in ranks.ranks()] != before
    finally:
        ranks.close()


def test_wrong_results_are_counted_and_fail(capsys, monkeypatch):
    """One rank in this process, told to expect other values than it gets."""
    for name, value in (("RANK", "0"), ("SIZE", "1")):
        monkeypatch.setenv(f"RINGLEADER_{name}", value)
    right = Patterns._reduced
    monkeypatch.setattr(Patterns, "_reduced", lambda self: right(self) + 1)
    code = main(["bench", "-b", "400", "-e", "400", *FEW])
    out = capsys.readouterr().out
    assert code == 1
    assert "# Out of bounds values : 200 FAILED" in out  # 100 elements, two ways
    assert [(row[8], row[12]) for row in rows_of(out)] == [("100", "100")]
    code = main(["bench", "-b", "400", "-e", "400", *FEW, "--no-check"])
    assert code == 0 and "NOT CHECKED" in capsys.readouterr().out


@pytest.mark.slow
def test_under_torchrun(tmp_path):
    path = tmp_path / "bench.json"
    launcher = (
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}",
    )  # fmt: skip
    done = ringleader_command(
        "bench", "--op", "allgather", "-b", "1K", "-e", "64K", "-f", "64", *FEW, "--vs", "gloo", "--json", str(path),
        launcher=launcher,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = rows_of(done.stdout)
    assert [row[0] for row in rows] == ["1024", "65536"]  # rank 0 alone prints
    assert [row[1] for row in rows] == ["128", "8192"]  # elements of a block
    assert all((row[8], row[12]) == ("0", "0") for row in rows)
    written = json.loads(path.read_text())
    jsonschema.validate(written, schema())
    assert [rank["rank"] for rank in written["ranks"]] == [0, 1]
    assert written["results"][0]["measured"][-1]["contestant"]["library"] == "gloo"


@pytest.mark.parametrize("how", ["interrupt", "kill"])
def test_an_end_in_the_middle_is_clean(how):
    """Ctrl-C is one line and exit code 130; a rank that dies is named. Nothing is left running."""
    bench = subprocess.Popen(
        [sys.executable, "-m", "ringleader", "bench", "--seconds", "5", "-b", "1K"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        assert bench.stdout is not None
        pids = []
        for line in bench.stdout:
            if "# Machine before" in line:
                break
            if " Pid " in line:
                pids.append(int(line.split(" Pid ")[1].split()[0]))
        if how == "interrupt":
            os.killpg(bench.pid, signal.SIGINT)  # as a terminal does
        else:
            os.kill(pids[1], signal.SIGKILL)
        _, err = bench.communicate(timeout=200)
    except BaseException:
        os.killpg(bench.pid, signal.SIGKILL)
        raise
    if how == "interrupt":
        assert (bench.returncode, err) == (130, "ringleader: interrupted\n")
    else:
        assert bench.returncode == 1
        assert f"rank 1 of 2 failed:\nits process (pid {pids[1]}) ended: killed by SIGKILL" in err
    deadline = time.monotonic() + 30
    with pytest.raises(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(bench.pid, 0)
            time.sleep(0.02)


def test_doctor():
    done = ringleader_command("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "two ranks over shared memory" in done.stdout and "two ranks over TCP" in done.stdout
    assert "nothing wrong" in done.stdout


def test_state_of_the_machine():
    with Machine() as machine:
        for _ in range(3):
            state = machine.state()
            assert state.copy_gbs > 0.01
            assert math.isnan(state.flag_us) or state.flag_us > 0.01
        echo = machine._echo
    assert echo is None or echo.returncode == 0


@pytest.mark.slow
def test_benchmarks_write_numbers_table_and_plot(tmp_path):
    done = subprocess.run(
        [
            sys.executable, "benchmarks/run.py", "--worlds", "2", "--sizes", "8,64K", "--seconds", "0.02",
            "--blocks", "2", "--output", str(tmp_path),
        ],
        cwd=ROOT, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    with (tmp_path / "all_reduce.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    shapes = {(row["transport"], row["nbytes"], row["library"], row["memory"]) for row in rows}
    assert len(rows) == len(shapes) == 2 * 3 + 2 * 2
    assert all(row["wrong"] == "0" and float(row["median_us"]) > 0 and not row["error"] for row in rows)
    page = (tmp_path / "all_reduce.md").read_text()
    assert "## 2 ranks, shared memory" in page and "## 2 ranks, TCP over loopback" in page
    assert "of 2 targets met" in page
    for line in page.splitlines():
        if line.startswith("| 64 KiB"):
            assert len(line.split("|")) - 2 in (11, 9)  # with and without registered memory
    assert (tmp_path / "all_reduce.png").read_bytes().startswith(b"\x89PNG")
