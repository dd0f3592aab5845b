"""The same as one backend among others of a process group, as in ``"cpu:ringleader,cuda:nccl"``; torch 2.14 and later.

Up to torch 2.13 a class derived in Python from torch's `Backend` cannot be called from C++. There, and by default
everywhere, the backend is a process group of its own: what `ringleader` offers beyond torch (``group.communicator``,
hooks, `DataParallel`) is found on the group itself.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

from ringleader import errors
from ringleader.torch.process_group import Group

__all__ = ["backend_class"]

_FIRST = (2, 14)


@lru_cache(maxsize=1)
def backend_class() -> type[Group]:
    """The class of backends.

    Raises
    ------
    InvalidArgument
        This torch is too old for it.
    """
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < _FIRST:
        raise errors.InvalidArgument(
            f"RINGLEADER_COMPOSABLE is set, but this is torch {torch.__version__}: a backend that is written in Python "
            "can be one of several in a group from torch 2.14 on; unset it, or see RINGLEADER_INSIDE for NCCL in hosts"
        )

    class BackendRingleader(Group, c10d.Backend):  # type: ignore[misc]
        """A backend whose collectives Ringleader runs."""

        def __init__(self, store: Any, rank: int, size: int, *more: Any) -> None:
            c10d.Backend.__init__(self, rank, size)
            Group.__init__(self, store, rank, size, *more)
            self._holder.remember()  # C++ stands between torch's functions and this, and asks works later on

    return BackendRingleader
