"""`init_process_group` for launchers that torch does not know: mpirun, srun."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ringleader.errors import InvalidArgument
from ringleader.runtime.job import Job, open_job

__all__ = ["init_process_group"]


def init_process_group(backend: str = "ringleader", **options: Any) -> None:
    """`torch.distributed.init_process_group` that also finds its ranks under mpirun (Open MPI, MPICH) and srun.

    torch itself reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT only, which torchrun sets. Here rank and size come
    from wherever `ringleader.init` takes them. Under mpirun on one host nothing needs to be set; over several hosts set
    MASTER_ADDR to the host of rank 0, as for `ringleader.init`.

    Parameters
    ----------
    backend
        Any backend of torch, ``"ringleader"`` or for example ``"gloo"``.
    options
        Further arguments of `torch.distributed.init_process_group`, but for ``init_method``, ``store``, ``rank`` and
        ``world_size``.

    Raises
    ------
    InvalidArgument
        An option that this function decides itself, or a launcher's variables that are incomplete.
    RendezvousError, CollectiveTimeout
        The ranks did not meet.

    Examples
    --------
    >>> import torch.distributed as dist
    >>> import ringleader as rl
    >>> rl.torch.init_process_group()  # without a launcher: a world of one
    >>> dist.get_world_size(), dist.get_backend()
    (1, 'ringleader')
    >>> dist.destroy_process_group()
    """
    decided = sorted({"init_method", "store", "rank", "world_size"} & set(options))
    if decided:
        raise InvalidArgument(
            f"{', '.join(decided)} given; with them call torch.distributed.init_process_group, which needs no launcher"
        )
    job = open_job()
    try:
        if job.launch.agent_store:  # torchrun serves the store; torch knows how to reach it
            dist.init_process_group(backend, **options)
            return
        store = _store(job)
        dist.init_process_group(backend, store=store, rank=job.rank, world_size=job.size, **options)
        if job.size > 1:
            # Nobody closes what the ranks met through before all have read it.
            dist.barrier()
    finally:
        job.close()


def _store(job: Job) -> Any:
    """torch's store, which rank 0 serves on a free port; the ranks learn the port through the job's own store."""
    host = job.launch.master_addr or "127.0.0.1"
    limit = job.config.store_timeout
    arguments: dict[str, Any] = {"world_size": job.size, "wait_for_workers": False, "timeout": timedelta(seconds=limit)}
    if job.rank == 0:
        store = dist.TCPStore(host, 0, is_master=True, **arguments)  # type: ignore[attr-defined]
        job.store.set("torch-port", str(store.port).encode())
        return store
    port = int(job.store.get("torch-port", limit))
    return dist.TCPStore(host, port, is_master=False, **arguments)  # type: ignore[attr-defined]
