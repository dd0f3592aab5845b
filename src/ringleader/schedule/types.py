"""The words of a schedule: buffers, collectives and the layout of one transfer.

The numeric codes are shared with the native core (`native/base/types.hpp`, `native/core/program.hpp`).
"""

from __future__ import annotations

from enum import Enum, IntEnum

import numpy as np

from ringleader._names import unknown
from ringleader.errors import ScheduleError

__all__ = ["TRANSFER_DTYPE", "Buffer", "Collective"]


class Buffer(IntEnum):
    """Where a chunk lives on its rank."""

    DATA = 0
    INPUT = 1
    OUTPUT = 2
    SCRATCH = 3

    @classmethod
    def parse(cls, value: Buffer | int | str) -> Buffer:
        """Accept a `Buffer`, its code, or its name in either case.

        Raises
        ------
        ScheduleError
            If there is no such buffer.

        Examples
        --------
        >>> Buffer.parse("scratch")
        <Buffer.SCRATCH: 3>
        """
        try:
            return cls[value.upper()] if isinstance(value, str) else cls(value)
        except (KeyError, ValueError):
            raise ScheduleError(unknown("buffer", value, (buffer.name.lower() for buffer in cls))) from None


class Collective(str, Enum):
    """A collective operation; compares equal to its name.

    Examples
    --------
    >>> Collective("all_reduce") == "all_reduce", Collective.BARRIER.code
    (True, 8)
    """

    ALL_REDUCE = "all_reduce"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_GATHER = "all_gather"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    GATHER = "gather"
    SCATTER = "scatter"
    ALL_TO_ALL = "all_to_all"
    BARRIER = "barrier"

    def __str__(self) -> str:
        return self.value

    @property
    def code(self) -> int:
        """The number of `Collective` in native/base/types.hpp."""
        return list(Collective).index(self)

    @property
    def blocked(self) -> bool:
        """True if the data is divided into one block per rank (B = n), False if it is one block (B = 1)."""
        return self in _BLOCKED

    @property
    def rooted(self) -> bool:
        """True if one rank, the root, has a part of its own."""
        return self in _ROOTED

    @property
    def reduces(self) -> bool:
        """True if the result combines the contributions of all ranks."""
        return self in _REDUCING

    @classmethod
    def parse(cls, value: Collective | str) -> Collective:
        """Accept a `Collective` or its name.

        Raises
        ------
        ScheduleError
            If there is no such collective.
        """
        try:
            return cls(value)
        except ValueError:
            raise ScheduleError(unknown("collective", value, (collective.value for collective in cls))) from None


_BLOCKED = frozenset(
    {
        Collective.REDUCE_SCATTER,
        Collective.ALL_GATHER,
        Collective.GATHER,
        Collective.SCATTER,
        Collective.ALL_TO_ALL,
    }
)
_ROOTED = frozenset({Collective.BROADCAST, Collective.REDUCE, Collective.GATHER, Collective.SCATTER})
_REDUCING = frozenset({Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.REDUCE, Collective.BARRIER})

# One row of a schedule's table: packed, 29 bytes, equal to `struct Transfer` in native/core/program.hpp.
TRANSFER_DTYPE = np.dtype(
    [
        ("step", "<i4"),
        ("src_rank", "<i4"),
        ("src_chunk", "<i4"),
        ("dst_rank", "<i4"),
        ("dst_chunk", "<i4"),
        ("count", "<i4"),
        ("channel", "<i2"),
        ("src_buffer", "u1"),
        ("dst_buffer", "u1"),
        ("reduce", "u1"),
    ]
)
