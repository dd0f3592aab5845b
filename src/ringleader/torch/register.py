"""Makes ``"ringleader"`` known to torch.distributed.

`register` is the entry point that torch calls at the end of every ``import torch``, so it only puts a name into a
table; everything else is imported when the first process group is made.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["NAME", "register"]

NAME = "ringleader"


def register() -> None:
    """Register the backend with torch.distributed. Idempotent; never raises, so that it cannot break ``import torch``.

    Examples
    --------
    >>> register()
    >>> import torch.distributed as dist
    >>> dist.Backend("ringleader")
    'ringleader'
    """
    distributed = sys.modules.get("torch.distributed")
    backend = getattr(distributed, "Backend", None)  # absent in a torch that was built without distributed
    if backend is None or NAME.upper() in getattr(backend, "_plugins", {}):
        return
    try:
        backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])
    except Exception as error:
        import warnings

        warnings.warn(f"ringleader could not register itself with torch.distributed: {error!r}", stacklevel=2)


def _create(options: Any, backend_options: Any) -> Any:
    from ringleader.torch.process_group import create

    return create(options, backend_options)
