"""Schedules in files of other libraries: MSCCL's XML, in and out, and MSCCL++'s plans. See docs/formats.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringleader._lazy import lazily

if TYPE_CHECKING:
    from ringleader.schedule.formats import msccl, mscclpp

__all__ = ["msccl", "mscclpp"]

if not TYPE_CHECKING:  # a type checker shall see what there is, and nothing else
    __getattr__, __dir__ = lazily(__name__)
