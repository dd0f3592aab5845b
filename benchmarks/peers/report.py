"""From results/peers.csv to the page and the plot; alone (``python -m peers.report FOLDER``) it rewrites both."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from peers.judge import IDEAL, OURS, Number, Results, Verdict, best_peer, judge, ratio, read
from peers.points import Place, Plan
from ringleader.cli.plot import Series, draw_axes
from ringleader.cli.words import format_size

__all__ = ["write"]

_NAMES = {
    "plain": "Ringleader",
    "registered": "registered",
    "persistent": "persistent",
    IDEAL: "ideal",
    "gloo": "Gloo",
    "openmpi-sm": "Open MPI sm",
    "openmpi-tcp": "Open MPI tcp",
    "mpich-shm": "MPICH shm",
    "mpich-tcp": "MPICH tcp",
    "intelmpi-shm": "Intel MPI shm",
    "intelmpi-tcp": "Intel MPI tcp",
}
Section = tuple[Place, str, bool]


def _time(number: Number | None) -> str:
    if number is None:
        return "-"
    us = number.median
    text = f"{us / 1e3:.1f} ms" if us >= 1e4 else f"{us:.0f}" if us >= 100 else f"{us:.3g}"
    return f"{text}*" if number.spread > 2 else text


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _targets(verdicts: list[Verdict]) -> list[str]:
    lines = ["| case | memory, call | against | at most | met | worst | median |", "|---|---|---|---|---|---|---|"]
    for target, ratios in verdicts:
        it = Verdict(target, ratios)
        worst = max(ratios, key=lambda point: ratios[point])
        whole = f"{it.met} of {len(ratios)}"
        lines.append(
            f"| {target.case} | {target.contestant} | {'best peer' if target.against == 'peer' else target.against} "
            f"| {target.limit:g} | {whole if it.met == len(ratios) else f'**{whole}**'} "
            f"| {ratios[worst]:.2f} at {format_size(worst.nbytes)} | {statistics.median(ratios.values()):.2f} |"
        )
    return lines


def _sections(results: Results) -> dict[Section, list[Plan]]:
    sections: dict[Section, list[Plan]] = {}
    for point in sorted(results, key=lambda p: (p.place.transport, p.rewrite, p.dtype != "float32", p)):
        sections.setdefault((point.place, point.dtype, point.rewrite), []).append(point)
    return sections


def _title(section: Section) -> str:
    place, dtype, rewrite = section
    return f"{place}, {dtype}{', rewritten buffers' if rewrite else ''}"


def _present(results: Results, points: list[Plan]) -> list[str]:
    found = {name for point in points for name in results[point]}
    return [name for name in _NAMES if name in found]


def _table(results: Results, points: list[Plan]) -> list[str]:
    names = _present(results, points)
    ours = [name for name in OURS if name in names]
    head = ["size", *(_NAMES[name] for name in names), *(f"{_NAMES[name]} / best" for name in ours)]
    head += ["registered / ideal"] if IDEAL in names else []
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for point in points:
        numbers = results[point]
        best = best_peer(numbers)
        cells = [format_size(point.nbytes)]
        for name in names:
            text = _time(numbers.get(name))
            cells.append(f"**{text}**" if best is not None and name == best[0] else text)
        cells += [_ratio(ratio(numbers, name, "peer")) for name in ours]
        cells += [_ratio(ratio(numbers, "registered", IDEAL))] if IDEAL in names else []
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def markdown(results: Results, failures: list[str], conditions: list[str]) -> str:
    """The whole page."""
    lines = [
        "# All-reduce: Ringleader and its peers",
        "",
        "Sum, in place, from Python. Written by `make bench-peers` (`benchmarks/peers`); method and reading: "
        "[docs/benchmarks.md](../../docs/benchmarks.md#against-mpi).",
        "",
        *(f"- {condition}" for condition in conditions),
        "",
        "Ratios are Ringleader's time over the best peer's of the same point: below 1, Ringleader is faster.",
        "",
        "![Time over size](peers.png)",
        "",
        "## Targets",
        "",
        *_targets(judge(results, rewrite=False)),
    ]
    if rewritten := judge(results, rewrite=True):
        lines += ["", "The same with buffers rewritten between calls:", "", *_targets(rewritten)]
    lines += [
        "",
        "Below: microseconds unless marked ms, of the slowest rank. Bold: the best peer. *: the slowest block took "
        "more than twice the fastest. 16-bit floats: bfloat16 for Ringleader and Gloo, float16 for the MPIs.",
    ]
    for section, points in _sections(results).items():
        lines += ["", f"## {_title(section)}", "", *_table(results, points)]
    if failures:
        lines += ["", "## Failed, and skipped from there on", "", *(f"- {failure}" for failure in failures)]
    return "\n".join(lines) + "\n"


_STYLES: dict[str, dict[str, Any]] = {
    "plain": {"color": "#0b5fa5", "linewidth": 2.0},
    "registered": {"color": "#e08214", "linewidth": 2.0},
    "persistent": {"color": "#b2182b", "linewidth": 1.2},
    IDEAL: {"color": "#000000", "linestyle": ":", "marker": "None"},
    "gloo": {"color": "#777777", "linestyle": "--", "marker": "s"},
    "openmpi": {"color": "#1b7837", "linestyle": "--", "marker": "^"},
    "mpich": {"color": "#8856a7", "linestyle": "--", "marker": "v"},
    "intelmpi": {"color": "#41b6c4", "linestyle": "--", "marker": "D"},
}


def plot(results: Results, path: Path) -> None:
    """One panel a section."""
    sections = _sections(results)
    columns = min(len(sections), 3)
    rows = -(-len(sections) // columns)
    figure = Figure(figsize=(4.9 * columns, 3.8 * rows + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    handles: dict[str, Any] = {}
    for axes, (section, points) in zip(panels, sections.items(), strict=False):
        lines = []
        for name in _present(results, points):
            found = [(point.nbytes, results[point][name].median) for point in points if name in results[point]]
            family = name.rpartition("-")[0] or name
            label = {"registered": "Ringleader, registered memory", "persistent": "Ringleader, persistent operation"}
            shown = label.get(name, _NAMES[name].removesuffix(" sm").removesuffix(" shm").removesuffix(" tcp"))
            lines.append(Series(shown, [n for n, _ in found], [t for _, t in found], _STYLES[family]))
        draw_axes(axes, lines, _title(section))
        for line, label_text in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label_text, line)
    for axes in panels[len(sections) :]:
        axes.set_visible(False)
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    figure.suptitle("All-reduce: time of the slowest rank over size", fontsize=12)
    figure.savefig(path, dpi=130)


def write(folder: Path) -> list[Path]:
    """Rewrite page and plot from peers.csv and peers.conditions.txt in `folder`; what was written."""
    results, failures = read(folder / "peers.csv")
    noted = folder / "peers.conditions.txt"
    page, picture = folder / "peers.md", folder / "peers.png"
    page.write_text(markdown(results, failures, noted.read_text().splitlines() if noted.exists() else []))
    if results:
        plot(results, picture)
    return [page, picture]


if __name__ == "__main__":
    write(Path(sys.argv[1]))
