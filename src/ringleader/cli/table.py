"""The table of ``ringleader bench``, line for line in the format of nccl-tests, so that existing parsers read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ringleader import __version__
from ringleader.cli.measure import Measured, Point, Result
from ringleader.cli.operands import BUS_FACTORS, bus_factor
from ringleader.cli.patterns import kind_of
from ringleader.schedule import Collective

__all__ = ["Columns", "bandwidths", "header", "row", "trailer", "using"]


@dataclass(frozen=True)
class Columns:
    """Columns after those of nccl-tests."""

    algorithm: bool
    gloo: bool


def bandwidths(result: Result, microseconds: float) -> tuple[float, float]:
    """(algbw, busbw) in GB/s: bytes over time, and that in nccl-tests' normalisation."""
    algorithm = result.nbytes / microseconds / 1e3
    return algorithm, algorithm * bus_factor(Collective(result.collective), result.ranks)


def _number(value: float, width: int) -> str:
    """With as many digits after the point as fit, at most two."""
    for digits in (2, 1, 0):
        text = f"{value:{width}.{digits}f}"
        if len(text) <= width:
            return text
    return f"{value:{width}.1e}"


def using(ranks: Sequence[dict[str, Any]]) -> list[str]:
    """One line per rank: where it runs and how it is connected."""
    lines = ["# Using ranks"]
    for rank in ranks:
        lines.append(
            f"#  Rank {rank['rank']:3d} Pid {rank['pid']:7d} on {rank['host']:>10s} node {rank['node']:3d} "
            f"transport {rank['transport']}, {rank['cores']} cores, {rank['isa']}"
        )
    return lines


def settings(point: Point, sizes: Sequence[int], ranks: int, step: str) -> list[str]:
    """What is measured, and what busbw means."""
    collective = Collective(point.collective)
    iterations = f"{point.iterations}" if point.iterations else f"as many as fit in {point.seconds:g} s"
    return [
        f"# ringleader {__version__} {collective} nRanks {ranks} minBytes {sizes[0]} maxBytes {sizes[-1]} step: {step} "
        f"warmup iters: {point.warmup} iters: {iterations} agg iters: {point.together} validation: {int(point.check)}",
        "# time: slowest rank, median of its iterations. "
        f"busbw = algbw x {BUS_FACTORS[collective]}: nccl-tests' normalisation, not measured on a bus",
    ]


def header(columns: Columns) -> list[str]:
    """The three lines over the numbers."""
    side = f"  {'time':>7s} {'algbw':>7s} {'busbw':>7s} {'#wrong':>6s}"
    units = f"  {'(us)':>7s} {'(GB/s)':>7s} {'(GB/s)':>7s} {'':>6s}"
    more = f"  {'gloo':>9s} {'gloo/rl':>7s}" if columns.gloo else ""
    more_units = f"  {'(us)':>9s} {'':>7s}" if columns.gloo else ""
    name = "  algorithm" if columns.algorithm else ""
    return [
        f"#{'':12s} {'':12s} {'':8s} {'':6s} {'':6s}  {'out-of-place':^30s}  {'in-place':^30s}".rstrip(),
        f"#{'size':>12s} {'count':>12s} {'type':>8s} {'redop':>6s} {'root':>6s}{side}{side}{more}{name}",
        f"#{'(B)':>12s} {'(elements)':>12s} {'':>8s} {'':>6s} {'':>6s}{units}{units}{more_units}".rstrip(),
    ]


def _side(result: Result, measured: Measured | None) -> str:
    if measured is None:
        return f"  {'N/A':>7s} {'N/A':>7s} {'N/A':>7s} {'N/A':>6s}"
    algorithm, bus = bandwidths(result, measured.timing.median)
    wrong = "N/A" if measured.wrong is None else str(measured.wrong)
    time = _number(measured.timing.median, 7)
    return f"  {time} {_number(algorithm, 7)} {_number(bus, 7)} {wrong:>6s}"


def row(
    result: Result,
    out_of_place: Measured | None,
    in_place: Measured | None,
    gloo: Measured | None,
    columns: Columns,
) -> str:
    """A line of numbers."""
    kind = kind_of(result.dtype)
    line = f" {result.nbytes:12d} {result.count:12d} {kind.short:>8s} {result.op:>6s} {result.root:6d}"
    line += _side(result, out_of_place) + _side(result, in_place)
    if columns.gloo:
        alike = next((m for m in (in_place, out_of_place) if m and gloo and _alike(m, gloo)), None)
        ratio = f"{gloo.timing.median / alike.timing.median:7.2f}" if gloo and alike else f"{'N/A':>7s}"
        line += f"  {_number(gloo.timing.median, 9) if gloo else 'N/A':>9s} {ratio}"
    if columns.algorithm:
        shown = in_place or out_of_place
        windows = f", {shown.windows} windows" if shown and shown.windows > 1 else ""
        line += f"  {shown.algorithm} ({shown.protocol}{windows})" if shown else ""
    return line


def _alike(one: Measured, other: Measured) -> bool:
    return one.contestant.in_place == other.contestant.in_place


def trailer(wrong: int, average_bus: float, checked: bool) -> list[str]:
    """The last lines: whether every result was right, and the mean of all bus bandwidths."""
    verdict = ("OK" if wrong == 0 else "FAILED") if checked else "NOT CHECKED"
    return [f"# Out of bounds values : {wrong} {verdict}", f"# Avg bus bandwidth    : {average_bus:g}", "#"]
