"""How long proofs take: the ring over 1024 ranks, two levels over 4096, and every algorithm over 1 to 64 ranks.

All six points of `ringleader.schedule.verify`, those about the lowered programs included. Targets: 5 s, 10 s and 3
minutes. Times are CPU times of the one thread, so that other work on the machine does not count.

Writes results/verify.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from pathlib import Path

from ringleader.algorithms import all_algorithms, build
from ringleader.cli.system import system_info
from ringleader.schedule import verify

RING_TARGET, LEVELS_TARGET, SWEEP_TARGET = 5.0, 10.0, 180.0

LEVELS = ("double_binary_tree", "recursive_doubling", "double_binary_tree(segments=4)")
"""Algorithms between the hosts. Rings are not among them: 512 hosts would cut the data into 4096 chunks."""


def prove(collective: str, spec: str, n: int) -> float:
    """Seconds to build and prove; raises ScheduleError if it is wrong."""
    began = time.process_time()
    verify(build(collective, spec, n)).raise_if_failed()
    return time.process_time() - began


def main() -> int:
    """Measure, print and write; exit code 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ring", type=int, default=1024, help="ranks of the large ring (default %(default)s)")
    parser.add_argument("--hosts", type=int, default=512, help="hosts of 8 ranks each (default %(default)s)")
    parser.add_argument("--upto", type=int, default=64, help="ranks of the sweep, 1 to this (default %(default)s)")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results", help="folder for the result")
    arguments = parser.parse_args()

    prove("all_reduce", "ring", 4)  # imports and first use
    ring = prove("all_reduce", "ring", arguments.ring)
    print(f"ring over {arguments.ring} ranks: {ring:.2f} s", flush=True)
    ranks = 8 * arguments.hosts
    levels = {}
    for outer in LEVELS:
        spec = f"hierarchical:hosts=8*{arguments.hosts}:outer={outer}"
        levels[outer] = prove("all_reduce", spec, ranks)
        print(f"{spec}, {ranks} ranks: {levels[outer]:.2f} s", flush=True)
    seconds: dict[str, float] = defaultdict(float)
    for entry in all_algorithms():
        for n in range(1, arguments.upto + 1):
            seconds[entry.full_name] += prove(entry.collective, entry.name, n)
        print(f"{entry.full_name:36} {seconds[entry.full_name]:7.2f} s", flush=True)
    total = sum(seconds.values())
    print(f"every algorithm over 1 to {arguments.upto} ranks: {total:.1f} s")

    info = system_info()
    lines = [
        "# Time of proofs",
        "",
        f"Written by `benchmarks/verify_speed.py`. {info['cpu']}, CPU time of one thread, Python {info['python']}, "
        f"{info['compiler']}.",
        "",
        "| what | time | target | met |",
        "|---|---|---|---|",
        f"| ring over {arguments.ring} ranks | {ring:.2f} s | {RING_TARGET:g} s | {_met(ring, RING_TARGET)} |",
        *(
            f"| hierarchical over {arguments.hosts} hosts of 8 ranks, {outer} between them | {took:.2f} s "
            f"| {LEVELS_TARGET:g} s | {_met(took, LEVELS_TARGET)} |"
            for outer, took in levels.items()
        ),
        f"| all {len(seconds)} algorithms over 1 to {arguments.upto} ranks | {total:.1f} s | {SWEEP_TARGET:g} s "
        f"| {_met(total, SWEEP_TARGET)} |",
    ]
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "verify.md").write_text("\n".join(lines) + "\n")
    met = ring <= RING_TARGET and max(levels.values()) <= LEVELS_TARGET and total <= SWEEP_TARGET
    return 0 if met else 1


def _met(seconds: float, target: float) -> str:
    return "yes" if seconds <= target else "**no**"


if __name__ == "__main__":
    sys.exit(main())
