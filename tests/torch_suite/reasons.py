"""Why tests of torch's suite do not pass: what cannot apply to Ringleader, and what is not expected to work."""

from __future__ import annotations

import re
from typing import Final

NOT_APPLICABLE: Final = (
    (
        r"monitored_barrier is only implemented for GLOO backend",
        "`torch.distributed.monitored_barrier` refuses all but Gloo by name; use the group's method of that name",
    ),
    (r"Rank 2 is out of range", "needs 3 ranks"),
)
"""Patterns of errors, and why a test that ends with one has nothing to say about the backend."""

KNOWN_FAILURES: Final[dict[str, str]] = {}
"""Tests that fail over Ringleader, and why."""

SKIPPED: Final = (
    (r"CUDA|Nccl|NCCL|high priority|'nccl'|GPU", "GPUs or NCCL"),
    (r"https://|flak|failing", "switched off in torch itself"),
    (r"world size", "another number of ranks"),
    (r"Only MPI", "MPI"),
    (r"", "something else"),
)
"""Patterns of torch's reasons to skip a test, and what they come to: what the test needs."""


def kind_of_skip(reason: str) -> str:
    """What a test needs that torch skipped with this reason."""
    return next(kind for pattern, kind in SKIPPED if re.search(pattern, reason))


def not_applicable(reason: str) -> str | None:
    """Why a test with this error says nothing about the backend, or None."""
    return next((why for pattern, why in NOT_APPLICABLE if re.search(pattern, reason)), None)
