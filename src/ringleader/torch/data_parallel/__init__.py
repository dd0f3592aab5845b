"""Data parallel training with gradients in registered memory; see `DataParallel`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringleader._lazy import lazily
from ringleader.torch.data_parallel.module import DataParallel

__all__ = ["DataParallel"]

if not TYPE_CHECKING:  # a type checker shall see what there is, and nothing else
    __getattr__, __dir__ = lazily(__name__)
