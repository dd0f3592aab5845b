"""A store in a directory, for jobs on one host that were launched without an address (mpirun -n 4).

The directory is named after the job and lies in the user's run-time directory (or the temporary one), mode 0700. Every
member leaves a file with its process number and start time, so that a directory whose members are all dead can be told
from a live one: it is removed by the next start. The last member that closes the store removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
import stat
import tempfile
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

from ringleader.errors import CollectiveTimeout, RendezvousError
from ringleader.runtime.config import logger
from ringleader.runtime.presence import start_time
from ringleader.runtime.store import backoff

__all__ = ["FileStore", "base_directory"]

_MEMBER = "member."
_KEY = "key."


def base_directory() -> Path:
    """Where stores lie: $XDG_RUNTIME_DIR if it is this user's, else the directory for temporary files."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isdir(runtime) and os.stat(runtime).st_uid == os.geteuid() and os.access(runtime, os.W_OK):
        return Path(runtime)
    return Path(tempfile.gettempdir())


def _alive(member: Path) -> bool:
    try:
        pid, start = member.read_text().split()
    except (OSError, ValueError):
        return False
    return start_time(int(pid)) == start


class FileStore:
    """A store in a directory of this host.

    Parameters
    ----------
    job_id
        Equal on all ranks, different between jobs.
    rank
        Rank 0 creates the directory; the others wait for it.
    timeout
        Seconds to wait for rank 0.

    Raises
    ------
    RendezvousError
        If the directory belongs to another user or to a live job of the same name.
    CollectiveTimeout
        If rank 0 did not create it in time.

    Examples
    --------
    >>> store = FileStore("docs-example", rank=0, timeout=5)
    >>> store.set("a", b"1"); store.get("a", timeout=1)
    b'1'
    >>> store.close()
    """

    def __init__(self, job_id: str, rank: int, timeout: float, base: Path | None = None) -> None:
        self._base = base or base_directory()
        self._prefix = f"ringleader-{os.geteuid()}-"
        self.path = self._base / (self._prefix + hashlib.sha256(job_id.encode()).hexdigest()[:24])
        self._closed = False
        self._pid = os.getpid()
        # Two ranks may be threads of one process: the rank makes the member's name unique.
        self._member = self.path / f"{_MEMBER}{rank}"
        if rank == 0:
            self._remove_stale()
            self._create(job_id)
        else:
            self._join(job_id, timeout)

    # ---------------------------------------------------------------------------------------------------- the directory

    def _create(self, job_id: str) -> None:
        # Built under another name and renamed, so that nobody ever sees a directory without its owner.
        building = self._base / f"{self._prefix}new-{secrets.token_hex(8)}"
        building.mkdir(mode=0o700)
        try:
            (building / self._member.name).write_text(f"{os.getpid()} {start_time(os.getpid())}")
            (building / "lock").touch()
            os.rename(building, self.path)  # fails if the target exists and is not empty
        except OSError as error:
            shutil.rmtree(building, ignore_errors=True)
            raise RendezvousError(
                f"cannot create {self.path} for job {job_id!r} ({error.strerror}): it is in use by a live job of the "
                "same name or belongs to another user; set RINGLEADER_JOB_ID to another name"
            ) from error

    def _join(self, job_id: str, timeout: float) -> None:
        for _ in backoff(time.monotonic() + timeout):
            if self.path.is_dir() and self._mine(self.path) and _alive(self.path / f"{_MEMBER}0"):
                # The directory may be removed and made anew between the look and the write: then the write fails.
                with contextlib.suppress(FileNotFoundError):
                    self._member.write_text(f"{os.getpid()} {start_time(os.getpid())}")
                    return
        raise CollectiveTimeout(
            f"rank 0 did not create {self.path} for job {job_id!r} within {timeout:.1f} s; is it running on this host?",
            (0,),
        )

    def _mine(self, path: Path) -> bool:
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise RendezvousError(f"{path} belongs to another user or is open to others; remove it")
        return True

    def _remove_stale(self) -> None:
        """Remove this user's directories whose members are all dead; never those of a live job or of another user."""
        for path in self._base.glob(self._prefix + "*"):
            with contextlib.suppress(OSError, RendezvousError):
                # A directory that is just being built has no members for a moment.
                young = time.time() - path.lstat().st_mtime < 60 and "-new-" in path.name
                if not young and self._mine(path) and not any(_alive(m) for m in path.glob(_MEMBER + "*")):
                    self._remove(path)
                    logger("INIT").info("removed %s, left over by a dead job", path)

    def _remove(self, path: Path) -> None:
        grave = self._base / f"{self._prefix}new-{secrets.token_hex(8)}"
        os.rename(path, grave)  # atomic: no one sees it half removed
        shutil.rmtree(grave, ignore_errors=True)

    def close(self) -> None:
        """See `Store`. The last member removes the directory."""
        if self._closed or self._pid != os.getpid():
            return
        self._closed = True
        with contextlib.suppress(OSError), self._locked():
            self._member.unlink(missing_ok=True)
            if not any(_alive(m) for m in self.path.glob(_MEMBER + "*")):
                self._remove(self.path)

    # ------------------------------------------------------------------------------------------------------------- keys

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with open(self.path / "lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _file(self, key: str) -> Path:
        name = urllib.parse.quote(key, safe="")
        return self.path / (_KEY + (name if len(name) < 200 else hashlib.sha256(key.encode()).hexdigest()))

    def _lost(self, error: OSError) -> RendezvousError:
        return RendezvousError(f"the store {self.path} is gone ({error.strerror}); did the other ranks end?")

    def set(self, key: str, value: bytes) -> None:
        """See `Store`."""
        temporary = self.path / f"new.{secrets.token_hex(8)}"
        try:
            temporary.write_bytes(value)
            os.rename(temporary, self._file(key))
        except OSError as error:
            raise self._lost(error) from error

    def get(self, key: str, timeout: float) -> bytes:
        """See `Store`."""
        file = self._file(key)
        for _ in backoff(time.monotonic() + timeout, longest=0.02):
            try:
                return file.read_bytes()
            except FileNotFoundError as error:
                if not self.path.is_dir():
                    raise self._lost(error) from error
        raise CollectiveTimeout(f"key {key!r} was not set within {timeout:.1f} s")

    def add(self, key: str, amount: int) -> int:
        """See `Store`."""
        try:
            with self._locked():
                file = self._file(key)
                value = (int(file.read_bytes()) if file.exists() else 0) + amount
                self.set(key, str(value).encode())
                return value
        except RendezvousError:  # an OSError too
            raise
        except OSError as error:
            raise self._lost(error) from error

    def delete(self, key: str) -> None:
        """See `Store`."""
        with contextlib.suppress(OSError):
            self._file(key).unlink()
