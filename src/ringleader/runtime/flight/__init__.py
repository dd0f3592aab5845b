"""What the last operations of each rank were, also of a process that is gone, see docs/troubleshooting.md.

>>> import numpy as np, ringleader as rl
>>> with rl.init(rank=0, size=1) as comm:
...     _ = comm.all_reduce(np.ones(3, np.float32))
...     last = comm.recorded().operations[-1]
>>> last.kind, last.dtype, last.shape, last.state
('all_reduce', 'float32', (3,), 'done')
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringleader._lazy import lazily

if TYPE_CHECKING:
    from ringleader.runtime.flight.diagnosis import Finding, autopsy
    from ringleader.runtime.flight.records import Operation, Recording, read_recordings

__all__ = ["Finding", "Operation", "Recording", "autopsy", "read_recordings"]

if not TYPE_CHECKING:  # a type checker shall see what there is, and nothing else
    _DIAGNOSIS, _RECORDS = f"{__name__}.diagnosis", f"{__name__}.records"
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "Finding": _DIAGNOSIS, "autopsy": _DIAGNOSIS,
            "Operation": _RECORDS, "Recording": _RECORDS, "read_recordings": _RECORDS,
        },
    )  # fmt: skip
