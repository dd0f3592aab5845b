"""Executors of schedules other than the native engine: `run`, the reference, and `mpi.run`, over MPI."""

from __future__ import annotations

import importlib
from types import ModuleType

from ringleader.executors.reference import run

__all__ = ["run"]


def __getattr__(name: str) -> ModuleType:
    if name != "mpi":  # imported when it is first asked for
        raise AttributeError(f"module 'ringleader.executors' has no attribute {name!r}")
    return importlib.import_module("ringleader.executors.mpi")
