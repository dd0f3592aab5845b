"""The reference executor keeps the suite: the semantics of schedules as written down, without the engine."""

from __future__ import annotations

import numpy as np
from cases import DTYPES, OPS, Case, contribution, expected, input_size
from suite import CollectiveConformance

from ringleader.algorithms import build
from ringleader.executors import reference


class TestReference(CollectiveConformance):
    def run_batch(self, n: int, batch: list[Case]) -> list[str]:
        return [f"{case}: {problem}" for case in batch if case.dtype in DTYPES and (problem := run_case(case))]


def run_case(case: Case) -> str | None:
    code, dtype = DTYPES[case.dtype]
    schedule = build(case.collective, case.algorithm, case.n, case.root)
    raw = np.dtype("u2") if case.dtype == "bfloat16" else dtype
    inputs = [contribution(case, rank, input_size(case)).view(raw) for rank in range(case.n)]
    copies = [x.copy() for x in inputs]
    outputs = reference.run(schedule, inputs, code, OPS.get(case.op, 255), case.factor)
    for rank, output in enumerate(outputs):
        wanted = expected(case, rank)
        if (output is None) != (wanted is None):
            return f"rank {rank} has {'no' if output is None else 'an'} output"
        if output is not None and wanted is not None and not np.array_equal(output.view(dtype), wanted):
            return f"rank {rank} has {output.view(dtype)[:8]}..., expected {wanted[:8]}..."
    if not all(np.array_equal(a, b) for a, b in zip(inputs, copies, strict=True)):
        return "an input was changed"
    return None
