"""The torch.distributed backend: ``torch.distributed.init_process_group("ringleader")``.

With Ringleader installed no import is needed, torch finds it by its entry point. Importing this module registers it as
well, for a source tree that is only on the path.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import torch.distributed as _distributed  # noqa: F401 - `register` looks for it

from ringleader.torch.launch import init_process_group
from ringleader.torch.register import register

if TYPE_CHECKING:
    from ringleader.executors.torch_p2p import run
    from ringleader.torch import fsdp, hooks
    from ringleader.torch.data_parallel import DataParallel
    from ringleader.torch.ddp import register_ddp
    from ringleader.torch.devices.hook import hierarchical, hierarchical_hook

register()

__all__ = [
    "DataParallel",
    "fsdp",
    "hierarchical",
    "hierarchical_hook",
    "hooks",
    "init_process_group",
    "register",
    "register_ddp",
    "run",
]


def __getattr__(name: str) -> Any:
    if name == "run":  # not before it is used: its module imports torch, which imports this one
        from ringleader.executors.torch_p2p import run

        return run
    if name in ("fsdp", "hooks"):
        return importlib.import_module(f"ringleader.torch.{name}")
    if name == "DataParallel":
        from ringleader.torch.data_parallel import DataParallel

        return DataParallel
    if name == "register_ddp":
        from ringleader.torch.ddp import register_ddp

        return register_ddp
    if name in ("hierarchical", "hierarchical_hook"):
        return getattr(importlib.import_module("ringleader.torch.devices.hook"), name)
    raise AttributeError(f"module 'ringleader.torch' has no attribute {name!r}")
