"""The communicator: a group of ranks and what they can do together."""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import time
import weakref
from collections import Counter, OrderedDict
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ringleader import _core, errors, tune
from ringleader.runtime import arrays, compressed
from ringleader.runtime.bootstrap import Connected
from ringleader.runtime.config import logger
from ringleader.runtime.groups import connect
from ringleader.runtime.job import Job
from ringleader.runtime.messages import Messages
from ringleader.runtime.persistent import PersistentCollectives
from ringleader.runtime.plans import Choice, Planner
from ringleader.runtime.runner import seconds
from ringleader.runtime.shrink import agree_on_lost, describe_loss
from ringleader.runtime.store import PrefixStore
from ringleader.runtime.watched import Watched, unseen
from ringleader.runtime.wire import Wire, parse_wire
from ringleader.runtime.workers import Workers

__all__ = ["CLOSE_LIMIT", "Communicator"]

# Leaving never takes longer than this, in seconds, whatever the peers do.
CLOSE_LIMIT = 2.0
# Barriers at the beginning of a group of several hosts that is traced: they tell how far apart the hosts' clocks are.
_CALIBRATION = 8

_log = logger("INIT")
_open: weakref.WeakSet[Communicator] = weakref.WeakSet()


class Communicator(PersistentCollectives, Messages, Watched):
    """A group of ranks. Made by `init`, `split`, `subgroup` or `shrink`; a context manager that closes it at the end.

    Attributes
    ----------
    rank, size
        This process's number in the group, from 0, and the number of ranks.
    name
        What log and error messages call the group.
    nodes
        Node number of each rank: equal numbers share memory.
    local_rank, local_size
        This rank's number among the ranks of its node, and how many they are.
    workers
        Threads that this rank uses for one large operation, see RINGLEADER_WORKERS.

    Examples
    --------
    >>> import numpy as np, ringleader as rl
    >>> with rl.init(rank=0, size=1) as comm:
    ...     comm.rank, comm.size, comm.all_reduce(np.ones(2))
    (0, 1, array([1., 1.]))
    """

    def __init__(self, job: Job, group: Connected, name: str) -> None:
        self._job = job
        self._core = group.core
        self._names = group.names
        self.name = name
        self.rank: int = group.rank
        self.size: int = group.size
        self.nodes: tuple[int, ...] = tuple(group.nodes)
        self.local_rank = group.local_ranks.index(group.rank)
        self.local_size = len(group.local_ranks)
        self.workers: int = group.workers
        self._workers = Workers(group.beside, self.nodes)
        self._planner = Planner(
            group.core, self.nodes, group.guide.config, group.guide.rules, group.guide.model, self._workers
        )
        self._told = group.guide.told
        self._job_ranks = group.members
        self._known = OrderedDict()
        self._barriers = {}
        self._last_choice = None
        self._unseen = 0
        self._made: Counter[Any] = Counter()
        self._forked = False
        job.acquire()
        self._finalizer = weakref.finalize(self, _release, (group.core, *group.beside), job, os.getpid())
        self._finalizer.atexit = False  # `_leave_all` closes the ones still open, within one limit for all
        _open.add(self)
        self._watch(job.config.monitor)
        if job.config.metrics is not None:
            from ringleader.runtime.monitor.metrics import serve  # only who asks pays for the import

            local = job.launch.local_rank
            serve(self, job.config.metrics, group.local_ranks.index(group.rank) if local is None else local)
        if group.guide.told.get("traced") and len(set(self.nodes)) > 1:
            with unseen(self):
                for _ in range(_CALIBRATION):
                    self.barrier()

    # ------------------------------------------------------------------------------------------------ state

    @property
    def state(self) -> str:
        """``"live"``, ``"aborted"`` or ``"closed"``."""
        return self._core.state

    @property
    def timeout(self) -> float:
        """Limit in seconds of every operation that is not given its own; may be set."""
        return self._core.timeout

    @timeout.setter
    def timeout(self, limit: float) -> None:
        self._core.timeout = seconds(limit)

    @property
    def last_choice(self) -> Choice | None:
        """Algorithm, protocol and number of windows of this rank's latest collective, and why; None before the first.

        Of a process group's communicator, the latest collective of torch. What Ringleader calls for itself (to agree,
        to exchange measurements, to form groups) is left out.
        """
        choice: Choice | None = self._last_choice
        return choice

    @property
    def lost_ranks(self) -> list[int]:
        """Ranks that are known to have died or left."""
        return self._core.lost_ranks

    def explain(
        self, collective: str, nbytes: int, *, algorithm: str | None = None, wire: Wire = None
    ) -> tune.Explanation:
        """What would run for a collective of `nbytes`, and why.

        Parameters
        ----------
        collective
            ``"all_reduce"``, ...
        nbytes
            Bytes of the whole vector (for collectives over blocks: of all blocks together).

        Examples
        --------
        >>> import ringleader as rl
        >>> with rl.init(rank=0, size=1) as comm:
        ...     comm.explain("all_reduce", 4 << 20).choice.algorithm
        'two_shot'
        """
        return self._planner.explain(collective, nbytes, 1, algorithm, parse_wire(wire))

    def _check_usable(self) -> None:
        if self._forked:
            raise errors.ForkError(
                f"{self.name} belongs to the parent process; a forked child cannot use it: start the child with "
                "ringleader.spawn or multiprocessing's 'spawn' method, and call ringleader.init() there"
            )
        state = self._core.state
        if state == "aborted":
            raise errors.AbortedError(
                f"{self.name} was aborted: {self._core.abort_reason}; shrink() makes one of the ranks that are left",
                self._core.lost_ranks,
            )
        if state == "closed":
            raise errors.ClosedError(f"{self.name} is closed; make a new communicator")

    # ------------------------------------------------------------------------------------------------ memory

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike = np.float32) -> NDArray[Any]:
        """An uninitialised NumPy array in registered memory, which peers of this host reach without a copy.

        It is freed when the last reference goes; ``torch.from_numpy`` makes a tensor of it that shares the memory.
        When an operation on it fails and a rank does not answer, it is taken away from peers: it stays as it is, but
        later operations copy it as they do any other array. Arrays below a page (4 KiB) are always copied.

        Raises
        ------
        OutOfMemory
            With needed and free bytes. Pages are reserved at once, so there is no bus error later.

        Examples
        --------
        >>> import ringleader as rl
        >>> with rl.init(rank=0, size=1) as comm:
        ...     x = comm.empty((2, 3), "float64")
        ...     x[:] = 1
        ...     float(comm.all_reduce(x).sum())
        6.0
        """
        return arrays.empty(shape, dtype)

    # ------------------------------------------------------------------------------------------------ groups

    def split(self, color: int | None, key: int = 0, *, timeout: float | None = None) -> Communicator | None:
        """Divide the communicator: ranks that give the same `color` form a new one. Every rank must call it.

        Parameters
        ----------
        color
            Number of the new group, or None to be in none of them.
        key
            Order within the group: by `key`, then by rank in this communicator.

        Returns
        -------
        Communicator or None
            None for ranks that gave None.

        Examples
        --------
        >>> import ringleader as rl
        >>> with rl.init(rank=0, size=1) as comm:
        ...     comm.split(color=0).size
        1
        """
        wanted = np.array([color is not None, 0 if color is None else color, key], np.int64)
        with unseen(self, 1):
            table = self.all_gather(wanted, timeout=timeout)
        number = self._made["split"]
        self._made["split"] += 1
        if color is None:
            return None
        members = [r for r in range(self.size) if table[r, 0] and table[r, 1] == color]
        members.sort(key=lambda r: (table[r, 2], r))
        return self._derive(f"{self.name}/split{number}.{color}", members, timeout)

    def subgroup(self, ranks: Sequence[int], *, timeout: float | None = None) -> Communicator | None:
        """A communicator of some ranks. Only the members need to call it, all with the same sequence.

        Parameters
        ----------
        ranks
            Ranks of this communicator; rank i of the new one is ``ranks[i]``.

        Returns
        -------
        Communicator or None
            None, without any communication, for a rank that is not in `ranks`.

        Raises
        ------
        InvalidArgument
            No ranks, one twice, or one that does not exist.

        Examples
        --------
        >>> import ringleader as rl
        >>> with rl.init(rank=0, size=1) as comm:
        ...     comm.subgroup([0]).rank
        0
        """
        self._check_usable()
        members = [int(rank) for rank in ranks]
        if not members or len(set(members)) != len(members) or not all(0 <= r < self.size for r in members):
            raise errors.InvalidArgument(
                f"ranks are {members}; expected one or more different ranks from 0 to {self.size - 1}"
            )
        if self.rank not in members:
            return None
        number = self._made[tuple(members)]
        self._made[tuple(members)] += 1
        return self._derive(f"{self.name}/ranks{_ranks_name(members)}.{number}", members, timeout)

    def _derive(self, name: str, members: list[int], timeout: float | None) -> Communicator:
        rank, limit = members.index(self.rank), seconds(timeout) or self.timeout

        def watch() -> None:  # who is dead will not come: no need to wait out the limit
            lost = [member for member in self._core.lost_ranks if member in members]
            if lost:
                gone = describe_loss(lost, self._names)
                raise errors.PeerLost(f"{gone} died", [members.index(member) for member in lost])

        in_job = [self._job_ranks[member] for member in members]
        group = connect(self._job, name, rank, len(members), limit, self.timeout, watch, self._told, in_job)
        return Communicator(self._job, group, name)

    def shrink(self, *, timeout: float = 30.0) -> Communicator:
        """After a failure: a working communicator of the ranks that are left, in their old order. All survivors must
        call it.

        They agree through the store on who is lost: every rank that died, or does not call `shrink` within `timeout`
        seconds. This communicator is aborted if it was not.

        Raises
        ------
        PeerLost
            This rank came too late, the others have given it up.
        RendezvousError
            The store is lost too.
        """
        if self._forked:
            self._check_usable()
        if self._core.state == "live":
            self._core.abort(f"rank {self.rank} asked for shrink()")
        number = self._made["shrink"]
        self._made["shrink"] += 1
        name = f"{self.name}/shrink{number}"
        lost = agree_on_lost(
            PrefixStore(name, self._job.store), self.rank, self.size, lambda: self._core.lost_ranks, timeout
        )
        _log.warning("%s goes on as %s without %s", self.name, name, describe_loss(lost, self._names))
        members = [rank for rank in range(self.size) if rank not in lost]
        return self._derive(name, members, timeout)

    # ------------------------------------------------------------------------------------------------ the end

    def abort(self, reason: str = "abort() was called") -> None:
        """Fail every operation in flight, here and on all peers, with `AbortedError`. May be called from any thread."""
        if (lane := compressed.lane_or_none(self)) is not None:
            lane.comm.abort(reason)
        self._core.abort(reason)

    def close(self) -> None:
        """Leave the group; takes 2 s at most, whatever peers do. Idempotent.

        Operations in flight have that long to complete, because peers that are behind need this rank's part in them;
        what is not complete then fails with `ClosedError`.
        """
        if not self._forked:
            self._leave(CLOSE_LIMIT)

    def _leave(self, limit: float) -> None:
        if self._finalizer.detach() is not None:
            deadline = time.monotonic() + limit
            if (lane := compressed.lane_or_none(self)) is not None:
                lane.close(limit)
            self._core.close(max(0.0, deadline - time.monotonic()))  # first: an operation in flight ends its slices
            for core in self._workers.cores:
                core.close(max(0.0, deadline - time.monotonic()))
            self._forget_calls()
            self._planner.clear()
            self._unwatch()
            self._job.release()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Communicator {self.name}: rank {self.rank} of {self.size}, {self.state}>"


