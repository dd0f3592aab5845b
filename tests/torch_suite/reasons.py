"""Why tests of torch's suite are not run or do not pass."""

from __future__ import annotations

import re

def only_for_mpi(reason: str, ranks: int) -> bool:
    """Whether a test is skipped only for the backend's name, or for want of 8 ranks where 3 are enough."""
    return "Only MPI supports" in reason or ("small world size" in reason and ranks > 2)
