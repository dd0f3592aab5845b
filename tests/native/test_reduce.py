"""The reduction kernels through the binding, against NumPy."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ringleader
from ringleader import _core, errors

Array = NDArray[Any]

# Codes of native/base/types.hpp, written out: renumbering must break a test.
DTYPES = {
    "float32": 0, "float64": 1, "float16": 2, "bfloat16": 3, "int8": 4, "int16": 5, "int32": 6, "int64": 7,
    "uint8": 8, "uint16": 9, "uint32": 10, "uint64": 11, "bool": 12, "complex64": 13, "complex128": 14,
}  # fmt: skip
OPS = {"sum": 0, "prod": 1, "min": 2, "max": 3, "avg": 4, "premul_sum": 5, "band": 6, "bor": 7, "bxor": 8}
NONE, BYTES = 255, 15
COUNTS = (0, 1, 2, 7, 31, 33, 64, 127, 1000, 1025, 65537)

BOOL_OPS = {
    "sum": np.logical_or, "max": np.logical_or, "bor": np.logical_or,
    "prod": np.logical_and, "min": np.logical_and, "band": np.logical_and,
    "bxor": np.logical_xor,
}  # fmt: skip
UFUNCS = {
    "sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum, "avg": np.add, "premul_sum": np.add,
    "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor,
}  # fmt: skip


def fold(dtype: str, op: str, srcs: list[Array], final_n: int = 0, factor: float = 1.0, **more: Any) -> Array:
    out = np.empty_like(srcs[0])
    _core.reduce_into(
        out.ctypes.data, [s.ctypes.data for s in srcs], out.size, DTYPES[dtype], OPS[op], final_n, factor, **more
    )
    return out


def bf16_to_f32(bits: Array) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def f32_to_bf16(values: Array) -> Array:
    """Round to nearest even, by comparing with the two neighbours in float64 (no NaN, no overflow)."""
    below = (values.view(np.uint32) >> 16).astype(np.uint16)  # toward zero
    above = below + np.uint16(1)
    low, high = (abs(bf16_to_f32(x).astype(np.float64)) for x in (below, above))
    exact = abs(values.astype(np.float64))
    up = (high - exact < exact - low) | ((high - exact == exact - low) & (below % 2 == 1))
    return np.where(up, above, below).astype(np.uint16)


def contribution(dtype: str, count: int, rank: int) -> Array:
    random = np.random.default_rng([rank, count, DTYPES[dtype]])
    if dtype == "bool":
        return random.integers(0, 2, count).astype(bool)
    if dtype == "bfloat16":
        return f32_to_bf16(random.standard_normal(count).astype(np.float32))
    if dtype.startswith("complex"):
        return (random.standard_normal(count) + 1j * random.standard_normal(count)).astype(dtype)
    if dtype.startswith("float"):
        return random.standard_normal(count).astype(dtype)
    return random.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, count, dtype=dtype, endpoint=True)


def expected(dtype: str, op: str, srcs: list[Array], final_n: int, factor: float) -> Array:
    if dtype == "bool":
        values = srcs
        ufunc: Any = BOOL_OPS[op]
    else:
        ufunc = UFUNCS[op]
        wide = {"float16": np.float32, "bfloat16": np.float32}.get(dtype, srcs[0].dtype)
        values = [bf16_to_f32(s) if dtype == "bfloat16" else s.astype(wide) for s in srcs]
    if op == "premul_sum":
        values = [v * v.real.dtype.type(factor) for v in values]
    total = values[0]
    for value in values[1:]:
        total = ufunc(total, value)
    if op == "avg" and np.issubdtype(total.dtype, np.integer):
        # Python's integers: exact, truncated toward zero.
        quotient = [abs(int(x)) // final_n * (1 if x >= 0 else -1) for x in total]
        total = np.array(quotient, dtype=total.dtype)
    elif op == "avg":
        part = total.real.dtype  # by components: NumPy's complex division rounds elsewhere
        total = (total.view(part) / part.type(final_n)).view(total.dtype)
    return f32_to_bf16(total) if dtype == "bfloat16" else total.astype(srcs[0].dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_matches_numpy(dtype: str, op: str) -> None:
    if not _core.reduce_supported(DTYPES[dtype], OPS[op]):
        with pytest.raises(errors.InvalidArgument, match=f"cannot reduce {dtype} with {op}"):
            fold(dtype, op, [contribution(dtype, 3, 0), contribution(dtype, 3, 1)])
        return
    for count in COUNTS:
        for nsrc in (1, 2, 3, 6):
            if op == "avg" and count > 2000 and dtype.startswith(("int", "uint")):
                continue  # the reference is plain Python
            srcs = [contribution(dtype, count, rank) for rank in range(nsrc)]
            final_n = nsrc + 1 if op == "avg" else 0
            want = expected(dtype, op, srcs, final_n, 0.3)
            got = fold(dtype, op, srcs, final_n, 0.3)
            if dtype.startswith("complex") and op == "prod":
                # NumPy's own product may be fused, and bits may differ.
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
            else:
                np.testing.assert_array_equal(got, want, err_msg=f"{count} items, {nsrc} sources")


def test_supported_table() -> None:
    offered = {
        dtype: {op for op in OPS if _core.reduce_supported(DTYPES[dtype], OPS[op])} for dtype in DTYPES
    }  # fmt: skip
    arithmetic = {"sum", "prod", "min", "max", "avg"}
    bitwise = {"band", "bor", "bxor"}
    for dtype, ops in offered.items():
        if dtype == "bool":
            assert ops == {"sum", "prod", "min", "max"} | bitwise
        elif dtype.startswith("complex"):
            assert ops == {"sum", "prod", "avg", "premul_sum"}
        elif "float" in dtype:
            assert ops == arithmetic | {"premul_sum"}
        else:
            assert ops == arithmetic | bitwise
    assert _core.reduce_supported(BYTES, NONE)
    assert not _core.reduce_supported(BYTES, OPS["sum"])
    assert not _core.reduce_supported(99, OPS["sum"])


def test_small_integers_wrap() -> None:
    assert fold("int8", "sum", [np.int8([120]), np.int8([100])]) == [-36]
    assert fold("uint8", "sum", [np.uint8([200]), np.uint8([100])]) == [44]


def test_integer_average_truncates_toward_zero() -> None:
    srcs = [np.int32([1, -1, 7, -7]), np.int32([5, -5, 4, -4])]
    np.testing.assert_array_equal(fold("int32", "avg", srcs, 4), [1, -1, 2, -2])


def test_bool_results_are_zero_or_one() -> None:
    srcs = [np.array([0, 1, 2, 255, 4], np.uint8), np.array([0, 0, 4, 255, 0], np.uint8)]
    np.testing.assert_array_equal(fold("bool", "sum", srcs), [0, 1, 1, 1, 1])
    np.testing.assert_array_equal(fold("bool", "prod", srcs), [0, 0, 1, 1, 0])
    np.testing.assert_array_equal(fold("bool", "bxor", srcs), [0, 1, 0, 0, 1])
    assert fold("bool", "sum", [np.uint8([1])] * 4) == [1]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("op", ["min", "max"])
def test_nan_wins_whoever_holds_it(dtype: str, op: str) -> None:
    def array(value: float) -> Array:
        if dtype == "bfloat16":
            return (np.full(50, value, np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return np.full(50, value, dtype)

    for holder in range(4):
        values = [1.0, 3.0, 4.0]
        values.insert(holder, np.nan)
        result = fold(dtype, op, [array(v) for v in values])
        assert np.isnan(bf16_to_f32(result) if dtype == "bfloat16" else result).all(), holder


def test_sixteen_bit_sums_round_once() -> None:
    one, big = np.float16([1]), np.float16([2048])
    assert fold("float16", "sum", [big, *[one] * 7]) == [2056]  # 2055, to even
    bits = [f32_to_bf16(np.float32([v])) for v in (256, *[1] * 7)]
    assert bf16_to_f32(fold("bfloat16", "sum", bits)) == [264]


def test_only_raw_sources_are_scaled() -> None:
    a, b = np.float32([1, 2]), np.float32([10, 20])
    np.testing.assert_array_equal(fold("float32", "premul_sum", [a, b], factor=3, raw=[False, True]), [31, 62])
    with pytest.raises(errors.InvalidArgument, match="one for each of the 2 sources"):
        fold("float32", "premul_sum", [a, b], raw=[True])


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "complex128"])
def test_in_place_and_unaligned(dtype: str) -> None:
    size = np.dtype(dtype).itemsize
    for shift in (0, 1, 3):
        memory = np.zeros(3000 * size + 64, np.uint8)
        ours = np.frombuffer(memory.data, dtype, 3000, offset=shift)
        ours[:] = contribution(dtype, 3000, 0)
        other = contribution(dtype, 3000, 1)
        want = expected(dtype, "sum", [other, ours], 0, 1)
        address = memory.ctypes.data + shift
        _core.reduce_into(address, [other.ctypes.data, address], 3000, DTYPES[dtype], OPS["sum"])
        np.testing.assert_array_equal(ours, want)
        assert not memory[:shift].any() and not memory[shift + 3000 * size :].any()


def test_refuses_what_is_not_offered() -> None:
    values = np.float32([1])
    with pytest.raises(errors.InvalidArgument, match="cannot reduce float32 with band"):
        fold("float32", "band", [values, values])
    with pytest.raises(errors.InvalidArgument, match="0 sources"):
        _core.reduce_into(values.ctypes.data, [], 1, DTYPES["float32"], OPS["sum"])


HASH = """
import hashlib, numpy as np
from ringleader import _core
random = np.random.default_rng(5)
digest = hashlib.sha256()
for dtype, code in (("f4", 0), ("f8", 1), ("f2", 2), ("u2", 3), ("c8", 13)):
    for count in (1, 33, 4099):
        if dtype == "u2":  # bf16 of ordinary size
            srcs = [(random.standard_normal(count).astype("f4").view("u4") >> 16).astype("u2") for _ in range(3)]
        else:
            srcs = [random.standard_normal(count).astype(dtype) for _ in range(3)]
        for op, final in ((0, 0), (1, 0), (4, 3), (5, 0)):
            out = np.empty_like(srcs[0])
            _core.reduce_into(out.ctypes.data, [s.ctypes.data for s in srcs], count, code, op, final, 0.7)
            digest.update(out.tobytes())
