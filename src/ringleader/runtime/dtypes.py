"""Element types and reduction operators: names, native codes, and which pairs the kernels offer.

The codes are the contract with the native core (native/base/types.hpp).
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, ClassVar, Final

import numpy as np

from ringleader import _core, errors
from ringleader._names import unknown

__all__ = ["BYTES", "DTYPE_NAMES", "ReduceOp", "check_supported", "code_of_name", "parse_op", "premul_sum"]

# Index = native code.
DTYPE_NAMES: Final = (
    "float32", "float64", "float16", "bfloat16",
    "int8", "int16", "int32", "int64",
    "uint8", "uint16", "uint32", "uint64",
    "bool", "complex64", "complex128", "bytes",
)  # fmt: skip
ITEM_SIZES: Final = (4, 8, 2, 2, 1, 2, 4, 8, 1, 2, 4, 8, 1, 8, 16, 1)
BYTES: Final = 15
_CODES: Final = {name: code for code, name in enumerate(DTYPE_NAMES)}


class ReduceOp:
    """A reduction operator. Compare with ``is``; every operator exists once.

    ``SUM``, ``PROD``, ``MIN``, ``MAX``, ``AVG`` (divides by the size of the group in use), ``BAND``, ``BOR``,
    ``BXOR``, and what `premul_sum` returns. Everywhere an operator is expected, its name (``"sum"``) does as well.

    Examples
    --------
    >>> import ringleader as rl
    >>> rl.ReduceOp.SUM
    ReduceOp.SUM
    >>> rl.premul_sum(0.5) is rl.premul_sum(0.5)
    True
    """

    __slots__ = ("code", "factor", "name")

    SUM: ClassVar[ReduceOp]
    PROD: ClassVar[ReduceOp]
    MIN: ClassVar[ReduceOp]
    MAX: ClassVar[ReduceOp]
    AVG: ClassVar[ReduceOp]
    BAND: ClassVar[ReduceOp]
    BOR: ClassVar[ReduceOp]
    BXOR: ClassVar[ReduceOp]

    def __init__(self, name: str, code: int, factor: float = 1.0) -> None:
        self.name = name
        self.code = code
        self.factor = factor

    def __repr__(self) -> str:
        return f"premul_sum({self.factor!r})" if self.name == "premul_sum" else f"ReduceOp.{self.name.upper()}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (premul_sum, (self.factor,)) if self.name == "premul_sum" else (parse_op, (self.name,))


_OP_CODES: Final = {"sum": 0, "prod": 1, "min": 2, "max": 3, "avg": 4, "band": 6, "bor": 7, "bxor": 8}
_PREMUL_SUM: Final = 5
_OPS: Final = {name: ReduceOp(name, code) for name, code in _OP_CODES.items()}
for _name, _op in _OPS.items():
    setattr(ReduceOp, _name.upper(), _op)


@lru_cache(maxsize=1024)
def premul_sum(factor: float) -> ReduceOp:
    """Operator that multiplies every rank's contribution by `factor` and sums them.

    All ranks must give the same factor.

    Examples
    --------
    >>> import numpy as np, ringleader as rl
    >>> with rl.init(rank=0, size=1) as comm:
    ...     comm.all_reduce(np.array([2.0, 4.0]), op=rl.premul_sum(0.5))
    array([1., 2.])
    """
    return ReduceOp("premul_sum", _PREMUL_SUM, float(factor))


def parse_op(op: ReduceOp | str) -> ReduceOp:
    """The operator named by `op`.

    Raises
    ------
    InvalidArgument
        Unknown name; the message lists the valid ones.
    """
    if isinstance(op, ReduceOp):
        return op
    found = _OPS.get(op.lower()) if isinstance(op, str) else None
    if found is None:
        raise errors.InvalidArgument(unknown("reduction", op, _OPS, more=", or ringleader.premul_sum(factor)"))
    return found


def op_name(code: int) -> str:
    """Name of the operator with a native code; ``""`` where data are only moved."""
    names = {**{code: name for name, code in _OP_CODES.items()}, _PREMUL_SUM: "premul_sum"}
    return names.get(code, "")


def code_of_name(name: str) -> int:
    """Native code of an element type's name (``"float32"``); `BYTES` for a type that can only be moved."""
    return _CODES.get(name, BYTES)


_NUMPY_KINDS: Final = frozenset("biufc")


def code_of_numpy(dtype: np.dtype[Any]) -> int:
    """Native code of a NumPy type, disregarding its byte order; `BYTES` for types that can only be moved.

    Raises
    ------
    UnsupportedType
        The type holds Python objects, which have no meaning in another process.
    """
    if dtype.hasobject:
        raise errors.UnsupportedType(
            f"arrays of type {dtype} hold Python objects, which cannot be sent; convert to a numeric type, or pickle "
            "into bytes"
        )
    if dtype.kind in _NUMPY_KINDS or dtype.name == "bfloat16":
        code = _CODES.get(dtype.name, BYTES)
        return code if ITEM_SIZES[code] == dtype.itemsize else BYTES
    return BYTES


def _all_ops() -> dict[str, int]:
    return {**_OP_CODES, "premul_sum": _PREMUL_SUM}


@cache
def supported_ops(code: int) -> tuple[str, ...]:
    """Names of the reductions offered for an element type."""
    return tuple(name for name, op in _all_ops().items() if _core.reduce_supported(code, op))


@cache
def supported_dtypes(op: int) -> tuple[str, ...]:
    """Names of the element types for which a reduction is offered."""
    return tuple(name for code, name in enumerate(DTYPE_NAMES) if code != BYTES and _core.reduce_supported(code, op))


def check_supported(code: int, dtype_name: str, op: ReduceOp) -> None:
    """Refuse a reduction that the kernels do not offer for a type.

    Raises
    ------
    UnsupportedType
        Names the type, the operator and what is offered.
    """
    if code != BYTES and _core.reduce_supported(code, op.code):
        return
    ops = supported_ops(code) if code != BYTES else ()
    raise errors.UnsupportedType(
        f"{op.name} is not offered for {dtype_name}, which offers {', '.join(ops) or 'no reductions, only copies'}; "
        f"{op.name} is offered for {', '.join(supported_dtypes(op.code))}"
    )
