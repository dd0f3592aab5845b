"""The full sweep: every algorithm at n = 1..64, 100, 128, 255, 256, proved by verify.

``PYTHONPATH=tests python tests/pure/sweep_algorithms.py`` (``make verify-all``) proves the schedules and the programs
that they are lowered to; with ``--schedules-only`` it needs no native core. Exits with 1 and a list if anything is
wrong.
"""

from __future__ import annotations

import argparse
import sys
import time

from variants import variants

from ringleader.algorithms import Algorithm, all_algorithms, build
from ringleader.schedule import Collective, verify

RANKS = (*range(1, 65), 100, 128, 255, 256)


def roots(entry: Algorithm, n: int, every: bool) -> list[int]:
    """All roots, or a few."""
    if not Collective(entry.collective).rooted:
        return [0]
    return list(range(n)) if every else sorted({0, n // 3, n - 1})


def sweep(ranks: tuple[int, ...], lowered: bool, report: bool = False) -> list[str]:
    """Verify everything; returns what is wrong."""
    wrong: list[str] = []
    for entry in all_algorithms():
        began = time.perf_counter()
        for n in ranks:
            # A parameter's other values take the same code for every n: small n are enough.
            for spec in variants(entry, n) if n <= 13 else [entry.name]:
                for root in roots(entry, n, every=n <= 5 or (spec == entry.name and n <= 9)):
                    proof = verify(build(entry.collective, spec, n, root), lowered=lowered)
                    if not proof.ok:
                        wrong.append(f"{entry.collective} {spec} n={n} root={root}: {proof.violations[0]}")
        if report:
            print(f"{entry.full_name:36} {time.perf_counter() - began:7.2f} s", flush=True)
    return wrong


def main() -> int:
    """Run the sweep from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules-only", action="store_true", help="leave out the lowered programs")
    parser.add_argument("--upto", type=int, default=max(RANKS), help="largest number of ranks")
    arguments = parser.parse_args()
    ranks = tuple(n for n in RANKS if n <= arguments.upto)
    wrong = sweep(ranks, lowered=not arguments.schedules_only, report=True)
    print("\n".join(wrong) if wrong else f"all proved for n in {ranks[0]}..{ranks[-1]}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
