"""The runner of torch's own suite, with three of its tests: results, resuming, reasons. `make test-torch` runs all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "torch_suite"
sys.path.insert(0, str(FOLDER))

import reasons  # noqa: E402
import report  # noqa: E402


def suite(journal: Path, *arguments: str) -> tuple[int, str]:
    """A run of some tests on two ranks, without the table."""
    command = [sys.executable, str(FOLDER / "run.py"), "--no-report", "--journal", str(journal), "--ranks", "2"]
    run = subprocess.run([*command, "--jobs", "1", *arguments], capture_output=True, text=True, timeout=200)
    return run.returncode, run.stdout


@pytest.mark.slow
def test_some_of_the_suite(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    match = "^test_(all_reduce_sum|all_to_all_single_equal_split|broadcast_cuda|monitored_barrier_gloo)$"
    code, text = suite(journal, "--backends", "ringleader", "--match", match, "--retries", "0")
    results = {(r["test"], r["names"]): r for r in map(json.loads, journal.read_text().splitlines())}
    assert {key: result["outcome"] for key, result in results.items()} == {
        ("test_all_reduce_sum", "gloo"): "passes",
        ("test_all_to_all_single_equal_split", "gloo"): "skipped",
        ("test_all_to_all_single_equal_split", "mpi"): "passes",
        ("test_broadcast_cuda", "gloo"): "skipped",
        ("test_monitored_barrier_gloo", "gloo"): "fails",
    }
    assert code == 0 and "ringleader on 2 ranks: 2 passes, 1 skipped, 1 not applicable, 0 fails" in text

    # A result that is there is not made again; one that fails without a reason ends the run with an error.
    results["test_all_reduce_sum", "gloo"] |= {"outcome": "fails", "reason": "AssertionError: 3 is not 4"}
    journal.write_text("".join(json.dumps(result) + "\n" for result in results.values()))
    code, text = suite(journal, "--backends", "ringleader", "--match", match)
    assert code == 1 and "FAILS without a written reason: test_all_reduce_sum on 2 ranks: AssertionError: 3 is" in text


def test_reasons() -> None:
    assert reasons.kind_of_skip("Need at least 2 CUDA devices") == "GPUs or NCCL"
    assert reasons.kind_of_skip("Skipped due to small world size.") == "another number of ranks"
    assert reasons.not_applicable("AssertionError: Scalars are not equal!") is None
    text = "RuntimeError: Process 1 exited with error code 10 and exception:\nTraceback\nValueError: too short\n"
    assert report.last_error(text) == "ValueError: too short"
    assert report.last_error("Segmentation fault") == "Segmentation fault"
