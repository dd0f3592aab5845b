"""Executors of schedules other than the native engine: `run`, the reference, and `mpi.run`, over MPI.

`torch_p2p.run`, over other backends of torch.distributed, is also `ringleader.torch.run`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringleader._lazy import lazily
from ringleader.executors.reference import run

if TYPE_CHECKING:
    from ringleader.executors import mpi, torch_p2p

__all__ = ["mpi", "run", "torch_p2p"]

if not TYPE_CHECKING:  # a type checker shall see what there is, and nothing else
    __getattr__, __dir__ = lazily(__name__, needs={"torch_p2p": "torch"})
