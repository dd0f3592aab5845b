"""Quantisation in blocks: signs, small integers, powers of two. The kernels are native (native/compress)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ringleader import _core, errors
from ringleader.compress.base import Counter, Counting, Floats, Kind, Payload, as_floats

__all__ = ["QSGD", "BlockCompressor", "Int4", "Int8", "Natural", "OneBit"]


class BlockCompressor(Counting):
    """A format of blocks, each encoded on its own: any part of an array can be encoded alone.

    Parameters
    ----------
    scheme
        Name of the native format (native/compress/compress.hpp).
    seed
        Of the random rounding, for schemes that have one.
    """

    kind: ClassVar[Kind] = "blocks"
    seconds_per_byte = 3e-10

    def __init__(self, scheme: str, seed: int = 0) -> None:
        self.scheme = scheme
        self._counter = Counter(seed)
        block = _core.compress.block_elements(scheme)
        self.compression_ratio = 4 * block / _core.compress.encoded_bytes(scheme, block)

    def parameters(self) -> Mapping[str, object]:
        """See `Compressor.parameters`."""
        return {"scheme": self.scheme}

    def next_seed(self, key: str, *more: object) -> int:
        """The seed of the next step of `key`; `more` tells ranks and parts apart."""
        return self._counter.random(key, self._counter.next(key), *more)

    def encode(
        self,
        out: NDArray[np.uint8],
        x: Floats | Sequence[Floats],
        error: Floats | None,
        lost: Floats | None,
        seed: int,
    ) -> None:
        """Encode `x`, or ``x + error``, into `out`, of `wire_bytes` bytes; leave what is lost in `lost`.

        `x` may be a list of vectors that stand for one.
        """
        _core.compress.encode(self.scheme, out, x, error, lost, None, 1.0, seed)

    def decode(self, data: NDArray[np.uint8], out: Floats | Sequence[Floats], accumulate: bool = False) -> None:
        """Decode into `out`, a vector or a list of vectors that stand for one, or add to it."""
        _core.compress.decode(self.scheme, out, data, accumulate)

    def encode_sum(
        self,
        out: NDArray[np.uint8],
        rows: NDArray[np.uint8],
        elements: int,
        factor: float,
        error: Floats | None,
        lost: Floats | None,
        seed: int,
    ) -> None:
        """Encode `factor` times the sum of what the rows stand for, and `error`; leave what is lost in `lost`."""
        _core.compress.encode_sum(self.scheme, out, rows, elements, factor, error, lost, seed)

    def decode_sum(self, rows: NDArray[np.uint8], elements: int, factor: float) -> Floats:
        """`factor` times the sum of what the rows stand for, shape (elements,)."""
        result = np.empty(elements, np.float32)
        _core.compress.decode_sum(self.scheme, result, rows, factor)
        return result

    def compress(self, x: Any, key: str = "") -> Payload:
        """See `Compressor.compress`."""
        return self._compress(as_floats(x), None, None, key)

    def compress_with_error(self, x: Any, error: Floats, lost: Floats, key: str = "") -> Payload:
        """See `Compressor.compress_with_error`."""
        return self._compress(as_floats(x), error, lost, key)

    def _compress(self, x: Floats, error: Floats | None, lost: Floats | None, key: str) -> Payload:
        data = np.empty(self.wire_bytes(x.size), np.uint8)
        self.encode(data, x, error, lost, self.next_seed(key))
        return Payload(data, x.size)

    def decompress(self, payload: Payload, out: Floats | None = None) -> Floats:
        """See `Compressor.decompress`."""
        result = np.empty(payload.elements, np.float32) if out is None else out
        self.decode(payload.data, result)
        return result

    def wire_bytes(self, elements: int) -> int:
        """See `Compressor.wire_bytes`."""
        return _core.compress.encoded_bytes(self.scheme, elements)


class OneBit(BlockCompressor):
    """The sign of each element, and the mean magnitude of each block of 2048: 31 times fewer bytes.

    Use it in `ErrorFeedback`, which then remembers errors on both sides as 1-bit Adam does: what each rank loses, and
    what is lost when the shards of the sum are compressed again.

    References
    ----------
    Seide et al.: 1-Bit Stochastic Gradient Descent, Interspeech 2014. Tang et al.: 1-bit Adam, ICML 2021.

    Examples
    --------
    >>> codec = OneBit()
    >>> codec.decompress(codec.compress(np.float32([1, -3, 2])))
    array([ 2., -2.,  2.], dtype=float32)
    """

    def __init__(self) -> None:
        super().__init__("onebit")


class Int8(BlockCompressor):
    """8-bit integers with one power of two for 128 elements, rounded to nearest; the bytes of ``wire="int8"``.

    References
    ----------
    Dettmers: 8-Bit Approximations for Parallelism in Deep Learning, ICLR 2016.

    Examples
    --------
    >>> codec = Int8()
    >>> codec.decompress(codec.compress(np.float32([127, -1, 0.4])))
    array([127.,  -1.,   0.], dtype=float32)
    """

    def __init__(self) -> None:
        super().__init__("int8")


class Int4(BlockCompressor):
    """4-bit integers from -7 to 7 with one unit for 128 elements, rounded to nearest.

    Examples
    --------
    >>> codec = Int4()
    >>> codec.decompress(codec.compress(np.float32([7, -1, 0.4])))
    array([ 7., -1.,  0.], dtype=float32)
    """

    def __init__(self) -> None:
        super().__init__("int4")


class QSGD(BlockCompressor):
    """Integers of 8, 4 or 2 bits with one unit for 512 elements, rounded at random so that the expectation is exact.

    Parameters
    ----------
    bits
        8, 4 or 2: 127, 7 or 1 levels each way.
    norm
        The largest level stands for the block's largest magnitude (``"max"``), or for its Euclidean norm as in the
        paper (``"l2"``), which costs more error.
    seed
        Of the random rounding; ranks and steps differ by themselves.

    References
    ----------
    Alistarh et al.: QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding, NIPS 2017.

    Examples
    --------
    >>> codec = QSGD(bits=4)
    >>> codec.decompress(codec.compress(np.float32([7, -1, 0])))
    array([ 7., -1.,  0.], dtype=float32)
    """

    def __init__(self, bits: int = 8, norm: str = "max", seed: int = 0) -> None:
        if bits not in (2, 4, 8):
            raise errors.InvalidArgument(f"bits is {bits!r}; expected 2, 4 or 8")
        if norm not in ("max", "l2"):
            raise errors.InvalidArgument(f"norm is {norm!r}; expected 'max' or 'l2'")
        super().__init__(f"qsgd{bits}" + ("_l2" if norm == "l2" else ""), seed)


class Natural(BlockCompressor):
    """Sign and exponent: powers of two, rounded at random so that the expectation is exact. One byte an element.

    Elements more than 2^126 times smaller than the largest of their block become zero.

    References
    ----------
    Horvath et al.: Natural Compression for Distributed Deep Learning, 2019.

    Examples
    --------
    >>> codec = Natural()
    >>> codec.decompress(codec.compress(np.float32([4, -0.5, 0])))
    array([ 4. , -0.5,  0. ], dtype=float32)
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__("natural", seed)
