"""For each collective: which memory a call is given, what its input is, and what its result has to be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringleader.cli.patterns import REDUCED, Kind, Segment, torch_view
from ringleader.runtime import arrays
from ringleader.schedule import Collective

__all__ = ["BUS_FACTORS", "Buffers", "Operands", "bus_factor", "elements", "operands", "places"]

BUS_FACTORS = {
    Collective.ALL_REDUCE: "2(n-1)/n",
    Collective.REDUCE_SCATTER: "(n-1)/n",
    Collective.ALL_GATHER: "(n-1)/n",
    Collective.ALL_TO_ALL: "(n-1)/n",
    Collective.GATHER: "(n-1)/n",
    Collective.SCATTER: "(n-1)/n",
    Collective.BROADCAST: "1",
    Collective.REDUCE: "1",
    Collective.BARRIER: "1",
}


def bus_factor(collective: Collective, n: int) -> float:
    """What nccl-tests multiplies the algorithm bandwidth by: a normalisation that makes numbers of ranks comparable.

    Examples
    --------
    >>> bus_factor(Collective.ALL_REDUCE, 4)
    1.5
    """
    factor = BUS_FACTORS[collective]
    return 1.0 if factor == "1" else (2 if factor.startswith("2") else 1) * (n - 1) / n


def places(collective: Collective) -> tuple[bool, ...]:
    """The ways to call it: out of place (False), in place (True)."""
    if collective is Collective.BROADCAST:
        return (True,)  # one array is both
    return (False,) if collective is Collective.BARRIER else (False, True)


def elements(collective: Collective, nbytes: int, itemsize: int, n: int) -> int:
    """Elements of the whole vector, or of a block, for a size that is the total; at least one."""
    if collective is Collective.BARRIER:
        return 0
    return max(nbytes // itemsize // (n if collective.blocked else 1), 1)


@dataclass
class Buffers:
    """Two vectors of `total` elements of one kind of memory; calls are given pieces of them.

    `first` holds inputs, `second` results and what is worked on in place.
    """

    kind: Kind
    first: NDArray[Any]
    second: NDArray[Any]

    @classmethod
    def make(cls, kind: Kind, total: int, registered: bool) -> Buffers:
        """Allocate them: in the arena that peers map, or as any NumPy array."""
        new: Callable[..., NDArray[Any]] = arrays.empty if registered else np.empty
        return cls(kind, new(total, kind.storage), new(total, kind.storage))

    def given(self, piece: NDArray[Any]) -> Any:
        """The piece as a user would pass it: types that NumPy lacks as torch tensors."""
        return torch_view(self.kind, piece) if self.kind.name == "bfloat16" else piece


@dataclass
class Operands:
    """One call: memory, input and result on this rank.

    Attributes
    ----------
    x, out
        Pieces of the buffers (None: not given).
    inputs
        What `x` holds before the call.
    result, expected
        The piece that holds the result, None where this rank gets none, and what it has to be.
    """

    x: NDArray[Any] | None
    out: NDArray[Any] | None
    inputs: list[Segment]
    result: NDArray[Any] | None
    expected: list[Segment]


def operands(
    collective: Collective, in_place: bool, buffers: Buffers, count: int, rank: int, n: int, root: int
) -> Operands:
    """What `rank` passes; `count` is that of `elements`."""
    a, b = buffers.first, buffers.second
    mine = slice(rank * count, (rank + 1) * count)
    if collective in (Collective.ALL_REDUCE, Collective.REDUCE):
        gets = collective is Collective.ALL_REDUCE or rank == root
        whole, inputs = [Segment(REDUCED, 0, count)], [Segment(rank, 0, count)]
        if in_place:
            return Operands(b, None, inputs, b if gets else None, whole)
        return Operands(a, b if gets else None, inputs, b if gets else None, whole)
    if collective is Collective.BROADCAST:
        whole = [Segment(root, 0, count)]
        return Operands(b, None, whole if rank == root else [Segment(rank, 1, count)], b, whole)
    if collective in (Collective.ALL_GATHER, Collective.GATHER):
        gets = collective is Collective.ALL_GATHER or rank == root
        out = b if gets else None
        x = b[mine] if in_place and gets else a[:count]
        return Operands(x, out, [Segment(rank, 0, count)], out, [Segment(r, 0, count) for r in range(n)])
    if collective is Collective.REDUCE_SCATTER:
        out = a[mine] if in_place else b[:count]
        return Operands(a, out, [Segment(rank, 0, n * count)], out, [Segment(REDUCED, rank * count, count)])
    if collective is Collective.SCATTER:
        gives = rank == root
        out = a[mine] if in_place and gives else b[:count]
        inputs = [Segment(root, 0, n * count)] if gives else []
        return Operands(a if gives else None, out, inputs, out, [Segment(root, rank * count, count)])
    if collective is Collective.ALL_TO_ALL:
        x, out = (b, b) if in_place else (a, b)
        expected = [Segment(r, rank * count, count) for r in range(n)]
        return Operands(x, out, [Segment(rank, 0, n * count)], out, expected)
    return Operands(None, None, [], None, [])
