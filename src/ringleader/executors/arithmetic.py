"""Folding arrays with the native kernels, or in plain NumPy to compare them with."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringleader.errors import UnsupportedType

__all__ = ["AVG", "BF16", "NONE", "PREMUL_SUM", "dtype_of", "fold", "from_f32", "to_f32"]

Array = NDArray[Any]

# Codes of `DType` and `ReduceOp` in native/base/types.hpp.
F16, BF16, BOOL, BYTES = 2, 3, 12, 15
SUM, PROD, MIN, MAX, AVG, PREMUL_SUM, BAND, BOR, BXOR, NONE = 0, 1, 2, 3, 4, 5, 6, 7, 8, 255

_DTYPES = (
    "f4",
    "f8",
    "f2",
    "u2",
    "i1",
    "i2",
    "i4",
    "i8",
    "u1",
    "u2",
    "u4",
    "u8",
    "?",
    "c8",
    "c16",
    "u1",
)  # in code order

_UFUNCS: dict[int, Callable[[Array, Array], Array]] = {
    SUM: np.add,
    PROD: np.multiply,
    MIN: np.minimum,
    MAX: np.maximum,
    AVG: np.add,
    PREMUL_SUM: np.add,
    BAND: np.bitwise_and,
    BOR: np.bitwise_or,
    BXOR: np.bitwise_xor,
}

_BOOL_UFUNCS: dict[int, Callable[[Array, Array], Array]] = {
    SUM: np.logical_or,
    PROD: np.logical_and,
    MIN: np.logical_and,
    MAX: np.logical_or,
    BAND: np.logical_and,
    BOR: np.logical_or,
    BXOR: np.logical_xor,
}

_INTEGER = frozenset({SUM, PROD, MIN, MAX, AVG, BAND, BOR, BXOR})
_OFFERED = {  # by kind of NumPy type
    "b": frozenset(_BOOL_UFUNCS),
    "i": _INTEGER,
    "u": _INTEGER,
    "f": frozenset({SUM, PROD, MIN, MAX, AVG, PREMUL_SUM}),
    "c": frozenset({SUM, PROD, AVG, PREMUL_SUM}),
    "": frozenset(),
}


def dtype_of(code: int) -> np.dtype[Any]:
    """The NumPy type of arrays of dtype `code`; bf16 travels as uint16.

    Raises
    ------
    UnsupportedType
        If there is no such code.
    """
    if not 0 <= code < len(_DTYPES):
        raise UnsupportedType(f"dtype code is {code}; expected 0 to {len(_DTYPES) - 1}")
    return np.dtype(_DTYPES[code])


def to_f32(bf16: Array) -> NDArray[np.float32]:
    """bf16 bit patterns (uint16) as float32."""
    return (bf16.astype(np.uint32) << np.uint32(16)).view(np.float32)


def from_f32(values: NDArray[np.float32]) -> Array:
    """float32 rounded to nearest, ties to even, as bf16 bit patterns (uint16); NaN stays a quiet NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)


def fold(
    arrays: Sequence[Array],
    raw: Sequence[bool],
    dtype_code: int,
    op_code: int,
    factor: float = 1.0,
    divide_by: int = 0,
    native: bool | None = None,
) -> Array:
    """Left fold of arrays of equal shape.

    Parameters
    ----------
    arrays
        The operands, at least one.
    raw
        Which of them are untouched contributions: premul_sum multiplies those by `factor`.
    divide_by
        What an average divides the result by; 0 if it is not complete yet.
    native
        Use the native kernels (True) or NumPy (False). Default: the kernels where they are built. They agree but for
        the sign of zeros in min and max, the bits of NaNs, and the last bits of complex products.

    Raises
    ------
    UnsupportedType
        If the operation is not offered for the type.
    """
    core = None if native is False else _kernels()
    if core is None:
        if native:
            raise UnsupportedType("the native kernels are not built; use native=False")
        return _fold_numpy(arrays, raw, dtype_code, op_code, factor, divide_by)
    if not core.reduce_supported(dtype_code, op_code):
        raise UnsupportedType(f"operation code {op_code} is not offered for dtype code {dtype_code}")
    sources = [np.ascontiguousarray(array) for array in arrays]
    result = np.empty_like(sources[0])
    pointers = [source.ctypes.data for source in sources]
    core.reduce_into(
        result.ctypes.data, pointers, result.size, dtype_code, op_code, divide_by, factor, [bool(flag) for flag in raw]
    )
    return result


def _kernels() -> ModuleType | None:
    try:
        return importlib.import_module("ringleader._core")
    except ImportError:
        return None


def _fold_numpy(
    arrays: Sequence[Array], raw: Sequence[bool], dtype_code: int, op_code: int, factor: float, divide_by: int
) -> Array:
    dtype = dtype_of(dtype_code)
    if op_code not in _OFFERED["f" if dtype_code == BF16 else "" if dtype_code == BYTES else dtype.kind]:
        raise UnsupportedType(f"operation code {op_code} is not offered for dtype code {dtype_code}")
    combine = (_BOOL_UFUNCS if dtype_code == BOOL else _UFUNCS)[op_code]
    with np.errstate(all="ignore"):
        wide = [_widened(array, dtype_code) for array in arrays]
        if op_code == PREMUL_SUM:
            scale = wide[0].real.dtype.type(factor)
            wide = [array * scale if flag else array for array, flag in zip(wide, raw, strict=True)]
        result = wide[0]
        for array in wide[1:]:
            result = combine(result, array)
        if divide_by and op_code == AVG:
            result = _divided(result, divide_by)
        return from_f32(result) if dtype_code == BF16 else result.astype(dtype)


def _divided(total: Array, divisor: int) -> Array:
    """total / divisor: integers toward zero, complex numbers by components."""
    result: Array
    if total.dtype.kind in "iu":
        # The magnitude of the smallest integer does not fit its type: round down first, then toward zero.
        quotient = total // divisor
        result = quotient + ((total - quotient * divisor != 0) & (total < 0)).astype(total.dtype)
        return result
    part = total.real.dtype
    result = (np.ascontiguousarray(total).view(part) / part.type(divisor)).view(total.dtype)
    return result


def _widened(array: Array, dtype_code: int) -> Array:
    """16-bit floating point is folded in 32 bits."""
    if dtype_code == BF16:
        return to_f32(array)
    return array.astype(np.float32) if dtype_code == F16 else array
