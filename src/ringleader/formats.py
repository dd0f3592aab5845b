"""Another name for the readers and writers of other libraries' files, by which they were known before.

They live where they belong: `ringleader.schedule.formats` (schedules) and `ringleader.tune.formats` (rules).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ringleader._names import did_you_mean

if TYPE_CHECKING:
    from ringleader.schedule.formats import msccl, mscclpp
    from ringleader.tune.formats import nccl_tuner, ompi_rules, ompi_rules_json

__all__ = ["msccl", "mscclpp", "nccl_tuner", "ompi_rules", "ompi_rules_json"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}" + did_you_mean(name, __all__))
    room = "schedule" if name.startswith("msccl") else "tune"
    return importlib.import_module(f"ringleader.{room}.formats.{name}")


def __dir__() -> list[str]:
    return __all__
