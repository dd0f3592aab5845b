"""Table and plot of the convergence benchmark, from its CSV files."""

from __future__ import annotations

import csv
import math
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import convergence_tasks as tasks
from matplotlib.ticker import NullLocator
from scipy import stats

CONFIDENCE = 0.95
TITLES = {
    "digits": "Handwritten digits, convolutional net, SGD with momentum",
    "text": "Text, transformer, SGD with momentum",
    "text-adamw": "Text, transformer, AdamW",
}


@dataclass(frozen=True)
class Difference:
    """A mean over seeds and half the width of its confidence interval."""

    mean: float
    half: float

    @classmethod
    def between(cls, ours: list[float], base: list[float]) -> Difference:
        """Of pairs with equal seeds, by Student's t."""
        pairs = [a - b for a, b in zip(ours, base, strict=True)]
        if len(pairs) < 2:
            return cls(pairs[0], float("nan"))
        error = statistics.stdev(pairs) / len(pairs) ** 0.5
        return cls(statistics.fmean(pairs), float(stats.t.ppf((1 + CONFIDENCE) / 2, len(pairs) - 1)) * error)

    def verdict(self, noise: float) -> str:
        """Whether it is as good: shown, not shown, or shown to be worse, at this confidence."""
        if self.mean + self.half <= noise:
            return "yes"
        return "worse" if self.mean - self.half > 0 else "not shown"


@dataclass(frozen=True)
class Line:
    """A method on a task, over all seeds."""

    method: str
    seeds: int
    loss: float
    accuracy: float
    difference: Difference
    accuracy_difference: Difference
    nbytes: float
    fewer: float
    verdict: str
    diverged: int  # seeds of which the loss is no number at the end; left out of the means


def _column(rows: list[dict[str, str]], name: str) -> list[float]:
    return [float(row[name]) for row in sorted(rows, key=lambda row: int(row["seed"]))]


def lines_of(rows: list[dict[str, str]]) -> tuple[list[Line], float]:
    """The lines of a task; and its noise, the standard deviation of the uncompressed loss over the seeds."""
    by_method = {m: found for m in tasks.METHODS if (found := [row for row in rows if row["method"] == m])}
    base = by_method["none"]
    noise = statistics.stdev(_column(base, "loss")) if len(base) > 1 else 0.0
    result = []
    for method, found in by_method.items():
        finite = [row for row in found if math.isfinite(float(row["loss"]))]
        diverged = len(found) - len(finite)
        same = [row for row in base if row["seed"] in {each["seed"] for each in finite}]
        found = [row for row in finite if row["seed"] in {each["seed"] for each in same}]
        loss = Difference.between(_column(found, "loss"), _column(same, "loss"))
        accuracy = Difference.between(_column(found, "accuracy"), _column(same, "accuracy"))
        nbytes = statistics.fmean(_column(found, "bytes_per_step"))
        result.append(
            Line(
                method=method,
                seeds=len(found),
                loss=statistics.fmean(_column(found, "loss")),
                accuracy=statistics.fmean(_column(found, "accuracy")),
                difference=loss,
                accuracy_difference=accuracy,
                nbytes=nbytes,
                fewer=statistics.fmean(_column(same, "bytes_per_step")) / nbytes,
                verdict=f"diverged in {diverged}" if diverged else loss.verdict(noise),
                diverged=diverged,
            )
        )
    return result, noise


# ---------------------------------------------------------------------------------------------------------- the table


