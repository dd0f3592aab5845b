"""`init`: the way into a job."""

from __future__ import annotations

import time
from typing import Any

from ringleader import algorithms, errors, tune
from ringleader.runtime.communicator import Communicator
from ringleader.runtime.config import Config
from ringleader.runtime.environment import DEFAULT_PORT, format_hostport
from ringleader.runtime.groups import connect
from ringleader.runtime.job import open_job

__all__ = ["init"]


def init(
    rank: int | None = None,
    size: int | None = None,
    *,
    master_addr: str | None = None,
    master_port: int | None = None,
    store: Any = None,
    secret: str | bytes | None = None,
    transport: str | None = None,
    timeout: float | None = None,
    start_timeout: float | None = None,
    **settings: object,
) -> Communicator:
    """Join the job and return the communicator of all its ranks. Every rank must call it.

    Arguments win over ``RINGLEADER_*`` variables, which win over what the launcher has set (torchrun, Open MPI,
    MPICH, Slurm). With none of them the job has one rank.

    Parameters
    ----------
    rank, size
        This process's place; only both together.
    master_addr, master_port
        Where rank 0 serves the store through which the ranks meet (host, address or IPv6 address; port 29500 if not
        given).
    store
        A `torch.distributed.Store`, or an object with set, get, add, delete and close, to meet through instead.
    secret
        At least 16 bytes, equal on all ranks: nobody else can join.
    transport
        ``"auto"`` (shared memory within a host, TCP between hosts), ``"shm"``, ``"tcp"`` or ``"ucx"``.
    timeout
        Limit in seconds of every operation that is not given its own; default 600.
    start_timeout
        Limit in seconds of the start; default 300.
    settings
        Any other setting of docs/configuration.md by its name in lower case, e.g. ``algo="ring"``, ``buffsize="4M"``.

    Raises
    ------
    InvalidArgument
        Contradictory, incomplete or unknown settings.
    RendezvousError, CollectiveTimeout
        The ranks did not meet; the message names those that are missing, or the process that has this rank already.
    PeerLost
        A rank died during the start; the message names it.

    Examples
    --------
    >>> import ringleader as rl
    >>> comm = rl.init(rank=0, size=1)
    >>> comm
    <Communicator world: rank 0 of 1, live>
    >>> comm.close()
    """
    config = Config.from_environment(
        None, transport=transport, timeout=timeout, store_timeout=start_timeout, **settings
    )
    algorithms.load_files(config.algorithm_files or "")
    tune.parse_algo(config.algo or "")  # a misspelt name is an error now, not at the first call
    if master_addr is None and master_port is not None:
        raise errors.InvalidArgument(f"master_port={master_port} is given without master_addr; give both")
    address = None if master_addr is None else format_hostport(master_addr, master_port or DEFAULT_PORT)
    deadline = time.monotonic() + config.store_timeout
    job = open_job(rank, size, address=address, store=store, secret=secret, config=config)
    try:
        left = max(0.0, deadline - time.monotonic())
        group = connect(job, "world", job.rank, job.size, left, config.timeout)
        return Communicator(job, group, "world")
    except BaseException:
        job.close()
        raise
