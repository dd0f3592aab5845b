"""The benchmark against MPI implementations: what is started, what is measured, how it is judged."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from peers import __main__ as peers_main
from peers import report
from peers.conditions import busy_seconds
from peers.judge import TARGETS, Number, best_peer, judge, ratio, read
from peers.points import Place, Plan, iterations_of, plan, timing
from peers.systems import SYSTEMS, launches, version_of

SHM2, SHM8, TCP2 = Place(2, "shm"), Place(8, "shm"), Place(2, "tcp")
BY_NAME = {system.name: system for system in SYSTEMS}


def start(name: str, ranks: int, folder: Path = Path("/prefixes"), bind: bool = True):
    return launches(BY_NAME[name], ranks, folder, ["python", "worker.py"], bind)


# ------------------------------------------------------------------------------------------------------------ systems


def test_own_processes_are_started_as_by_torchrun():
    starts = start("ringleader-tcp", 3)
    assert [it.environment["RANK"] for it in starts] == ["0", "1", "2"]
    assert {it.environment["WORLD_SIZE"] for it in starts} == {"3"}
    assert {it.environment["RINGLEADER_TRANSPORT"] for it in starts} == {"tcp"}
    assert len({(it.environment["MASTER_PORT"], it.environment["RINGLEADER_SECRET"]) for it in starts}) == 1
    assert {it.command for it in starts} == {("python", "worker.py")}


@pytest.mark.parametrize("name", [system.name for system in SYSTEMS if system.package])
def test_an_mpi_is_started_by_its_own_launcher_with_its_own_libraries(name: str):
    system = BY_NAME[name]
    (it,) = start(name, 5)
    prefix = f"/prefixes/{system.package}/"
    assert it.command[0].startswith(prefix + "bin/")
    assert it.command[-2:] == ("python", "worker.py")
    assert it.command[it.command.index("-n") + 1] == "5"
    assert it.environment["LD_LIBRARY_PATH"].startswith(prefix + "lib")
    assert it.environment["PYTHONPATH"].startswith("/prefixes/mpi4py/")


@pytest.mark.parametrize("bind", [True, False])
def test_ranks_beyond_the_cores_yield_and_are_bound_if_wanted(monkeypatch: pytest.MonkeyPatch, bind: bool):
    monkeypatch.setattr("peers.systems._core.usable_cores", lambda: 2)
    few, many = start("openmpi-sm", 2, bind=bind)[0].command, start("openmpi-sm", 4, bind=bind)[0].command
    assert "mpi_yield_when_idle" not in few and few[few.index("--bind-to") + 1] == "core"
    assert "mpi_yield_when_idle" in many
    assert many[many.index("--bind-to") + 1] == ("core:overload-allowed" if bind else "none")
    few, many = start("mpich-shm", 2, bind=bind)[0], start("mpich-shm", 4, bind=bind)[0]
    assert "-bind-to" in few.command and "-bind-to" not in many.command
    assert "MPIR_CVAR_POLLS_BEFORE_YIELD" in many.environment and "MPIR_CVAR_POLLS_BEFORE_YIELD" not in few.environment
    assert start("intelmpi-shm", 4, bind=bind)[0].environment.get("I_MPI_PIN") == (None if bind else "0")
    own = [start("ringleader-shm", n, bind=bind)[0].environment["RINGLEADER_BIND"] for n in (2, 4)]
    assert own == ["core", "core" if bind else "none"]


def test_version_is_found_in_the_prefix(tmp_path: Path):
    (system,) = {s for s in SYSTEMS if s.name == "intelmpi-shm"}
    site = Path(start("intelmpi-shm", 2, tmp_path)[0].environment["PYTHONPATH"].replace("mpi4py", system.package))
    assert version_of(system.package, tmp_path) == "?"
    (site / "impi_rt-2021.18.1.dist-info").mkdir(parents=True)
    assert version_of(system.package, tmp_path) == "2021.18.1"


# ------------------------------------------------------------------------------------------------------------- points


def test_plan_leaves_out_what_does_not_fit_and_keeps_places_together():
    sizes = [8, 64 << 10, 64 << 20]
    points = plan([SHM2, SHM8, TCP2], sizes, ["float32", "16-bit"], ["repeated", "rewritten"], 256 << 20)
    assert Plan(SHM2, "float32", False, 64 << 20) in points and Plan(SHM2, "float32", True, 64 << 20) not in points
    assert [p.place for p in points] == sorted((p.place for p in points), key=[SHM2, SHM8, TCP2].index)
    assert not any(p.nbytes == 64 << 20 and p.place == SHM8 for p in points)
    assert {p.nbytes for p in points if p.rewrite} == {64 << 10}
    assert {p.place for p in points if p.dtype == "16-bit"} == {SHM2}
    assert not any(p.rewrite or p.dtype != "float32" for p in points if p.place == TCP2)
    assert len(set(points)) == len(points)


@pytest.mark.parametrize("slowest_us", [0.2, 30.0, 9e3, 4e5, 8e6])
def test_iterations_fill_the_time_but_never_fewer_than_three_blocks(slowest_us: float):
    blocks, iterations = iterations_of(0.5, 7, slowest_us)
    assert 3 <= blocks <= 7 and 1 <= iterations <= 2000
    if slowest_us < 1e5:
        assert blocks == 7
    else:
        assert (blocks, iterations) == (3, 1)
    assert blocks * iterations * slowest_us < 0.75e6 or iterations == 1


def test_the_slowest_rank_counts_in_each_iteration():
    # Ranks are slow in turn: no rank's own median shows it.
    block = np.array([[10.0, 1.0, 10.0, 1.0, 1.0], [1.0, 10.0, 1.0, 10.0, 1.0]])
    it = timing([block, block + 2, block + 1])
    assert (it.median, it.fastest_block, it.slowest_block) == (11.0, 10.0, 12.0)
    assert it.rank_median == 2.0
    assert it.least == 1.0 and it.iterations == 15


def test_busy_time_leaves_out_idle_and_waiting():
    assert busy_seconds("cpu  250 50 100 99999 77 20 80 0 0 0\n", 100) == 5.0


# -------------------------------------------------------------------------------------------------------------- judge


def row(point: Plan, system: str, contestant: str, median: float, **others: object) -> dict[str, object]:
    return {
        **peers_main._columns(point),
        "system": system,
        "contestant": contestant,
        "median_us": median,
        "fastest_block_us": median / 2,
        "slowest_block_us": median * 2,
        "wrong": 0,
        **others,
    }


def write_csv(path: Path, rows: list[dict[str, object]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, peers_main.COLUMNS, restval="")
        writer.writeheader()
        writer.writerows(rows)


SMALL = Plan(SHM2, "float32", False, 8)
LARGE = Plan(SHM2, "float32", False, 16 << 20)
AGAIN = Plan(SHM2, "float32", True, 16 << 20)


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    ours = "ringleader-shm"
    rows = [
        row(SMALL, ours, "registered", 0.5), row(SMALL, ours, "persistent", 0.5), row(SMALL, "openmpi-sm", "mpi", 1.0),
        row(SMALL, ours, "gloo", 100.0), row(SMALL, "mpich-shm", "mpi", 0.1, wrong=3),
        row(LARGE, ours, "registered", 300.0), row(LARGE, "limits", "ideal", 150.0), row(LARGE, ours, "plain", 700.0),
        row(LARGE, "mpich-shm", "mpi", 1000.0), row(AGAIN, ours, "plain", 500.0), row(AGAIN, ours, "gloo", 1000.0),
        {**peers_main._columns(LARGE), "system": "intelmpi-shm", "contestant": "mpi", "error": "took | more than 60 s"},
    ]  # fmt: skip
    write_csv(tmp_path / "peers.csv", rows)
    return tmp_path


def test_wrong_results_and_failures_do_not_compete(numbers: Path):
    results, failures = read(numbers / "peers.csv")
    assert best_peer(results[SMALL]) == ("openmpi-sm", Number(1.0, 4.0))
    assert len(failures) == 2 and "3 wrong elements" in failures[0] and "more than 60 s" in failures[1]


def test_the_ideal_is_no_peer(numbers: Path):
    results, _ = read(numbers / "peers.csv")
    assert ratio(results[LARGE], "registered", "peer") == pytest.approx(0.3)
    assert ratio(results[LARGE], "registered", "ideal") == pytest.approx(2.0)
    assert ratio(results[SMALL], "plain", "peer") is None


def test_targets_are_met_up_to_their_limit_and_variants_are_judged_apart(numbers: Path):
    results, _ = read(numbers / "peers.csv")
    met = {
        (v.target.contestant, v.target.against, v.target.limit): (v.met, len(v.ratios)) for v in judge(results, False)
    }
    assert met == {
        ("registered", "peer", 0.6): (1, 1),
        ("persistent", "peer", 0.4): (0, 1),
        ("registered", "peer", 0.4): (1, 1),
        ("registered", "ideal", 1.5): (0, 1),
        ("plain", "peer", 0.6): (0, 1),
    }
    (again,) = judge(results, True)
    assert again.target.contestant == "plain" and again.met == 1


def test_every_planned_point_is_demanded_of_somebody():
    points = plan([SHM2, Place(4, "shm"), SHM8, TCP2], [8, 8 << 10, 64 << 10, 1 << 20, 16 << 20], ["float32", "16-bit"],
                  ["repeated", "rewritten"], 1 << 30)  # fmt: skip
    assert all(any(target.holds(point) for target in TARGETS) for point in points)


def test_page_and_plot_are_written_from_the_numbers(numbers: Path):
    (numbers / "peers.conditions.txt").write_text("A machine.\n")
    page, picture = report.write(numbers)
    text = page.read_text()
    assert "- A machine." in text
    assert "| 2 ranks, 8 B - 8 KiB | persistent | best peer | 0.4 | **0 of 1** | 0.50 at 8 B | 0.50 |" in text
    assert "| 2 ranks, from 16 MiB | registered | ideal | 1.5 | **0 of 1** | 2.00 at 16 MiB | 2.00 |" in text
    assert "buffers rewritten between calls" in text and "**1.00*" not in text
    assert picture.read_bytes().startswith(b"\x89PNG")