def markdown(runs: list[dict[str, str]]) -> str:
    """The page."""
    out = [
        "# Convergence with compressed gradients",
        "",
        "Written by `benchmarks/convergence.py` (`make bench-convergence`); raw numbers in `convergence.csv` and",
        "`convergence_curves.csv`. DistributedDataParallel with the hooks of `ringleader.torch.hooks`. Loss and",
        "accuracy on held-out data at the end; differences to the uncompressed run with the same seed (same weights,",
        f"same batches), mean over the seeds with {CONFIDENCE:.0%} confidence intervals (Student's t). Noise: standard",
        "deviation of the uncompressed loss over the seeds.",
        "",
        '"As good": *yes* where the interval of the difference ends below the noise, *worse* where it begins above',
        "zero, *not shown* where neither. Bytes: what the busiest rank sent in a step, by the engine's counters; of",
        "such small models the parts that are not compressed are a large share. DGC has "
        f"{tasks.DGC_RATE:g} times the learning rate.",
        '"Alone": without the error feedback that the compressor should have.',
    ]
    for task in dict.fromkeys(row["task"] for row in runs):
        rows = [row for row in runs if row["task"] == task]
        lines, noise = lines_of(rows)
        first = rows[0]
        out += [
            "",
            f"## {TITLES[task]}",
            "",
            f"{int(first['parameters'])} parameters, {first['ranks']} ranks, {first['steps']} steps, "
            f"{lines[0].seeds} seeds; noise {noise:.4f}.",
            "",
            "| | loss | difference | as good | accuracy | difference | bytes a step | times fewer |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for line in lines:
            label = tasks.METHODS[line.method].label
            cells = [label, f"{line.loss:.4f}", *_against(line), f"{line.nbytes:.0f}", f"{line.fewer:.1f}"]
            out.append("| " + " | ".join(cells) + " |")
    out += ["", "![curves and differences](convergence.png)", ""]
    return "\n".join(out)


def _against(line: Line) -> list[str]:
    if line.method == "none":
        return ["", "", f"{line.accuracy:.2%}", ""]
    loss, accuracy = line.difference, line.accuracy_difference
    return [
        f"{loss.mean:+.4f} ± {loss.half:.4f}",
        line.verdict,
        f"{line.accuracy:.2%}",
        f"{100 * accuracy.mean:+.2f} ± {100 * accuracy.half:.2f}",
    ]


# ----------------------------------------------------------------------------------------------------------- the plot

CURVES = ("none", "int8", "onebit", "topk1", "dgc1", "powersgd4", "onebit_alone", "topk1_alone")


def plot(runs: list[dict[str, str]], curves: list[dict[str, str]], path: Path) -> None:
    """Above, loss over steps; below, the difference at the end over the bytes saved."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(row["task"] for row in runs))
    figure = Figure(figsize=(5.2 * len(names), 8), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, len(names), squeeze=False)
    for column, task in enumerate(names):
        _draw_curves(panels[0][column], [row for row in curves if row["task"] == task])
        panels[0][column].set_title(TITLES[task], fontsize=10)
        _draw_differences(panels[1][column], [row for row in runs if row["task"] == task])
    panels[0][0].set_ylabel("held-out loss, mean over seeds")
    panels[1][0].set_ylabel("difference of the final loss to uncompressed")
    figure.savefig(path, dpi=80)


def _draw_curves(axes: Any, rows: list[dict[str, str]]) -> None:
    for number, method in enumerate(CURVES):
        found = [row for row in rows if row["method"] == method]
        if not found:
            continue
        steps = sorted({int(row["step"]) for row in found})
        means = [statistics.fmean(float(row["loss"]) for row in found if int(row["step"]) == step) for step in steps]
        how = tasks.METHODS[method]
        style: dict[str, Any] = {"color": f"C{number}", "linestyle": "--" if how.alone else "-", "linewidth": 1.3}
        if method == "none":
            style |= {"color": "black", "linewidth": 3.0, "alpha": 0.35}
        axes.plot(steps, means, label=how.label, **style)
    axes.set(xlabel="step", yscale="log")
    axes.legend(fontsize=7.5, frameon=False)
    axes.grid(alpha=0.25)


def _draw_differences(axes: Any, rows: list[dict[str, str]]) -> None:
    lines, noise = lines_of(rows)
    axes.axhspan(-noise, noise, color="black", alpha=0.08, label="noise between seeds")
    axes.axhline(0, color="black", linewidth=0.8)
    for number, line in enumerate(lines[1:]):
        color = "#c0392b" if tasks.METHODS[line.method].alone else "#0b5fa5"
        axes.errorbar(line.fewer, line.difference.mean, line.difference.half, fmt="o", ms=4, color=color, capsize=2)
        place = (line.fewer, line.difference.mean)
        up = 4 if number % 2 else -9  # many lie close together
        axes.annotate(line.method, place, (3, up), textcoords="offset points", fontsize=6, color=color)
    axes.set(xlabel="times fewer bytes", xscale="log")
    axes.set_xticks([2, 4, 8, 16, 32, 64], ["2", "4", "8", "16", "32", "64"], minor=False)
    axes.xaxis.set_minor_locator(NullLocator())
    # Linear up to a few times the noise, where most lie; logarithmic beyond.
    axes.set_yscale("symlog", linthresh=4 * noise or 1.0)
    axes.legend(fontsize=7.5, frameon=False, loc="upper left")
    axes.grid(alpha=0.25)


def write(folder: Path) -> None:
    """Rewrite table and plot from the CSV files in `folder`."""
    runs, curves = (
        list(csv.DictReader((folder / name).read_text().splitlines()))
        for name in ("convergence.csv", "convergence_curves.csv")
    )
    (folder / "convergence.md").write_text(markdown(runs))
    plot(runs, curves, folder / "convergence.png")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "results")
