"""Schedules: collective algorithms as plain data. See docs/schedule.md."""

from ringleader.schedule.table import Builder, Schedule, describe_transfer
from ringleader.schedule.types import TRANSFER_DTYPE, Buffer, Collective

__all__ = [
    "TRANSFER_DTYPE",
    "Buffer",
    "Builder",
    "Collective",
    "Schedule",
    "describe_transfer",
]
