"""The conformance suite, one mixin for every executor of schedules.

A class that inherits it says how a batch of cases is run; everything else is the same for all.
"""

from __future__ import annotations

import pytest
from cases import COLLECTIVES, COUNTS, RANKS, Case, cases


class CollectiveConformance:
    """Every collective and algorithm, n = 1..9, all counts, types, operators, modes and placements."""

    counts: tuple[int, ...] = COUNTS

    def run_batch(self, n: int, batch: list[Case]) -> list[str]:
        """Run the cases over n ranks; returns the failures."""
        raise NotImplementedError

    @pytest.mark.parametrize("collective", COLLECTIVES)  # varies faster than n: executors keep the ranks of one n
    @pytest.mark.parametrize("n", RANKS)
    def test_conforms(self, n: int, collective: str) -> None:
        batch = list(cases(collective, n, self.counts))
        assert batch
        failures = self.run_batch(n, batch)
        shown = "\n".join(failures[:20])
        assert not failures, f"{len(failures)} failures of {len(batch)} cases over {n} ranks, the first:\n{shown}"
