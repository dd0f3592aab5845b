"""Horovod's exceptions, and errors of Ringleader that are these too."""

from __future__ import annotations

from typing import TypeVar

from ringleader import errors

__all__ = [
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
    "NotInitialized",
    "failure",
    "get_version_mismatch_message",
]

E = TypeVar("E", bound=BaseException)


class HorovodInternalError(RuntimeError):
    """An operation failed. What is raised is this and Ringleader's own error, which says why.

    Examples
    --------
    >>> issubclass(type(failure(errors.PeerLost("rank 1 left"))), (HorovodInternalError, errors.PeerLost))
    True
    """


class HostsUpdatedInterrupt(RuntimeError):
    """The hosts of an elastic job have changed. Scripts may name it; nothing here raises it."""

    def __init__(self, skip_sync: bool) -> None:
        super().__init__(skip_sync)
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """A framework is not the release that Horovod was built for. Scripts may name it; nothing here raises it."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name: str = name
        self.version = version
        self.installed_version = installed_version

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        return type(self), (self.name, self.version, self.installed_version)


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    """What `HorovodVersionMismatchError` says."""
    return f"{name} is {version}; expected {installed_version}, which was there at installation"


class NotInitialized(errors.ClosedError, ValueError):
    """The job has not been joined: call ``init()``. A ValueError, as in Horovod."""


_FAILURES = {
    kind: type(kind.__name__, (kind, HorovodInternalError), {"__doc__": kind.__doc__, "__module__": __name__})
    for kind in (
        errors.AbortedError,
        errors.ClosedError,
        errors.CollectiveTimeout,
        errors.ForkError,
        errors.InternalError,
        errors.MismatchError,
        errors.OutOfMemory,
        errors.PeerLost,
        errors.RendezvousError,
    )
}
globals().update({made.__name__: made for made in _FAILURES.values()})  # where pickle looks for them


def failure(error: BaseException) -> BaseException:
    """The error of an operation as one that ``except HorovodInternalError`` catches too; wrong arguments stay."""
    made = _FAILURES.get(type(error))  # type: ignore[arg-type]
    if made is None or not isinstance(error, errors.RingleaderError):
        return error
    told: BaseException = made(str(error), error.ranks)
    told.__dict__.update(error.__dict__)
    told.__cause__, told.__context__ = error.__cause__, error.__context__
    return told.with_traceback(error.__traceback__)