def _put_short_way_first() -> None:
    """Put the native short way before the verbs' methods, whose names, documentation and signatures it takes on."""
    for code, (name, positional) in enumerate(Communicator.VERBS.items()):
        method = getattr(Communicator, name)
        setattr(Communicator, name, functools.update_wrapper(_core.Verb(method, code, positional), method))


_put_short_way_first()


def _ranks_name(members: list[int]) -> str:
    """A short name for a sequence of ranks."""
    text = "_".join(map(str, members))
    return text if len(text) <= 24 else f"{len(members)}-{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"


def _release(cores: Sequence[_core.Communicator], job: Job, pid: int) -> None:
    """Let go of a communicator whose last reference is gone, without waiting for anybody."""
    if os.getpid() == pid:
        for core in cores:
            core.close(0.0)
        job.release()


@atexit.register
def _leave_all() -> None:
    """At exit: leave all groups, in `CLOSE_LIMIT` seconds together. In a forked child they are not ours to leave."""
    deadline = time.monotonic() + CLOSE_LIMIT
    for comm in list(_open):
        if not comm._forked:
            comm._leave(max(0.0, deadline - time.monotonic()))


def _after_fork_in_child() -> None:
    for comm in list(_open):
        comm._forked = True
        comm._forget_calls()  # the short way would not ask


os.register_at_fork(after_in_child=_after_fork_in_child)
