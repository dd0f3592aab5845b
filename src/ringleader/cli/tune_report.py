"""``ringleader tune --report``: predictions and choices against what was measured."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ringleader._lazy import install
from ringleader.cli.words import format_size
from ringleader.errors import InvalidArgument
from ringleader.tune.place import Place
from ringleader.tune.tuner import Point, Tuning

__all__ = ["Regret", "check_report", "draw_predictions", "draw_regret", "write_report"]

Regret = tuple[Place, str, int, float]
"""Place, collective, bytes, and chosen over best time."""


def check_report(folder: Path) -> None:
    """Refuse before measuring what would fail afterwards.

    Raises
    ------
    InvalidArgument
        matplotlib is missing, or the folder cannot be made.
    """
    try:
        import matplotlib as _  # noqa: F401
    except ModuleNotFoundError:
        raise InvalidArgument(f"--report needs matplotlib; {install('cli', 'matplotlib')}") from None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgument(f"--report {folder}: {error.strerror}; expected a folder") from None


def write_report(folder: Path, tuning: Tuning) -> list[Path]:
    """Write predicted.png, regret.png, points.csv and report.md; returns their paths."""
    paths = [folder / name for name in ("predicted.png", "regret.png", "points.csv", "report.md")]
    draw_predictions(paths[0], tuning)
    measured = [point for point in tuning.points if point.times]
    draw_regret(
        paths[1], {"tuned": list(_regrets(measured, tuned=True)), "built-in": list(_regrets(measured, tuned=False))}
    )
    with paths[2].open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("ranks", "transport", "hosts", "collective", "nbytes", "algorithm", "protocol", "us", "role"))
        for point in measured:
            for trial, seconds in sorted(point.times.items(), key=lambda pair: pair[1]):
                role = "tuned" if trial == point.chosen else "built-in" if trial == point.built_in else ""
                place = point.place
                writer.writerow((place.ranks, place.transport, place.hosts, point.collective, point.nbytes,
                                 trial.algorithm, trial.protocol, f"{seconds * 1e6:.3f}", role))  # fmt: skip
    paths[3].write_text(_markdown(tuning, measured))
    return paths


def _regrets(points: Iterable[Point], tuned: bool) -> Iterable[Regret]:
    for point in points:
        seconds = point.times.get(point.chosen if tuned else point.built_in)
        if seconds is not None:
            yield point.place, point.collective, point.nbytes, seconds / min(point.times.values())


def _markdown(tuning: Tuning, measured: Sequence[Point]) -> str:
    lines = [
        "# Tuning report", "",
        f"{len(measured)} of {len(tuning.points)} requests measured in {tuning.seconds:.0f} s. "
        f"Cost model against measurements it had not seen: {tuning.errors}.", "",
        "Times are those of the tuning itself: a new measurement would show at least this regret (chosen over best "
        "time).", "",
        "| ranks | collective | size | tuned | us | best measured | us | built-in | us |",
        "|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for point in measured:
        best = min(point.times, key=lambda trial: point.times[trial])
        cells = [str(point.place), point.collective, format_size(point.nbytes)]
        for trial in (point.chosen, best, point.built_in):
            seconds = point.times.get(trial)
            cells += [trial.name, "-" if seconds is None else f"{seconds * 1e6:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


# ------------------------------------------------------------------------------------------------------------ plots


def _figure(width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def draw_predictions(path: Path, tuning: Tuning) -> None:
    """Predicted over measured time of the held-out points, both scales logarithmic."""
    figure = _figure(5.6, 5.2)
    axes = figure.add_subplot()
    for transport in dict.fromkeys(checked.place.transport for checked in tuning.checked):
        mine = [c for c in tuning.checked if c.place.transport == transport]
        axes.plot(
            [c.measured * 1e6 for c in mine], [c.predicted * 1e6 for c in mine], "o", markersize=4, label=transport
        )
    times = [t * 1e6 for c in tuning.checked for t in (c.measured, c.predicted)]
    axes.plot([min(times), max(times)], [min(times), max(times)], color="#888888", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("measured, µs")
    axes.set_ylabel("predicted, µs")
    axes.set_title(f"held-out points: {tuning.errors}", fontsize=9)
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


def draw_regret(path: Path, series: dict[str, list[Regret]]) -> None:
    """Chosen over best time by size: one pair of axes per transport and collective, a line per world and series."""
    rows = [regret for regrets in series.values() for regret in regrets]
    panels = sorted({(place.transport, collective) for place, collective, _, _ in rows})
    figure = _figure(11, 2.7 * max(-(-len(panels) // 2), 1))
    grid = figure.subplots(max(-(-len(panels) // 2), 1), 2, squeeze=False)
    for axes, panel in zip(grid.flat, panels, strict=False):
        for (name, regrets), style in zip(series.items(), ("-", ":", "--"), strict=False):
            mine = [r for r in regrets if (r[0].transport, r[1]) == panel]
            for color, ranks in enumerate(sorted({r[0].ranks for r in mine})):
                line = sorted((r[2], r[3]) for r in mine if r[0].ranks == ranks)
                label = f"{ranks} ranks, {name}"
                axes.plot(*zip(*line, strict=True), style, marker="o", markersize=3, color=f"C{color}", label=label)
        _finish(axes, " ".join(panel))
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_axis_off()
    figure.suptitle(", ".join(f"{name}: {_summary(regrets)}" for name, regrets in series.items()), fontsize=10)
    figure.savefig(path, dpi=130)


def _summary(regrets: Sequence[Regret]) -> str:
    values = [value for *_, value in regrets]
    return f"median {statistics.median(values):.2f}, max {max(values):.2f}" if values else "nothing measured"


def _finish(axes: Any, title: str) -> None:
    axes.set_xscale("log", base=2)
    low, high = axes.get_xlim()
    ticks = [1 << bits for bits in range(3, 31, 4) if low <= 1 << bits <= high]
    axes.set_xticks(ticks, [format_size(tick) for tick in ticks], fontsize=7)
    axes.set_ylim(0.9, max(axes.get_ylim()[1], 1.4))
    axes.axhline(1.0, color="#888888", linewidth=0.8)
    axes.set_title(title, fontsize=9)
    axes.set_ylabel("chosen / best time", fontsize=8)
    axes.tick_params(labelsize=7)
    axes.grid(True, color="#eeeeee", linewidth=0.6)
    axes.legend(fontsize=6, frameon=False, ncols=2)
