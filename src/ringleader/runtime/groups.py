"""From a job to a group: the native communicators of its ranks, connected, one for each worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ringleader import _core
from ringleader.errors import PeerLost
from ringleader.runtime.binding import format_cores, held_here, short_slices
from ringleader.runtime.bootstrap import Connected, connect_group
from ringleader.runtime.cards import Cohabitants
from ringleader.runtime.config import logger
from ringleader.runtime.flight.recording import record
from ringleader.runtime.job import Job
from ringleader.runtime.store import StoreLost

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
    members: Sequence[int] | None = None,
    extra: Any = None,
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
    members
        Their ranks in the job; default: all.
    extra
        What JSON can hold, for the callers of all ranks: `Connected.extras`.

    Raises
    ------
    CollectiveTimeout, RendezvousError, InvalidArgument, OutOfMemory, PeerLost
        The group was not formed, on any rank.
    """
    deadline = time.monotonic() + timeout
    ranks = list(range(size)) if members is None else list(members)

    def watch_all() -> None:
        job.watch(ranks)
        if watch is not None:
            watch()

    try:
        group = _form(job, name, rank, size, timeout, operation_timeout, watch_all, told, extra)
        beside: list[_core.Communicator] = []
        try:
            for worker in range(1, group.workers):
                left, part = max(0.001, deadline - time.monotonic()), f"{name}/worker{worker}"
                further = _form(job, part, rank, size, left, operation_timeout, watch_all, group.guide.told)
                beside.append(further.core)
        except BaseException:
            for core in (group.core, *beside):
                core.close(0.0)
            raise
    except StoreLost as error:
        if not job.served_by_root or job.vigil is None:
            raise
        root = job.vigil.members[0].name
        raise PeerLost(
            f"group {name!r} cannot be formed: {root}, which served the store, ended meanwhile ({error})",
            [ranks.index(0)] if 0 in ranks else [],
        ) from error
    group.beside, group.members = tuple(beside), ranks
    record(group, job, name)
    return group


def _form(
    job: Job,
    name: str,
    rank: int,
    size: int,
    timeout: float,
    operation_timeout: float,
    watch: Callable[[], None],
    told: Mapping[str, Any] | None,
    extra: Any = None,
) -> Connected:
    config = job.config

    def make(here: Cohabitants) -> _core.Communicator:
        # The launcher may know of more ranks on this machine, in other namespaces, which share its cores.
        unseen = max(0, min(size, job.launch.local_size or 1) - len(here.ranks))
        crowded = here.crowded(unseen, config.workers or 1)
        every = format_cores(frozenset().union(*here.taken))
        told_of = "more than they have cores" if crowded else "each with cores of its own"
        logger("INIT").info("group %r: %d rank(s) here on cores %s, %s", name, len(here.ranks) + unseen, every, told_of)
        slices = short_slices(config.time_slice)
        logger("INIT").info("group %r: %s", name, slices)
        options = {
            "slot_bytes": config.buffsize,
            "inline_bytes": config.inline_limit,
            "p2p_ring_bytes": config.p2p_buffsize,
            "oversubscribed": int(crowded),
            "bound": int(held_here() is not None),
            "spin_us": config.spin_us,
            "yield_us": config.yield_us,
            "slice_us": config.time_slice,
        }
        given = {key: value for key, value in options.items() if value is not None}
        return _core.Communicator(rank, size, operation_timeout, given)

    group = connect_group(
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
        extra=extra,
    )
    if group.binding is not None:
        job.on_close(group.binding.release)
    return group
