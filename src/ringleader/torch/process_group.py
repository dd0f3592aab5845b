"""The process group: a `torch.distributed.ProcessGroup` in Python around Ringleader's communicators.

All but the base class is in a mixin, `Group`: from torch 2.14 on a class derived from torch's `Backend` shares it (see
`composable`).
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed.constants import default_pg_timeout

from ringleader import errors
from ringleader.runtime.communicator import CLOSE_LIMIT, Communicator
from ringleader.runtime.config import PREFIX, Config, logger
from ringleader.runtime.groups import connect
from ringleader.runtime.job import Job, open_job
from ringleader.runtime.shrink import describe_loss
from ringleader.runtime.store import LocalStore
from ringleader.torch import channel, collectives, exchange, futures, profiling, registered, sparse, tensors, work
from ringleader.torch.channel import Channel
from ringleader.torch.collectives import Collectives
from ringleader.torch.devices.detour import detour_for, facts
from ringleader.torch.devices.device import kinds
from ringleader.torch.devices.pump import pumping
from ringleader.torch.dynamo import skip_frames
from ringleader.torch.errors import torch_error
from ringleader.torch.futures import CallbackThread, callback_owner
from ringleader.torch.monitored import monitored_barrier
from ringleader.torch.register import NAME
from ringleader.torch.work import CompositeWork, Holder, RingleaderWork

__all__ = ["Group", "ProcessGroupRingleader", "create"]

_groups: weakref.WeakSet[Group] = weakref.WeakSet()


def _keep_stores() -> None:
    """In a forked child: torch's stores are never destroyed.

    torch's server of a store would wait for its thread, which the child does not have. If the child has started threads
    of its own, one of them may have had the same identity since, and the child is ended by what the wait throws.
    """
    for group in list(_groups):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group._store))


os.register_at_fork(after_in_child=_keep_stores)


def _limit(timeout: timedelta, config: Config, settings: Mapping[str, object]) -> tuple[float, str]:
    """Seconds that an operation may take, and why: the group's own timeout comes before the setting."""
    if timeout != default_pg_timeout:
        return timeout.total_seconds(), "the timeout of the group"
    if settings.get("timeout") is not None:
        return config.timeout, "by pg_options"
    if f"{PREFIX}TIMEOUT" in os.environ:
        return config.timeout, f"by {PREFIX}TIMEOUT (the group has torch's default timeout)"
    return timeout.total_seconds(), "torch's default timeout"


