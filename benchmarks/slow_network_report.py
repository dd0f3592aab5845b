"""Tables and plot of the slow-network benchmark, from its CSV file."""

from __future__ import annotations

import csv
import datetime
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from slow_network_rank import CONTESTANTS

from ringleader.cli.system import system_info

NAMES = {"transformer": "Transformer", "mlp": "MLP"}
Row = dict[str, Any]


@dataclass(frozen=True)
class Result:
    """A contestant in one setting: medians over its turns."""

    name: str
    ms: float
    cpu_ms: float
    ratio: float  # to the compute-only step
    counter: float
    payload: float
    link: float
    expected: float | None
    fewer: float  # payload on the link against uncompressed


def results(rows: Sequence[Row]) -> list[Result]:
    """All contestants of one setting."""

    def median(name: str, column: str) -> float:
        return statistics.median(float(row[column]) for row in rows if row["contestant"] == name)

    names = list(dict.fromkeys(row["contestant"] for row in rows))
    base = median("compute", "ms") if "compute" in names else float("nan")
    whole = median("none", "link_payload") if "none" in names else float("nan")
    found = []
    for name in names:
        formula = next(row["expected_bytes"] for row in rows if row["contestant"] == name)
        payload = median(name, "link_payload")
        found.append(
            Result(
                name=name,
                ms=median(name, "ms"),
                cpu_ms=median(name, "cpu_ms"),
                ratio=median(name, "ms") / base,
                counter=median(name, "counter_bytes"),
                payload=payload,
                link=median(name, "link_bytes"),
                expected=float(formula) if formula != "" else None,
                fewer=whole / payload if payload > 0 else float("nan"),
            )
        )
    return found


def settings(rows: Sequence[Row]) -> dict[tuple[str, int, int], list[Row]]:
    """Lines by model, ranks and rate."""
    grouped: dict[tuple[str, int, int], list[Row]] = {}
    for row in rows:
        grouped.setdefault((row["model"], int(row["ranks"]), int(row["rate_mbits"])), []).append(row)
    return grouped


def lines(rows: Sequence[Row]) -> Iterable[str]:
    """One setting for a terminal."""
    for each in results(rows):
        ratios = f"{each.ratio:6.2f}x compute, {each.cpu_ms:7.1f} ms of CPU"
        if each.name == "compute":
            yield f"  {each.name:10} {each.ms:8.1f} ms {ratios}"
        else:
            yield (
                f"  {each.name:10} {each.ms:8.1f} ms {ratios}, link {each.payload / 1e6:8.3f} MB "
                f"({each.fewer:.1f}x fewer), counters {each.counter / 1e6:8.3f} MB, "
                f"formula {(each.expected or 0) / 1e6:8.3f} MB"
            )


def markdown(rows: Sequence[Row], day: str) -> str:
    """The page."""
    info = system_info()
    out = [
        "# Training over slow networks",
        "",
        "Written by `benchmarks/slow_network.py` (`make bench-slow`); raw numbers in `compression_training.csv`.",
        "DistributedDataParallel, one rank on each host, one compute thread each. Hosts are network namespaces on one",
        f"machine ({info['cpu']}, {info['usable_cores']} cores for all ranks), links shaped in both directions with tc",
        "tbf, CUBIC. All contestants in the same processes, in turn; "
        f"torch {info['torch']}, Ringleader {info['ringleader']}; {day}.",
        "",
        'Step: of the slowest rank, median over the turns; "x compute": over a step without communication (`no_sync`),',
        "with as many ranks on the same cores. CPU: what a rank's process used in a step. Link: what `tc -s` counts of",
        "the busiest host's link in a step, less the headers of its frames (66 bytes each); counters: what the engine",
        "counts. Fewer: against DDP over Ringleader, on the link. Formula: payload by the compressor's definition,",
        "with what the hooks leave alone (vectors).",
    ]
    for (model, ranks, rate), found in settings(rows).items():
        out += [
            "",
            f"## {NAMES[model]}, {ranks} hosts, {rate} Mbit/s",
            "",
            f"{int(found[0]['parameters']) / 1e6:.1f} million parameters; TCP moves {found[0]['goodput_mbits']} Mbit/s "
            "each way.",
            "",
            "| | step, ms | x compute | CPU, ms | link, MB | counters, MB | formula, MB | times fewer |",
            "|---|---|---|---|---|---|---|---|",
            *(_table_line(each) for each in results(found)),
        ]
    return "\n".join([*out, "", "![steps](compression_training.png)", ""])


def _table_line(each: Result) -> str:
    cells = [CONTESTANTS[each.name].label, f"{each.ms:.0f}", f"{each.ratio:.2f}", f"{each.cpu_ms:.0f}"]
    if each.name == "compute":
        cells += ["", "", "", ""]
    else:
        cells += [
            f"{each.payload / 1e6:.2f}",
            f"{each.counter / 1e6:.2f}" if each.counter > 1e4 else "",
            f"{each.expected / 1e6:.2f}" if each.expected is not None else "",
            f"{each.fewer:.1f}",
        ]
    return "| " + " | ".join(cells) + " |"


def plot(rows: Sequence[Row], path: Path) -> None:
    """One panel a setting: bars of step time, on the part that is compute."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    grouped = settings(rows)
    columns = 2
    height = -(-len(grouped) // columns)
    figure = Figure(figsize=(10, 2.5 * height + 0.4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(height, columns, squeeze=False).flatten()
    for axes, ((model, ranks, rate), found) in zip(panels, grouped.items(), strict=False):
        shown = results(found)
        base = next((each.ms for each in shown if each.name == "compute"), 0.0)
        bars = [each for each in shown if each.name != "compute"]
        places = range(len(bars))
        axes.barh(
            places, [each.ms for each in bars], color=["#888888" if b.name == "gloo" else "#0b5fa5" for b in bars]
        )
        axes.axvline(base, color="#e08214", linewidth=1.4, label="compute only")
        for place, each in zip(places, bars, strict=True):
            axes.annotate(
                f" {each.ratio:.2f}x",
                (each.ms, place),
                va="center",
                fontsize=7,
                textcoords="offset points",
                xytext=(2, 0),
            )
        axes.set_yticks(places, [CONTESTANTS[each.name].label for each in bars], fontsize=7.5)
        axes.invert_yaxis()
        axes.set_xlim(0, 1.15 * max(each.ms for each in shown))
        axes.set_title(f"{NAMES[model]}, {ranks} hosts, {rate} Mbit/s", fontsize=9)
        axes.tick_params(axis="x", labelsize=7.5)
        axes.legend(fontsize=7, frameon=False, loc="lower right")
    for axes in panels[len(grouped) :]:
        axes.set_visible(False)
    figure.supxlabel("ms a step", fontsize=9)
    figure.savefig(path, dpi=100)


def write(folder: Path) -> None:
    """Rewrite tables and plot from the CSV in `folder`."""
    path = folder / "compression_training.csv"
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    day = datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.timezone.utc).date().isoformat()
    path.with_suffix(".md").write_text(markdown(rows, day))
    plot(rows, path.with_suffix(".png"))


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "results")
