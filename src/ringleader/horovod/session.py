"""Who takes part: the job, sets of its processes, and the thread on which each set's operations run."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from ringleader import errors
from ringleader.runtime.communicator import Communicator
from ringleader.runtime.start import init as join_job

__all__ = [
    "ProcessSet",
    "add_process_set",
    "cross_rank",
    "cross_size",
    "global_process_set",
    "init",
    "is_homogeneous",
    "is_initialized",
    "lane_of",
    "local_rank",
    "local_size",
    "rank",
    "remove_process_set",
    "shutdown",
    "size",
]

T = TypeVar("T")


class Lane:
    """One communicator and a thread that runs its operations one after another, in the order in which they came.

    Invariant: only the thread uses the communicator, so that the order of operations is the order of `submit`.
    """

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=f"ringleader-horovod-{comm.name}", daemon=True)
        self._thread.start()
        self._pid = os.getpid()

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, work = job
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)
            del job, future, work  # what it keeps alive must not wait for the next one

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run `work` after everything that was submitted before.

        Raises
        ------
        ForkError
            In a forked child of the process that called `init`.
        """
        if os.getpid() != self._pid:
            raise errors.ForkError(
                "horovod belongs to the parent process; a forked child cannot use it: start the child with "
                "multiprocessing's 'spawn' method, and call init() there"
            )
        future: Future[T] = Future()
        self._jobs.put((future, work))
        return future

    def close(self) -> None:
        """Finish what was submitted, then leave the communicator. In a forked child both are the parent's."""
        if os.getpid() != self._pid:
            return
        self._jobs.put(None)
        self._thread.join()
        self.comm.close()


class ProcessSet:
    """A set of the job's processes. Made on all of them, registered by `add_process_set`.

    Examples
    --------
    >>> import ringleader.horovod.torch as hvd
    >>> hvd.ProcessSet([0, 2]).ranks
    [0, 2]
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks: list[int] | None = sorted(ranks)
        self._lane: Lane | None = None

    @property
    def lane(self) -> Lane:
        """The thread of this set.

        Raises
        ------
        ClosedError
            The job has not been joined, or this process is not in the set.
        """
        if self._lane is None:
            what = "horovod" if self.ranks is None else f"the process set {self.ranks}"
            raise errors.ClosedError(f"{what} has no communicator in this process; call init() and add_process_set()")
        return self._lane

    def included(self) -> bool:
        """Whether this process is in the set."""
        return self._lane is not None

    def rank(self) -> int:
        """This process's number in the set."""
        return self.lane.comm.rank

    def size(self) -> int:
        """Number of processes of the set."""
        return self.lane.comm.size

    def _open(self, comm: Communicator | None) -> None:
        self._lane = None if comm is None else Lane(comm)

    def _close(self) -> None:
        lane, self._lane = self._lane, None
        if lane is not None:
            lane.close()


global_process_set = ProcessSet([])
global_process_set.ranks = None
_sets: list[ProcessSet] = []


def init(process_sets: Sequence[ProcessSet] = (), **options: Any) -> None:
    """Join the job; again it does nothing.

    Parameters
    ----------
    process_sets
        Sets to register at once, the same on all processes.
    options
        Arguments of `ringleader.init`.

    Examples
    --------
    >>> import ringleader.horovod.torch as hvd
    >>> hvd.init(rank=0, size=1)
    >>> hvd.rank(), hvd.size(), hvd.local_rank(), hvd.cross_size()
    (0, 1, 0, 1)
    >>> hvd.shutdown()
    """
    if is_initialized():
        return
    global_process_set._open(join_job(**options))
    for each in process_sets:
        add_process_set(each)


def shutdown() -> None:
    """Finish what was started and leave the job; `init` may be called again."""
    while _sets:
        _sets.pop()._close()
    global_process_set._close()


def is_initialized() -> bool:
    """Whether this process is in a job.

    Examples
    --------
    >>> is_initialized()
    False
    """
    return global_process_set.included()


def add_process_set(members: ProcessSet | Sequence[int]) -> ProcessSet:
    """Register a set; all processes of the job call it, also those that are not in the set.

    Raises
    ------
    InvalidArgument
        Ranks that the job does not have, or one twice.
    """
    members = members if isinstance(members, ProcessSet) else ProcessSet(members)
    if members.ranks is None:
        raise errors.InvalidArgument("the global process set is there from the start")
    if members in _sets:
        raise errors.InvalidArgument(f"the process set {members.ranks} is registered already")
    lane, ranks = global_process_set.lane, members.ranks
    members._open(lane.submit(lambda: lane.comm.subgroup(ranks)).result())
    _sets.append(members)
    return members


def remove_process_set(members: ProcessSet) -> bool:
    """Take a set back; whether there was such a set."""
    if members not in _sets:
        return False
    _sets.remove(members)
    members._close()
    return True


def lane_of(members: ProcessSet | None) -> Lane:
    """The thread of a set, of all processes for None."""
    return (members or global_process_set).lane


def _comm() -> Communicator:
    return global_process_set.lane.comm


def rank() -> int:
    """This process's number in the job, from 0."""
    return _comm().rank


def size() -> int:
    """Number of processes of the job."""
    return _comm().size


def local_rank() -> int:
    """This process's number among those of its host."""
    return _comm().local_rank


def local_size() -> int:
    """Number of processes of this host."""
    return _comm().local_size


def cross_rank() -> int:
    """Number of this host among those that have a process with this local rank."""
    return _same_local_rank().index(rank())


def cross_size() -> int:
    """Number of hosts that have a process with this local rank."""
    return len(_same_local_rank())


def is_homogeneous() -> bool:
    """Whether all hosts have equally many processes."""
    nodes = _comm().nodes
    return len({nodes.count(node) for node in nodes}) == 1


def _same_local_rank() -> list[int]:
    nodes, here = _comm().nodes, local_rank()
    return [r for r, node in enumerate(nodes) if nodes[:r].count(node) == here]