class Group(Collectives):
    """What torch asks of a process group or of a backend; a mixin for classes derived from one of them.

    Parameters
    ----------
    store
        torch's store, prefixed for this group.
    rank, size
        Place in the group.
    timeout
        Limit of its forming and of every operation that is not given its own; if it is torch's default, a setting
        `timeout` limits the operations instead.
    name
        torch's name of the group, the same on all ranks.
    ranks
        Global ranks of the members; empty for the group of all.
    settings
        Settings of docs/configuration.md, by their names in lower case.
    hosts
        With the setting `inside`: a number for each rank, equal for those of one host; default: who shares memory.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        timeout: timedelta,
        name: str,
        ranks: list[int],
        settings: Mapping[str, object],
        hosts: Sequence[int] | None = None,
    ) -> None:
        self._rank, self._size, self._store = rank, size, store
        _groups.add(self)
        self._ranks = list(ranks)
        self._group_name, self._group_desc = name, ""
        config = Config.from_environment(None, **settings)
        start = timeout.total_seconds()
        self._timeout, why = _limit(timeout, config, settings)
        deadline = time.monotonic() + start
        self._job: Job = open_job(rank, size, store=LocalStore() if size == 1 else store, config=config, timeout=start)
        logger("INIT").info("process group %s: operations may take %g s, %s", name, self._timeout, why)
        members = f" of global ranks {ranks}" if ranks and ranks != list(range(size)) else ""
        self._title = f"process group {name}{members}"
        self._devices = kinds()
        try:
            self._main, told = self._form(self._title, deadline, facts(config))
            self._detour = detour_for(self, config, hosts, told)
        except BaseException:
            self._job.close()
            raise
        self._sides: dict[str, Channel] = {}
        self._sides_lock = threading.Lock()
        self._lent: weakref.WeakSet[Channel] = weakref.WeakSet()
        self._made: Counter[str] = Counter()
        self._holder = Holder()
        self._callback_thread = CallbackThread(name)
        self._finalizer = weakref.finalize(self, self._callback_thread.close)
        self._coalescing: list[RingleaderWork] | None = None
        self._monitored = 0

    def _form(self, name: str, deadline: float | None = None, extra: Any = None) -> tuple[Channel, list[Any]]:
        """A communicator of this group, and what the ranks told one another."""
        limit = self._timeout if deadline is None else max(0.0, deadline - time.monotonic())
        group = connect(self._job, name, self._rank, self._size, limit, self._timeout, self._watch(), extra=extra)
        return Channel(Communicator(self._job, group, name)), group.extras

    def _watch(self) -> Callable[[], None] | None:
        """Raises if the group of all knows that a member is dead: it has connections with ranks of other hosts."""
        world = c10d.GroupMember.WORLD
        if not isinstance(world, Group) or world is self:
            return None
        ranks = self._ranks or list(range(self._size))
        comm = world.communicator

        def watch() -> None:
            if lost := [rank for rank in comm.lost_ranks if rank in ranks]:
                raise errors.PeerLost(f"{describe_loss(lost, comm._names)} died", [ranks.index(rank) for rank in lost])

        return watch

    def _channel(self) -> Channel:
        """The communicator for the calling thread: callbacks of futures have their own, see `futures`."""
        owner = callback_owner()
        if owner is None:
            return self._main
        side = self._sides.get(owner)
        if side is None:
            with self._sides_lock:
                if (side := self._sides.get(owner)) is None:
                    side = self._sides[owner] = self._form(f"{self._title}, callbacks of {owner}")[0]
        return side

    def make_side(self, purpose: str) -> Channel:
        """A further communicator of this group; all ranks make those of a purpose in the same order.

        It lives as long as somebody has it, and until the group is left.
        """
        number = self._made[purpose]
        self._made[purpose] += 1
        side, _ = self._form(f"{self._title}, {purpose} {number}")
        self._lent.add(side)
        return side

    def _channels(self) -> list[Channel]:
        return [self._main, *self._sides.values(), *self._lent]

    def _hold(self, work: RingleaderWork) -> RingleaderWork:
        work._callback_thread = self._callback_thread
        self._holder.hold(work)
        if self._coalescing is not None and not pumping():
            self._coalescing.append(work)
        return work

    def _failed(self, error: errors.RingleaderError) -> RingleaderWork:
        return self._hold(RingleaderWork(None, [], torch_error(error)))

    # --------------------------------------------------------------------------------------- who this is

    def getRank(self) -> int:  # noqa: D102, N802
        return self._rank

    def getSize(self) -> int:  # noqa: D102, N802
        return self._size

    def getBackendName(self) -> str:  # noqa: D102, N802
        return NAME

    _get_backend_name = name = getBackendName

    def setGroupName(self, name: str) -> None:  # noqa: D102, N802
        self._group_name = name

    def getGroupName(self) -> str:  # noqa: D102, N802
        return self._group_name

    def setGroupDesc(self, desc: str) -> None:  # noqa: D102, N802
        self._group_desc = desc

    def getGroupDesc(self) -> str:  # noqa: D102, N802
        return self._group_desc

    def get_group_store(self) -> Any:
        """The store that the group was made with."""
        return self._store

    def _get_sequence_number_for_group(self) -> int:
        """How many collectives this rank has begun."""
        return self._main.comm.counters()["operations"]

    def _set_sequence_number_for_group(self) -> None:
        """The ranks count from the start of the group; nothing to agree on."""

    @property
    def communicator(self) -> Communicator:
        """Ringleader's communicator of this group, for `status()`, `counters()`, `explain()` and the like."""
        return self._main.comm

    # What torch asks the backend of a device, where a group is a bundle of backends; this group is its own.

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(kind) for kind in dict.fromkeys(("cpu", *self._devices))]

    def _get_backend(self, device: torch.device) -> Group:
        if torch.device(device).type not in ("cpu", *self._devices):
            here = ", ".join(str(device) for device in self._device_types)
            raise RuntimeError(f"the backend {NAME!r} moves tensors of {here} here, there is none for {device}")
        return self

    use_pg_for_symm_mem_rendezvous = False
    supports_splitting = supports_coalescing = supports_time_estimate = supports_shrinking = False

    def supports_tensor_alloc(self, device: torch.device) -> bool:  # noqa: D102
        return False

    def eager_connect_single_device(self, device: torch.device) -> None:
        """Nothing: a group is connected when it is made."""

    def _enable_collectives_timing(self) -> None:
        """Nothing: the profiler shows how long each operation takes."""

    def _wait_for_pending_works(self) -> None:
        """Wait until all operations in flight are over, in success or failure."""
        self._holder.drain(self._timeout)

    # ----------------------------------------------------------------------------------------- coalescing

    def start_coalescing(self, device: Any = None) -> None:
        """Collect the works from now on."""
        self._coalescing = []

    def end_coalescing(self, device: Any = None) -> Any:
        """One work for all that were collected."""
        works, self._coalescing = self._coalescing or [], None
        return self._hold(CompositeWork(works, [x for work in works for x in work.outputs]))

    _start_coalescing, _end_coalescing = start_coalescing, end_coalescing

    # ----------------------------------------------------------------------------------- who is missing

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Wait for all ranks; if one does not come, the error on rank 0 tells which, see `monitored`.

        Parameters
        ----------
        timeout
            A timedelta, or torch's options of a barrier, which hold one.
        wait_all_ranks
            Wait for every rank, so that all missing ones are named.
        """
        timeout = getattr(timeout, "timeout", timeout)
        limit = self._timeout if timeout is None else timeout.total_seconds()
        number, self._monitored = self._monitored, self._monitored + 1
        try:
            monitored_barrier(self._store, self._rank, self._size, number, limit, wait_all_ranks)
        except errors.CollectiveTimeout as error:
            raise torch_error(error) from None

    # ------------------------------------------------------------------------------------------- the end

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the limit of operations that are not given their own."""
        self._timeout = timeout.total_seconds()
        for each in self._channels():
            each.comm.timeout = self._timeout

    _set_default_timeout = set_timeout

    def abort(self) -> None:
        """Fail everything in flight, on all ranks; torch calls it from any thread."""
        for each in self._channels():
            each.comm.abort(f"rank {self._rank} called abort() on {self._title}")
        if self._detour is not None:
            self._detour.abort()

    def shutdown(self) -> None:
        """Leave the group; `destroy_process_group` calls it.

        What is in flight gets 2 s to complete; leaving takes another 2 s at most, whatever the other ranks do.
        """
        self._holder.drain(CLOSE_LIMIT)
        if self._detour is not None:
            self._detour.close()
        for each in self._channels():
            each.close()
        self._holder.sweep()
        registered.release_dead()
        self._finalizer()


