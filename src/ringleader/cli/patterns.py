"""Inputs whose result is known exactly, in whatever order it is computed, for every type and operator.

All values are small whole numbers, chosen so that every partial result of every order is exact in the type. They
differ from rank to rank and from element to element, and repeat with a period that is prime, so that a chunk in the
wrong place is noticed. What is compared is bits: types that NumPy lacks are handled as integers of their size.
"""

from __future__ import annotations

import importlib.util
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ringleader._lazy import install
from ringleader.cli.words import one_of
from ringleader.errors import InvalidArgument
from ringleader.runtime import dtypes

__all__ = [
    "DTYPES",
    "OPS",
    "PERIOD",
    "REDUCED",
    "Kind",
    "Patterns",
    "Segment",
    "check_pair",
    "kind_of",
    "require_torch",
    "torch_view",
]

PERIOD = 1021
REDUCED = -1
"""In a `Segment`: the combined contributions of all ranks."""

OPS = ("sum", "prod", "min", "max", "avg", "band", "bor", "bxor")


class Kind(NamedTuple):
    """An element type. `short` is its name in nccl-tests; `storage` what NumPy keeps it in.

    Whole numbers up to `limit`, and powers of two up to 2 ** `exponent`, are exact.
    """

    name: str
    short: str
    storage: np.dtype[Any]
    limit: int
    exponent: int


_KINDS = (
    Kind("float32", "float", np.dtype("float32"), 1 << 24, 100),
    Kind("float64", "double", np.dtype("float64"), 1 << 53, 100),
    Kind("float16", "half", np.dtype("float16"), 1 << 11, 14),
    Kind("bfloat16", "bfloat16", np.dtype("uint16"), 1 << 8, 100),
    *(Kind(f"int{b}", f"int{b}", np.dtype(f"int{b}"), (1 << (b - 1)) - 1, b - 2) for b in (8, 16, 32, 64)),
    *(Kind(f"uint{b}", f"uint{b}", np.dtype(f"uint{b}"), (1 << b) - 1, b - 1) for b in (8, 16, 32, 64)),
    Kind("bool", "bool", np.dtype("bool"), 1, 0),
    Kind("complex64", "complex64", np.dtype("complex64"), 1 << 22, 100),
    Kind("complex128", "complex128", np.dtype("complex128"), 1 << 51, 100),
)
DTYPES = {kind.name: kind for kind in _KINDS}
"""Every type that can be measured, by name."""


def kind_of(word: str) -> Kind:
    """The type of a name, NumPy's or nccl-tests'.

    Raises
    ------
    InvalidArgument
        Unknown; the message lists the valid names.

    Examples
    --------
    >>> kind_of("half").name, kind_of("bfloat16").storage
    ('float16', dtype('uint16'))
    """
    shorts = {kind.short: kind for kind in _KINDS}
    return {**shorts, **DTYPES}[one_of(word, dict.fromkeys((*DTYPES, *shorts)), "data type")]


def _scattered(seed: int) -> NDArray[np.int64]:
    """One period of numbers below 2^22 without a pattern, by a multiplicative hash; the same on every machine."""
    i = np.arange(1, PERIOD + 1, dtype=np.int64)
    mixed: NDArray[np.int64] = ((i * 2654435761) ^ ((seed + 2) * 2246822519)) * 40503 & 0xFFFFFFFF
    return mixed >> 10


class Segment(NamedTuple):
    """A stretch of a vector: elements `start` to `start + length` of rank `source`'s pattern, or of `REDUCED`."""

    source: int
    start: int
    length: int


