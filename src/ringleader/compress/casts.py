"""Half precision: float16 and bfloat16, scaled before the sum."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ringleader import _core
from ringleader.compress.base import Floats, Kind
from ringleader.compress.blocks import BlockCompressor

__all__ = ["BF16", "FP16", "Cast"]


class Cast(BlockCompressor):
    """A 16-bit format. Values are multiplied by a power of two, at most 1/n, before n ranks are summed.

    So a sum of values that fit fits too. Between nodes the numbers travel in 16 bits and are added in float32; where
    ranks share memory they stay in float32, which is faster there. In `ErrorFeedback` they are reduced like other
    blocks: only so can all that rounding loses be remembered.
    """

    kind: ClassVar[Kind] = "linear"
    seconds_per_byte = 1e-10

    def scaled(self, x: Floats, n: int) -> tuple[Floats, float]:
        """What is to be summed over `n` ranks, rounded, and the factor by which it was scaled.

        Examples
        --------
        >>> FP16().scaled(np.float32([40000]), 2)
        (array([20000.], dtype=float32), 0.5)
        """
        scale = 2.0 ** -(n - 1).bit_length()
        rounded = np.empty_like(x)
        _core.compress.encode(self.scheme, None, x, decoded=rounded, scale=scale)
        return rounded, scale


class FP16(Cast):
    """IEEE half precision: 11 significant bits, up to 65504, in steps of 6e-8 near zero.

    Of n ranks (n rounded up to a power of two), values below 3e-8 n become zero.

    Examples
    --------
    >>> codec = FP16()
    >>> float(codec.decompress(codec.compress(np.float32([0.1])))[0])
    0.0999755859375
    """

    def __init__(self) -> None:
        super().__init__("f16")


class BF16(Cast):
    """bfloat16: 8 significant bits, the range of float32.

    Examples
    --------
    >>> codec = BF16()
    >>> float(codec.decompress(codec.compress(np.float32([0.1])))[0])
    0.10009765625
    """

    def __init__(self) -> None:
        super().__init__("bf16")
