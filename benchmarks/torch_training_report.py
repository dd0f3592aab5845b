"""From results/torch_training*.csv to the tables and the plot. `torch_training` calls it; alone, it rewrites both."""

from __future__ import annotations

import csv
import datetime
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ringleader.cli.system import system_info

Rows = Sequence[dict[str, Any]]

LABELS = {
    "compute": "no communication",
    "ddp-gloo": "DDP over Gloo",
    "ddp": "DDP over Ringleader",
    "ddp-registered": "DDP over Ringleader, `register_ddp`",
    "dp-off": "DataParallel, sent at the end",
    "dp-plan": "DataParallel, planned",
    "dp-priority": "DataParallel, priority",
    "fsdp-gloo": "FSDP2 over Gloo",
    "fsdp": "FSDP2 over Ringleader",
    "whole-gloo": "the whole gradient at once, Gloo",
    "whole": "the whole gradient at once, Ringleader",
}
GOALS = {"transformer": 0.04, "mlp": 0.12}
"""Exposed communication on loopback, as a share of the step."""
OVERHEADS = {
    "bucket ddp-gloo": ("a bucket more, DDP over Gloo", None),
    "bucket ddp": ("a bucket more, DDP over Ringleader", 25.0),
    "bucket dp": ("a bucket more, DataParallel", 25.0),
    "parameter ddp": ("a parameter more, DDP", None),
    "parameter hook": ("a parameter more, a hook in Python that does nothing", None),
    "parameter dp": ("a parameter more, DataParallel", 1.0),
}


def label(case: str) -> str:
    """What a case is called."""
    return LABELS.get(case) or f"DataParallel, buckets of {case.rpartition('-')[2]} MiB"


class Point:
    """All cases of a model in a place, by their medians (ms)."""

    def __init__(self, rows: Rows) -> None:
        times: dict[str, list[float]] = {}
        for row in rows:
            times.setdefault(row["case"], []).append(float(row["ms"]))
        self.place, self.model = rows[0]["place"], rows[0]["model"]
        self.parameters, self.buckets = int(rows[0]["parameters"]), rows[0].get("buckets")
        self.goodput = rows[0]["goodput_mbits"]
        self.ms = {case: median(each) for case, each in times.items()}
        rounds: dict[tuple[str, str], list[float]] = {}
        for row in rows:
            rounds.setdefault((row["case"], str(row["round"])), []).append(float(row["ms"]))
        medians = {case: [median(each) for (c, _), each in rounds.items() if c == case] for case in times}
        # How far the rounds of one case lie apart: smaller differences between cases say nothing.
        self.unsteady = median(max(each) - min(each) for each in medians.values())

    def exposed(self, case: str) -> float:
        """What a step takes longer than without communication."""
        return self.ms[case] - self.ms["compute"]

    def share(self, case: str) -> float:
        """That, of the step."""
        return self.exposed(case) / self.ms[case]

    def cases(self) -> list[str]:
        """Those whose steps can be compared with `compute`."""
        return [c for c in self.ms if not c.startswith(("whole", "fsdp", "compute"))]

    def best_fixed(self) -> str | None:
        """The fixed size that exposes least."""
        fixed = [c for c in self.ms if c.startswith("dp-fixed")]
        return min(fixed, key=self.exposed) if fixed else None


def points(rows: Rows) -> list[Point]:
    """In the order in which they were measured."""
    keys = dict.fromkeys((row["place"], row["model"]) for row in rows)
    return [Point([r for r in rows if (r["place"], r["model"]) == key]) for key in keys]


def lines(rows: Rows) -> Iterable[str]:
    """What to show on a terminal while it runs."""
    for point in points(rows):
        for case, ms in point.ms.items():
            exposed = f"{point.exposed(case):8.1f} ms exposed" if case in point.cases() else ""
            yield f"{label(case):45} {ms:8.1f} ms {exposed}"


def _verdict(met: bool) -> str:
    return "yes" if met else "**no**"


def step_table(point: Point) -> list[str]:
    """Steps and what they expose."""
    gloo = point.exposed("ddp-gloo") if "ddp-gloo" in point.ms else None
    rows = ["| case | step | exposed | of the step | of Gloo's |", "|---|---|---|---|---|"]
    rows.append(f"| {label('compute')} | {point.ms['compute']:.1f} ms | | | |")
    for case in point.cases():
        of_gloo = f"{point.exposed(case) / gloo:.0%}" if gloo else ""
        rows.append(
            f"| {label(case)} | {point.ms[case]:.1f} ms | {point.exposed(case):.1f} ms | {point.share(case):.1%} "
            f"| {of_gloo} |"
        )
    return rows


