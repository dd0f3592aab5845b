"""The torch.distributed backend: ``torch.distributed.init_process_group("ringleader")``.

With Ringleader installed no import is needed, torch finds it by its entry point. Importing this module registers it as
well, for a source tree that is only on the path.
"""

# ruff: noqa: E402 - what need_torch says comes before what torch would say
from __future__ import annotations

from typing import TYPE_CHECKING

from ringleader._lazy import lazily, need_torch

need_torch(__name__)

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

if not TYPE_CHECKING:  # a type checker shall see what there is, and nothing else
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "DataParallel": "ringleader.torch.data_parallel",
            "hierarchical": "ringleader.torch.devices.hook",
            "hierarchical_hook": "ringleader.torch.devices.hook",
            "register_ddp": "ringleader.torch.ddp",
            "run": "ringleader.executors.torch_p2p",
        },
    )
