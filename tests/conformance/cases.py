"""The cases of the conformance suite: what is called, on which data, and what must come out.

Data are integer-valued, differ per rank and per element, and are chosen per operator so that the result is exact in
every type whatever the order of combination. Expected values are computed in int64 or complex128 by plain NumPy.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringleader import _core
from ringleader.algorithms import get, names

COUNTS = (*range(34), 127, 128, 129, 1000, 65537)
RANKS = tuple(range(1, 10))
COLLECTIVES = (
    "all_reduce",
    "reduce",
    "reduce_scatter",
    "broadcast",
    "all_gather",
    "gather",
    "scatter",
    "all_to_all",
    "barrier",
)
REDUCING = ("all_reduce", "reduce", "reduce_scatter")
ROOTED = ("reduce", "broadcast", "gather", "scatter")
OPS = {"sum": 0, "prod": 1, "min": 2, "max": 3, "avg": 4, "premul_sum": 5, "band": 6, "bor": 7, "bxor": 8}


def _bfloat16() -> list[tuple[str, int, np.dtype[Any]]]:
    try:
        import ml_dtypes
    except ImportError:
        return []
    return [("bfloat16", 3, np.dtype(ml_dtypes.bfloat16))]


DTYPES: dict[str, tuple[int, np.dtype[Any]]] = {
    name: (code, dtype)
    for name, code, dtype in [
        ("float32", 0, np.dtype("f4")),
        ("float64", 1, np.dtype("f8")),
        ("float16", 2, np.dtype("f2")),
        *_bfloat16(),
        ("int8", 4, np.dtype("i1")),
        ("int16", 5, np.dtype("i2")),
        ("int32", 6, np.dtype("i4")),
        ("int64", 7, np.dtype("i8")),
        ("uint8", 8, np.dtype("u1")),
        ("uint16", 9, np.dtype("u2")),
        ("uint32", 10, np.dtype("u4")),
        ("uint64", 11, np.dtype("u8")),
        ("bool", 12, np.dtype("?")),
        ("complex64", 13, np.dtype("c8")),
        ("complex128", 14, np.dtype("c16")),
    ]
}
# Types that can only be moved.
OPAQUE: dict[str, np.dtype[Any]] = {
    "datetime64": np.dtype("M8[s]"),
    "structured": np.dtype([("a", "i4"), ("b", "i1")]),
    "big_endian": np.dtype(">i4"),
}


@dataclass(frozen=True)
class Case:
    """One call on all ranks; its text is all that is needed to repeat it."""

    collective: str
    algorithm: str
    n: int
    count: int
    dtype: str
    op: str
    root: int
    in_place: bool
    mode: str  # sync, async, persistent, again (as a call like an earlier one)

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        return DTYPES[self.dtype][1] if self.dtype in DTYPES else OPAQUE[self.dtype]

    @property
    def factor(self) -> float:
        return 0.5 if self.dtype.startswith(("float", "bfloat", "complex")) else 2.0


@lru_cache(maxsize=1)
def reducing_pairs() -> list[tuple[str, str]]:
    """Every (type, operator) pair that the kernels offer."""
    return [(d, o) for d, (code, _) in DTYPES.items() for o, op in OPS.items() if _core.reduce_supported(code, op)]


def moving_pairs() -> list[tuple[str, str]]:
    return [(d, "none") for d in (*DTYPES, *OPAQUE)]


def hosts(n: int) -> str:
    """n ranks on hosts of different sizes: up to three, about as 4 : 3 : 2."""
    first = -(-4 * n // 9)
    second = -(-3 * (n - first) // 5)
    return "+".join(str(size) for size in (first, second, n - first - second) if size)


def specs(collective: str, n: int) -> list[str]:
    """Every algorithm; those with two levels as if the ranks were on several hosts."""
    found = []
    for name in names(collective):
        levels = any(parameter.name == "hosts" for parameter in get(collective, name).parameters)
        found.append(f"{name}:hosts={hosts(n)}" if levels else name)
    return found


def cases(collective: str, n: int, counts: tuple[int, ...] = COUNTS) -> Iterator[Case]:
    """All algorithms x counts; types, operators, modes and roots take turns so that each pairing comes up many times.

    An algorithm meets every other count over even n, and the rest over odd n. The number of pairs and the strides are
    coprime, and each (n, algorithm) starts elsewhere, so over all n every algorithm meets every pair in both placements
    and all modes.
    """
    pairs = reducing_pairs() if collective in REDUCING else moving_pairs()
    if collective == "barrier":
        for algorithm in specs(collective, n):
            for mode in ("sync", "async", "persistent", "again"):
                yield Case(collective, algorithm, n, 0, "int32", "none", 0, False, mode)
        return
    modes = ("sync", "async", "persistent", "again", "again")
    for index, algorithm in enumerate(specs(collective, n)):
        turn = itertools.count(n * 17 + index * 5)
        for count in counts[(n + index) % 2 :: 2]:
            for in_place in (False, True) if count < 10000 else (bool((n + index) % 2),):
                t = next(turn)
                dtype, op = pairs[t % len(pairs)]
                if (dtype, op) == ("int8", "avg") and n > 9:  # the sum would not fit
                    dtype = "int16"
                root = t % n if collective in ROOTED else 0
                mode = modes[(t // 2 + n) % len(modes)]
                yield Case(collective, algorithm, n, count, dtype, op, root, in_place, mode)


# ------------------------------------------------------------------------------------------------------- data


def _integers(case: Case, rank: int, size: int) -> NDArray[np.int64]:
    i = np.arange(size, dtype=np.int64)
    match case.op:
        case "sum" | "premul_sum":
            return 2 * ((i * 7 + rank * 3 + case.count) % 5)
        case "prod":
            return np.where((i + rank * 2) % 3 == 0, 2, 1)
        case "avg":  # sum = n * base + 0 + 1 + ... + n-1: the mean is a half-integer, the sum fits int8
            return 2 * (i % 3) + (rank + i) % case.n
        case "min" | "max" | "none":
            return (i * 31 + rank * 17 + case.count) % 101
        case _:
            return ((i * 2654435761 + rank * 40503 + 11) >> 3) & 0x7F


def contribution(case: Case, rank: int, size: int) -> NDArray[Any]:
    """What `rank` puts in: `size` elements."""
    values = _integers(case, rank, size)
    dtype = case.numpy_dtype
    if case.dtype == "structured":
        data = np.empty(size, dtype)
        data["a"], data["b"] = values + 1000 * rank, values % 100
        return data
    if case.dtype == "bool":
        return (values % 3 == rank % 3).astype(bool)
    if case.dtype.startswith("complex"):
        twist = np.where((np.arange(size) + rank) % 2 == 0, 1, 1j)
        return (values * twist).astype(dtype)
    return values.astype(dtype)


def _fold(case: Case, blocks: list[NDArray[Any]]) -> NDArray[Any]:
    """The reduction of all ranks' contributions, in wide types."""
    dtype = case.numpy_dtype
    if case.dtype == "bool":
        stack = np.stack(blocks)
        anyone = {"sum": True, "max": True, "bor": True, "prod": False, "min": False, "band": False}
        if case.op == "bxor":
            return np.logical_xor.reduce(stack)
        return stack.any(axis=0) if anyone[case.op] else stack.all(axis=0)
    wide: Any = np.complex128 if dtype.kind == "c" else np.int64
    stack = np.stack([block.astype(wide) for block in blocks])
    match case.op:
        case "sum":
            result = stack.sum(axis=0)
        case "premul_sum":
            result = (stack * case.factor).sum(axis=0)
        case "prod":
            result = stack.prod(axis=0)
        case "min":
            result = stack.min(axis=0)
        case "max":
            result = stack.max(axis=0)
        case "avg":
            total = stack.sum(axis=0)
            if dtype.kind == "c":  # NumPy's complex division rounds more than once
                result = total.real / case.n + 1j * (total.imag / case.n)
            elif dtype.kind == "f" or case.dtype == "bfloat16":
                result = total / case.n
            else:
                result = total // case.n  # data are not negative: truncation
        case "band":
            result = np.bitwise_and.reduce(stack)
        case "bor":
            result = np.bitwise_or.reduce(stack)
        case _:
            result = np.bitwise_xor.reduce(stack)
    with np.errstate(all="ignore"):
        return result.astype(dtype)


def input_size(case: Case) -> int:
    """Elements that a rank puts in."""
    return case.count * (case.n if case.collective in ("reduce_scatter", "scatter", "all_to_all") else 1)


def output_size(case: Case) -> int:
    """Elements that a rank gets out (where it gets any)."""
    return case.count * (case.n if case.collective in ("all_gather", "gather", "all_to_all") else 1)


def expected(case: Case, rank: int) -> NDArray[Any] | None:
    """What `rank` must get, or None."""
    n, count = case.n, case.count
    inputs = [contribution(case, r, input_size(case)) for r in range(n)]
    block = slice(rank * count, (rank + 1) * count)
    match case.collective:
        case "all_reduce":
            return _fold(case, inputs)
        case "reduce":
            return _fold(case, inputs) if rank == case.root else None
        case "reduce_scatter":
            return _fold(case, [x[block] for x in inputs])
        case "broadcast":
            return inputs[case.root]
        case "all_gather":
            return np.concatenate(inputs)
        case "gather":
            return np.concatenate(inputs) if rank == case.root else None
        case "scatter":
            return inputs[case.root][block]
        case "all_to_all":
            return np.concatenate([x[block] for x in inputs])
        case _:
            return None
