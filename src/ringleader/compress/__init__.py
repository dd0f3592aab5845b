"""Gradient compression: fewer bytes for the all-reduce, see docs/compression.md.

Compressors work on NumPy arrays and know nothing of ranks; `Communicator.all_reduce(x, compression=...)` and
``ringleader.torch.hooks`` put them to use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringleader._lazy import lazily
from ringleader.compress.base import Compressor, Keyed, Payload
from ringleader.compress.blocks import QSGD, BlockCompressor, Int4, Int8, Natural, OneBit
from ringleader.compress.casts import BF16, FP16
from ringleader.compress.feedback import DGC, EFSGD, ErrorFeedback
from ringleader.compress.low_rank import PowerSGD
from ringleader.compress.policy import Policy
from ringleader.compress.sparse import RandomK, TopK

__all__ = [
    "BF16",
    "DGC",
    "EFSGD",
    "FP16",
    "QSGD",
    "BlockCompressor",
    "Compressor",
    "ErrorFeedback",
    "Int4",
    "Int8",
    "Keyed",
    "Natural",
    "OneBit",
    "Payload",
    "Policy",
    "PowerSGD",
    "RandomK",
    "TopK",
]

if not TYPE_CHECKING:  # a type checker shall see what there is, and nothing else
    __getattr__, __dir__ = lazily(__name__)
