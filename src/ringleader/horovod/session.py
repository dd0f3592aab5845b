"""Who takes part: the job, sets of its processes, and the thread on which each set's operations run."""

from __future__ import annotations

import operator
import os
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from ringleader import errors
from ringleader.horovod.common.exceptions import NotInitialized, failure
from ringleader.runtime.communicator import Communicator
from ringleader.runtime.start import init as join_job

__all__ = [
    "ProcessSet",
    "add_process_set",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "lane_of",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
]

T = TypeVar("T")


class _Outcome(Future[T]):
    """A future that a forked child does not wait for: the thread that would complete it is its parent's."""

    def __init__(self) -> None:
        super().__init__()
        self._pid = os.getpid()

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise errors.ForkError("the operation is the parent process's: a forked child does not get its result")

    def result(self, timeout: float | None = None) -> T:
        """See `concurrent.futures.Future`."""
        self._check()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """See `concurrent.futures.Future`."""
        self._check()
        return super().exception(timeout)


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
                future.set_exception(failure(error))
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
        future: Future[T] = _Outcome()
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

    process_set_id: int | None = None
    """Its number while it is registered, else None; 0 is the set of all processes."""

    mpi_comm: Any = None
    """Always None: sets are made of ranks."""

    def __init__(self, ranks_or_comm: Iterable[int]) -> None:
        try:
            self.ranks: list[int] | None = sorted(operator.index(r) for r in ranks_or_comm)
        except TypeError:
            raise errors.InvalidArgument(
                f"the members are {ranks_or_comm!r}; expected the ranks of the set, such as [0, 2]"
            ) from None
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
            if self is global_process_set:
                raise NotInitialized("this process is in no job; call init()")
            raise errors.ClosedError(
                f"the process set {self.ranks} has no communicator in this process; "
                "expected a set that add_process_set() registered, called by one of its members"
            )
        return self._lane

    def included(self) -> bool:
        """Whether this process, once it is in a job, belongs to the set."""
        return is_initialized() and self.ranks is not None and rank() in self.ranks

    def rank(self) -> int | None:
        """This process's number in the set; None if the set is not registered."""
        return None if self.process_set_id is None else self.lane.comm.rank

    def size(self) -> int | None:
        """Number of processes of the set; None if it is not registered."""
        return None if self.process_set_id is None or self.ranks is None else len(self.ranks)

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"

    def _open(self, number: int, comm: Communicator | None) -> None:
        self.process_set_id = number
        self._lane = None if comm is None else Lane(comm)

    def _close(self) -> None:
        lane, self._lane = self._lane, None
        self.process_set_id = None
        if lane is not None:
            lane.close()


global_process_set = ProcessSet([])
global_process_set.ranks = None
_sets: list[ProcessSet] = []
_numbers = [0]


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None, **options: Any) -> None:
    """Join the job; again it does nothing.

    Parameters
    ----------
    comm
        All ranks of the job, or None, which is the same. Parts of a job are process sets.
    process_sets
        Sets to register at once, the same on all processes. ``"dynamic"`` is allowed and changes nothing: sets can
        be added at any time.
    options
        Arguments of `ringleader.init`.

    Raises
    ------
    InvalidArgument
        `comm` is not the whole job.

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
    if isinstance(process_sets, str) and process_sets.lower() != "dynamic":
        raise errors.InvalidArgument(f"process_sets is {process_sets!r}; expected a list of ProcessSet or 'dynamic'")
    sets = [] if process_sets is None or isinstance(process_sets, str) else list(process_sets)
    job = join_job(**options)
    everyone = list(range(job.size))
    if not _is_whole(comm, everyone):
        job.close()
        raise errors.InvalidArgument(f"comm is {comm!r}; expected None or all ranks {everyone} (ProcessSet for a part)")
    global_process_set.ranks = everyone
    global_process_set._open(0, job)
    for each in sets:
        add_process_set(each)


def _is_whole(comm: Any, everyone: list[int]) -> bool:
    if comm is None:
        return True
    if hasattr(comm, "Get_size"):  # a communicator of mpi4py
        return bool(comm.Get_size() == len(everyone))
    return isinstance(comm, Iterable) and sorted(comm) in ([], everyone)


def shutdown() -> None:
    """Finish what was started and leave the job; `init` may be called again."""
    while _sets:
        _sets.pop()._close()
    global_process_set._close()
    global_process_set.ranks = None


def is_initialized() -> bool:
    """Whether this process is in a job.

    Examples
    --------
    >>> is_initialized()
    False
    """
    return global_process_set._lane is not None


def add_process_set(members: ProcessSet | Sequence[int]) -> ProcessSet:
    """Register a set; all processes of the job call it, also those that are not in the set.

    Raises
    ------
    InvalidArgument
        Ranks that the job does not have, one twice, or those of a set that is registered.
    """
    members = members if isinstance(members, ProcessSet) else ProcessSet(members)
    if members is global_process_set or members.ranks is None:
        raise errors.InvalidArgument("the global process set is there from the start")
    if any(members.ranks == known.ranks for known in _sets):
        raise errors.InvalidArgument(f"the process set {members.ranks} is registered already")
    lane, ranks = global_process_set.lane, members.ranks
    comm = lane.submit(lambda: lane.comm.subgroup(ranks)).result()
    _numbers[0] += 1
    members._open(_numbers[0], comm)
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


def mpi_built() -> bool:
    """False: what MPI launches is a job, but nothing travels over MPI."""
    return False


def mpi_enabled() -> bool:
    """False, see `mpi_built`."""
    return False


def mpi_threads_supported() -> bool:
    """As in Horovod without MPI an error.

    Raises
    ------
    InvalidArgument
        Always; ask `mpi_enabled` first.
    """
    raise errors.InvalidArgument("MPI is not enabled; ask mpi_enabled() before mpi_threads_supported()")


def gloo_built() -> bool:
    """False: Ringleader has transports of its own."""
    return False


def gloo_enabled() -> bool:
    """False, see `gloo_built`."""
    return False


def nccl_built() -> int:
    """0: tensors of a GPU travel through the host."""
    return 0


def ddl_built() -> bool:
    """False."""
    return False


def ccl_built() -> bool:
    """False."""
    return False


def cuda_built() -> bool:
    """False: tensors of a GPU travel through the host."""
    return False


def rocm_built() -> bool:
    """False."""
    return False
