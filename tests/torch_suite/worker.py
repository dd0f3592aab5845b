"""Runs tests of torch's distributed suite, one after another, as they are named on standard input.

The suite asks for its backend by name when it is imported, to decide which tests to define and which to skip. Here it
is imported under the name of a backend that torch knows (`--names`, Gloo or MPI), and then run with `--backend`. So
exactly the tests that the known backend would run are run, not only those that a plugin may announce.

Each test gets fresh processes. They are forked from this one, which has imported torch and done nothing with it.
One line of JSON per test goes to the standard output that this process was started with.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
import unittest
from typing import Any


class Announced(str):
    """A backend's name that also is the name of the one that a test was written for, where a test asks for it."""

    names = ""

    def __eq__(self, other: object) -> bool:
        return str(self) == other or self.names == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def load(backend: str, names: str, ranks: int, limit: int, folder: str) -> type[unittest.TestCase]:
    """The suite as a class of tests that run with `backend`; imported here, for it reads the environment."""
    os.environ.update(
        BACKEND=names,
        WORLD_SIZE=str(ranks),
        TEMP_DIR=folder,
        INIT_METHOD=f"file://{folder}/shared_init_file",
        DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=str(limit),
    )
    for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)

    import torch
    from torch.testing._internal import common_distributed
    from torch.testing._internal.distributed import distributed_test as suite

    suite.BACKEND = Announced(backend)
    suite.BACKEND.names = names
    for names_of_profiled in (suite.PROFILING_SUPPORTED_BACKENDS, suite.SEND_RECV_PROFILING_SUPPORTED_BACKENDS):
        names_of_profiled.append(backend)
    # Some tests have limits of their own, made for machines with more cores.
    common_distributed.TIMEOUT_OVERRIDE.clear()
    if ranks > 2:
        # Tests of groups of two ask for 8 ranks, or for MPI, when they run; 3 are enough for them.
        os.environ["BACKEND"] = "mpi"

    class Suite(suite.TestDistBackend, suite.DistributedTest._DistTestBase):  # type: ignore[misc,name-defined]
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    Suite.__module__ = "__main__"
    return Suite


class Result(unittest.TestResult):
    """The outcome of one test: passes, skipped or fails, and why."""

    outcome, reason = "passes", ""

    def addSkip(self, test: Any, reason: str) -> None:  # noqa: N802 - unittest's name
        self.outcome, self.reason = "skipped", reason

    def addError(self, test: Any, err: Any) -> None:  # noqa: N802
        self.outcome, self.reason = "fails", self._exc_info_to_string(err, test)  # type: ignore[attr-defined]

    addFailure = addError  # noqa: N815


def run(suite: type[unittest.TestCase], name: str) -> dict[str, object]:
    """One test's outcome, as a line of the journal has it."""
    began = time.monotonic()
    result = Result()
    suite(name).run(result)
    return {
        "test": name,
        "outcome": result.outcome,
        "reason": result.reason,
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", required=True, help="backend to run, e.g. ringleader")
    parser.add_argument("--names", required=True, help="backend whose tests to run: gloo or mpi")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--limit", type=int, required=True, help="seconds per test")
    parser.add_argument("--list", action="store_true", help="only print the names of all tests")
    arguments = parser.parse_args()
    # What torch and the tests print goes to standard error; standard output is for the results.
    results = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory() as folder:
        suite = load(arguments.backend, arguments.names, arguments.ranks, arguments.limit, folder)
        if arguments.list:
            print(*unittest.TestLoader().getTestCaseNames(suite), sep="\n", file=results)
            return
        os.set_inheritable(results.fileno(), False)
        for line in sys.stdin:
            with contextlib.suppress(FileNotFoundError):  # left by the test before
                os.unlink(f"{folder}/shared_init_file")
            print(json.dumps(run(suite, line.strip())), file=results)


if __name__ == "__main__":
    main()
