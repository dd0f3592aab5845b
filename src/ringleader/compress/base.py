"""What every compressor is: the interface, and what a compressed array looks like."""

from __future__ import annotations

import copy
import logging
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ringleader import _core, errors
from ringleader._names import match, nearest, plain

__all__ = [
    "Compressor",
    "Counter",
    "Counting",
    "Floats",
    "Keyed",
    "Kind",
    "Payload",
    "Shapes",
    "State",
    "as_floats",
    "log",
    "no_compressor",
]

Floats: TypeAlias = NDArray[np.float32]
State: TypeAlias = dict[str, Any]
Shapes: TypeAlias = Sequence[tuple[int, ...]]
Kind: TypeAlias = Literal["linear", "blocks", "sparse", "low_rank", "gathered"]


def no_compressor(given: object) -> str:
    """What is expected in the place of something that is no compressor; of a name, the nearest class.

    Examples
    --------
    >>> no_compressor("fp16")
    'expected a compressor of ringleader.compress, e.g. FP16(); did you mean FP16()?'
    """
    from ringleader import compress

    words = {plain(name): name for name in compress.__all__ if name not in _NO_COMPRESSORS}
    near = match(given, words) or nearest(given, words)
    question = f"; did you mean {words[near]}()?" if near else ""
    return f"expected a compressor of ringleader.compress, e.g. FP16(){question}"


_NO_COMPRESSORS: Final = ("BlockCompressor", "Compressor", "Keyed", "Payload", "Policy")
log: Final = logging.getLogger("ringleader.COMPRESS")  # `runtime.config` lists it


