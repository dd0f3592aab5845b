"""Schedules: collective algorithms as plain data. See docs/schedule.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringleader._lazy import lazily
from ringleader.schedule.draw import draw_svg, draw_text
from ringleader.schedule.lower import lower
from ringleader.schedule.serialize import from_dict, from_json, to_dict, to_json
from ringleader.schedule.spec import check_spec
from ringleader.schedule.table import Builder, Schedule, describe_transfer
from ringleader.schedule.types import TRANSFER_DTYPE, Buffer, Collective
from ringleader.schedule.verify import Report, verify

if TYPE_CHECKING:
    from ringleader.schedule import formats as formats

__all__ = [
    "TRANSFER_DTYPE",
    "Buffer",
    "Builder",
    "Collective",
    "Report",
    "Schedule",
    "check_spec",
    "describe_transfer",
    "draw_svg",
    "draw_text",
    "from_dict",
    "from_json",
    "lower",
    "to_dict",
    "to_json",
    "verify",
]

if not TYPE_CHECKING:  # a type checker shall see what there is, and nothing else
    __getattr__, __dir__ = lazily(__name__)
