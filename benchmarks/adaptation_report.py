"""What `benchmarks/adaptation.py` measures, and its report: table, page and plot."""

from __future__ import annotations

import datetime
import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ringleader.cli.system import system_info

HOSTS = 4
ELEMENTS = 1 << 20
COMPUTE = 0.075  # seconds of a step
FAST, SLOW = 1000, 100  # Mbit/s
STATIC = ("f32", "bf16", "int8", "1-bit")
UNEVEN = (1000, 1000, 1000, 250)
ADAPTIVE = "adaptive"
COLUMNS = ("part", "repeat", "contestant", "mbits", "step", "seconds", "used")


def of(
    rows: Sequence[dict[str, Any]], part: str, contestant: str, mbits: int, repeat: int | None = None
) -> list[float]:
    """Seconds of the steps of a contestant."""
    return [
        float(row["seconds"])
        for row in rows
        if (row["part"], row["contestant"], int(row["mbits"])) == (part, contestant, mbits)
        and repeat in (None, int(row["repeat"]))
    ]


def phases(rows: Sequence[dict[str, Any]], repeat: int) -> list[list[dict[str, Any]]]:
    """The adaptive run's three phases."""
    mine = [row for row in rows if row["part"] == "change" and int(row["repeat"]) == repeat]
    starts = [index for index, row in enumerate(mine) if int(row["step"]) == 0] + [len(mine)]
    return [mine[a:b] for a, b in itertools.pairwise(starts)]


