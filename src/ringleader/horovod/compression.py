"""Horovod's `Compression`, and where compressors of `ringleader.compress` fit into it."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["Compression", "Compressor"]


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


class _Cast(Compressor):
    """Sent as another floating-point type; integers stay as they are."""

    to: torch.dtype

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return (tensor.to(cls.to) if tensor.is_floating_point() else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor.to(ctx)


class _FP16(_Cast):
    to = torch.float16


class _BF16(_Cast):
    to = torch.bfloat16


class Compression:
    """The choices of Horovod, and bfloat16. Any compressor of `ringleader.compress` may be given in their place.

    Examples
    --------
    >>> Compression.fp16.compress(torch.ones(2))
    (tensor([1., 1.], dtype=torch.float16), torch.float32)
    """

    none = Compressor
    fp16 = _FP16
    bf16 = _BF16
