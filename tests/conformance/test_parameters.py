"""The native engine runs every algorithm with every parameter: lists, parts, layouts. One count each."""

from __future__ import annotations

import drive
import pytest
from cases import REDUCING, ROOTED, Case
from variants import variants

import ringleader as rl
from ringleader.algorithms import all_algorithms

RANKS = 6


def batch() -> list[Case]:
    """A case for each spec; counts, roots and placements take turns."""
    found = []
    for entry in all_algorithms():
        for turn, spec in enumerate(variants(entry, RANKS)):
            count = 0 if entry.collective == "barrier" else (13, 1000, 1)[turn % 3]
            op = "sum" if entry.collective in REDUCING else "none"
            root = turn % RANKS if entry.collective in ROOTED else 0
            found.append(Case(entry.collective, spec, RANKS, count, "float32", op, root, bool(turn % 2), "sync"))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_every_parameter_runs(transport: str) -> None:
    with rl.WorkerGroup(RANKS, transport=transport) as group:
        failures = [failure for rank in group.run(drive.run_cases, batch(), timeout=150) for failure in rank]
    assert not failures, "\n".join(failures[:20])