def settled(phase: Sequence[dict[str, Any]]) -> int:
    """Steps of a phase before the first one with the choice that it ends with."""
    last = phase[-1]["used"].split()[-1]
    return next(index for index, row in enumerate(phase) if row["used"].split()[-1] == last)


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, float]]:
    """Per repeat: totals of the adaptive run, the oracle and the fixed choices, and steps until each new choice."""
    found = []
    for repeat in sorted({int(row["repeat"]) for row in rows if row["part"] == "change"}):
        parts = phases(rows, repeat)
        mean = {
            (each, mbits): statistics.fmean(of(rows, "static", each, mbits, repeat))
            for each in STATIC
            for mbits in (FAST, SLOW)
        }
        totals = {
            each: sum(len(part) * mean[each, mbits] for part, mbits in zip(parts, (FAST, SLOW, FAST), strict=True))
            for each in STATIC
        }
        oracle = sum(
            len(part) * min(mean[each, mbits] for each in STATIC)
            for part, mbits in zip(parts, (FAST, SLOW, FAST), strict=True)
        )
        total = sum(float(row["seconds"]) for part in parts for row in part)
        steady = statistics.fmean(of(rows, "steady", ADAPTIVE, FAST, repeat)) / statistics.fmean(
            of(rows, "steady", "f32", FAST, repeat)
        )
        found.append(
            {
                "repeat": repeat,
                "total": total,
                "oracle": oracle,
                "over_oracle": total / oracle,
                "worst": max(totals.values()),
                "worst_over": max(totals.values()) / total,
                "down": settled(parts[1]),
                "up": settled(parts[2]),
                "steady": steady,
                **{f"static {each}": value for each, value in totals.items()},
            }
        )
    return found


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The page."""
    info = system_info()
    day = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    found = summary(rows)
    lines = [
        "# Adaptation",
        "",
        "Written by `benchmarks/adaptation.py`; how it works: [docs/adaptive.md](../../docs/adaptive.md).",
        "",
        f"{HOSTS} network namespaces on one machine ({info['cpu']}, {info['usable_cores']} cores, {info['kernel']}), "
        f"shaped with tc tbf; Ringleader {info['ringleader']}; {day}. A step: {COMPUTE * 1e3:.0f} ms of computing (a "
        f"sleep, as on an accelerator) beside an all-reduce of {ELEMENTS * 4 >> 20} MiB of float32, whose result the "
        f"step waits for. All lines go from {FAST} to {SLOW} Mbit/s and back to {FAST}; each phase has "
        f"{len(phases(rows, 0)[0])} steps. Allowed beside float32: bf16, int8, and 1-bit with error feedback, in this "
        "order.",
        "",
        "| repeat | adaptive | oracle | over the oracle | worst fixed choice | so many times longer "
        "| new choice after, down | up | steady, over f32 |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {each['repeat']:.0f} | {each['total']:.2f} s | {each['oracle']:.2f} s | {each['over_oracle']:.3f} "
        f"| {each['worst']:.2f} s | {each['worst_over']:.2f} | {each['down']:.0f} steps | {each['up']:.0f} steps "
        f"| {each['steady']:.3f} |"
        for each in found
    ]
    exact = sum(row["used"].endswith("f32") for row in rows if row["part"] == "change")
    steps = sum(row["part"] == "change" for row in rows)
    lines += [
        "",
        f"Of the adaptive runs' {steps} steps {exact} sent float32. Always 1-bit takes as long as the oracle here, but "
        "loses something in every step.",
    ]
    lines += [
        "",
        "Mean time of a step with a fixed choice (built-in algorithm):",
        "",
        "| | " + " | ".join(STATIC) + " |",
    ]
    lines.append("|---" * (len(STATIC) + 1) + "|")
    for mbits in (FAST, SLOW):
        means = [f"{statistics.fmean(of(rows, 'static', each, mbits)) * 1e3:.1f} ms" for each in STATIC]
        lines.append(f"| {mbits} Mbit/s | " + " | ".join(means) + " |")
    each_run = len(of(rows, "uneven", ADAPTIVE, min(UNEVEN), repeat=0))
    lines += [
        "", f"## One slow host: {', '.join(map(str, UNEVEN))} Mbit/s", "",
        f"The all-reduce alone, float32 only, nothing beside it; median. Each adaptive run is new on this "
        f"network: {each_run} steps, of which the last third counts.", "", "| choice | time |", "|---|---|",
    ]  # fmt: skip
    lines += [
        f"| {each} | {statistics.median(of(rows, 'uneven', each, min(UNEVEN))) * 1e3:.1f} ms |"
        for each in ("ring", "two_shot")
    ]
    for repeat in sorted({int(row["repeat"]) for row in rows if row["part"] == "uneven"}):
        run = [
            row for row in rows if (row["part"], row["contestant"], int(row["repeat"])) == ("uneven", ADAPTIVE, repeat)
        ]
        late = run[2 * len(run) // 3 :]
        median = statistics.median(float(row["seconds"]) for row in late)
        lines.append(f"| adaptive, repeat {repeat}, in the end {late[-1]['used']} | {median * 1e3:.1f} ms |")
    return "\n".join(lines) + "\n"


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Time of each step of the adaptive run, and what a fixed choice and the oracle take there."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    parts = phases(rows, 0)
    figure, axes = plt.subplots(figsize=(9, 4))
    steps = [float(row["seconds"]) * 1e3 for part in parts for row in part]
    axes.plot(steps, label="adaptive", color="tab:blue", zorder=3)
    at = 0
    for part, mbits in zip(parts, (FAST, SLOW, FAST), strict=True):
        for each, color in zip(STATIC, ("tab:red", "tab:orange", "tab:green", "tab:purple"), strict=True):
            mean = statistics.fmean(of(rows, "static", each, mbits)) * 1e3
            axes.plot(
                [at, at + len(part)],
                [mean, mean],
                color=color,
                linestyle=":",
                label=f"always {each}" if at == 0 else None,
            )
        at += len(part)
        axes.axvline(at, color="gray", linewidth=0.5)
    axes.set(xlabel="step", ylabel="ms a step", yscale="log", title=f"{FAST} -> {SLOW} -> {FAST} Mbit/s, {HOSTS} hosts")
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
