"""From results/all_reduce.csv to the table and the plot. `run.py` calls it; alone, it rewrites both from the CSV."""

from __future__ import annotations

import csv
import datetime
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ringleader.cli.plot import Series, draw_axes
from ringleader.cli.system import system_info
from ringleader.cli.words import format_size


class SeriesName(NamedTuple):
    """A number of ranks over a transport."""

    ranks: int
    transport: str

    def __str__(self) -> str:
        return f"{self.ranks} ranks, {'shared memory' if self.transport == 'shm' else 'TCP over loopback'}"


SERIES = (SeriesName(2, "shm"), SeriesName(4, "shm"), SeriesName(8, "shm"), SeriesName(2, "tcp"))

KIB, MIB = 1 << 10, 1 << 20

Numbers = dict[tuple[str, str], dict[str, str]]
"""A point: (library, memory) -> line of the CSV."""


def target(series: SeriesName, nbytes: int) -> float | None:
    """How many times faster than Gloo Ringleader has to be; None where nothing is demanded."""
    if series.transport == "tcp":
        return 5.0 if nbytes <= 64 * KIB else 1.0
    if series.ranks > 2:
        return 10.0 if nbytes <= MIB else 2.0
    if nbytes <= 64 * KIB:
        return 30.0
    return 3.0 if nbytes >= 16 * MIB else None


def read(path: Path) -> tuple[dict[SeriesName, dict[int, Numbers]], list[str]]:
    """The points of each series, and what failed."""
    points: dict[SeriesName, dict[int, Numbers]] = defaultdict(lambda: defaultdict(dict))
    failures = []
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            name, nbytes = SeriesName(int(row["ranks"]), row["transport"]), int(row["nbytes"])
            if row["error"]:
                failures.append(f"{name}, {format_size(nbytes)}: {row['error'][:300]}")
            else:
                points[name][nbytes][row["library"], row["memory"]] = row
    return points, failures


def _time(row: dict[str, str] | None) -> str:
    if row is None:
        return "-"
    microseconds = float(row["median_us"])
    return f"{microseconds / 1e3:.2f} ms" if microseconds >= 1e4 else f"{microseconds:.4g} µs"


def _ratio(point: Numbers, memory: str) -> float | None:
    ours, gloo = point.get(("ringleader", memory)), point.get(("gloo", "plain"))
    return None if ours is None or gloo is None else float(gloo["median_us"]) / float(ours["median_us"])


def _spread(row: dict[str, str] | None) -> str:
    """Slowest block over fastest."""
    return "-" if row is None else f"{float(row['slowest_block_us']) / float(row['fastest_block_us']):.1f}"


