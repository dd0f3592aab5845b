"""Ringleader: all-reduce and the other collectives, written once as schedules, proved, and run natively.

>>> import ringleader as rl
>>> with rl.init(rank=0, size=1) as comm:
...     comm.size
1

Names are imported when they are first used, so that ``import ringleader`` costs little.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ringleader import errors

if TYPE_CHECKING:
    from ringleader import adapt, compress, torch
    from ringleader.algorithms.user import algorithm
    from ringleader.runtime.communicator import Communicator
    from ringleader.runtime.dtypes import ReduceOp, premul_sum
    from ringleader.runtime.messages import ANY_SOURCE
    from ringleader.runtime.persistent import PersistentOperation
    from ringleader.runtime.spawn import WorkerGroup, spawn
    from ringleader.runtime.start import init
    from ringleader.runtime.wire import round_to_wire
    from ringleader.runtime.work import Work

__version__ = "0.1.0"
version = __version__

__all__ = [
    "ANY_SOURCE",
    "Communicator",
    "PersistentOperation",
    "ReduceOp",
    "Work",
    "WorkerGroup",
    "__version__",
    "adapt",
    "algorithm",
    "compress",
    "errors",
    "init",
    "premul_sum",
    "round_to_wire",
    "spawn",
    "torch",
    "version",
]

_HOME = {
    "ANY_SOURCE": "runtime.messages",
    "Communicator": "runtime.communicator",
    "PersistentOperation": "runtime.persistent",
    "ReduceOp": "runtime.dtypes",
    "Work": "runtime.work",
    "WorkerGroup": "runtime.spawn",
    "algorithm": "algorithms.user",
    "init": "runtime.start",
    "premul_sum": "runtime.dtypes",
    "round_to_wire": "runtime.wire",
    "spawn": "runtime.spawn",
}


_ROOMS = ("adapt", "algorithms", "compress", "executors", "formats", "overlap", "runtime", "schedule", "torch", "tune")


def _name_native_errors() -> None:
    """Tell the native core which class stands for each kind of failure."""
    try:
        _core = importlib.import_module("ringleader._core")
    except ImportError:
        # Not built yet, or built for another Python: schedules can be written and drawn; whoever needs the core gets
        # this error from its own import. It must not break `import torch`, which looks here for its backend.
        return
    _core.set_error_types(
        {
            "invalid": errors.InvalidArgument,
            "timeout": errors.CollectiveTimeout,
            "peer_lost": errors.PeerLost,
            "mismatch": errors.MismatchError,
            "aborted": errors.AbortedError,
            "closed": errors.ClosedError,
            "forked": errors.ForkError,
            "memory": errors.OutOfMemory,
            "internal": errors.InternalError,
        }
    )


_name_native_errors()


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(f"ringleader.{_HOME[name]}"), name)
    elif name in _ROOMS:
        value = importlib.import_module(f"ringleader.{name}")
    else:
        raise AttributeError(f"module 'ringleader' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
