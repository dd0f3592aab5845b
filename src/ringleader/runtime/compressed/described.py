"""What all ranks must call alike: collective, operator, compressor with its parameters, name and shape of the array.

Encodings that mean different things may have the same type and size, so the engine's own comparison of operations does
not tell them apart. Hence the description enters it: its digest is part of what identifies the first exchange of every
compressed call. A digest names nothing, so ranks that disagree tell each other what they called, through the store.
"""

from __future__ import annotations

import functools
import hashlib
import numbers
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ringleader import errors
from ringleader.compress.base import Compressor
from ringleader.runtime import calls
from ringleader.runtime.runner import MISS, NO_OP, Head
from ringleader.runtime.store import PrefixStore
from ringleader.runtime.wire import Wire, parse_wire

if TYPE_CHECKING:
    from ringleader.runtime.communicator import Communicator
    from ringleader.runtime.plans import Planned, Request

__all__ = ["AS_IT_IS", "Described", "describe", "same_on_all"]

AS_IT_IS: Final = ", sent as it is"  # at the end of a description

# Seconds: for one that called something else to say so, and then for the others.
_FOR_ONE: Final = 2.0
_FOR_ALL: Final = 0.3
_LOOK_AGAIN: Final = 0.005

# Those on which this rank has told what it called.
_told: weakref.WeakSet[Communicator] = weakref.WeakSet()


def describe(collective: str, average: bool, compressor: Compressor, key: str, shape: tuple[int, ...]) -> str:
    """A call, as text: the same in all processes for calls that may meet.

    Examples
    --------
    >>> from ringleader.compress import ErrorFeedback, TopK
    >>> describe("all_reduce", True, ErrorFeedback(TopK(k=2)), "w", (3,))  # doctest: +ELLIPSIS
    "all_reduce of 'w', shape (3,), op avg, compression ErrorFeedback(compressor=TopK(ratio=None, k=2, ...))"
    """
    name, op = f" of {_text(key)}" if key != "" else "", "avg" if average else "sum"
    return f"{collective}{name}, shape {tuple(shape)}, op {op}, compression {_text(compressor)}"


def _text(value: object) -> str:
    """Equal values have equal texts, whatever their types."""
    if isinstance(value, Compressor):
        parameters = ", ".join(f"{name}={_text(each)}" for name, each in value.parameters().items())
        return f"{type(value).__name__}({parameters})"
    if isinstance(value, str):
        return repr(str(value))
    if isinstance(value, (bool, np.bool_)):
        return repr(bool(value))
    if isinstance(value, numbers.Integral):
        return repr(int(value))
    if isinstance(value, numbers.Real):
        number = float(value)
        return repr(int(number)) if number.is_integer() else repr(number)
    return repr(value)


@functools.lru_cache(1024)
def _digest(description: str) -> str:
    return hashlib.blake2b(description.encode(errors="backslashreplace"), digest_size=16).hexdigest()


class Described:
    """Exchanges that only meet those of calls with the same description."""

    def __init__(self, comm: Communicator, description: str) -> None:
        self._comm = comm
        self._digest = _digest(description)
        self.rank, self.size = comm.rank, comm.size

    @property
    def planner(self) -> Described:
        """See `calls.Group`."""
        return self

    def plan(self, request: Request) -> Planned:
        """See `calls.Plans`."""
        return self._comm.planner.plan(request._replace(description=self._digest))

    def all_reduce(self, x: Any, op: str, out: Any = None, wire: Wire = None, timeout: float | None = None) -> Any:
        """See `Communicator.all_reduce`."""
        scheme = parse_wire(wire)
        head = ("all_reduce", op, 0, None, scheme, self._digest)
        return self._run(head, x, out, timeout, lambda: calls.all_reduce(self, x, op, out, None, scheme))

    def reduce_scatter(self, x: Any, op: str, wire: Wire = None, timeout: float | None = None) -> Any:
        """See `Communicator.reduce_scatter`; `x` is an array of `size` blocks."""
        scheme, out = parse_wire(wire), np.empty(x.shape[1:], x.dtype)
        head = ("reduce_scatter", op, 0, None, scheme, self._digest)
        return self._run(head, x, out, timeout, lambda: calls.reduce_scatter(self, x, out, op, None, scheme))

    def all_gather(self, x: Any, out: Any = None, timeout: float | None = None) -> Any:
        """See `Communicator.all_gather`."""
        room = np.empty((self.size, *x.shape), x.dtype) if out is None else out
        head = ("all_gather", NO_OP, 0, None, None, self._digest)
        return self._run(head, x, room, timeout, lambda: calls.all_gather(self, x, room, None))

    def all_to_all(self, x: Any, out: Any = None, timeout: float | None = None) -> Any:
        """See `Communicator.all_to_all`."""
        room = np.empty(x.shape, x.dtype) if out is None else out
        head = ("all_to_all", NO_OP, 0, None, None, self._digest)
        return self._run(head, x, room, timeout, lambda: calls.all_to_all(self, x, room, None))

    def _run(self, head: Head, x: Any, out: Any, timeout: float | None, prepare: Callable[[], calls.Call]) -> Any:
        comm = self._comm
        if (result := comm._repeat(head, x, out, False, timeout)) is not MISS:
            return result
        comm._check_usable()
        return comm._run(prepare(), False, timeout, (head, x, out))


@contextmanager
def same_on_all(comm: Communicator, description: str) -> Iterator[None]:
    """Where ranks disagree about the call in the body, the error says what each of them called.

    Also on a rank that comes after the others have found out; but once only on each communicator.

    Examples
    --------
    >>> import ringleader as rl
    >>> with rl.init(rank=0, size=1) as comm, same_on_all(comm, "one call"):
    ...     pass
    """
    try:
        yield
    except (errors.MismatchError, errors.AbortedError) as error:
        if comm in _told or (isinstance(error, errors.AbortedError) and "ranks disagree about" not in str(error)):
            raise
        _told.add(comm)
        found = _ask_others(comm, description)
        differing = [rank for rank, text in found.items() if text != description]
        if not differing:  # a call that is not compressed
            raise type(error)(f"{error}; this rank calls {description}", error.ranks) from error
        sides = sorted({**found, comm.rank: description}.items())
        text = "; ".join(f"{comm._names[rank]} calls {each}" for rank, each in sides)
        raise errors.MismatchError(f"ranks disagree about a compressed call: {text}", differing) from error


def _ask_others(comm: Communicator, description: str) -> dict[int, str]:
    """What other ranks called, of those that say so in time."""
    store = PrefixStore(f"{comm.name}/disagreement", comm._job.store)
    missing, found = set(range(comm.size)) - {comm.rank}, dict[int, str]()
    deadline = time.monotonic() + _FOR_ONE
    with suppress(errors.RendezvousError):
        store.set(str(comm.rank), description.encode(errors="backslashreplace"))
        while missing:
            for rank in sorted(missing):
                with suppress(errors.CollectiveTimeout):
                    found[rank] = store.get(str(rank), 0).decode()
                    missing.discard(rank)
                    if found[rank] != description:
                        deadline = min(deadline, time.monotonic() + _FOR_ALL)
            if time.monotonic() > deadline:
                break
            time.sleep(_LOOK_AGAIN)
    return found