def table(series: SeriesName, points: dict[int, Numbers]) -> tuple[list[str], int, int]:
    """Markdown lines of a series, how many targets there are, and how many are met."""
    registered = series.transport == "shm"
    head = ["size", "Ringleader", *(["registered memory"] if registered else []), "Gloo", "Gloo / Ringleader"]
    head += [*(["Gloo / registered"] if registered else []), "target", "met", "spread", "flag, memcpy", "algorithm"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    demanded = met = 0
    for nbytes, point in sorted(points.items()):
        plain, gloo = point.get(("ringleader", "plain")), point.get(("gloo", "plain"))
        ratio, wanted = _ratio(point, "plain"), target(series, nbytes)
        verdict = ""
        if wanted is not None and ratio is not None:
            demanded += 1
            met += ratio >= wanted
            verdict = "yes" if ratio >= wanted else "**no**"
        some = plain or gloo or {}
        cells = [format_size(nbytes), _time(plain), *([_time(point.get(("ringleader", "registered")))] * registered)]
        cells += [_time(gloo), "-" if ratio is None else f"{ratio:.1f}x"]
        other = _ratio(point, "registered")
        cells += ["-" if other is None else f"{other:.1f}x"] * registered
        cells += ["" if wanted is None else f"{wanted:g}x", verdict, f"{_spread(plain)}, {_spread(gloo)}"]
        cells.append(f"{some.get('flag_before_us', '-')} µs, {some.get('copy_before_gbs', '-')} GB/s")
        cells.append(f"{some.get('algorithm', '')} ({some.get('protocol', '')})" if plain else "-")
        lines.append(f"| {' | '.join(cells)} |")
    return lines, demanded, met


def markdown(points: dict[SeriesName, dict[int, Numbers]], failures: list[str]) -> str:
    """The whole page."""
    info = system_info()
    day = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    lines = [
        "# All-reduce: Ringleader and Gloo",
        "",
        "float32, sum, in place. Written by `make bench` (`benchmarks/run.py`); method and reading: "
        "[docs/benchmarks.md](../../docs/benchmarks.md).",
        "",
        f"{info['cpu']}, {info['usable_cores']} cores, {info['memory_gib']} GiB, {info['kernel']}, "
        f"kernels {info['isa']}, {info['compiler']}, Python {info['python']}, torch {info['torch']}, "
        f"Ringleader {info['ringleader']}; {day}.",
        "",
        "Times are of the slowest rank: the median over alternating blocks of the median of a block. "
        "Targets are judged on plain memory. Spread: slowest block over fastest, Ringleader's and Gloo's. "
        "Flag, memcpy: the state of the machine at that point, a flag's round trip between two cores and one thread's "
        "copying.",
        "",
        "![Time over size](all_reduce.png)",
    ]
    for series in SERIES:
        if series in points:
            rows, demanded, met = table(series, points[series])
            lines += ["", f"## {str(series)[0].upper()}{str(series)[1:]}", "", *rows]
            lines += ["", f"{met} of {demanded} targets met."] if demanded else []
    if failures:
        lines += ["", "## Failed", "", *(f"- {failure}" for failure in failures)]
    return "\n".join(lines) + "\n"


_STYLES: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {
    ("gloo", "plain"): ("Gloo", {"color": "#555555", "linestyle": "--", "marker": "s"}),
    ("ringleader", "plain"): ("Ringleader", {"color": "#0b5fa5", "linewidth": 2.0}),
    ("ringleader", "registered"): ("Ringleader, registered memory", {"color": "#e08214", "linewidth": 1.4}),
}


def plot(points: dict[SeriesName, dict[int, Numbers]], path: Path) -> None:
    """One panel a series, the same scale of times for all."""
    shown = [series for series in SERIES if points.get(series)]
    columns = min(len(shown), 2)
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(5.6 * columns, 3.9 * rows + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True).flatten()
    for axes, series in zip(panels, shown, strict=False):
        lines = []
        for key, (label, style) in _STYLES.items():
            found = sorted((n, float(p[key]["median_us"])) for n, p in points[series].items() if key in p)
            if found:
                lines.append(Series(label, [n for n, _ in found], [t for _, t in found], style))
        draw_axes(axes, lines, str(series))
        for nbytes, point in points[series].items():
            ratio = _ratio(point, "plain")
            if ratio is not None:
                text = f"{ratio:.0f}x" if ratio >= 10 else f"{ratio:.1f}x"
                place = (nbytes, max(float(row["median_us"]) for row in point.values()))
                axes.annotate(
                    text, place, (0, 5), textcoords="offset points", ha="center", fontsize=6.5, color="#555555"
                )
        axes.tick_params(labelleft=True)
    for axes in panels[len(shown) :]:
        axes.set_visible(False)
    times = [float(r["median_us"]) for s in shown for p in points[s].values() for r in p.values()]
    panels[0].set_ylim(min(times) / 2, max(times) * 2.5)
    handles = {label: line for axes in panels for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    figure.suptitle(
        "All-reduce of float32: time of the slowest rank over size (numbers: times faster than Gloo)", fontsize=11
    )
    figure.savefig(path, dpi=150)


def write(folder: Path) -> list[Path]:
    """Rewrite table and plot from the CSV in `folder`; what was written."""
    points, failures = read(folder / "all_reduce.csv")
    page, picture = folder / "all_reduce.md", folder / "all_reduce.png"
    page.write_text(markdown(points, failures))
    if any(points.values()):
        plot(points, picture)
    return [page, picture]


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "results")
