"""Real launches under Open MPI and MPICH, from the prefixes that `make mpi` fills."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from peers.systems import MPI4PY, SYSTEMS, environment, launches

ROOT = Path(__file__).resolve().parents[1]
PREFIXES = ROOT / "build" / "peers"
MPIS = ("openmpi", "mpich")
REQUIRED = bool(os.environ.get("RINGLEADER_REQUIRE_MPI"))  # read here: tests see no such variables
_SYSTEM_OF = {system.package: system for system in SYSTEMS if system.transport == "shm"}


def need(mpi: str) -> None:
    """Skip the test where the MPI is not installed; where RINGLEADER_REQUIRE_MPI is set that is a failure."""
    lacking = [name for name in (mpi, MPI4PY) if not (PREFIXES / name / ".installed").exists()]
    if lacking:
        reason = f"{' and '.join(lacking)} not installed; make mpi"
        if REQUIRED:
            pytest.fail(reason)
        pytest.skip(reason)


def start(
    mpi: str, ranks: int, script: Sequence[str], options: Sequence[str] = (), **variables: str
) -> subprocess.Popen[str]:
    """Start `python *script` as `ranks` processes; `options` are mpirun's. Its output is in the pipe, errors too."""
    (launch,) = launches(_SYSTEM_OF[mpi], ranks, PREFIXES, [sys.executable, *script])
    given = list(launch.command[1:])
    if "pml" in given:  # the benchmark's choice; a test may want the one that counts messages
        at = given.index("pml")
        del given[at - 1 : at + 2]
    command = [launch.command[0], *options, *given]
    return subprocess.Popen(
        command,
        env={**environment(launch), **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def stop(process: subprocess.Popen[str]) -> None:
    """End a launcher, which ends its ranks."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def run(
    mpi: str, ranks: int, script: Sequence[str], options: Sequence[str] = (), timeout: float = 150, **variables: str
) -> str:
    """Run to the end; the output of all ranks. A failure or hang fails the test with it."""
    process = start(mpi, ranks, script, options, **variables)
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        stop(process)
        output = process.communicate()[0]
        pytest.fail(f"{mpi}, {ranks} ranks: not finished within {timeout:.0f} s:\n{output}")
    assert process.returncode == 0, f"{mpi}, {ranks} ranks, exit code {process.returncode}:\n{output}"
    return output