@dataclass(frozen=True)
class Payload:
    """A compressed array.

    Attributes
    ----------
    data
        What travels: one-dimensional, contiguous, of any plain type.
    elements
        Number of elements of the array it stands for.
    index
        Places of the elements that were selected; does not travel, as it is known to all ranks or part of `data`.
    shape
        Shape of that array, for a compressor to which it matters.
    key
        Name of that array, likewise.
    """

    data: NDArray[Any]
    elements: int
    index: NDArray[np.uint32] | None = None
    shape: tuple[int, ...] = ()
    key: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes that travel."""
        return int(self.data.nbytes)


def as_floats(x: Any) -> Floats:
    """`x` as a contiguous vector of float32; the same memory where it is that already.

    Raises
    ------
    UnsupportedType
        Not real floating-point numbers.

    Examples
    --------
    >>> as_floats(np.ones((2, 2))).shape
    (4,)
    """
    array = np.asarray(x)
    if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
        raise errors.UnsupportedType(
            f"x has elements of type {array.dtype}; compressors take real floating-point numbers (float16 to float64)"
        )
    return np.ascontiguousarray(array, np.float32).reshape(-1)


class Compressor(ABC):
    """Makes arrays of float32 smaller, and back. Subclass it to define your own.

    A subclass of yours defines `compress`, `decompress` and `compression_ratio`. Its payloads are gathered from all
    ranks, decompressed and added in the order of ranks, so all ranks get the same bits.

    Attributes
    ----------
    kind
        How compressed arrays are reduced: ``"linear"`` payloads are summed as they are, by any algorithm; ``"blocks"``
        are reduced in shards, each of which is compressed again; ``"sparse"`` and ``"gathered"`` ones are gathered;
        ``"low_rank"`` is a sum in two rounds.
    compression_ratio
        About how many times fewer bytes travel.
    always_compressed
        False: compressed only where the cost model says that it is faster; otherwise the array is sent as it is.
    seconds_per_byte
        Time to compress and decompress a byte of the array, for that decision.

    Examples
    --------
    >>> class Halves(Compressor):
    ...     compression_ratio = 2.0
    ...
    ...     def compress(self, x, key=""):
    ...         return Payload(as_floats(x).astype(np.float16), x.size)
    ...
    ...     def decompress(self, payload, out=None):
    ...         return self.into(out, payload.data.astype(np.float32))
    >>> codec = Halves()
    >>> codec.decompress(codec.compress(np.float32([1, 2, 3])))
    array([1., 2., 3.], dtype=float32)
    """

    kind: ClassVar[Kind] = "gathered"
    compression_ratio: float = 1.0
    always_compressed: bool = True
    seconds_per_byte: float = 1e-9

    @abstractmethod
    def compress(self, x: Any, key: str = "") -> Payload:
        """Compress a copy of `x`, an array of floating-point numbers of any shape.

        Parameters
        ----------
        key
            Which of several arrays this is, for compressors that remember something about each.
        """

    @abstractmethod
    def decompress(self, payload: Payload, out: Floats | None = None) -> Floats:
        """What a payload stands for, shape (payload.elements,), in `out` if it is given."""

    @property
    def linear(self) -> bool:
        """Whether the sum of payloads is the payload of the sum."""
        return self.kind == "linear"

    def wire_bytes(self, elements: int) -> int:
        """Bytes of the payload of an array of so many elements."""
        return -int(-4 * elements // self.compression_ratio)

    def compress_with_error(self, x: Any, error: Floats, lost: Floats, key: str = "") -> Payload:
        """Compress ``x + error`` and leave in `lost` what is lost by that; what is not finite is not kept.

        Parameters
        ----------
        error, lost
            Shape (x.size,); may be the same array.
        """
        _core.compress.add(lost, error, as_floats(x))
        payload = self.compress(lost.reshape(np.shape(x)), key)
        lost -= self.decompress(payload)
        _core.compress.clean(lost)
        return payload

    def parameters(self) -> Mapping[str, object]:
        """What must be the same on all ranks, by name: calls that differ in it, or in the class, are an error."""
        return {}

    def state_dict(self) -> State:
        """All that makes a difference to later results; copies."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`."""
        if state:
            raise errors.InvalidArgument(f"{type(self).__name__} has no state, but is to load {sorted(state)}")

    def set_shapes(self, key: str, shapes: Shapes) -> None:  # noqa: B027 - to most they do not matter
        """Say of what parts, one after another, the array `key` consists: for compressors that work on matrices."""

    # A compressed all-reduce is a transaction: `mark`, then `commit` if it succeeds on this rank, else `roll_back`.

    def mark(self, key: str) -> Any:
        """What `roll_back` needs to make the next `compress` of the array `key` undone: by default all state."""
        return copy.deepcopy(self.state_dict())

    def roll_back(self, key: str, mark: Any) -> None:
        """Forget what was compressed since `mark`, so that doing it again gives the same bits."""
        self.load_state_dict(mark)

    def commit(self, key: str) -> None:  # noqa: B027 - most remember nothing
        """What was compressed has arrived: it counts."""

    def common_steps(self) -> Counter | None:
        """Numbers of steps on which all ranks must agree, because the same part of the array is taken by each."""
        return None

    def at(self, key: str) -> Keyed:
        """This compressor for the array called `key`; give it as ``compression=``."""
        return Keyed(self, key)

    @staticmethod
    def into(out: Floats | None, values: Floats) -> Floats:
        """`values`, copied to `out` if that is given."""
        if out is None:
            return values
        out[:] = values
        return out


@dataclass(frozen=True)
class Keyed:
    """A compressor and the name of one of the arrays that it compresses."""

    compressor: Compressor
    key: str


class Counter:
    """How often each array was compressed, for what changes from step to step: the same on all ranks."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.steps: dict[str, int] = {}

    def next(self, key: str) -> int:
        """Number of this step of `key`, from 0."""
        step = self.steps.get(key, 0)
        self.steps[key] = step + 1
        return step

    def reset(self, key: str, step: int) -> None:
        """Make `step` the number of the next step of `key`."""
        self.steps[key] = step

    def random(self, key: str, step: int, *more: object) -> int:
        """A seed of 32 bits for a step."""
        return zlib.crc32(repr((self.seed, key, step, *more)).encode())


class Counting(Compressor):
    """A compressor whose only state is how often each array was compressed: it decides what is drawn at random."""

    _counter: Counter

    def state_dict(self) -> State:
        """Number of steps of each array."""
        return {"steps": dict(self._counter.steps)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Compressor.load_state_dict`."""
        self._counter = Counter(self._counter.seed)
        self._counter.steps.update(state["steps"])

    def mark(self, key: str) -> Any:
        """See `Compressor.mark`."""
        return self._counter.steps.get(key, 0)

    def roll_back(self, key: str, mark: Any) -> None:
        """See `Compressor.roll_back`."""
        self._counter.reset(key, mark)
