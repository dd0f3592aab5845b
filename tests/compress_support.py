"""What the tests of compression share: one of every compressor, and data."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from ringleader.compress import (
    BF16,
    DGC,
    EFSGD,
    FP16,
    QSGD,
    Compressor,
    ErrorFeedback,
    Int4,
    Int8,
    Natural,
    OneBit,
    Payload,
    PowerSGD,
    RandomK,
    TopK,
)
from ringleader.compress.base import as_floats

SIZES = (0, 1, 7, 8, 9, 63, 65, 1000003)


class EveryThird(Compressor):
    """A user's: every third element, by a phase that moves on. Payloads of unequal length on purpose."""

    compression_ratio = 3.0

    def __init__(self) -> None:
        self.phase = 0

    def compress(self, x: Any, key: str = "") -> Payload:
        values = as_floats(x)
        start = self.phase % 3
        self.phase += 1
        return Payload(np.concatenate([np.float32([start]), values[start::3]]), values.size)

    def decompress(self, payload: Payload, out: Any = None) -> Any:
        result = np.zeros(payload.elements, np.float32)
        result[int(payload.data[0]) :: 3] = payload.data[1:]
        return self.into(out, result)

    def state_dict(self) -> dict[str, Any]:
        return {"phase": self.phase}

    def load_state_dict(self, state: Any) -> None:
        self.phase = state["phase"]


PLAIN: dict[str, Callable[[], Compressor]] = {
    "fp16": FP16,
    "bf16": BF16,
    "topk": lambda: TopK(ratio=0.05),
    "topk_sampled": lambda: TopK(ratio=0.05, selection="sampled"),
    "topk_warmup": lambda: TopK(ratio=0.01, warmup_steps=8),
    "topk_scattered": lambda: TopK(ratio=0.05, exchange="scatter"),
    "randomk": lambda: RandomK(ratio=0.1, seed=3),
    "onebit": OneBit,
    "int8": Int8,
    "int4": Int4,
    "qsgd8": lambda: QSGD(8),
    "qsgd4": lambda: QSGD(4),
    "qsgd2": lambda: QSGD(2),
    "qsgd4_l2": lambda: QSGD(4, norm="l2"),
    "natural": Natural,
    "powersgd": lambda: PowerSGD(rank=2),
    "powersgd_cold": lambda: PowerSGD(rank=1, warm_start=False),
    "user": EveryThird,
}
WITH_MEMORY: dict[str, Callable[[], ErrorFeedback]] = {
    **{name: (lambda make=make: ErrorFeedback(make())) for name, make in PLAIN.items()},  # type: ignore[misc]
    "efsgd": lambda: EFSGD(bits=4),
    "dgc": lambda: DGC(ratio=0.05, momentum=0.0, warmup_steps=5),
}


def gradient(elements: int, step: int, rank: int = 0, shape: tuple[int, ...] | None = None) -> Any:
    """Different for every rank, step and element; of very different magnitudes."""
    x = _gradient(elements, step, rank).copy()
    return x if shape is None else x.reshape(shape)


@lru_cache(maxsize=64)
def _gradient(elements: int, step: int, rank: int) -> Any:
    random = np.random.default_rng([elements, step, rank])
    return random.standard_normal(elements, np.float32) * np.exp2(random.integers(-6, 3, elements)).astype(np.float32)


def same_bits(a: Any, b: Any) -> bool:
    """Whether two arrays hold the same bits."""
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def equal_state(a: Any, b: Any) -> bool:
    """Whether two state dictionaries are equal, arrays bit for bit."""
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(equal_state(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(equal_state, a, b))
    return same_bits(a, b) if isinstance(a, np.ndarray) else bool(a == b)
