"""Worlds to measure in: groups of local ranks of any size and transport, or the job that this process is in."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ringleader.cli.contest import Contest, Times
from ringleader.cli.drive import ranks_of_job
from ringleader.cli.exchange import exchange
from ringleader.errors import InvalidArgument
from ringleader.runtime.addresses import network_id
from ringleader.runtime.communicator import Communicator
from ringleader.runtime.config import Config
from ringleader.runtime.spawn import WorkerGroup
from ringleader.runtime.start import init
from ringleader.tune.place import Place
from ringleader.tune.trials import Trial

__all__ = ["JobWorld", "LocalWorlds", "Worlds", "open_worlds"]

_START_LIMIT = 120.0
_MEASURE_LIMIT = 600.0


class LocalWorlds:
    """Processes of this host, of which any first few form a world; a context manager.

    The processes are started once; a world is formed and left within milliseconds. The others sleep meanwhile.
    """

    leader = True

    def __init__(self, most: int) -> None:
        environment: dict[str, str | None] = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        names = ("RINGLEADER_ALGO", "RINGLEADER_PROTO", "RINGLEADER_RULES", "RINGLEADER_TRANSPORT")
        environment |= dict.fromkeys(names)
        environment["RINGLEADER_TUNING_FILE"] = "none"  # what is measured must not depend on the last tuning
        self.size = most
        self._group = WorkerGroup(most, env=environment)

    def open(self, place: Place) -> None:
        """Form a world, after leaving the one before."""
        if place.ranks > self.size:
            raise InvalidArgument(f"{place.ranks} ranks, but only {self.size} processes were started")
        self._group.run(_open, place.ranks, place.transport, timeout=_START_LIMIT)

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
    """The job that this process is a rank of: one world, the actual one; a context manager.

    Rank 0 decides what is measured; the others `follow` it, so that nothing they compute could differ.
    """

    def __init__(self) -> None:
        self._comm = init()
        self._contest = Contest(self._comm)
        self.size = self._comm.size
        self.leader = self._comm.rank == 0
        self._hosts = len(set(exchange(self._comm, network_id())))

    @property
    def place(self) -> Place:
        """The job's layout."""
        nodes = self._comm.nodes
        distinct = len(set(nodes))
        net = Config.from_environment().network
        transport = "shm" if distinct == 1 else net if distinct == len(nodes) else f"shm+{net}"
        return Place(nodes, transport, self._hosts)

    def open(self, place: Place) -> None:
        """There is only one world, and it is open."""

    def measure(self, trials: Sequence[Trial], seconds: float, blocks: int) -> Times:
        """Measure; on rank 0 only."""
        exchange(self._comm, [[asdict(trial) for trial in trials], seconds, blocks])
        return self._contest.measure(trials, seconds, blocks)

    def follow(self) -> None:
        """Take part in what rank 0 measures, until it closes."""
        while (told := exchange(self._comm, None)[0]) is not None:
            trials, seconds, blocks = told
            self._contest.measure(
                [Trial(**{**trial, "ends": tuple(trial["ends"])}) for trial in trials], seconds, blocks
            )

    def close(self) -> None:
        """End the measuring (rank 0) and leave the job."""
        if self.leader:
            exchange(self._comm, None)
        self._comm.close()

    def __enter__(self) -> JobWorld:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._comm.close()


Worlds = LocalWorlds | JobWorld


def open_worlds(places: Sequence[Place]) -> Worlds:
    """The job that this process was launched in, else processes for the largest of `places`."""
    return LocalWorlds(max(place.ranks for place in places)) if ranks_of_job(None) is None else JobWorld()


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
