"""Who measures: ranks that are started here, or those of the job that this process was launched in."""

from __future__ import annotations

from typing import Any

from ringleader.cli.measure import Point, Result, Session, Setup
from ringleader.errors import InvalidArgument, SpawnError
from ringleader.runtime.environment import detect
from ringleader.runtime.spawn import WorkerGroup

__all__ = ["JobRanks", "LocalRanks", "Ranks", "open_ranks", "ranks_of_job"]

_START_LIMIT = 120.0


class LocalRanks:
    """`n` processes of this host, kept from point to point.

    After a failure they are started anew at the next point, so that one failure does not cost the rest.
    """

    leader = True

    def __init__(self, setup: Setup, n: int, limit: float | None = None) -> None:
        self._setup = setup
        self.size = n
        self._limit = limit
        self._group: WorkerGroup | None = None
        self._ranks: list[dict[str, Any]] = []
        self._open()

    def _open(self) -> WorkerGroup:
        # One compute thread per rank, for all contestants.
        self._group = WorkerGroup(self.size, env={"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"})
        self._ranks = self._run(self._group, _start, self._setup, limit=_START_LIMIT)
        return self._group

    def _run(self, group: WorkerGroup, function: Any, *arguments: Any, limit: float | None) -> Any:
        try:
            return group.run(function, *arguments, timeout=limit)[0]
        except BaseException as error:
            group.close(force=True)
            self._group = None
            if isinstance(error, SpawnError) and isinstance(error.__cause__, InvalidArgument):
                raise error.__cause__ from None  # said by every rank alike: no need for its traceback
            raise

    def ranks(self) -> list[dict[str, Any]]:
        """Who takes part."""
        return self._ranks

    def measure(self, point: Point) -> Result:
        """Measure a point; see `Session.measure`."""
        result: Result = self._run(self._group or self._open(), _measure, point, limit=self._limit)
        return result

    def close(self) -> None:
        """End the processes."""
        if self._group is not None:
            self._run(self._group, _stop, limit=_START_LIMIT)
        self.abandon()

    def abandon(self) -> None:
        """End the processes as they are: after Ctrl-C they may have ended already, which is no failure of theirs."""
        if self._group is not None:
            self._group.close(force=True)
            self._group = None


class JobRanks:
    """This process is a rank of a job: torchrun, mpirun or srun has started all of them."""

    def __init__(self, setup: Setup) -> None:
        self._session = Session(setup)
        self.size = self._session.comm.size
        self.leader = self._session.comm.rank == 0

    def ranks(self) -> list[dict[str, Any]]:
        """Who takes part."""
        return self._session.ranks()

    def measure(self, point: Point) -> Result:
        """Measure a point; all ranks call it."""
        return self._session.measure(point)

    def close(self) -> None:
        """Leave the job."""
        self._session.close()

    abandon = close


Ranks = LocalRanks | JobRanks


def ranks_of_job(n: int | None) -> int | None:
    """Number of ranks of the job that this process is in, None if it is in none.

    Raises
    ------
    InvalidArgument
        `n` is given, and the job has another number of ranks.
    """
    launch = detect()
    if launch.launcher == "none":
        return None
    if n not in (None, launch.size):
        raise InvalidArgument(
            f"--ranks {n} starts local ranks, but this process was launched as one of {launch.size} ranks "
            f"({launch.launcher}); leave --ranks out"
        )
    return launch.size


def open_ranks(setup: Setup, n: int | None) -> Ranks:
    """Join the job that this process was launched in, else start `n` local ranks (2 by default)."""
    if ranks_of_job(n) is not None:
        return JobRanks(setup)
    return LocalRanks(setup, 2 if n is None else n)


# ------------------------------------------------------------------------------------------------ in the local ranks

_session: Session | None = None


def _start(setup: Setup) -> list[dict[str, Any]]:
    global _session
    _session = Session(setup)
    return _session.ranks()


def _measure(point: Point) -> Result:
    assert _session is not None
    return _session.measure(point)


def _stop() -> None:
    global _session
    if _session is not None:
        _session.close()
    _session = None
