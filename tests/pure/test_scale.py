"""The built-in choice for many ranks, held to the best simulated: a thinned `make bench-scale`."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "benchmarks"))
scale = pytest.importorskip("scale")

LAYOUTS = [(3, 4), (12, 1), (12, 4)]
SPEEDS = ("10 Gbit/s", "400 Gbit/s")
# Rules see no link speed, so no choice is best at all speeds; what is found worst, and a little more.
MOST = {"all_reduce": 2.0, "reduce_scatter": 1.7, "all_gather": 2.0, "broadcast": 2.2}


@pytest.mark.parametrize("collective", scale.COLLECTIVES)
def test_the_choice_for_many_ranks_is_near_the_best_simulated(collective: str) -> None:
    found = [
        point
        for hosts, each in LAYOUTS
        for speed in SPEEDS
        for point in scale.points(speed, collective, hosts, each, 2e4)
    ]
    assert len(found) == len(LAYOUTS) * len(SPEEDS) * len(scale.SIZES)
    worst = max(found, key=lambda point: point.regret)
    assert worst.regret <= MOST[collective], worst
    assert np.median([point.regret for point in found]) <= 1.1


def test_a_protocol_is_judged_as_it_is_run() -> None:
    """On one host all pull the root's data at once, which is measured best; pushed, the root would copy seven times."""
    at = {point.nbytes: point for point in scale.points("100 Gbit/s", "broadcast", 1, 8, 3e5)}
    assert at[1 << 21].chosen == "linear pull"
    assert at[1 << 21].regret <= 1.1
