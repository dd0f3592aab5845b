"""An array that lies in several pieces of memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from ringleader import _core
from ringleader.compress.base import Floats

__all__ = ["Pieces"]


class Pieces:
    """Vectors of float32 that stand for one, one after another: gradients of a bucket that has others between them.

    The kernels read and write the pieces where they lie, so nothing is copied together and apart.

    Parameters
    ----------
    parts
        Contiguous, one-dimensional.

    Examples
    --------
    >>> pieces = Pieces([np.float32([1, 2]), np.float32([3])])
    >>> pieces.size, pieces.joined(), [part.tolist() for part in pieces.between(1, 3)]
    (3, array([1., 2., 3.], dtype=float32), [[2.0], [3.0]])
    """

    def __init__(self, parts: Sequence[Floats]) -> None:
        self.parts: Final = list(parts)
        self.size: Final = sum(part.size for part in self.parts)

    def placed(self) -> Iterator[tuple[int, int, Floats]]:
        """Begin and end of each piece, and the piece."""
        begin = 0
        for part in self.parts:
            yield begin, begin + part.size, part
            begin += part.size

    def between(self, lo: int, hi: int) -> list[Floats]:
        """The elements from `lo` to `hi`; views."""
        if len(self.parts) == 1:
            return [self.parts[0][lo:hi]]
        return [part[max(lo - a, 0) : hi - a] for a, b, part in self.placed() if a < hi and b > lo]

    def whole(self, lo: int, hi: int) -> Floats | None:
        """The elements from `lo` to `hi`, a view, if they are in one piece."""
        for a, b, part in self.placed():
            if a <= lo and hi <= b:
                return part[lo - a : hi - a]
        return None

    def joined(self) -> Floats:
        """All elements as one vector: the only piece itself, else a copy."""
        if len(self.parts) == 1:
            return self.parts[0]
        return np.concatenate(self.parts) if self.parts else np.empty(0, np.float32)

    def store(self, values: Floats) -> None:
        """Write to all elements."""
        for a, b, part in self.placed():
            if part.ctypes.data != values.ctypes.data + 4 * a:
                part[:] = values[a:b]

    def fill(self, value: float) -> None:
        """Write a number to all elements."""
        for part in self.parts:
            part.fill(value)

    def multiply(self, factor: float) -> None:
        """Multiply all elements."""
        for part in self.parts:
            part *= np.float32(factor)

    def add_to(self, out: Floats, other: Floats, scale: float = 1.0) -> None:
        """``out = scale * other + self``, in one pass; `out` may be `other`."""
        _core.compress.add(out, other, self.parts, scale)