class ProcessGroupRingleader(Group, dist.ProcessGroup):  # type: ignore[misc]
    """A process group whose collectives Ringleader runs. Made by `torch.distributed`, see `create`.

    Parameters
    ----------
    store, rank, size, more
        See `Group`.
    """

    def __init__(self, store: Any, rank: int, size: int, *more: Any) -> None:
        dist.ProcessGroup.__init__(self, rank, size)  # type: ignore[call-arg]
        Group.__init__(self, store, rank, size, *more)


def create(options: Any, backend_options: Any) -> Group:
    """What torch calls to make a group.

    Parameters
    ----------
    options
        `torch._C._distributed_c10d._DistributedBackendOptions`.
    backend_options
        What the user gave as ``pg_options=``: None, or a mapping of settings as for `ringleader.init`, which may have
        ``hosts`` too.
    """
    settings = {} if backend_options is None else backend_options
    if not isinstance(settings, Mapping):
        raise errors.InvalidArgument(
            f"pg_options is a {type(settings).__name__}; expected a mapping of settings, e.g. {{'algo': 'ring'}}"
        )
    hosts = settings.get("hosts")
    settings = {name: value for name, value in settings.items() if name != "hosts"}
    try:
        kind: type[Group] = ProcessGroupRingleader
        if Config.from_environment(None, **settings).composable:
            from ringleader.torch.composable import backend_class

            kind = backend_class()
        return kind(
            options.store,
            options.group_rank,
            options.group_size,
            options.timeout,
            options.group_id,
            list(options.global_ranks_in_group),
            settings,
            hosts,
        )
    except errors.RingleaderError as error:
        raise torch_error(error) from error


def _end_groups_with_torch_26() -> None:
    """Let torch 2.6's `destroy_process_group`, which ends NCCL's groups only, end ours; later ones call `shutdown`."""
    ends = getattr(c10d, "_shutdown_backend", None)
    if ends is None:
        return

    def shutdown_backend(pg: Any) -> None:
        if isinstance(pg, ProcessGroupRingleader):
            pg.shutdown()
        else:
            ends(pg)

    c10d._shutdown_backend = shutdown_backend  # type: ignore[attr-defined]


_end_groups_with_torch_26()

_OURS = [channel, collectives, exchange, futures, profiling, registered, sparse, tensors, work, sys.modules[__name__]]
skip_frames(_OURS)
