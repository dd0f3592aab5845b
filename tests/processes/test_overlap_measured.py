"""Cost curves measured and predicted by real ranks."""

from __future__ import annotations

from typing import Any

import ringleader as rl
from ringleader.overlap import CostCurve

MIB = 1 << 20


def measure() -> tuple[CostCurve, CostCurve, list[int]]:
    sent = []
    with rl.init() as comm:

        def run(x: Any) -> None:
            sent.append(x.nbytes)
            comm.all_reduce(x)

        measured = CostCurve.from_communicator(comm, sizes=(4, 1 << 12, 1 << 16), repeats=3, run=run)
        return measured, CostCurve.predicted(comm), sent


def test_all_ranks_get_one_curve() -> None:
    found = rl.spawn(measure, 2, timeout=150)
    assert found[0] == found[1]
    measured, predicted, sent = found[0]
    assert measured.sizes == (4, 1 << 12, 1 << 16)
    assert sent == [4] * 4 + [1 << 12] * 4 + [1 << 16] * 4
    assert measured(1 << 16) > 0
    assert predicted(16 * MIB) > predicted(1 << 10) > 0
