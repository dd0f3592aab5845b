"""From a job to a group: the native communicators of its ranks, connected, one for each worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from ringleader import _core
from ringleader.runtime.bootstrap import Connected, connect_group
from ringleader.runtime.job import Job

__all__ = ["connect"]


def connect(
    job: Job,
    name: str,
    rank: int,
    size: int,
    timeout: float,
    operation_timeout: float,
    watch: Callable[[], None] | None = None,
    told: Mapping[str, Any] | None = None,
) -> Connected:
    """Form a group of `size` ranks, of which this process is `rank`.

    Parameters
    ----------
    name
        Equal on all members, never used before in this job.
    timeout, operation_timeout
        Seconds for forming the group, and for each of its operations by default.
    watch
        Called now and then while waiting; raises if a member is known to be dead.
    told
        By what the job chooses (see `tuning`), if this is not its first group.

    Raises
    ------
    CollectiveTimeout, RendezvousError, InvalidArgument, OutOfMemory, PeerLost
        The group was not formed, on any rank.
    """
    deadline = time.monotonic() + timeout
    group = _form(job, name, rank, size, timeout, operation_timeout, watch, told)
    beside: list[_core.Communicator] = []
    try:
        for worker in range(1, group.workers):
            left = max(0.001, deadline - time.monotonic())
            beside.append(
                _form(job, f"{name}/worker{worker}", rank, size, left, operation_timeout, watch, group.guide.told).core
            )
    except BaseException:
        for core in (group.core, *beside):
            core.close(0.0)
        raise
    group.beside = tuple(beside)
    return group


def _form(
    job: Job,
    name: str,
    rank: int,
    size: int,
    timeout: float,
    operation_timeout: float,
    watch: Callable[[], None] | None,
    told: Mapping[str, Any] | None,
) -> Connected:
    config = job.config

    def make(local_ranks: int) -> _core.Communicator:
        # Ranks of this host share its cores also where they do not share memory.
        local_ranks = max(local_ranks, min(size, job.launch.local_size or 1)) * (config.workers or 1)
        options = {
            "slot_bytes": config.buffsize,
            "inline_bytes": config.inline_limit,
            "p2p_ring_bytes": config.p2p_buffsize,
            "usable_cores": _core.usable_cores(),
            "local_ranks": local_ranks,
            "spin_us": config.spin_us,
            "yield_us": config.yield_us,
        }
        given = {key: value for key, value in options.items() if value is not None}
        return _core.Communicator(rank, size, operation_timeout, given)

    return connect_group(
        job.store,
        rank,
        size,
        group_id=name,
        secret=job.secret,
        config=config,
        timeout=timeout,
        native_comm_factory=make,
        route_to=job.route_to,
        watch=watch,
        told=told,
    )
