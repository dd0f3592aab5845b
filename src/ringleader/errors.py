"""The one exception tree.

Every error of Ringleader derives from `RingleaderError`; each also derives from the built-in class that a caller would
expect (`ValueError`, `TimeoutError`, `ConnectionError`, ...). `ranks` names the ranks that caused it, where known.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "AbortedError",
    "ClosedError",
    "CollectiveTimeout",
    "ForkError",
    "InternalError",
    "InvalidArgument",
    "MismatchError",
    "OutOfMemory",
    "PeerLost",
    "RendezvousError",
    "RingleaderError",
    "ScheduleError",
    "SpawnError",
    "UnsupportedType",
    "VerificationError",
]


class RingleaderError(Exception):
    """Base of all errors raised by Ringleader.

    Parameters
    ----------
    message
        What happened, with the values involved, what was expected and what to try.
    ranks
        Ranks that caused the error, where known.
    """

    def __init__(self, message: str, ranks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.ranks: tuple[int, ...] = tuple(ranks)


class InvalidArgument(RingleaderError, ValueError):
    """An argument is wrong; refused before the first byte was sent."""


class UnsupportedType(RingleaderError, TypeError):
    """This operation is not offered for this type; the message lists those that are."""


class ScheduleError(RingleaderError, ValueError):
    """A schedule breaks a rule; the message names the transfer."""


class VerificationError(ScheduleError):
    """A schedule does not do what its collective promises; the message lists what is wrong."""


class RendezvousError(RingleaderError, ConnectionError):
    """The group could not be formed: a missing rank, a busy port, a wrong interface, a failed authentication."""


class CollectiveTimeout(RingleaderError, TimeoutError):
    """The deadline passed; the message names the ranks that did not arrive, the operation and its number."""


class PeerLost(RingleaderError, ConnectionError):
    """A peer died or left while it was needed."""


class MismatchError(RingleaderError, RuntimeError):
    """Ranks disagree about the operation; the message shows both sides."""


class AbortedError(RingleaderError, RuntimeError):
    """The communicator was aborted, here or by a peer; the message holds the first cause."""


class ClosedError(RingleaderError, RuntimeError):
    """The communicator was closed."""


class ForkError(RingleaderError, RuntimeError):
    """The communicator was used in a forked child."""


class OutOfMemory(RingleaderError, MemoryError):
    """Memory could not be reserved; the message gives needed and free bytes."""


class SpawnError(RingleaderError, RuntimeError):
    """A process started by `spawn` failed; the message names the rank and holds its traceback, exit code or signal."""


class InternalError(RingleaderError, RuntimeError):
    """A bug in Ringleader."""
