"""The conformance suite, one mixin for every executor of schedules.

A class that inherits it says how a batch of cases is run; everything else is the same for all.
"""

from __future__ import annotations

import pytest
from cases import COLLECTIVES, COUNTS, RANKS, Case, cases

QUICK = (4, 5)
"""Ranks of the quick part: a power of two and another number. Each further one starts processes."""


class CollectiveConformance:
    """Every collective and algorithm, n = 1..9, all counts, types, operators, modes and placements."""

    counts: tuple[int, ...] = COUNTS

    def run_batch(self, n: int, batch: list[Case]) -> list[str]:
        """Run the cases over n ranks; returns the failures."""
        raise NotImplementedError

    @pytest.mark.parametrize("collective", COLLECTIVES)  # varies faster than n: executors keep the ranks of one n
    @pytest.mark.parametrize("n", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in RANKS])
    def test_conforms(self, n: int, collective: str) -> None:
        self._run(n, list(cases(collective, n, self.counts)))

    @pytest.mark.slow
    @pytest.mark.parametrize("n", (12, 16))
    def test_more_ranks(self, n: int) -> None:
        """Ranks beyond the full sweep: an odd multiple of a power of two, and a power of two; counts around n."""
        self._run(n, list(cases("all_reduce", n, (0, 1, 5, n - 1, n, n + 1, 1000))))

    def _run(self, n: int, batch: list[Case]) -> None:
        assert batch
        failures = self.run_batch(n, batch)
        shown = "\n".join(failures[:20])
        assert not failures, f"{len(failures)} failures of {len(batch)} cases over {n} ranks, the first:\n{shown}"
