"""Folding arrays with the native kernels, or in plain NumPy to compare them with."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringleader.errors import UnsupportedType

__all__ = ["AVG", "BF16", "NONE", "PREMUL_SUM", "dtype_of", "fold", "from_f32", "scaled", "to_f32"]

Array = NDArray[Any]

# Codes of `DType` and `ReduceOp` in native/core/types.hpp.
F16, BF16, BOOL = 2, 3, 12
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


def scaled(values: Array, factor: float, dtype_code: int) -> Array:
    """`values * factor` in their own type."""
    if dtype_code == BF16:
        return from_f32(to_f32(values) * np.float32(factor))
    if dtype_code == F16:
        return (values.astype(np.float32) * np.float32(factor)).astype(np.float16)
    product: Array = (values * values.dtype.type(factor)).astype(values.dtype)
    return product


def fold(arrays: Sequence[Array], dtype_code: int, op_code: int, divide_by: int, native: bool | None) -> Array:
    """Left fold of `arrays`, which have equal shape; an average divides by `divide_by` if that is not 0.

    Raises
    ------
    UnsupportedType
        If the operation is not offered for the type.
    """
    core = None if native is False else _kernels()
    if native and core is None:
        raise UnsupportedType("the native kernels are not built; use native=False")
    if core is None:
        return _fold_numpy(arrays, dtype_code, op_code, divide_by)
    sources = [np.ascontiguousarray(array) for array in arrays]
    result = np.empty_like(sources[0])
    # premul_sum's contributions are multiplied by now: what is left is a sum.
    operation = SUM if op_code == PREMUL_SUM else op_code
    pointers = [source.ctypes.data for source in sources]
    core.reduce_into(result.ctypes.data, pointers, result.size, dtype_code, operation, divide_by)
    return result


def _kernels() -> ModuleType | None:
    try:
        return importlib.import_module("ringleader._core")
    except ImportError:
        return None


def _fold_numpy(arrays: Sequence[Array], dtype_code: int, op_code: int, divide_by: int) -> Array:
    if op_code not in _UFUNCS:
        raise UnsupportedType(f"no reduction has code {op_code}")
    combine = _UFUNCS[op_code]
    dtype = dtype_of(dtype_code)
    wide = [_widened(array, dtype_code) for array in arrays]
    result = wide[0]
    with np.errstate(all="ignore"):
        try:
            for array in wide[1:]:
                result = combine(result, array)
        except TypeError as error:
            raise UnsupportedType(f"operation {op_code} is not offered for {dtype}") from error
        if divide_by:
            integer = dtype.kind in "iu" and dtype_code != BF16
            result = result // divide_by if integer else (result / divide_by).astype(result.dtype)
    return from_f32(result) if dtype_code == BF16 else result.astype(dtype)


def _widened(array: Array, dtype_code: int) -> Array:
    """16-bit floating point is accumulated in 32 bits within one fold."""
    if dtype_code == BF16:
        return to_f32(array)
    return array.astype(np.float32) if dtype_code == F16 else array
