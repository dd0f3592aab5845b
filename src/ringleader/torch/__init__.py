"""The torch.distributed backend: ``torch.distributed.init_process_group("ringleader")``.

With Ringleader installed no import is needed, torch finds it by its entry point. Importing this module registers it as
well, for a source tree that is only on the path.
"""

from __future__ import annotations

import torch.distributed as _distributed  # noqa: F401 - `register` looks for it

from ringleader.executors.torch_p2p import run
from ringleader.torch.register import register

register()

__all__ = ["register", "run"]
