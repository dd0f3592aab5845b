"""Horovod's interface over Ringleader: ``import ringleader.horovod.torch as hvd`` where a script imports Horovod.

`ringleader.horovod.torch` has the functions; see docs/horovod.md for what is the same and what is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringleader._lazy import lazily, need_torch

need_torch(__name__)

if TYPE_CHECKING:
    from ringleader.horovod import torch

__all__ = ["torch"]

if not TYPE_CHECKING:  # a type checker shall see what there is, and nothing else
    __getattr__, __dir__ = lazily(__name__)
