"""Horovod's `Compression`, and where compressors of `ringleader.compress` fit into it."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class Compressor:
    """Changes a tensor before it is reduced, and back after. Subclass it as with Horovod."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The tensor to reduce, and what `decompress` has to know."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The result in the original type."""
        return tensor


class NoneCompressor(Compressor):
    """Sent as it is."""


class _Cast(Compressor):
    """Sent as another floating-point type; integers stay as they are."""

    to: torch.dtype

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return (tensor.to(cls.to) if tensor.is_floating_point() else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor.to(ctx)


class FP16Compressor(_Cast):
    """Floating-point types travel as float16."""

    to = torch.float16


class BF16Compressor(_Cast):
    """Floating-point types travel as bfloat16."""

    to = torch.bfloat16


class Compression:
    """The choices of Horovod, and bfloat16. Any compressor of `ringleader.compress` may be given in their place.

    Examples
    --------
    >>> Compression.fp16.compress(torch.ones(2))
    (tensor([1., 1.], dtype=torch.float16), torch.float32)
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
