"""Worlds to measure in: groups of local ranks of any size and transport, or the job that this process is in."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ringleader import _core
from ringleader.cli.contest import Contest, Times
from ringleader.cli.drive import ranks_of_job
from ringleader.errors import InvalidArgument
from ringleader.runtime.communicator import Communicator
from ringleader.runtime.spawn import WorkerGroup
from ringleader.runtime.start import init
from ringleader.tune.trials import Trial

__all__ = ["JobWorld", "LocalWorlds", "Place", "Worlds", "open_worlds", "parse_places"]

_START_LIMIT = 120.0
_MEASURE_LIMIT = 600.0
TRANSPORTS = ("shm", "tcp")


@dataclass(frozen=True)
class Place:
    """Where is measured: number of ranks, the node of each, and how they are connected (``shm``, ``tcp`` or both)."""

    ranks: int
    transport: str
    nodes: tuple[int, ...]
    hosts: int = 1

    @classmethod
    def local(cls, ranks: int, transport: str) -> Place:
        """Ranks of this host that all share memory, or all use TCP."""
        return cls(ranks, transport, (0,) * ranks if transport == "shm" else tuple(range(ranks)))

    def __str__(self) -> str:
        return f"{self.ranks}:{self.transport}"


def parse_places(text: str) -> list[Place]:
    """Places from ``2:shm,4:tcp``.

    Raises
    ------
    InvalidArgument
        Not of that form; the message shows the form.

    Examples
    --------
    >>> [str(place) for place in parse_places("2:shm, 4:tcp")]
    ['2:shm', '4:tcp']
    """
    places = []
    for part in text.split(","):
        ranks, _, transport = part.strip().partition(":")
        if not ranks.isdecimal() or not 2 <= int(ranks) <= 1024 or transport not in TRANSPORTS:
            raise InvalidArgument(
                f"{part.strip()!r} is not a place; expected ranks:transport with at least 2 ranks and a transport of "
                f"{', '.join(TRANSPORTS)}, as in 2:shm,4:tcp"
            )
        places.append(Place.local(int(ranks), transport))
    return list(dict.fromkeys(places))


class LocalWorlds:
    """Processes of this host, of which any first few form a world; a context manager.

    The processes are started once; a world is formed and left within milliseconds. The others sleep meanwhile.
    """

    leader = True

    def __init__(self, most: int) -> None:
        environment = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        for name in ("RINGLEADER_ALGO", "RINGLEADER_PROTO", "RINGLEADER_TRANSPORT"):
            environment[name] = None  # type: ignore[assignment]
        self.size = most
        self._group = WorkerGroup(most, env=environment)

    def open(self, place: Place) -> Place:
        """Form a world, after leaving the one before."""
        if place.ranks > self.size:
            raise InvalidArgument(f"{place.ranks} ranks, but only {self.size} processes were started")
        self._group.run(_open, place.ranks, place.transport, timeout=_START_LIMIT)
        return place

    def measure(self, trials: Sequence[Trial], seconds: float, blocks: int) -> Times:
        """Measure in the world; see `Contest.measure`."""
        times: Times = self._group.run(_measure, tuple(trials), seconds, blocks, timeout=_MEASURE_LIMIT)[0]
        return times

    def close(self) -> None:
        """End the processes."""
        self._group.close()

    def __enter__(self) -> LocalWorlds:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._group.close(force=kind is not None)


class JobWorld:
    """The job that this process is a rank of: one world, the actual one; a context manager."""

    def __init__(self) -> None:
        self._comm = init()
        self._contest = Contest(self._comm)
        self.size = self._comm.size
        self.leader = self._comm.rank == 0

    @property
    def place(self) -> Place:
        """The job's layout."""
        nodes = self._comm.nodes
        distinct = len(set(nodes))
        transport = "shm" if distinct == 1 else "tcp" if distinct == len(nodes) else "shm+tcp"
        return Place(self.size, transport, nodes, self._comm.hosts)

    def open(self, place: Place) -> Place:
        """There is only one world; returns what it is."""
        return self.place

    def measure(self, trials: Sequence[Trial], seconds: float, blocks: int) -> Times:
        """Measure; all ranks call it."""
        return self._contest.measure(trials, seconds, blocks)

    def close(self) -> None:
        """Leave the job."""
        self._comm.close()

    def __enter__(self) -> JobWorld:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


Worlds = LocalWorlds | JobWorld


def open_worlds(places: Sequence[Place]) -> Worlds:
    """The job that this process was launched in, else processes for the largest of `places`."""
    return LocalWorlds(max(place.ranks for place in places)) if ranks_of_job(None) is None else JobWorld()


def cores() -> int:
    """Cores that the ranks of this host share."""
    return _core.usable_cores()


# ------------------------------------------------------------------------------------------------ in the local ranks

_comm: Communicator | None = None
_contest: Contest | None = None


def _open(ranks: int, transport: str) -> None:
    global _comm, _contest
    if _comm is not None:
        _comm.close()
    _comm = _contest = None
    if int(os.environ["RINGLEADER_RANK"]) < ranks:
        # As the launcher of a smaller job would have set them.
        os.environ["RINGLEADER_SIZE"] = os.environ["RINGLEADER_LOCAL_SIZE"] = str(ranks)
        _comm = init(transport=transport)
        _contest = Contest(_comm)


def _measure(trials: tuple[Trial, ...], seconds: float, blocks: int) -> Any:
    return None if _contest is None else _contest.measure(trials, seconds, blocks)
