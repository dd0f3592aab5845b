"""All-reduce against torch's Gloo, both in the same processes and alternately. ``make bench`` runs this.

For each number of ranks, transport and size, one point: Ringleader on plain and on registered memory, and Gloo, in
alternating blocks (see `ringleader.cli.measure`, which `ringleader bench` uses as well). Raw numbers are written as
they come, to results/all_reduce.csv; at the end a table with the targets, results/all_reduce.md, and a plot,
results/all_reduce.png. A point that fails is noted and does not cost the others.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import report

from ringleader.cli.drive import LocalRanks
from ringleader.cli.machine import Machine, MachineState
from ringleader.cli.measure import Contestant, Measured, Point, Result, Setup
from ringleader.cli.words import format_size, parse_size
from ringleader.errors import RingleaderError

SIZES = "8,64,1K,4K,16K,64K,256K,1M,4M,16M,64M"
POINT_LIMIT = 180.0  # seconds; a point that takes longer has failed

COLUMNS = (
    "series", "ranks", "transport", "nbytes", "library", "memory", "median_us", "mean_us", "least_us", "p99_us",
    "fastest_block_us", "slowest_block_us", "iterations", "algorithm", "protocol", "windows", "wrong",
    "flag_before_us", "copy_before_gbs", "flag_after_us", "copy_after_gbs", "load", "error",
)  # fmt: skip


def point_of(nbytes: int, transport: str, arguments: argparse.Namespace) -> Point:
    """One size: in place, float32, sum. Peers over TCP cannot reach memory, so there it is of one kind."""
    memories = (False,) if transport == "tcp" else (False, True)
    contestants = [Contestant("ringleader", registered=memory) for memory in memories]
    return Point(
        "all_reduce",
        nbytes,
        (*contestants, Contestant("gloo")),
        seconds=arguments.seconds,
        blocks=arguments.blocks,
        warmup=1 if nbytes >= 4 << 20 else 5,
    )


def rows_of(
    series: report.SeriesName, result: Result, before: MachineState, after: MachineState
) -> Iterator[dict[str, Any]]:
    """The lines of the CSV for a point."""
    for measured in result.measured:
        yield {
            **_place(series, result.nbytes),
            "library": measured.contestant.library,
            "memory": "registered" if measured.contestant.registered else "plain",
            **{
                f"{name}_us": round(value, 3) for name, value in asdict(measured.timing).items() if name != "iterations"
            },
            "iterations": measured.timing.iterations,
            "algorithm": measured.algorithm,
            "protocol": measured.protocol,
            "windows": measured.windows,
            "wrong": measured.wrong,
            "flag_before_us": round(before.flag_us, 3),
            "copy_before_gbs": round(before.copy_gbs, 2),
            "flag_after_us": round(after.flag_us, 3),
            "copy_after_gbs": round(after.copy_gbs, 2),
            "load": round(os.getloadavg()[0], 2),
        }


def _place(series: report.SeriesName, nbytes: int) -> dict[str, Any]:
    return {"series": str(series), "ranks": series.ranks, "transport": series.transport, "nbytes": nbytes}


def _shown(measured: Measured) -> str:
    name = (
        "Gloo" if measured.contestant.library == "gloo" else "registered" if measured.contestant.registered else "plain"
    )
    wrong = f" WRONG: {measured.wrong} elements" if measured.wrong else ""
    return f"{name} {measured.timing.median:10.1f} us{wrong}"


def measure(arguments: argparse.Namespace, write: Any) -> bool:
    """Measure everything asked for; True if no point failed or was wrong."""
    good = True
    with Machine() as machine:
        for series in report.SERIES:
            if series.ranks not in arguments.worlds or series.transport not in arguments.transports:
                continue
            print(f"\n{series}", flush=True)
            try:
                ranks = LocalRanks(Setup(series.transport, gloo=True), series.ranks, POINT_LIMIT)
            except RingleaderError as error:
                write({**_place(series, 0), "error": str(error)})
                print(f"  could not start: {error}", flush=True)
                good = False
                continue
            try:
                for nbytes in arguments.sizes:
                    good &= _one(series, nbytes, ranks, machine, arguments, write)
            finally:
                ranks.close()
    return good


def _one(
    series: report.SeriesName,
    nbytes: int,
    ranks: LocalRanks,
    machine: Machine,
    arguments: argparse.Namespace,
    write: Any,
) -> bool:
    before = machine.state()
    try:
        result = ranks.measure(point_of(nbytes, series.transport, arguments))
    except RingleaderError as error:
        write({**_place(series, nbytes), "error": " ".join(str(error).split())})
        print(f"{format_size(nbytes):>8}  FAILED: {error}", flush=True)
        return False
    after = machine.state()
    for row in rows_of(series, result, before, after):
        write(row)
    times = "  ".join(_shown(measured) for measured in result.measured)
    print(f"{format_size(nbytes):>8}  {times}  | {before} -> {after}", flush=True)
    return not any(measured.wrong for measured in result.measured)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", default="2,4,8", help="numbers of ranks (default %(default)s)")
    parser.add_argument("--transports", default="shm,tcp", help="shm, tcp (tcp: 2 ranks only; default %(default)s)")
    parser.add_argument("--sizes", default=SIZES, help="bytes, with K, M or G (default %(default)s)")
    parser.add_argument("--large", action="store_true", help="256 MiB as well")
    parser.add_argument("--seconds", type=float, default=0.35, help="for each number (default %(default)s)")
    parser.add_argument("--blocks", type=int, default=7, help="alternations at a point (default %(default)s)")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results", help="folder for the results")
    arguments = parser.parse_args()
    try:
        arguments.worlds = [int(text) for text in arguments.worlds.split(",")]
        arguments.sizes = [parse_size(text) for text in arguments.sizes.split(",")] + [256 << 20] * arguments.large
    except ValueError as error:
        parser.error(str(error))
    known = {series.transport for series in report.SERIES}
    arguments.transports = arguments.transports.split(",")
    if unknown := [name for name in arguments.transports if name not in known]:
        parser.error(f"unknown transport {unknown[0]!r}; expected {', '.join(sorted(known))}")
    return arguments


def main() -> int:
    """Measure and write; exit code 1 if a point failed or was wrong."""
    arguments = parse_arguments()
    arguments.output.mkdir(parents=True, exist_ok=True)
    path = arguments.output / "all_reduce.csv"
    began = time.monotonic()
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="")
        writer.writeheader()

        def write(row: dict[str, Any]) -> None:
            writer.writerow(row)
            file.flush()

        try:
            good = measure(arguments, write)
        finally:
            file.flush()
            written = report.write(arguments.output)
    print(f"\n{time.monotonic() - began:.0f} s; wrote {path}, {', '.join(map(str, written))}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
