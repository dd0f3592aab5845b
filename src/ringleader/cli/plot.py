"""Plots of time over size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringleader._lazy import install
from ringleader._names import unknown
from ringleader.cli.words import format_size
from ringleader.errors import InvalidArgument

__all__ = ["Series", "check_plot", "draw_axes", "plot_times"]


@dataclass(frozen=True)
class Series:
    """A line: microseconds over bytes. `style` goes to matplotlib's plot."""

    label: str
    sizes: Sequence[int]
    times: Sequence[float]
    style: dict[str, Any]


def check_plot(path: Path) -> None:
    """Refuse before measuring what would fail afterwards.

    Raises
    ------
    InvalidArgument
        matplotlib is missing, or cannot write files of this kind.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise InvalidArgument(f"--plot needs matplotlib; {install('cli', 'matplotlib')}") from None
    known = Figure().canvas.get_supported_filetypes()
    if path.suffix.lstrip(".").lower() not in known:
        raise InvalidArgument(f"{path}: {unknown('kind of picture', path.suffix, ('.' + kind for kind in known))}")
    if not path.resolve().parent.is_dir():
        raise InvalidArgument(f"{path}: its directory does not exist")


def draw_axes(axes: Any, series: Sequence[Series], title: str) -> None:
    """Fill matplotlib axes: both scales logarithmic, sizes and times in units that people read."""
    for line in series:
        axes.plot(line.sizes, line.times, label=line.label, **{"marker": "o", "markersize": 3.5, **line.style})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    sizes = sorted({size for line in series for size in line.sizes})
    lowest, highest = max(sizes[0], 1).bit_length() - 1, max(sizes[-1], 1).bit_length() - 1
    step = max(1, -(-(highest - lowest) // 8))
    ticks = [1 << bits for bits in range(lowest, highest + 1, step)]
    axes.set_xticks(ticks, [format_size(tick) for tick in ticks], rotation=35, ha="right", fontsize=8)
    times = [time for line in series for time in line.times]
    axes.set_ylim(10 ** math.floor(math.log10(min(times) * 0.9)), 10 ** math.ceil(math.log10(max(times) * 1.1)))
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: _time_text(value))
    axes.tick_params(axis="y", labelsize=8)
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.set_title(title, fontsize=10)


def _time_text(microseconds: float) -> str:
    for unit, name in ((1e6, "s"), (1e3, "ms")):
        if microseconds >= unit:
            return f"{microseconds / unit:g} {name}"
    return f"{microseconds:g} µs"


def plot_times(path: Path, series: Sequence[Series], title: str) -> None:
    """Write a plot of one set of axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    draw_axes(axes, series, title)
    axes.set_xlabel("size")
    axes.set_ylabel("time, slowest rank's median")
    axes.legend(fontsize=8, frameon=False)
    figure.savefig(path, dpi=150)
