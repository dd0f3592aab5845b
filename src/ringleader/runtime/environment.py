"""Who am I? Rank, size and meeting point from explicit arguments or from what the launcher has put in the environment.

Order of precedence: explicit arguments, RINGLEADER_RANK and _SIZE, then the launchers (torchrun, Open MPI, MPICH,
Slurm). Two launchers may both be visible (torchrun inside a Slurm step, mpirun with exported RANK); Slurm gives way to
the others, and any other contradiction is an error.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ringleader.errors import InvalidArgument
from ringleader.runtime.config import parse_setting

__all__ = ["Launch", "detect", "first_host", "format_hostport", "parse_hostport"]

# torch.distributed.run and hand-written scripts agree on this port by convention.
DEFAULT_PORT = 29500


@dataclass(frozen=True)
class Launch:
    """Where this process stands in the job.

    `master_addr` is None if the launcher gave no meeting point. `store_served`: somebody other than rank 0 serves the
    store there. `agent_store`: it is torchrun's own. `own_address`: it was given for Ringleader alone, by an argument
    or RINGLEADER_STORE. `attempt` counts torchrun's restarts. `torchrun_hosts`: torchrun has started the program, on
    several hosts. `slurm`: the program runs in a job of Slurm, whatever told its rank.
    """

    rank: int
    size: int
    local_rank: int | None = None
    local_size: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    job_id: str = "default"
    launcher: str = "none"
    store_served: bool = False
    agent_store: bool = False
    own_address: bool = False
    attempt: int = 0
    torchrun_hosts: bool = False
    slurm: bool = False

    @property
    def one_host(self) -> bool:
        """Whether all ranks are known to be on this host."""
        return self.size == 1 or self.local_size == self.size


def detect(
    environ: Mapping[str, str] | None = None,
    *,
    rank: int | None = None,
    size: int | None = None,
    address: str | None = None,
) -> Launch:
    """Find out rank, size and meeting point.

    Parameters
    ----------
    environ
        Environment to read, the process's by default.
    rank, size
        Override what the launcher says; only both together.
    address
        Meeting point "host:port" or "[v6]:port", overrides the launcher's.

    Raises
    ------
    InvalidArgument
        If variables are incomplete, not numbers, or contradict each other; the message names them.

    Examples
    --------
    >>> detect({"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}).rank
    1
    >>> detect({}).size
    1
    """
    env = dict(os.environ if environ is None else environ)
    if (rank is None) != (size is None):
        raise InvalidArgument(f"rank and size must be given together; got rank={rank}, size={size}")
    if rank is not None and size is not None:
        launch = Launch(rank, size, launcher="arguments")
        launch = _with_master(launch, env)
    else:
        launch = _from_ringleader(env) or _from_launchers(env) or Launch(0, 1)
    if address is not None:
        host, port = parse_hostport(address)
        launch = replace(
            launch, master_addr=host, master_port=port, agent_store=False, store_served=False, own_address=True
        )
        if launch.job_id.startswith(_PROXY):
            launch = replace(launch, job_id=f"port-{port}")
    several = env.get("LOCAL_WORLD_SIZE") != env.get("WORLD_SIZE")
    torchrun_hosts = "TORCHELASTIC_RUN_ID" in env and several
    return _checked(replace(launch, torchrun_hosts=torchrun_hosts, slurm="SLURM_JOB_ID" in env))


def _checked(launch: Launch) -> Launch:
    if launch.size < 1 or not 0 <= launch.rank < launch.size:
        raise InvalidArgument(
            f"rank {launch.rank} of size {launch.size} (from: {launch.launcher}); expected 0 <= rank < size"
        )
    if launch.local_rank is not None and launch.local_size is not None and launch.local_rank >= launch.local_size:
        raise InvalidArgument(f"local rank {launch.local_rank} of local size {launch.local_size} ({launch.launcher})")
    return launch


def _number(env: Mapping[str, str], *names: str) -> int | None:
    """The first of the variables that is set, as a number."""
    for name in names:
        if (text := env.get(name)) is not None:
            # Slurm writes "2(x3)" into per-node variables; only plain numbers are read here.
            if not re.fullmatch(r"\d+", text.strip()):
                raise InvalidArgument(f"{name}={text!r} is not valid; expected an integer from 0")
            return int(text)
    return None


def _both(env: Mapping[str, str], rank_name: str, size_name: str) -> tuple[int, int] | None:
    rank, size = _number(env, rank_name), _number(env, size_name)
    if rank is None and size is None:
        return None
    if rank is None or size is None:
        present, absent = (size_name, rank_name) if rank is None else (rank_name, size_name)
        raise InvalidArgument(f"{present} is set but {absent} is not; set both, or neither to run as a single process")
    return rank, size


def _from_ringleader(env: Mapping[str, str]) -> Launch | None:
    found = _both(env, "RINGLEADER_RANK", "RINGLEADER_SIZE")
    if found is None:
        return None
    launch = Launch(
        *found,
        local_rank=_number(env, "RINGLEADER_LOCAL_RANK"),
        local_size=_number(env, "RINGLEADER_LOCAL_SIZE"),
        launcher="RINGLEADER_RANK",
        store_served=parse_setting("STORE_SERVED", env.get("RINGLEADER_STORE_SERVED", "0")),
    )
    return _with_master(launch, env)


def _with_master(launch: Launch, env: Mapping[str, str], job_id: str | None = None) -> Launch:
    """Add the meeting point and the job's name."""
    if "RINGLEADER_STORE" in env:
        host, port = parse_hostport(env["RINGLEADER_STORE"])
        launch = replace(launch, master_addr=host, master_port=port, agent_store=False, own_address=True)
    elif "MASTER_ADDR" in env:
        port_text = env.get("MASTER_PORT", str(DEFAULT_PORT))
        host, port = parse_hostport(f"{_bracketed(env['MASTER_ADDR'])}:{port_text}", "MASTER_ADDR:MASTER_PORT")
        launch = replace(launch, master_addr=host, master_port=port)
    name = env.get("RINGLEADER_JOB_ID") or job_id
    if name is None and launch.master_port is not None:
        name = f"port-{launch.master_port}"
    return replace(launch, job_id=name or "default")


def _from_launchers(env: Mapping[str, str]) -> Launch | None:
    found = [launch for launch in (_torchrun(env), _open_mpi(env), _mpich(env)) if launch is not None]
    if not found:
        return _slurm(env)
    first = found[0]
    for other in found[1:]:
        if (other.rank, other.size) != (first.rank, first.size):
            raise InvalidArgument(
                f"contradiction: {first.launcher} says rank {first.rank} of {first.size}, {other.launcher} says rank "
                f"{other.rank} of {other.size}; unset the variables of one of them, or give rank= and size="
            )
    return first


def _torchrun(env: Mapping[str, str]) -> Launch | None:
    found = _both(env, "RANK", "WORLD_SIZE")
    if found is None:
        return None
    launch = Launch(
        *found,
        local_rank=_number(env, "LOCAL_RANK"),
        local_size=_number(env, "LOCAL_WORLD_SIZE"),
        launcher="torchrun variables (RANK, WORLD_SIZE)",
        agent_store=env.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=_number(env, "TORCHELASTIC_RESTART_COUNT") or 0,
    )
    if "MASTER_ADDR" not in env and "RINGLEADER_STORE" not in env and launch.size > 1:
        raise InvalidArgument("RANK and WORLD_SIZE are set but MASTER_ADDR is not; set it to the host of rank 0")
    return _with_master(launch, env, env.get("TORCHELASTIC_RUN_ID"))


def _open_mpi(env: Mapping[str, str]) -> Launch | None:
    found = _both(env, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    if found is None:
        return None
    launch = Launch(
        *found,
        local_rank=_number(env, "OMPI_COMM_WORLD_LOCAL_RANK"),
        local_size=_number(env, "OMPI_COMM_WORLD_LOCAL_SIZE"),
        launcher="Open MPI variables (OMPI_COMM_WORLD_RANK, _SIZE)",
    )
    return _with_master(launch, env, env.get("PMIX_NAMESPACE") or env.get("OMPI_MCA_ess_base_jobid"))


def _mpich(env: Mapping[str, str]) -> Launch | None:
    # Slurm's PMI plugins set PMI_RANK too; there SLURM_* is complete and carries the host list.
    if "PMI_RANK" not in env and "PMI_SIZE" not in env:
        return None
    if "SLURM_PROCID" in env and env.get("PMI_RANK") == env["SLURM_PROCID"]:
        return None
    found = _both(env, "PMI_RANK", "PMI_SIZE")
    assert found is not None
    launch = Launch(
        *found,
        local_rank=_number(env, "MPI_LOCALRANKID", "PMI_LOCAL_RANK"),
        local_size=_number(env, "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"),
        launcher="MPICH variables (PMI_RANK, PMI_SIZE)",
    )
    # Not every version of Hydra names the job. Within a host its proxy stands for it; with an address the port does.
    named = env.get("PMI_JOBID") or env.get("PMI_KVSNAME")
    addressed = "MASTER_ADDR" in env or "RINGLEADER_STORE" in env
    return _with_master(launch, env, named or (None if addressed else f"{_PROXY}{_hydra_proxy()}"))


_PROXY = "hydra-"  # a job that is named after a process: only this host knows it so


def _hydra_proxy() -> int:
    """Process number of the Hydra proxy above this process, also through shells in between; else the parent's."""
    pid = os.getppid()
    for _ in range(16):
        try:
            head, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        except OSError:
            break
        if "(hydra_pmi" in head:
            return pid
        pid = int(rest.split()[1])
    return os.getppid()


def _slurm(env: Mapping[str, str]) -> Launch | None:
    if "SLURM_PROCID" not in env:
        return None
    rank = _number(env, "SLURM_PROCID")
    size = _number(env, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    if rank is None or size is None:
        raise InvalidArgument("SLURM_PROCID is set but SLURM_NTASKS is not; start the ranks with srun -n")
    launch = Launch(rank, size, local_rank=_number(env, "SLURM_LOCALID"), launcher="Slurm variables (SLURM_PROCID)")
    tasks = env.get("SLURM_STEP_TASKS_PER_NODE") or env.get("SLURM_TASKS_PER_NODE") or ""
    if re.fullmatch(r"\d+", tasks):
        launch = replace(launch, local_size=int(tasks))
    job = f"slurm-{env.get('SLURM_JOB_ID', '0')}.{env.get('SLURM_STEP_ID', '0')}"
    launch = _with_master(launch, env, job)
    nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST")
    if launch.master_addr is None and nodes and size > 1:
        # No port is agreed on, so all ranks compute the same one from the job: above the registered, below the
        # ephemeral ports. A busy one is reported, and MASTER_PORT overrides it.
        port = 20000 + zlib.crc32(job.encode()) % 12000
        launch = replace(launch, master_addr=first_host(nodes), master_port=port)
    return launch


def first_host(nodelist: str) -> str:
    """First host of a Slurm node list.

    Examples
    --------
    >>> first_host("node[007-010,12],other")
    'node007'
    >>> first_host("rack[1-2]n[3,5]")
    'rack1n3'
    """
    # The first item ends at the first comma outside brackets; in each bracket the first element ends at "-" or ",".
    item = re.match(r"(?:[^,\[]|\[[^\]]*\])+", nodelist)
    if item is None:
        raise InvalidArgument(f"cannot read the Slurm node list {nodelist!r}; set MASTER_ADDR to the host of rank 0")
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", item[0])


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def parse_hostport(text: str, name: str = "address") -> tuple[str, int]:
    """Split "host:port" or "[v6 address]:port" (a scope, as in fe80::1%eth0, is kept).

    Examples
    --------
    >>> parse_hostport("[::1]:29500")
    ('::1', 29500)
    """
    match = re.fullmatch(r"(?:\[([^\]]+)\]|([^:\[\]\s]+)):(\d+)", text.strip())
    if match is None or not 0 < int(match[3]) < 65536:
        raise InvalidArgument(
            f"{name} {text!r} is not valid; expected host:port with a port from 1 to 65535, and an IPv6 address in "
            "brackets: [::1]:29500"
        )
    return match[1] or match[2], int(match[3])


def format_hostport(host: str, port: int) -> str:
    """The inverse of `parse_hostport`."""
    return f"{_bracketed(host)}:{port}"
