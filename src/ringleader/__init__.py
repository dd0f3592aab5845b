"""Ringleader: all-reduce and the other collectives, written once as schedules, proved, and run natively.

>>> import ringleader as rl
>>> with rl.init(rank=0, size=1) as comm:
...     comm.size
1

Names are imported when they are first used, so that ``import ringleader`` costs little.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ringleader import errors
from ringleader._lazy import lazily

if TYPE_CHECKING:
    from ringleader import (
        adapt,
        algorithms,
        compress,
        executors,
        formats,
        horovod,
        overlap,
        runtime,
        schedule,
        torch,
        tune,
    )
    from ringleader.algorithms.registry import algorithm
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
    "algorithms",
    "compress",
    "errors",
    "executors",
    "formats",
    "horovod",
    "init",
    "overlap",
    "premul_sum",
    "round_to_wire",
    "runtime",
    "schedule",
    "spawn",
    "torch",
    "tune",
    "version",
]

_HOME = {
    "ANY_SOURCE": "runtime.messages",
    "Communicator": "runtime.communicator",
    "PersistentOperation": "runtime.persistent",
    "ReduceOp": "runtime.dtypes",
    "Work": "runtime.work",
    "WorkerGroup": "runtime.spawn",
    "algorithm": "algorithms.registry",
    "init": "runtime.start",
    "premul_sum": "runtime.dtypes",
    "round_to_wire": "runtime.wire",
    "spawn": "runtime.spawn",
}


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


if not TYPE_CHECKING:  # a type checker shall see what there is, and nothing else
    __getattr__, __dir__ = lazily(
        __name__, {name: f"ringleader.{home}" for name, home in _HOME.items()}, {"horovod": "torch", "torch": "torch"}
    )
