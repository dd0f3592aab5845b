"""Compressors on equal, zero, subnormal and otherwise unusual values: right picks and bits, at about the same speed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from compress_support import PLAIN, WITH_MEMORY, gradient, same_bits

from ringleader import _core
from ringleader.compress import Int4, OneBit, PowerSGD, TopK

F = np.float32
Array = Any

PATTERNS: dict[str, Callable[[Array], Array]] = {
    "normal": lambda x: x,
    "equal": lambda x: np.full_like(x, 0.5),
    "zero": np.zeros_like,
    "one subnormal value": lambda x: np.full_like(x, 1e-40),
    "subnormal": lambda x: (x * F(1e-39)).astype(F),
    "one subnormal element": lambda x: np.where(np.arange(x.size) == x.size // 3, F(1e-40), F(0)),
    "half subnormal": lambda x: np.where(np.arange(x.size) % 2 == 0, x, F(1e-40)),
    "subnormal and tiny": lambda x: (x * F(1e-38)).astype(F),
    "tiny, some huge": lambda x: np.where(np.arange(x.size) % 97 == 0, F(1e30), x * F(1e-30)),
    "sorted": np.sort,
    "reversed": lambda x: np.sort(x)[::-1].copy(),
    "one sign": np.abs,
    "one huge": lambda x: np.where(np.arange(x.size) == x.size // 2, F(1e30), x),
    "mostly zero": lambda x: np.where(np.arange(x.size) % 1000 == 7, x, F(0)),
    "two values": lambda x: np.where(x > 0, F(2), F(1)),
    "three values": lambda x: np.where(np.arange(x.size) % 90 == 0, F(3), np.where(x > 1, F(-2), F(1))),
    "few values": lambda x: np.round(x * 4) / F(4),
    "near the limit": lambda x: (x * F(1e-36)).astype(F),
}
SPECIAL: dict[str, Callable[[Array], Array]] = {
    "NaN": lambda x: np.where(np.arange(x.size) % 1000 == 3, F(np.nan), x),
    "infinities": lambda x: np.where(np.arange(x.size) % 90 == 3, F(-np.inf), np.zeros_like(x)),
    "all NaN": lambda x: np.full_like(x, np.nan),
}


def picks(x: Array, k: int) -> Array:
    """Places of the k largest magnitudes, the first of equal ones, by sorting."""
    magnitudes = x.view(np.uint32) & np.uint32(0x7FFFFFFF)
    return np.sort(np.argsort(-magnitudes.astype(np.int64), kind="stable")[:k]).astype(np.uint32)


@pytest.mark.parametrize("pattern", [*PATTERNS, *SPECIAL])
@pytest.mark.parametrize("elements", [10, 5000, 65536, 300_001])
def test_top_k_picks_what_sorting_picks(pattern: str, elements: int) -> None:
    x = {**PATTERNS, **SPECIAL}[pattern](gradient(elements, 0))
    for k in {1, elements // 1000, elements // 100, elements // 10, elements // 2, elements - 1} - {0}:
        index = np.empty(k, np.uint32)
        assert _core.compress.select(x, index) == k
        assert np.array_equal(index, picks(x, k)), k


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("tie", [0.0, 1e-40, 1.0, np.inf, np.nan])
def test_top_k_of_ties_and_a_few_above_them(tie: float, sampled: bool) -> None:
    """Fewer than k above, k, or more: these are taken first, then the first of the equal ones."""
    k = 1000
    random = np.random.default_rng(0)
    for above in (0, 1, k // 2, k - 1, k, k + 1, k + 100, 2 * k, 5 * k):
        x = np.full(100_003, F(tie))
        places = random.choice(x.size, above, replace=False)
        bits = x.view(np.uint32)
        bits[places] = np.minimum(bits[places] + random.integers(1, 4, above), 0x7FFFFFFF)
        bits[::3] |= np.uint32(0x80000000)
        index = np.empty(k, np.uint32)
        found = _core.compress.select(x, index, sampled, 5)
        assert found == k or (sampled and k // 2 <= found)
        assert np.array_equal(index[:found], picks(x, found)), above


@pytest.mark.parametrize("pattern", [*PATTERNS, *SPECIAL])
def test_sampled_top_k_picks_only_large_ones_and_the_same_again(pattern: str) -> None:
    x = {**PATTERNS, **SPECIAL}[pattern](gradient(300_001, 0))
    magnitudes = x.view(np.uint32) & np.uint32(0x7FFFFFFF)
    for k in (300, 3000, 30_000):
        found = [np.empty(k, np.uint32) for _ in range(2)]
        counts = [_core.compress.select(x, index, True, 5) for index in found]
        assert counts[0] == counts[1] and k // 2 <= counts[0] <= k
        mine = found[0][: counts[0]]
        assert np.array_equal(mine, found[1][: counts[0]]) and (np.diff(mine.astype(np.int64)) > 0).all()
        assert magnitudes[mine].min() >= np.delete(magnitudes, mine).max()


def blocks(x: Array, size: int) -> list[Array]:
    return [x[at : at + size] for at in range(0, x.size, size)]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_int8_rounds_small_numbers_exactly(pattern: str) -> None:
    x = PATTERNS[pattern](gradient(5000, 0))
    got = PLAIN["int8"]()
    for block, decoded in zip(blocks(x, 128), blocks(got.decompress(got.compress(x)), 128), strict=True):
        wide = block.astype(np.float64)
        largest = np.abs(wide).max()
        unit = 2.0 ** max((np.frexp(largest)[1] - 1 if largest else -300) - 6, -126)
        assert np.array_equal(decoded, np.clip(np.rint(wide / unit), -127, 127) * unit)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_int4_and_onebit_of_small_numbers(pattern: str) -> None:
    x = PATTERNS[pattern](gradient(5000, 0))
    for block, decoded in zip(blocks(x, 128), blocks(Int4().decompress(Int4().compress(x)), 128), strict=True):
        largest = np.abs(block).max()
        if largest < F(2.0**-118):
            assert not decoded.any()
        else:
            unit = largest / F(7)
            inverse = F(1) / unit
            assert np.array_equal(decoded, (np.clip(np.rint(block * inverse), -7, 7) * unit).astype(F))
    for block, decoded in zip(blocks(x, 2048), blocks(OneBit().decompress(OneBit().compress(x)), 2048), strict=True):
        counted = np.abs(block.astype(np.float64))
        counted[counted < 2.0**-114] = 0.0
        sign = np.where(np.signbit(block), -1, 1) if counted.any() else 0
        np.testing.assert_allclose(decoded, sign * counted.mean(), rtol=1e-5)


@pytest.mark.parametrize("norm", ["max", "l2"])
@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_qsgd_rounds_to_a_neighbour(pattern: str, bits: int, norm: str) -> None:
    x = PATTERNS[pattern](gradient(5000, 0))
    name = f"qsgd{bits}" + ("_l2" if norm == "l2" else "")
    data = np.empty(_core.compress.encoded_bytes(name, x.size), np.uint8)
    decoded = np.empty_like(x)
    _core.compress.encode(name, data, x, None, None, decoded, 1.0, 3)
    for block, back in zip(blocks(x, 512), blocks(decoded, 512), strict=True):
        wide = block.astype(np.float64)
        largest = np.abs(wide).max()
        unit = (largest if norm == "max" else np.sqrt((wide**2).sum())) / (2 ** (bits - 1) - 1)
        assert not back.any() if largest < 2.0**-118 else np.abs(back - wide).max() <= unit * 1.0001


@pytest.mark.parametrize("pattern", PATTERNS)
def test_arithmetic_on_small_numbers_is_ieee(pattern: str) -> None:
    a, b = PATTERNS[pattern](gradient(3001, 0)), PATTERNS["subnormal"](gradient(3001, 1))
    for scale in (1.0, 1 / 3, 0.5, 3.0, -0.7, 2.0**-20, 1e-40, 2.0**100, 0.0):
        out = np.empty_like(a)
        _core.compress.add(out, a, b, scale)
        with np.errstate(all="ignore"):
            assert np.array_equal(out, a * F(scale) + b), scale
        _core.compress.add(out, b, a, scale)
        with np.errstate(all="ignore"):
            assert np.array_equal(out, b * F(scale) + a), scale
        target, places = b.copy(), np.arange(0, 3001, 7, dtype=np.uint32)
        _core.compress.scatter_add(target, places, a[places], scale)
        with np.errstate(all="ignore"):
            want = b.copy()
            want[places] += F(scale) * a[places]
        assert np.array_equal(target, want), scale


@pytest.mark.parametrize("name", WITH_MEMORY)
@pytest.mark.parametrize(
    "pattern", ["one subnormal value", "half subnormal", "tiny, some huge", "near the limit", "equal"]
)
def test_error_feedback_remembers_small_numbers(name: str, pattern: str) -> None:
    """What is sent and what is remembered make up the gradient, also where it is subnormal."""
    if name in ("user", "dgc") or (name == "fp16" and "huge" in pattern):
        pytest.skip("an example, one that sends a sum, and a type without such numbers")
    x = PATTERNS[pattern](gradient(5000, 0))
    codec = WITH_MEMORY[name]()
    sent = codec.decompress(codec.compress(x, "x"))
    rest = sum(
        np.concatenate([np.ravel(v) for v in arrays(codec.state_dict()) if v.size == x.size]).reshape(-1, x.size)
    )
    scale = np.abs(x).max()
    np.testing.assert_allclose((sent + rest) / scale, x / scale, atol=1e-6)


def arrays(state: Any) -> list[Array]:
    if isinstance(state, np.ndarray):
        return [state] if state.dtype == np.float32 else []
    values = state.values() if isinstance(state, dict) else state if isinstance(state, list | tuple) else []
    return [array for value in values for array in arrays(value)]


def test_power_sgd_drops_what_is_too_small_only() -> None:
    x = np.outer(np.arange(1.0, 65), np.arange(1.0, 129)).astype(F)
    for scale in (1.0, 2.0**-60, 2.0**-80):
        codec = PowerSGD(rank=1)
        y = (x * F(scale)).astype(F)
        for _ in range(2):
            np.testing.assert_allclose(codec.decompress(codec.compress(y, "x")), y.reshape(-1), rtol=1e-4)
    codec = PowerSGD(rank=1)
    assert not codec.decompress(codec.compress(x * F(2.0**-110), "x")).any()
    mixed = x.copy()
    mixed[::3] = F(1e-40)
    codec = PowerSGD(rank=2)
    for _ in range(3):
        near = codec.decompress(codec.compress(mixed, "x"))
    np.testing.assert_allclose(near, mixed.reshape(-1), rtol=1e-3, atol=1e-3)


_DIGEST = """
import hashlib, sys
sys.path[:0] = {paths!r}
from test_compress_small import digest
print(digest())
"""


def digest() -> str:
    """Of what every compressor makes of every pattern."""
    found = hashlib.sha256()
    for pattern in (*PATTERNS, *SPECIAL):
        x = {**PATTERNS, **SPECIAL}[pattern](gradient(70_003, 0))
        for name in sorted(WITH_MEMORY):
            if name == "user" or (pattern in SPECIAL and "powersgd" in name):
                continue
            codec = WITH_MEMORY[name]()
            for _ in range(2):
                payload = codec.compress(x, "x")
                found.update(payload.data.tobytes())
                found.update(codec.decompress(payload).tobytes())
    return found.hexdigest()


def test_every_instruction_set_gives_the_same_bits_for_unusual_values() -> None:
    here = os.path.dirname(__file__)
    script = _DIGEST.format(paths=[here, os.path.dirname(here)])
    found = set()
    for isa in _core.build_info()["isa_available"].split(", "):
        environment = {**os.environ, "RINGLEADER_ISA": isa, "PYTHONWARNINGS": "ignore"}
        run = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=200, check=True
        )
        found.add(run.stdout.strip())
    assert len(found) == 1


def test_the_same_again_gives_the_same_bits() -> None:
    x = PATTERNS["few values"](gradient(100_000, 0))
    for make in (lambda: TopK(ratio=0.01), lambda: TopK(ratio=0.01, selection="sampled")):
        assert same_bits(make().compress(x).data, make().compress(x).data)


@pytest.mark.parametrize("name", [*PLAIN, "ef onebit", "ef int8"])
def test_unusual_values_take_no_longer(name: str) -> None:
    """A generous bound, for busy machines; what is measured on a quiet one is in docs/compression.md."""
    if name == "user":
        pytest.skip("a user's")
    make: Callable[[], Any] = WITH_MEMORY[name[3:]] if name.startswith("ef ") else PLAIN[name]
    inputs = {pattern: change(gradient(1 << 18, 0)) for pattern, change in PATTERNS.items()}
    codecs = {pattern: make() for pattern in inputs}
    best = dict.fromkeys(inputs, float("inf"))
    slow: list[str] = []
    for attempt in range(60):  # interleaved, so that what disturbs one disturbs all
        for pattern, x in inputs.items():
            begin = time.perf_counter()
            payload = codecs[pattern].compress(x, "x")
            codecs[pattern].decompress(payload)
            best[pattern] = min(best[pattern], time.perf_counter() - begin)
        slow = [pattern for pattern, seconds in best.items() if seconds > 3 * best["normal"]]
        if attempt >= 4 and not slow:
            return
    assert not slow, {pattern: round(best[pattern] / best["normal"], 1) for pattern in slow}
