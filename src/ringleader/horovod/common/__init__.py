"""What Horovod keeps under ``horovod.common``: its exceptions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringleader._lazy import lazily

if TYPE_CHECKING:
    from ringleader.horovod.common import exceptions

__all__ = ["exceptions"]

if not TYPE_CHECKING:  # a type checker shall see what there is, and nothing else
    __getattr__, __dir__ = lazily(__name__)
