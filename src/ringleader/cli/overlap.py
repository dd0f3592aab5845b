"""``ringleader overlap``: the best buckets for a timeline that was written to a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringleader.errors import InvalidArgument
from ringleader.overlap import CostCurve, Timeline, plan_buckets, plan_priority

__all__ = ["Costs", "run_overlap"]


@dataclass(frozen=True)
class Costs:
    """What communication costs; microseconds, and 10**9 bytes a second.

    Attributes
    ----------
    bench
        What ``ringleader bench --op all_reduce --json`` wrote, or None: `latency` and `bandwidth` count.
    """

    bench: Path | None
    latency: float
    bandwidth: float
    overhead: float
    launch: float
    slowdown: float

    def curve(self) -> CostCurve:
        """Of one all-reduce.

        Raises
        ------
        InvalidArgument
            The file holds no all-reduces, or the bandwidth is not above 0.
        """
        if self.bench is None:
            if not self.bandwidth > 0 or self.latency < 0:
                raise InvalidArgument(
                    f"--latency {self.latency:g} and --bandwidth {self.bandwidth:g}; expected microseconds of at least "
                    "0 and GB/s above 0"
                )
            return CostCurve.affine(self.latency * 1e-6, 1e-9 / self.bandwidth)
        samples = [
            (result["nbytes"], measured["timing"]["median"] * 1e-6)
            for result in _read(self.bench, "what ringleader bench --json writes").get("results", [])
            for measured in result["measured"]
            if result["collective"] == "all_reduce" and measured["contestant"]["library"] == "ringleader"
        ]
        if not samples:
            raise InvalidArgument(f"{self.bench}: no all_reduce in it; expected what ringleader bench --json writes")
        return CostCurve.fit(samples)


def _read(path: Path, expected: str) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{path}: cannot be read as JSON: {error}; expected {expected}") from None
    if not isinstance(document, dict):
        raise InvalidArgument(f"{path}: holds a {type(document).__name__}; expected {expected}")
    return document


def run_overlap(
    path: Path, costs: Costs, priority: bool, picture: Path | None, write: Callable[[str], None] = print
) -> None:
    """Show the plan for a timeline's file.

    Raises
    ------
    InvalidArgument
        A file cannot be read or drawn, or an option is out of range.
    """
    timeline, curve = Timeline.from_json(_read(path, "a timeline, as Timeline.to_json() makes it")), costs.curve()
    if priority:
        if picture is not None:
            raise InvalidArgument("--picture draws buckets; leave out --priority")
        write(plan_priority(timeline, curve, costs.overhead * 1e-6, gap=costs.launch * 1e-6).table())
        return
    plan = plan_buckets(timeline, curve, costs.overhead * 1e-6, launch=costs.launch * 1e-6, slowdown=costs.slowdown)
    write(plan.table())
    if picture is not None:
        plan.picture(picture)