def verdicts(point: Point) -> list[str]:
    """The goals that can be judged here."""
    rows = []
    ours = [c for c in point.cases() if c != "ddp-gloo"]
    if point.place == "loopback" and ours:
        best = min(ours, key=point.exposed)
        goal = GOALS[point.model]
        for case in dict.fromkeys(c for c in ("ddp", "dp-plan", best) if c in ours):
            rows.append(
                (f"exposed, {label(case)}", f"{point.share(case):.1%}", f"<= {goal:.0%}", point.share(case) <= goal)
            )
    fixed = point.best_fixed()
    if fixed and "dp-plan" in point.ms:
        plan, other = point.exposed("dp-plan"), point.exposed(fixed)
        less = 1 - plan / other if other > 0 else 0.0
        rows.append(
            (
                f"planned ({point.buckets} buckets), against {label(fixed)}",
                f"{abs(less):.0%} {'less' if less >= 0 else 'more'} exposed",
                ">= 10% less",
                less >= 0.1,
            )
        )
    if point.place != "loopback" and "dp-priority" in point.ms and "whole" in point.ms:
        bound = max(0.0, point.ms["whole"] - point.ms["compute"])
        found = point.exposed("dp-priority")
        rows.append(
            (
                "priority, against communication less computing",
                f"{found:.1f} ms",
                f"<= 1.1 x {bound:.1f} ms",
                found <= 1.1 * bound,
            )
        )
    if "fsdp" in point.ms:
        ratio = point.ms["fsdp"] / point.ms["fsdp-gloo"]
        rows.append(("FSDP2's step, against Gloo's", f"{ratio:.2f} x", "<= 0.7 x", ratio <= 0.7))
    return [f"| {what} | {found} | {goal} | {_verdict(met)} |" for what, found, goal, met in rows]


def markdown(rows: Rows, overheads: Rows) -> str:
    """The page."""
    info = system_info()
    day = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    text = [
        "# Training through PyTorch", "",
        f"Two ranks, one thread each; {info['cpu']}, {info['usable_cores']} cores, {info['kernel']}; torch "
        f"{info['torch']}, Ringleader {info['ringleader']}; {day}. Written by `benchmarks/torch_training.py`; every "
        "step is in `torch_training.csv`.", "",
        "All cases live in the same two processes and take turns. A step is forward, backward and SGD with momentum; "
        "its time is that of the slower rank, and numbers are medians. Exposed is what a step takes longer than one "
        "without communication (DDP in `no_sync`).", "",
        "![Exposed communication](torch_training.png)",
    ]  # fmt: skip
    for point in points(rows):
        where = (
            "this host, shared memory"
            if point.place == "loopback"
            else f"two hosts, {point.place} Mbit/s (TCP moves {point.goodput})"
        )
        text += ["", f"## {point.model}, {point.parameters / 1e6:.1f}M parameters, {where}", "", *step_table(point)]
        whole = [
            f"{label(c)}: {point.ms[c]:.1f} ms" for c in ("whole", "whole-gloo", "fsdp", "fsdp-gloo") if c in point.ms
        ]
        text += ["", "; ".join(whole) + "."] if whole else []
        text += ["", f"The turns of a case lie {point.unsteady:.1f} ms apart (median over the cases)."]
        if judged := verdicts(point):
            text += ["", "| goal | found | wanted | met |", "|---|---|---|---|", *judged]
    if overheads:
        text += [
            "",
            "## What a bucket and a parameter cost",
            "",
            "In models of 200 and 1200 parameters of 64 elements; µs.",
            "",
        ]
        text += ["| | found | wanted | met |", "|---|---|---|---|"]
        for what, (name, goal) in OVERHEADS.items():
            found = median(float(row["us"]) for row in overheads if row["what"] == what)
            wanted, met = ("", "") if goal is None else (f"<= {goal:g}", _verdict(found <= goal))
            text.append(f"| {name} | {found:.2f} | {wanted} | {met} |")
    return "\n".join(text) + "\n"


def plot(rows: Rows, path: Path) -> None:
    """Bars of what is exposed; a panel for each model in each place."""
    shown = points(rows)
    columns = min(2, len(shown))
    figure = Figure(figsize=(6.2 * columns, 3.3 * -(-len(shown) // columns)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(-(-len(shown) // columns), columns, squeeze=False).flatten()
    for axes, point in zip(panels, shown, strict=False):
        cases = point.cases()[::-1]
        values = [point.exposed(c) for c in cases]
        colors = ["#555555" if c == "ddp-gloo" else "#e08214" if c.startswith("dp-fixed") else "#0b5fa5" for c in cases]
        bars = axes.barh([label(c).replace("`", "") for c in cases], values, color=colors)
        axes.bar_label(
            bars,
            [f"{v:.1f} ms, {point.share(c):.0%}" for c, v in zip(cases, values, strict=True)],
            padding=3,
            fontsize=7,
        )
        axes.set_xlim(min(0.0, *values), 1.3 * max(1e-3, *values))
        axes.tick_params(labelsize=7)
        where = "one host" if point.place == "loopback" else f"{point.place} Mbit/s"
        axes.set_title(f"{point.model}, {where}: ms exposed, share of the step", fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in panels[len(shown) :]:
        axes.set_visible(False)
    figure.savefig(path, dpi=150)


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write(folder: Path) -> None:
    """Rewrite table and plot from the CSV files in `folder`."""
    rows = _read(folder / "torch_training.csv")
    (folder / "torch_training.md").write_text(markdown(rows, _read(folder / "torch_training_overhead.csv")))
    plot(rows, folder / "torch_training.png")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "results")
