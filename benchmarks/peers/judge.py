"""Compares: the ratio of Ringleader's time to the best peer's at each point, and the targets."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from peers.points import KIB, MIB, Place, Plan

__all__ = ["OURS", "TARGETS", "Results", "Target", "Verdict", "best_peer", "judge", "ratio", "read"]

OURS = ("plain", "registered", "persistent")
IDEAL = "ideal"


class Number(NamedTuple):
    """A measured time, of the slowest rank, in microseconds; and the slowest block's over the fastest's."""

    median: float
    spread: float


Results = dict[Plan, dict[str, Number]]
"""Contestants by name: "plain", "registered", "persistent" (Ringleader), "ideal", and peers ("gloo", "openmpi-sm")."""


@dataclass(frozen=True)
class Target:
    """`contestant`'s time is at most `limit` times that of `against` ("peer": the best one) where `holds`."""

    case: str
    contestant: str
    against: str
    limit: float
    holds: Callable[[Plan], bool]


def _at(
    ranks: tuple[int, ...], transport: str, least: int, most: int = 1 << 60, dtype: str = "float32"
) -> Callable[[Plan], bool]:
    def holds(p: Plan) -> bool:
        here = p.place.ranks in ranks and p.place.transport == transport
        return here and p.dtype == dtype and least <= p.nbytes <= most

    return holds


_16_BIT = "16-bit"
_UNDER_16 = 16 * MIB - 1
TARGETS = (
    Target("2 ranks, 8 B - 8 KiB", "registered", "peer", 0.6, _at((2,), "shm", 8, 8 * KIB)),
    Target("2 ranks, 8 B - 8 KiB", "persistent", "peer", 0.4, _at((2,), "shm", 8, 8 * KIB)),
    Target("2 ranks, from 64 KiB", "registered", "peer", 0.4, _at((2,), "shm", 64 * KIB)),
    Target("2 ranks, from 16 MiB", "registered", IDEAL, 1.5, _at((2,), "shm", 16 * MIB)),
    Target("2 ranks, 64 KiB to below 16 MiB", "plain", "peer", 0.8, _at((2,), "shm", 64 * KIB, _UNDER_16)),
    Target("2 ranks, from 16 MiB", "plain", "peer", 0.6, _at((2,), "shm", 16 * MIB)),
    Target("4 ranks, every size", "registered", "peer", 0.3, _at((4,), "shm", 0)),
    Target("8 ranks, every size", "registered", "peer", 0.3, _at((8,), "shm", 0)),
    Target("4 ranks, every size", "plain", "peer", 0.6, _at((4,), "shm", 0)),
    Target("8 ranks, every size", "plain", "peer", 0.6, _at((8,), "shm", 0)),
    Target("16-bit floats, 2 ranks, from 64 KiB", "registered", "peer", 0.4, _at((2,), "shm", 64 * KIB, dtype=_16_BIT)),
    Target("TCP on loopback, 2 ranks, up to 64 KiB", "plain", "peer", 0.6, _at((2,), "tcp", 0, 64 * KIB)),
    Target("TCP on loopback, 2 ranks, above 64 KiB", "plain", "peer", 0.8, _at((2,), "tcp", 64 * KIB + 1)),
)


def label_of(system: str, contestant: str) -> str:
    """The name of a contestant in `Results`.

    >>> label_of("ringleader-shm", "gloo"), label_of("mpich-shm", "mpi"), label_of("limits", "ideal")
    ('gloo', 'mpich-shm', 'ideal')
    """
    return system if contestant == "mpi" else contestant


def read(path: Path) -> tuple[Results, list[str]]:
    """The numbers of a CSV, wrong results left out, and what failed or was wrong."""
    results: Results = defaultdict(dict)
    failures = []
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            place = Place(int(row["ranks"]), row["transport"])
            label = label_of(row["system"], row["contestant"])
            where = f"{place}, {row['dtype']}{', ' + row['nbytes'] + ' B' if row['nbytes'] else ''}: {label}"
            if row["error"]:
                failures.append(f"{where}: {row['error'][:300]}")
                continue
            if int(row["wrong"] or 0):
                failures.append(f"{where}: {row['wrong']} wrong elements")
                continue
            point = Plan(place, row["dtype"], row["variant"] == "rewritten", int(row["nbytes"]))
            spread = float(row["slowest_block_us"]) / float(row["fastest_block_us"])
            results[point][label] = Number(float(row["median_us"]), spread)
    return dict(results), failures


def best_peer(numbers: dict[str, Number]) -> tuple[str, Number] | None:
    """The fastest of those that are neither Ringleader nor the ideal."""
    peers = [(name, number) for name, number in numbers.items() if name not in (*OURS, IDEAL)]
    return min(peers, key=lambda it: it[1].median, default=None)


def ratio(numbers: dict[str, Number], contestant: str, against: str) -> float | None:
    """Time over time, None where one is missing."""
    if against == "peer":
        best = best_peer(numbers)
        other = None if best is None else best[1]
    else:
        other = numbers.get(against)
    mine = numbers.get(contestant)
    return None if mine is None or other is None else mine.median / other.median


class Verdict(NamedTuple):
    """`ratios` by point; the target is met where they are at most its limit."""

    target: Target
    ratios: dict[Plan, float]

    @property
    def met(self) -> int:
        """Number of points at which it is met."""
        return sum(value <= self.target.limit for value in self.ratios.values())


def judge(results: Results, rewrite: bool, targets: Iterable[Target] = TARGETS) -> list[Verdict]:
    """Each target over the points of one variant; targets without points are left out."""
    verdicts = []
    for target in targets:
        ratios = {}
        for point in sorted(p for p in results if p.rewrite is rewrite and target.holds(p)):
            value = ratio(results[point], target.contestant, target.against)
            if value is not None:
                ratios[point] = value
        if ratios:
            verdicts.append(Verdict(target, ratios))
    return verdicts
