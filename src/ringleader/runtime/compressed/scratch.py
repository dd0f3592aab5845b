"""Memory for payloads, used again from call to call: fresh pages cost more than what is written to them."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ringleader.runtime.communicator import Communicator

__all__ = ["Scratch", "scratch_of"]

_ROOMS_KEPT = 64  # views of one buffer; more are made anew


class Scratch:
    """A buffer for each purpose, as large as the largest call needed.

    A communicator runs one compressed call at a time, so nothing in it is used twice.

    Examples
    --------
    >>> scratch = Scratch()
    >>> scratch("sent", 2, 3).shape, scratch("sent", 2, 3) is scratch("sent", 2, 3)
    ((2, 3), True)
    """

    def __init__(self) -> None:
        self._buffers: dict[str, NDArray[np.uint8]] = {}
        self._rooms: dict[str, dict[tuple[int, int], NDArray[np.uint8]]] = {}

    def __call__(self, purpose: str, rows: int, nbytes: int) -> NDArray[np.uint8]:
        """Room of shape (rows, nbytes): the same array for the same shape, so that repeated calls are recognised."""
        buffer, rooms = self._buffers.get(purpose), self._rooms.setdefault(purpose, {})
        if buffer is None or buffer.size < rows * nbytes:
            buffer = self._buffers[purpose] = np.empty(rows * nbytes, np.uint8)
            rooms.clear()
        room = rooms.get((rows, nbytes))
        if room is None:
            if len(rooms) >= _ROOMS_KEPT:
                rooms.clear()
            room = rooms[rows, nbytes] = buffer[: rows * nbytes].reshape(rows, nbytes)
        return room


_scratch: weakref.WeakKeyDictionary[Communicator, Scratch] = weakref.WeakKeyDictionary()


def scratch_of(comm: Communicator) -> Scratch:
    """The scratch memory of a communicator.

    Examples
    --------
    >>> import ringleader as rl
    >>> with rl.init(rank=0, size=1) as comm:
    ...     scratch_of(comm) is scratch_of(comm)
    True
    """
    found = _scratch.get(comm)
    if found is None:
        found = _scratch[comm] = Scratch()
    return found
