"""The libraries that are measured: where their packages go, how their processes are started so that they run well.

The MPI packages hold files of the same names, so each has a prefix of its own. One mpi4py serves all of them: it finds
its MPI through LD_LIBRARY_PATH and MPI4PY_MPIABI.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import ringleader
from ringleader import _core

__all__ = ["MPI4PY", "SYSTEMS", "Launch", "System", "install", "launches", "version_of"]

MPI4PY = "mpi4py"
INSTALL_LIMIT = 300.0  # seconds


@dataclass(frozen=True)
class System:
    """One library over one transport; its processes run all its `contestants`, one at a time.

    Attributes
    ----------
    name
        As on the command line and in the CSV.
    package
        What pip installs, empty for what is here anyway.
    transport
        ``"shm"`` or ``"tcp"``.
    contestants
        Ways to call it.
    """

    name: str
    package: str
    transport: str
    contestants: tuple[str, ...] = ("mpi",)


SYSTEMS = (
    System("ringleader-shm", "", "shm", ("plain", "registered", "persistent", "gloo")),
    System("ringleader-tcp", "", "tcp", ("plain", "gloo")),
    System("openmpi-sm", "openmpi", "shm"),
    System("openmpi-tcp", "openmpi", "tcp"),
    System("mpich-shm", "mpich", "shm"),
    System("mpich-tcp", "mpich", "tcp"),
    System("intelmpi-shm", "impi-rt", "shm"),
    System("intelmpi-tcp", "impi-rt", "tcp"),
)


@dataclass(frozen=True)
class Launch:
    """A command and what it changes in the environment."""

    command: tuple[str, ...]
    environment: dict[str, str]


def site_packages(prefix: Path) -> Path:
    """Where pip puts modules below a prefix."""
    return prefix / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def install(packages: Sequence[str], folder: Path) -> dict[str, str]:
    """Install each package below `folder`, unless it is there; what failed, by package."""
    failures = {}
    for package in packages:
        prefix = folder / package
        done = prefix / ".installed"
        if done.exists():
            continue
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--prefix", str(prefix), package]
        try:
            ran = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_LIMIT)
        except subprocess.TimeoutExpired:
            failures[package] = f"pip took more than {INSTALL_LIMIT:.0f} s"
            continue
        if ran.returncode:
            failures[package] = (ran.stderr.strip().splitlines() or ["pip failed"])[-1]
        else:
            done.touch()
    return failures


def version_of(package: str, folder: Path) -> str:
    """The version of an installed package, from the name of its metadata."""
    found = sorted(site_packages(folder / package).glob(f"{package.replace('-', '_')}-*.dist-info"))
    return found[-1].name.removesuffix(".dist-info").rpartition("-")[2] if found else "?"


def launches(system: System, ranks: int, folder: Path, worker: Sequence[str], bind: bool = True) -> list[Launch]:
    """What to start: one launcher for an MPI, one process per rank otherwise.

    Parameters
    ----------
    folder
        Holds the prefixes.
    worker
        Command line of one rank.
    bind
        Whether ranks are bound evenly to cores also where there are more of them than cores. MPICH's are not, as by
        its own default.
    """
    crowded = ranks > _core.usable_cores()
    if not system.package:
        return _own_launches(system, ranks, worker, bind or not crowded)
    prefix = folder / system.package
    make = {"openmpi": _open_mpi, "mpich": _mpich, "impi-rt": _intel_mpi}[system.package]
    return [make(system, ranks, prefix, crowded, bind, worker, {"PYTHONPATH": str(site_packages(folder / MPI4PY))})]


def _own_launches(system: System, ranks: int, worker: Sequence[str], bound: bool) -> list[Launch]:
    common = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "RINGLEADER_SECRET": secrets.token_hex(32),
        "RINGLEADER_TRANSPORT": system.transport,
        "RINGLEADER_BIND": "core" if bound else "none",
    }
    return [Launch(tuple(worker), {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(ranks)]


def _free_port() -> int:
    with socket.socket() as it:
        it.bind(("127.0.0.1", 0))
        port: int = it.getsockname()[1]
        return port


def _open_mpi(
    system: System, ranks: int, prefix: Path, crowded: bool, bind: bool, worker: Sequence[str], env: Mapping[str, str]
) -> Launch:
    links = ["self", "tcp"] if system.transport == "tcp" else ["self", "sm"]
    command = [str(prefix / "bin/mpirun"), "--oversubscribe", "-n", str(ranks)]
    command += ["--mca", "pml", "ob1", "--mca", "btl", ",".join(links)]
    command += ["--mca", "btl_tcp_if_include", "lo"] if system.transport == "tcp" else []
    command += ["--bind-to", "core" if not crowded else "core:overload-allowed" if bind else "none"]
    command += ["--mca", "mpi_yield_when_idle", "1"] if crowded else []
    return Launch(
        (*command, *worker),
        {
            **env,
            "MPI4PY_MPIABI": "openmpi",
            "LD_LIBRARY_PATH": str(prefix / "lib"),
            "OPAL_PREFIX": str(prefix),  # it was built for another place
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        },
    )


def _mpich(
    system: System, ranks: int, prefix: Path, crowded: bool, bind: bool, worker: Sequence[str], env: Mapping[str, str]
) -> Launch:
    over_tcp = {
        "MPIR_CVAR_NOLOCAL": "1",
        "MPIR_CVAR_CH4_NETMOD": "ofi",  # libfabric; UCX does not connect over loopback
        "FI_PROVIDER": "tcp",
        "FI_TCP_IFACE": "lo",
    }
    binding = [] if crowded else ["-bind-to", "core"]
    return Launch(
        (str(prefix / "bin/mpiexec"), *binding, "-n", str(ranks), *worker),
        {
            **env,
            "MPI4PY_MPIABI": "mpich",
            "LD_LIBRARY_PATH": f"{prefix / 'lib'}:{prefix / 'lib/mpich'}",
            **({"MPIR_CVAR_POLLS_BEFORE_YIELD": "1"} if crowded else {}),
            **(over_tcp if system.transport == "tcp" else {}),
        },
    )


def _intel_mpi(
    system: System, ranks: int, prefix: Path, crowded: bool, bind: bool, worker: Sequence[str], env: Mapping[str, str]
) -> Launch:
    over_tcp = {
        "I_MPI_FABRICS": "ofi",
        "I_MPI_COLL_INTRANODE": "pt2pt",  # else collectives within a host go through shared memory all the same
        "I_MPI_OFI_PROVIDER": "tcp",
        "FI_PROVIDER": "tcp",
        "FI_TCP_IFACE": "lo",
    }
    return Launch(
        (str(prefix / "bin/mpiexec.hydra"), "-n", str(ranks), *worker),
        {
            **env,
            "MPI4PY_MPIABI": "mpich",  # the same ABI
            "LD_LIBRARY_PATH": str(prefix / "lib"),
            "I_MPI_ROOT": str(prefix),
            "I_MPI_OFI_LIBRARY_INTERNAL": "0",  # libfabric is a package of its own
            **({"I_MPI_THREAD_YIELD": "2"} if crowded else {}),
            **({"I_MPI_PIN": "0"} if crowded and not bind else {}),  # else it binds, in turn, by default
            **(over_tcp if system.transport == "tcp" else {"I_MPI_FABRICS": "shm"}),
        },
    )


def environment(launch: Launch) -> dict[str, str]:
    """This process's environment with the launch's changes; one compute thread per rank for everybody.

    Ranks import the Ringleader that this process has imported.
    """
    own = str(Path(ringleader.__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, (own, launch.environment.get("PYTHONPATH"))))
    return {**os.environ, "OMP_NUM_THREADS": "1", **launch.environment, "PYTHONPATH": path}
