"""PowerSGD: matrices as products of two thin ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np

from ringleader import _core, errors
from ringleader.compress.base import Compressor, Counter, Floats, Kind, Payload, Shapes, State, as_floats, log
from ringleader.compress.pieces import Pieces

__all__ = ["PowerSGD"]

Average: TypeAlias = Callable[[Floats], None]


@dataclass(frozen=True)
class _Part:
    """A piece of the array: a matrix to be factored, or (rank 0) a vector that is sent as it is."""

    begin: int
    rows: int
    columns: int
    rank: int

    @property
    def end(self) -> int:
        return self.begin + self.rows * self.columns

    def of(self, x: Floats | Pieces) -> Floats:
        """The part of an array; of pieces, each of which has whole parts."""
        found = x.whole(self.begin, self.end) if isinstance(x, Pieces) else x[self.begin : self.end]
        assert found is not None
        return found.reshape(self.rows, self.columns)


class PowerSGD(Compressor):
    """Each matrix as the product of two thin ones, found by one step of power iteration from the last step's result.

    An array of two or more dimensions is a matrix of its first dimension by the others. A vector is cut into a matrix
    that is about square (and a rest, sent as it is), unless `shapes` says what it consists of. Matrices that would not
    become smaller, and vectors among `shapes`, are sent as they are.

    Parameters
    ----------
    rank
        Columns of the factors.
    warm_start
        Start from the factor of the step before; without, from a random one.
    seed
        The same on all ranks.

    References
    ----------
    Vogels, Karimireddy, Jaggi: PowerSGD, NeurIPS 2019.

    Examples
    --------
    >>> codec = PowerSGD(rank=1)
    >>> x = np.outer(np.arange(1.0, 5), np.arange(1.0, 9)).astype(np.float32)  # of rank 1
    >>> payload = codec.compress(x)
    >>> payload.nbytes, bool(np.allclose(codec.decompress(payload), x.reshape(-1)))
    (48, True)
    """

    kind: ClassVar[Kind] = "low_rank"
    seconds_per_byte = 2e-9

    def __init__(self, rank: int = 4, warm_start: bool = True, seed: int = 0) -> None:
        if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
            raise errors.InvalidArgument(f"rank is {rank!r}; expected an integer from 1")
        self.rank, self.warm_start = rank, warm_start
        self.compression_ratio = 256.0 / rank  # of a matrix of 512 x 512
        self._counter = Counter(seed)
        self._factors: dict[str, list[Floats]] = {}
        self._shapes: dict[str, list[tuple[int, ...]]] = {}

    def parameters(self) -> Mapping[str, object]:
        """See `Compressor.parameters`."""
        return {"rank": self.rank, "warm_start": self.warm_start}

    def set_shapes(self, key: str, shapes: Shapes) -> None:
        """See `Compressor.set_shapes`."""
        self._shapes[key] = [tuple(shape) for shape in shapes]

    def parts(self, key: str, elements: int, shape: tuple[int, ...] = ()) -> list[_Part]:
        """The matrices and vectors of an array.

        Raises
        ------
        InvalidArgument
            Its shapes, given to `set_shapes`, have another number of elements.
        """
        shapes = self._shapes.get(key)
        if shapes is None:
            shapes = [shape]
            if len(shape) < 2:
                rows = math.isqrt(elements)
                columns = elements // rows if rows else 0
                shapes = [(rows, columns), (elements - rows * columns,)]
        parts, begin = [], 0
        for each in shapes:
            count = math.prod(each)
            rows = each[0] if len(each) >= 2 and count else 1
            columns = count // rows
            rank = min(self.rank, rows, columns)
            smaller = (rows + columns) * rank < rows * columns
            parts.append(_Part(begin, rows, columns, rank) if smaller else _Part(begin, 1, count, 0))
            begin += count
        if begin != elements:
            raise errors.InvalidArgument(f"array {key!r} has {elements} elements, but its shapes {shapes} have {begin}")
        return parts

    def _start(self, key: str, parts: list[_Part]) -> list[Floats]:
        """A factor q for every matrix: of the last step; columns that are zero are drawn anew."""
        step = self._counter.next(key)
        matrices = [part for part in parts if part.rank]
        known = self._factors.get(key) if self.warm_start else None
        if known is not None and [q.shape for q in known] != [(part.columns, part.rank) for part in matrices]:
            log.warning("PowerSGD starts anew for array %r: its matrices have other shapes than before", key)
            known = None
        factors = []
        for number, part in enumerate(matrices):
            q = known[number] if known is not None else np.zeros((part.columns, part.rank), np.float32)
            empty = ~np.any(q, axis=0)
            if empty.any():
                random = np.random.default_rng(self._counter.random(key, step, number))
                fresh = random.standard_normal((part.columns, part.rank), np.float32)
                q = np.where(empty, fresh, q)
            factors.append(_scaled(q))
        return factors

    def average(
        self,
        x: Floats | Pieces,
        average: Average,
        key: str,
        shape: tuple[int, ...],
        error: Floats | None = None,
        lost: Floats | None = None,
        out: Floats | Pieces | None = None,
    ) -> Floats | Pieces:
        """The mean over ranks of `x`, compressed.

        Parameters
        ----------
        x
            Shape (elements,).
        average
            Replaces a vector by its mean over all ranks.
        shape
            Shape of the array as the user has it.
        error, lost
            What is added to `x`, and what receives what is lost.
        out
            For the result; may be `x`.

        Returns
        -------
        array
            `out` or a new array, shape (elements,): equal bits on all ranks.
        """
        parts = self.parts(key, x.size, shape)
        p, q = self._factor(x, parts, self._start(key, parts), average, error, lost)
        self._remember(key, q)
        result = np.empty(x.size, np.float32) if out is None else out
        self._expand(parts, p, q, result, lost)
        return result

    def _factor(
        self,
        x: Floats | Pieces,
        parts: list[_Part],
        start: list[Floats],
        average: Average,
        error: Floats | None = None,
        lost: Floats | None = None,
    ) -> tuple[list[Floats], list[Floats]]:
        """Factors p of all parts (of vectors: themselves) and q of the matrices, averaged.

        With `error` they are those of ``x + error``, which is left in `lost`.
        """
        queue = iter(start)
        first = []
        for part in parts:
            if part.rank:
                first.append(np.empty((part.rows, part.rank), np.float32))
                pair = (None, None) if error is None or lost is None else (part.of(error), part.of(lost))
                _core.compress.project(part.of(x), next(queue), first[-1], *pair)
            elif error is None or lost is None:
                first.append(part.of(x))
            else:
                np.add(part.of(x), part.of(error), out=part.of(lost))
                first.append(part.of(lost))
        x = x if lost is None else lost
        p = _averaged(first, average)
        for part, factor in zip(parts, p, strict=True):
            if part.rank:
                _core.compress.orthonormalise(factor)
        second = []
        for part, factor in zip(parts, p, strict=True):
            if part.rank:
                second.append(np.empty((part.columns, part.rank), np.float32))
                _core.compress.project_back(part.of(x), factor, second[-1])
        return p, _averaged(second, average)

    def _remember(self, key: str, q: list[Floats]) -> None:
        if all(np.isfinite(factor).all() for factor in q):
            self._factors[key] = q
        else:
            self._factors.pop(key, None)

    def _expand(
        self, parts: list[_Part], p: list[Floats], q: list[Floats], result: Floats | Pieces, error: Floats | None
    ) -> None:
        queue = iter(q)
        for part, factor in zip(parts, p, strict=True):
            rest = None if error is None else part.of(error)
            if part.rank:
                _core.compress.expand(factor, next(queue), part.of(result), rest)
            else:
                part.of(result)[:] = factor
                if rest is not None:
                    rest[:] = 0

    def compress(self, x: Any, key: str = "") -> Payload:
        """The factors of one rank's array alone. (Ranks together average the factors in two rounds, see `average`.)"""
        values = as_floats(x)
        parts = self.parts(key, values.size, np.shape(x))
        p, q = self._factor(values, parts, self._start(key, parts), lambda factors: None)
        self._remember(key, q)
        pieces = [piece.reshape(-1) for piece in (*p, *q)]
        data = np.concatenate(pieces) if pieces else np.empty(0, np.float32)
        return Payload(data, values.size, shape=np.shape(x), key=key)

    def decompress(self, payload: Payload, out: Floats | None = None) -> Floats:
        """What the factors stand for."""
        parts, at = self.parts(payload.key, payload.elements, payload.shape), 0
        p, q = [], []
        for part in parts:
            shape = (part.rows, part.rank) if part.rank else (1, part.columns)
            p.append(np.ascontiguousarray(payload.data[at : at + math.prod(shape)].reshape(shape)))
            at += math.prod(shape)
        for part in parts:
            if part.rank:
                size = part.columns * part.rank
                q.append(np.ascontiguousarray(payload.data[at : at + size].reshape(part.columns, part.rank)))
                at += size
        result = np.empty(payload.elements, np.float32) if out is None else out
        self._expand(parts, p, q, result, None)
        return result

    def compress_with_error(self, x: Any, error: Floats, lost: Floats, key: str = "") -> Payload:
        """See `Compressor.compress_with_error`."""
        _core.compress.add(lost, error, as_floats(x))
        payload = self.compress(lost.reshape(np.shape(x)), key)
        lost -= self.decompress(payload)
        _core.compress.clean(lost)
        return payload

    def wire_bytes(self, elements: int) -> int:
        """Bytes of both factors of a vector."""
        parts = self.parts("", elements)
        return 4 * sum((part.rows + part.columns) * part.rank if part.rank else part.columns for part in parts)

    def state_dict(self) -> State:
        """The factors and numbers of steps of each array."""
        return {
            "steps": dict(self._counter.steps),
            "factors": {key: [q.copy() for q in factors] for key, factors in self._factors.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Compressor.load_state_dict`."""
        self._counter = Counter(self._counter.seed)
        self._counter.steps.update(state["steps"])
        self._factors = {key: [np.array(q, np.float32) for q in factors] for key, factors in state["factors"].items()}

    def mark(self, key: str) -> Any:
        """See `Compressor.mark`."""
        return self._counter.steps.get(key, 0), self._factors.get(key)

    def roll_back(self, key: str, mark: Any) -> None:
        """See `Compressor.roll_back`."""
        step, factors = mark
        self._counter.reset(key, step)
        if factors is None:
            self._factors.pop(key, None)
        else:
            self._factors[key] = factors

    def common_steps(self) -> Counter | None:
        """All ranks start from the same factor."""
        return self._counter


def _scaled(q: Floats) -> Floats:
    """Columns times the powers of two that bring their largest magnitudes to [1/2, 1).

    The product that they start has unit columns, so nothing else changes, and nothing underflows that need not.
    """
    largest = np.max(np.abs(q), axis=0, initial=0.0)
    exponents = np.where(np.isfinite(largest), np.frexp(largest)[1], 0)
    scaled: Floats = np.ldexp(q, -exponents)
    return scaled


def _averaged(pieces: list[Floats], average: Average) -> list[Floats]:
    """The pieces, averaged over ranks as one vector."""
    if not pieces:
        return []
    block = np.concatenate([piece.reshape(-1) for piece in pieces])
    average(block)
    result, at = [], 0
    for piece in pieces:
        result.append(block[at : at + piece.size].reshape(piece.shape).copy())
        at += piece.size
    return result