class Patterns:
    """The patterns of `n` ranks for a type and an operator (None for collectives that only move data).

    Examples
    --------
    >>> patterns = Patterns(kind_of("int8"), "sum", n=2)
    >>> x, y = np.empty(2000, np.int8), np.empty(2000, np.int8)
    >>> patterns.fill(x, [Segment(0, 0, 2000)]); patterns.fill(y, [Segment(1, 0, 2000)])
    >>> patterns.wrong(x + y, [Segment(REDUCED, 0, 2000)])
    0
    """

    def __init__(self, kind: Kind, op: str | None, n: int) -> None:
        self.kind = kind
        self._op = op
        self._n = n
        self._tiles: dict[int, NDArray[Any]] = {}

    def _whole(self, rank: int) -> NDArray[np.int64]:
        """Rank's values for one period, as whole numbers."""
        n, limit = self._n, self.kind.limit
        mine, common = _scattered(rank), _scattered(-1)  # `common` lets ranks take turns, from element to element
        result: NDArray[np.int64]
        if self.kind.name == "bool":
            result = (mine % 3 == 0).astype(np.int64)
        elif self._op == "sum":  # the sum of all ranks stays within the limit
            stride = -(-n // limit)
            most = max(min(limit // -(-n // stride), 16), 1)
            result = np.where((common + rank) % stride == 0, 1 + mine % most, 0)
        elif self._op == "prod":  # twos, at most as many as the type holds
            stride = max(3, -(-n // max(self.kind.exponent, 1)))
            stride += n % stride == 0  # else every element would have as many twos
            result = 1 + ((common + rank) % stride == 0).astype(np.int64)
        elif self._op == "avg" and n < limit:  # the sum is a multiple of n, so the average is whole
            base = 1 + common % max(min(limit // n, 16) - 1, 1)
            result = base + ((common - rank) % n == 0) - ((common + 1 - rank) % n == 0)
        else:
            result = mine % (101 if self._op != "avg" else 1)
        return result

    def _reduced(self) -> NDArray[np.int64]:
        total = self._whole(0)
        combine: Any = {
            "sum": np.add, "avg": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum,
            "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor,
        }[self._op or "sum"]  # fmt: skip
        if self._op == "prod" and self.kind.exponent > 60:
            combine = lambda a, b: a * b.astype(np.float64)  # noqa: E731  powers of two: exact far beyond int64
        if self.kind.name == "bool":
            combine = {"sum": np.maximum, "prod": np.minimum}.get(self._op or "", combine)
        for rank in range(1, self._n):
            total = combine(total, self._whole(rank))
        result: NDArray[np.int64] = total // self._n if self._op == "avg" else total
        return result

    def _stored(self, values: NDArray[Any]) -> NDArray[Any]:
        if self.kind.name == "bfloat16":  # its bits are the upper half of a float32's
            return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        if self.kind.storage.kind == "c" and self._op in ("sum", "avg", None):
            return (values * (1 + 2j)).astype(self.kind.storage)
        return values.astype(self.kind.storage)

    def _tile(self, segment: Segment) -> NDArray[Any]:
        tile = self._tiles.get(segment.source)
        if tile is None:
            whole = self._reduced() if segment.source == REDUCED else self._whole(segment.source)
            tile = self._tiles[segment.source] = self._stored(whole)
        return np.roll(tile, -(segment.start % PERIOD))

    def _pieces(self, vector: NDArray[Any], segments: list[Segment]) -> Any:
        """Pairs of a piece of the vector and what belongs there."""
        at = 0
        for segment in segments:
            piece, tile = vector[at : at + segment.length], self._tile(segment)
            at += segment.length
            whole = segment.length // PERIOD * PERIOD
            yield piece[:whole].reshape(-1, PERIOD), tile
            yield piece[whole:], tile[: segment.length - whole]

    def fill(self, vector: NDArray[Any], segments: list[Segment]) -> None:
        """Write the segments, one after another, into `vector`, shape (elements,)."""
        for piece, tile in self._pieces(vector, segments):
            piece[...] = tile

    def wrong(self, vector: NDArray[Any], segments: list[Segment]) -> int:
        """How many elements of `vector` differ from the segments."""
        return sum(int(np.count_nonzero(piece != tile)) for piece, tile in self._pieces(vector, segments))


def check_pair(kind: Kind, op: str) -> None:
    """Refuse an operator that is not offered for a type.

    Raises
    ------
    UnsupportedType
        Names what is offered.
    """
    dtypes.check_supported(dtypes.code_of_name(kind.name), kind.name, dtypes.parse_op(op))


def require_torch() -> None:
    """Refuse to go on without torch.

    Raises
    ------
    InvalidArgument
        Says how to install it.
    """
    if importlib.util.find_spec("torch") is None:
        raise InvalidArgument(f"bfloat16 and --vs gloo need torch; {install('torch', 'torch')}")


def torch_view(kind: Kind, array: NDArray[Any]) -> Any:
    """The array's memory as a torch tensor of the type."""
    import torch

    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if kind.name == "bfloat16" else tensor
