"""The rows of regret.py on disk, and their summary: results/regret.csv, regret_raw.csv, regret.md and regret.png."""

from __future__ import annotations

import csv
import platform
import statistics
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from ringleader.cli.tune_report import draw_regret
from ringleader.cli.words import format_size
from ringleader.runtime.tuning import fingerprint
from ringleader.tune.place import Place

COLUMNS = (
    "ranks", "transport", "collective", "nbytes", "tuned", "tuned_us", "built_in", "built_in_us", "best", "best_us",
    "regret", "built_in_regret", "twice_us", "algorithms", "blocks", "load",
)  # fmt: skip
RAW_COLUMNS = (
    "ranks", "transport", "collective", "nbytes", "algorithm", "protocol", "first_us", "half_a_us", "half_b_us",
)  # fmt: skip
MEDIAN, MOST, CLIFF, STEP = 1.1, 1.3, 1.2, 3.0  # targets
WORST = 12


class Results:
    """The files, written row by row; a context manager. `keep` keeps the rows of places that are not in `fresh`."""

    def __init__(self, folder: Path, keep: bool, fresh: set[tuple[int, str]]) -> None:
        self._folder = folder
        self._files: list[TextIO] = []
        self._writers = []
        for name, columns in (("regret.csv", COLUMNS), ("regret_raw.csv", RAW_COLUMNS)):
            path = folder / name
            old = _read(path) if keep and path.exists() else []
            file = path.open("w", newline="")
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(row for row in old if (int(row["ranks"]), row["transport"]) not in fresh)
            self._files.append(file)
            self._writers.append(writer)
        self._conditions = folder / "regret.conditions.txt"
        if not keep:
            self._conditions.unlink(missing_ok=True)

    def add(self, row: dict[str, Any], raw: Sequence[Sequence[Any]]) -> None:
        """A point."""
        self._writers[0].writerow(row)
        self._writers[1].writerows(dict(zip(RAW_COLUMNS, values, strict=True)) for values in raw)
        for file in self._files:
            file.flush()

    def note(self, text: str) -> None:
        """A line about the machine's state."""
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        with self._conditions.open("a") as file:
            file.write(f"{now}: {text}\n")

    def __enter__(self) -> Results:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for file in self._files:
            file.close()


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write(folder: Path) -> list[Path]:
    """Write the summary and the plot of the rows that are there; returns all paths."""
    rows = _read(folder / "regret.csv")
    conditions = folder / "regret.conditions.txt"
    said = conditions.read_text().splitlines() if conditions.exists() else []
    paths = [folder / "regret.csv", folder / "regret_raw.csv", folder / "regret.md"]
    paths[2].write_text(summary(rows, said))
    if rows:
        paths.append(folder / "regret.png")
        series = {"tuned": _series(rows, "regret"), "built-in": _series(rows, "built_in_regret")}
        draw_regret(paths[3], series)
    return paths


def _series(rows: Iterable[dict[str, str]], column: str) -> list[tuple[Place, str, int, float]]:
    return [
        (Place.local(int(r["ranks"]), r["transport"]), r["collective"], int(r["nbytes"]), float(r[column]))
        for r in rows
    ]


def summary(rows: Sequence[dict[str, str]], conditions: Sequence[str]) -> str:
    """The text of regret.md."""
    lines = ["# Regret of the choice", ""]
    if not rows:
        return "\n".join([*lines, "Nothing was measured.", ""])
    machine = ", ".join(f"{name} {value}" for name, value in fingerprint().items())
    lines += [
        f"Time of the choice over that of the best algorithm, at {len(rows)} points (world, transport, collective, "
        "size), none of which but the smallest and the largest size was among the tuner's. Everything sensible was "
        "measured at each, in alternating blocks; the best is found in one half of the blocks and timed in the other.",
        "",
        f"Machine: {machine}; Linux {platform.release()}.",
        *(f"State: {line}" for line in conditions),
        "",
        *_targets(rows),
        "",
        "| transport | collective | points | tuned: median | 90% | max | built-in: median | 90% | max |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    groups = dict.fromkeys((row["transport"], row["collective"]) for row in rows)
    for group in groups:
        mine = [row for row in rows if (row["transport"], row["collective"]) == group]
        cells = [*group, str(len(mine))]
        for column in ("regret", "built_in_regret"):
            values = sorted(float(row[column]) for row in mine)
            cells += [
                f"{statistics.median(values):.2f}",
                f"{values[int(0.9 * (len(values) - 1))]:.2f}",
                f"{values[-1]:.2f}",
            ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "Where the tuned choice is worst:", ""]
    lines += [
        "| ranks | collective | size | regret | tuned | us | best | us | built-in | us |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda row: -float(row["regret"]))[:WORST]:
        place, size = f"{row['ranks']}:{row['transport']}", format_size(int(row["nbytes"]))
        cells = [place, row["collective"], size, f"{float(row['regret']):.2f}"]
        for name in ("tuned", "best", "built_in"):
            cells += [row[name], f"{float(row[f'{name}_us']):.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _targets(rows: Sequence[dict[str, str]]) -> list[str]:
    tuned = [float(row["regret"]) for row in rows]
    built_in = [float(row["built_in_regret"]) for row in rows]
    steps = [float(row["twice_us"]) / float(row["tuned_us"]) for row in rows if row["twice_us"]]
    within = [value <= CLIFF for value in tuned]
    share = 100 * sum(within) / len(within)

    def line(what: str, value: float, limit: float) -> str:
        return f"| {what} | {value:.2f} | {limit:g} | {'met' if value <= limit else 'missed'} |"

    return [
        "| | measured | target | |", "|---|---|---|---|",
        line("tuned, median", statistics.median(tuned), MEDIAN), line("tuned, max", max(tuned), MOST),
        line("built-in, median", statistics.median(built_in), MEDIAN),
        line("built-in, max", max(built_in), MOST),
        line("twice the size, largest factor in time (tuned)", max(steps, default=0.0), STEP),
        f"| points at which the tuned choice is within {CLIFF:g} of the best | {share:.0f}% | 100% | "
        f"{'met' if all(within) else 'missed'} |",
    ]  # fmt: skip
