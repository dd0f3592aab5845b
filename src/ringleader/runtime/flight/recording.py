"""Has the flight recorder of each communicator write where the settings say, and dumps what it has when asked to.

The recorder's own files are always up to date, so there is nothing to do when a job fails or is killed. What is made on
demand - by a failure, or by SIGUSR2 - is PyTorch's form of the recordings (`TORCH_FR_DUMP_TEMP_FILE`), and where all
threads of the process are.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import hashlib
import os
import signal
import socket
import sys
import threading
import weakref
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from ringleader import _core
from ringleader.errors import InvalidArgument
from ringleader.runtime.config import Config, logger
from ringleader.runtime.flight.records import SUFFIX

if TYPE_CHECKING:
    from ringleader.runtime.bootstrap import Connected
    from ringleader.runtime.flight.records import Recording
    from ringleader.runtime.job import Job
    from ringleader.runtime.watched import Watched

__all__ = ["STACKS", "TORCH_VARIABLE", "here", "record", "watch"]

TORCH_VARIABLE = "TORCH_FR_DUMP_TEMP_FILE"
STACKS = ".stacks"

_TRACE_ENTRIES = 1 << 15  # of each kind: 12 MB for a communicator
_numbers = count()
_watched: weakref.WeakValueDictionary[int, Watched] = weakref.WeakValueDictionary()
_prepared = False
_pid = 0  # of the process that dumps: a forked child's communicators are its parent's
_warned = False
_lock = threading.Lock()


def record(group: Connected, job: Job, name: str) -> None:
    """Record the operations of a group that was formed just now."""
    config = job.config
    folder = _folder(config)
    entries = config.recorder_entries if config.trace is None else max(config.recorder_entries, _TRACE_ENTRIES)
    number = hashlib.sha256(job.number.encode()).hexdigest()[:16] if job.number else f"{os.getpid()}"
    about = "\n".join((number, name[:200].replace("\n", " "), _ranges(group.members)[:200]))
    host = socket.gethostname()
    path = ""
    if folder is not None and entries:
        path = str(folder / f"{host}-{os.getpid()}-{next(_numbers)}{SUFFIX}")
        with contextlib.suppress(OSError):  # the recorder says what is wrong with its file
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        group.core.record(entries, path, host, about)
    except InvalidArgument as error:
        _warn(f"{error}; the flight recorder writes in memory only (RINGLEADER_RECORDER_DIR, RINGLEADER_TRACE)")
    for core in group.beside:  # they run parts of what the first one records
        core.record(0, "", host, about)
    _prepare(config)


def _folder(config: Config) -> Path | None:
    where = config.recorder_dir if config.trace is None else config.trace
    return None if where is None else Path(where)


def _warn(text: str) -> None:
    global _warned
    if not _warned:
        logger("INIT").warning(text)
    _warned = True


def _ranges(ranks: Sequence[int]) -> str:
    """``"0-3,8"``."""
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in parts)


def watch(comm: Watched) -> None:
    """Dump this communicator's recording too, as long as it is there."""
    _watched[id(comm)] = comm


def here() -> list[Recording]:
    """The recordings of this process."""
    return [comm.recorded() for comm in list(_watched.values())]


def _prepare(config: Config) -> None:
    """Once per process: what a failure and SIGUSR2 do. A program's own handler is left alone."""
    global _prepared, _pid
    prefix, folder = os.environ.get(TORCH_VARIABLE), _folder(config)
    with _lock:
        if _prepared or (prefix is None and folder is None):
            return
        _prepared, _pid = True, os.getpid()
    if prefix is not None:
        _core.set_failure_hook(_dump_for_torch)
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGUSR2) != signal.SIG_DFL:
        return
    signal.signal(signal.SIGUSR2, lambda *_: _dump_for_torch())
    if folder is not None:
        path = folder / f"{socket.gethostname()}-{os.getpid()}{STACKS}"
        try:
            file = path.open("a")
        except OSError as error:
            _warn(f"cannot write {path}: {error.strerror}")
            return
        # In C: it works while the main thread is in a call that does not return.
        faulthandler.register(signal.SIGUSR2, file=file, all_threads=True, chain=True)
        atexit.register(_drop_if_empty, path, os.getpid())


def _drop_if_empty(path: Path, pid: int) -> None:
    with contextlib.suppress(OSError):
        if pid == os.getpid() and path.stat().st_size == 0:
            path.unlink()


def _dump_for_torch() -> None:
    """One file for each rank of the job in this process, named as PyTorch's are. Never raises."""
    prefix = os.environ.get(TORCH_VARIABLE)
    if prefix is None or sys.is_finalizing() or os.getpid() != _pid:
        return
    from ringleader.runtime.flight.torch_format import write

    try:
        write(here(), prefix)
    except Exception as error:  # what it reports on matters more
        _warn(f"cannot write {prefix}: {error}")
