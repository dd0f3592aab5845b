"""Runs torch's own distributed tests over Ringleader, and over Gloo for comparison: ``make test-torch``.

Every result is a line of a journal (`--journal`), so a run that was interrupted goes on where it was; `--fresh` begins
anew, `--again` repeats what failed. At the end the table is written: benchmarks/results/torch_suite.csv and
docs/pytorch-suite.md. The exit status is 1 if a test fails over Ringleader without a reason written in `reasons.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import report

WORKER = Path(__file__).with_name("worker.py")
ROOT = WORKER.parents[2]
CHUNK = 40
"""Tests per process: importing torch costs seconds, so not one by one; but all processes should end together."""


@dataclass(frozen=True)
class Setting:
    """How tests are run: over which backend, on how many ranks, and for which backend of torch they were written."""

    backend: str
    ranks: int
    names: str


class Worker:
    """A process that runs tests of one setting; started again by the next test after one that hung or crashed it."""

    def __init__(self, setting: Setting, limit: int, log: IO[bytes]) -> None:
        self._setting, self._limit, self._log = setting, limit, log
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, test: str) -> dict[str, Any]:
        """The result of one test."""
        process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        began = time.monotonic()
        process.stdin.write(f"{test}\n".encode())
        process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            # The test's own limit comes first and tells more; importing torch counts too.
            line = process.stdout.readline() if selector.select(self._limit + 90) else b""
        if line:
            return json.loads(line)  # type: ignore[no-any-return]
        self.close()
        reason = f"the process that runs the tests did not answer (exit status {process.returncode})"
        return {"test": test, "outcome": "fails", "reason": reason, "seconds": round(time.monotonic() - began, 1)}

    def _start(self) -> subprocess.Popen[bytes]:
        s = self._setting
        command = [sys.executable, str(WORKER), f"--backend={s.backend}", f"--names={s.names}", f"--ranks={s.ranks}"]
        self._process = subprocess.Popen(
            [*command, f"--limit={self._limit}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        return self._process

    def close(self) -> None:
        """End it and the processes of its tests."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


class Journal:
    """Results so far, by setting and test; on disk after each one."""

    def __init__(self, path: Path, fresh: bool) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._lock = path, threading.Lock()
        self.results: dict[tuple[Setting, str], dict[str, Any]] = {}
        if fresh:
            path.unlink(missing_ok=True)
        if path.exists():
            for line in path.read_text().splitlines():
                entry = json.loads(line)
                setting = Setting(entry.pop("backend"), entry.pop("ranks"), entry.pop("names"))
                self.results[setting, entry["test"]] = entry

    def add(self, setting: Setting, result: dict[str, Any]) -> None:
        """Record a result, in place of an older one."""
        with self._lock, self._path.open("a") as out:
            out.write(json.dumps({**asdict(setting), **result}) + "\n")
            self.results[setting, result["test"]] = result


def all_tests(limit: int) -> list[str]:
    """Names of the suite's tests."""
    command = [sys.executable, str(WORKER), "--backend=gloo", "--names=gloo", "--ranks=2", f"--limit={limit}", "--list"]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()


def chunks(settings: list[Setting], tests: list[str], done: Any) -> Iterator[tuple[Setting, list[str]]]:
    """What is left to do, in portions for one process each."""
    for setting in settings:
        left = [test for test in tests if (setting, test) not in done]
        for start in range(0, len(left), CHUNK):
            yield setting, left[start : start + CHUNK]


def work_through(work: list[tuple[Setting, list[str]]], journal: Journal, options: argparse.Namespace) -> None:
    """Run all portions, in as many processes at a time as asked for."""
    lock = threading.Lock()
    total, count = sum(len(tests) for _, tests in work), 0

    def thread() -> None:
        nonlocal count
        while True:
            with lock:
                if not work:
                    return
                setting, tests = work.pop(0)
            log = options.journal.with_name(f"{setting.backend}-{setting.ranks}-{setting.names}.log")
            with log.open("ab") as out:
                worker = Worker(setting, options.limit, out)
                for test in tests:
                    result = attempts(worker, test, options.retries)
                    journal.add(setting, result)
                    with lock:
                        count += 1
                        print(f"[{count}/{total}] {setting.backend} x{setting.ranks} {test}: {result['outcome']}")
                worker.close()

    threads = [threading.Thread(target=thread) for _ in range(options.jobs)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


def attempts(worker: Worker, test: str, retries: int) -> dict[str, Any]:
    """The result of a test that may be repeated if it fails: some of the suite's own limits are short."""
    result, count = worker.run(test), 1
    while result["outcome"] == "fails" and count <= retries:
        result, count = worker.run(test), count + 1
    return {**result, "attempts": count}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", nargs="+", default=["ringleader", "gloo"])
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--match", default="", help="only tests whose name has this regular expression")
    parser.add_argument("--limit", type=int, default=120, help="seconds per test")
    parser.add_argument("--retries", type=int, default=1, help="how often a failing test is repeated")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that run tests at a time")
    parser.add_argument("--journal", type=Path, default=ROOT / "build" / "torch-suite" / "journal.jsonl")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--again", action="store_true", help="repeat the tests that failed over Ringleader")
    parser.add_argument("--no-report", action="store_true", help="leave the committed table as it is")
    options = parser.parse_args()

    journal = Journal(options.journal, options.fresh)
    if options.again:
        failed = [k for k, r in journal.results.items() if k[0].backend == "ringleader" and r["outcome"] == "fails"]
        for key in failed:
            del journal.results[key]
    tests = [test for test in all_tests(options.limit) if re.search(options.match, test)]
    places = [(backend, ranks) for ranks in options.ranks for backend in options.backends]
    work_through(list(chunks([Setting(b, r, "gloo") for b, r in places], tests, journal.results)), journal, options)
    # What the suite reserves for MPI although others can do it: under the name of MPI it runs.
    for backend, ranks in places:
        first = {test: journal.results.get((Setting(backend, ranks, "gloo"), test), {}) for test in tests}
        reserved = [test for test, result in first.items() if "Only MPI supports" in result.get("reason", "")]
        work_through(list(chunks([Setting(backend, ranks, "mpi")], reserved, journal.results)), journal, options)
    return report.write(journal.results, tests, options)


if __name__ == "__main__":
    sys.exit(main())
