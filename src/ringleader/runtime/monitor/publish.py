"""Snapshots for ``ringleader monitor``: each rank writes a small file now and then, the monitor reads them.

A file appears whole, under a name of its own per communicator and rank, and goes with the communicator. What a killed
rank leaves is told apart by its process, and removed by the next reader on its host.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringleader.errors import InvalidArgument, RingleaderError
from ringleader.runtime.config import logger
from ringleader.runtime.filestore import base_directory
from ringleader.runtime.monitor.network import Network, Reading, measure
from ringleader.runtime.presence import start_time

if TYPE_CHECKING:
    from ringleader.runtime.communicator import Communicator

__all__ = ["Publisher", "Snapshot", "default_directory", "read_snapshots"]

INTERVAL = 1.0
SILENT = 5.0
"""Seconds after which a rank that has written nothing is shown as silent."""

_SUFFIX = ".network.json"
_log = logger("ADAPT")


def default_directory() -> Path:
    """Where snapshots of this user's ranks lie."""
    return base_directory() / f"ringleader-{os.geteuid()}-monitor"


@dataclass(frozen=True)
class Snapshot:
    """What one rank said last.

    Attributes
    ----------
    job, host, pid
        Whose it is.
    time
        `time.time()` at which it was written.
    recent, total
        The network since the previous snapshot, and since the start.
    choice
        What its latest collective was.
    """

    job: str
    host: str
    pid: int
    time: float
    recent: Network
    total: Network
    choice: str

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Snapshot:
        """Read what a rank wrote."""
        recent, total = (Network.from_json(raw[name]) for name in ("recent", "total"))
        return cls(raw["job"], raw["host"], raw["pid"], raw["time"], recent, total, raw["choice"])


class Publisher:
    """Writes snapshots of a communicator from a thread of its own, until it is stopped or the communicator is gone.

    Parameters
    ----------
    where
        Directory; None: `default_directory`.
    interval
        Seconds.

    Raises
    ------
    InvalidArgument
        The directory cannot be made, or belongs to somebody else.

    Examples
    --------
    >>> import tempfile, ringleader as rl
    >>> with tempfile.TemporaryDirectory() as path, rl.init(rank=0, size=1) as comm:
    ...     publisher = Publisher(comm, path)
    ...     publisher.write()
    ...     found = [snapshot.recent.size for snapshot in read_snapshots(Path(path))]
    ...     publisher.stop()
    >>> found
    [1]
    """

    def __init__(self, comm: Communicator, where: str | Path | None = None, interval: float = INTERVAL) -> None:
        self._comm = weakref.ref(comm)
        directory = default_directory() if where is None else Path(where)
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidArgument(f"cannot make {directory} for snapshots of the network: {error.strerror}") from None
        if where is None and directory.stat().st_uid != os.geteuid():
            raise InvalidArgument(
                f"{directory} belongs to another user; set RINGLEADER_MONITOR to a directory of yours"
            )
        self._job = comm._job.launch.job_id
        identity = f"{self._job}\0{comm.name}\0{socket.gethostname()}\0{os.getpid()}"
        name = f"{hashlib.sha256(identity.encode()).hexdigest()[:16]}.{comm.rank}{_SUFFIX}"
        self._path = directory / name
        self._before: Reading | None = None
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, args=(interval,), name="ringleader-monitor", daemon=True)
        self._thread.start()

    def _run(self, interval: float) -> None:
        while not self._stop.wait(interval):
            comm = self._comm()
            if comm is None or comm.state != "live":
                break
            del comm
            try:
                self.write()
            except (OSError, RingleaderError) as error:
                _log.warning("snapshots for the monitor end: %s", error)
                break
        self._path.unlink(missing_ok=True)

    def write(self) -> None:
        """Write a snapshot now."""
        comm = self._comm()
        if comm is None:
            return
        with self._lock:
            recent, self._before = measure(comm, self._before)
            total, _ = measure(comm)
            snapshot = {
                "job": self._job, "host": socket.gethostname(), "pid": os.getpid(), "start": start_time(os.getpid()),
                "time": time.time(), "recent": recent.to_json(), "total": total.to_json(),
                "choice": "" if comm.last_choice is None else str(comm.last_choice),
            }  # fmt: skip
            descriptor, building = tempfile.mkstemp(dir=self._path.parent, suffix=".new")
            with os.fdopen(descriptor, "w") as file:
                json.dump(snapshot, file)
            os.replace(building, self._path)

    def stop(self) -> None:
        """Write no more, and remove the snapshot."""
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=2.0)
        self._path.unlink(missing_ok=True)


def read_snapshots(directory: Path) -> Sequence[Snapshot]:
    """All snapshots in a directory of ranks that live, ordered by job, communicator and rank."""
    found = []
    for path in directory.glob(f"*{_SUFFIX}"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # gone, or not one of ours
            raw = json.loads(path.read_text())
            if raw["host"] == socket.gethostname() and start_time(raw["pid"]) != raw["start"]:
                path.unlink(missing_ok=True)
                continue
            found.append(Snapshot.from_json(raw))
    return sorted(found, key=lambda each: (each.job, each.total.name, each.total.rank, each.pid))
