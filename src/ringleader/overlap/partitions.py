"""Partitions: what one collective carries when communication overlaps the next forward pass, and when it may start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ringleader.errors import InvalidArgument

__all__ = ["Launcher", "Partition", "Piece", "partition"]


@dataclass(frozen=True)
class Piece:
    """Bytes `start` to `stop` of the tensor with this index."""

    tensor: int
    start: int
    stop: int


@dataclass(frozen=True)
class Partition:
    """What one collective carries: pieces of one or more tensors. A lower `priority` number goes first."""

    pieces: tuple[Piece, ...]
    priority: float

    @property
    def nbytes(self) -> int:
        """Bytes of all pieces."""
        return sum(piece.stop - piece.start for piece in self.pieces)

    @property
    def tensors(self) -> tuple[int, ...]:
        """Indices of the tensors that it has pieces of."""
        return tuple(piece.tensor for piece in self.pieces)


def partition(
    nbytes: Sequence[int] | NDArray[np.int64], priorities: ArrayLike, size: int, align: int = 64
) -> tuple[Partition, ...]:
    """Cut tensors, lined up by priority, into partitions of about `size` bytes.

    Large tensors are cut into pieces, small neighbours share a partition. In a buffer that holds the tensors one after
    another by priority, every partition is one contiguous range.

    Parameters
    ----------
    nbytes
        Of each tensor; one of 0 bytes is in no partition.
    priorities
        The lowest goes first; equal ones by index.
    size
        Bytes of a partition at most.
    align
        Cuts within a tensor fall on multiples of so many bytes of it.

    Returns
    -------
    tuple of Partition
        By rising priority; together they hold every byte of every tensor once.

    Raises
    ------
    InvalidArgument
        `size` is less than `align`, or the lengths differ.

    Examples
    --------
    >>> for part in partition([100, 20, 300], [0.0, 1.0, 2.0], size=192):
    ...     print(part.nbytes, part.tensors)
    184 (0, 1, 2)
    192 (2,)
    44 (2,)
    """
    urgency = np.asarray(priorities, np.float64).reshape(-1)
    if size < align or align < 1 or len(urgency) != len(nbytes):
        raise InvalidArgument(
            f"size is {size}, align {align}, and {len(nbytes)} tensors have {len(urgency)} priorities; expected a size "
            "of at least align, and a priority for each tensor"
        )
    groups: list[list[Piece]] = [[]]
    room = size
    for index in np.argsort(urgency, kind="stable").tolist():
        length, start = int(nbytes[index]), 0
        while start < length:
            stop = length if length - start <= room else start + room // align * align
            if stop == start:  # what room is left is less than a cut may leave
                groups.append([])
                room = size
                continue
            groups[-1].append(Piece(index, start, stop))
            room -= stop - start
            start = stop
    return tuple(Partition(tuple(g), float(min(urgency[piece.tensor] for piece in g))) for g in groups if g)


class Launcher:
    """Which partitions to start now: a fixed order, held to what is ready and to the credit.

    All ranks must start their collectives in one order, so a partition that is ready waits for those before it. Nothing
    in here locks: one thread at a time may call it.

    Parameters
    ----------
    partitions
        Of tensors.
    order
        Their numbers, in the order in which they start.
    credit
        Bytes that may be started and not done; one partition always may.

    Examples
    --------
    >>> parts = partition([100, 100], [0.0, 1.0], 100, align=1)
    >>> launcher = Launcher(parts, order=[1, 0], credit=100)
    >>> launcher.ready(0), launcher.ready(1)  # partition 1 comes first, then 0 has to wait for credit
    ([], [1])
    >>> launcher.done(1), launcher.done(0), launcher.finished
    ([0], [], True)
    """

    def __init__(self, partitions: Sequence[Partition], order: Sequence[int], credit: int) -> None:
        if sorted(order) != list(range(len(partitions))):
            raise InvalidArgument(f"order {str(list(order))[:60]}; expected each of 0 to {len(partitions) - 1} once")
        self._order, self._credit = tuple(order), credit
        self._sizes = [part.nbytes for part in partitions]
        self._missing = [len(set(part.tensors)) for part in partitions]
        self._of: dict[int, list[int]] = {}
        for number, part in enumerate(partitions):
            for tensor in set(part.tensors):
                self._of.setdefault(tensor, []).append(number)
        self._ready: set[int] = set()
        self._next = self._held = self._done = 0

    @property
    def finished(self) -> bool:
        """Whether all partitions are done."""
        return self._done == len(self._order)

    def ready(self, tensor: int) -> list[int]:
        """A tensor is ready; a second time says nothing new.

        Returns
        -------
        list of int
            Numbers of the partitions to start now, in order.

        Examples
        --------
        >>> Launcher(partition([8], [0.0], 64), [0], 64).ready(0)
        [0]
        """
        if tensor not in self._ready:
            self._ready.add(tensor)
            for number in self._of.get(tensor, ()):
                self._missing[number] -= 1
        return self._start()

    def done(self, number: int) -> list[int]:
        """A partition is done, and its credit is free again.

        Returns
        -------
        list of int
            Numbers of the partitions to start now, in order.

        Examples
        --------
        >>> launcher = Launcher(partition([64, 64], [0.0, 1.0], 64), [0, 1], 64)
        >>> launcher.ready(0), launcher.ready(1), launcher.done(0)
        ([0], [], [1])
        """
        self._held -= self._sizes[number]
        self._done += 1
        return self._start()

    def _start(self) -> list[int]:
        started = []
        while self._next < len(self._order):
            number = self._order[self._next]
            if self._missing[number] or (self._held and self._held + self._sizes[number] > self._credit):
                break
            self._held += self._sizes[number]
            self._next += 1
            started.append(number)
        return started