print(_core.kernel_isa(), digest.hexdigest())
"""


def run_with_isa(isa: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "RINGLEADER_ISA": isa}
    return subprocess.run(
        [sys.executable, "-c", HASH], env=environment, capture_output=True, text=True, timeout=200, check=False
    )


def test_unknown_instruction_set_names_the_valid_ones() -> None:
    result = run_with_isa("sse9")
    assert result.returncode != 0
    assert "RINGLEADER_ISA='sse9'" in result.stderr
    assert "baseline" in result.stderr or "neon" in result.stderr


def test_build_info() -> None:
    info = _core.build_info()
    assert info["isa"] == _core.kernel_isa()
    assert info["isa"] in info["isa_available"].split(", ")
    assert info["version"] == ringleader.__version__
    assert set(info) == {"version", "compiler", "build_type", "isa", "isa_available"}


def test_every_instruction_set_gives_the_same_bits() -> None:
    names = run_with_isa("?").stderr.partition("expected one of: ")[2].split(", or unset")[0].split(", ")
    assert _core.kernel_isa() in names
    digests = {}
    for name in names:
        result = run_with_isa(name)
        assert result.returncode == 0, result.stderr
        used, digest = result.stdout.split()
        assert used == name
        digests[name] = digest
    assert len(set(digests.values())) == 1, digests
