"""``ringleader plan``: what a training step takes on clusters that could be had."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from ringleader.cli.output import console as make_console
from ringleader.cli.plot import check_plot
from ringleader.cli.topo import load
from ringleader.cli.words import algorithm_specs
from ringleader.errors import InvalidArgument
from ringleader.simulate.training import Layout, Option, frontier, plan_cluster
from ringleader.topology import generate

__all__ = ["Work", "run_plan"]


@dataclass(frozen=True)
class Work:
    """What a step computes: tokens at operations per second, or the seconds that one rank would need."""

    tokens: float
    flops: float
    compute: float

    def seconds(self, layout: Layout) -> float:
        """Rank-seconds of a step.

        Raises
        ------
        InvalidArgument
            Neither is given, or both.
        """
        if bool(self.compute) == bool(self.tokens and self.flops) or bool(self.tokens) != bool(self.flops):
            raise InvalidArgument(
                f"--tokens {self.tokens:g}, --flops {self.flops / 1e12:g}, --compute {self.compute:g}; expected either "
                "--tokens and --flops, or --compute"
            )
        return self.compute or layout.compute_seconds(self.tokens, self.flops)


def run_plan(
    console: Console,
    model: Path,
    work: Work,
    host: str,
    network: str,
    lists: tuple[str, str | None, str],
    options: dict[str, Any],
    everything: bool,
    as_json: bool,
    plot: Path | None,
) -> None:
    """Try every cluster, and show those that are worth their hardware."""
    if plot is not None:
        check_plot(plot)
    hosts, links, algorithm = lists
    layout = Layout.read(model)
    compute = work.seconds(layout)
    with Progress(console=make_console(stderr=True), transient=True) as progress:
        task = progress.add_task("simulating", total=None)
        tried = plan_cluster(
            layout,
            compute,
            load(host, None),
            network=generate.network_of(network),
            hosts=[int(number) for number in _numbers("hosts", hosts, whole=True)],
            gigabits=[None] if links is None else _numbers("links", links),
            algorithms=algorithm_specs("all_reduce", algorithm),
            report=lambda done, of: progress.update(task, completed=done, total=of),
            **options,
        )
    best = frontier(tried)
    if as_json:
        chosen = {id(option) for option in best}
        rows = [{**_facts(option), "frontier": id(option) in chosen} for option in tried]
        facts = {"model": layout.name, "parameters": layout.parameters, "compute": compute, "host": host,
                 "network": network, "options": rows}  # fmt: skip
        print(json.dumps(facts, indent=1))
    else:
        console.print(_table(layout, compute, host, network, tried if everything else best))
        for text in dict.fromkeys(note for option in tried for note in option.step.warnings):
            console.print(f"note: {text}", highlight=False, markup=False, soft_wrap=True)
    if plot is not None:
        _plot(plot, tried, best, f"{layout.name} on {host}, {network}")


def _numbers(what: str, text: str, whole: bool = False) -> list[float]:
    try:
        found = [float(int(word)) if whole else float(word) for word in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < number < float("inf") for number in found):
        raise InvalidArgument(
            f"--{what} {text!r}; expected {'whole numbers' if whole else 'numbers'} above 0, as in 1,2,4"
        )
    return found


def _facts(option: Option) -> dict[str, object]:
    step = option.step
    return {
        "hosts": option.hosts, "ranks": option.ranks, "gigabits": option.gigabits, "algorithm": step.algorithm,
        "seconds": step.seconds, "compute": step.compute, "exposed": step.exposed,
        "exposed_share": step.exposed_share, "communication": step.communication, "buckets": len(step.plan.buckets),
    }  # fmt: skip


def _table(layout: Layout, compute: float, host: str, network: str, options: Sequence[Option]) -> Table:
    title = f"{layout.name}, {layout.parameters / 1e6:.0f} million parameters, {compute:.3g} rank-seconds a step"
    table = Table(title=f"{title}: {host}, {network}")
    headings = ("hosts", "ranks", "Gbit/s", "algorithm", "step ms", "exposed ms", "exposed", "buckets")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "algorithm" else "right")
    for option in options:
        step = option.step
        table.add_row(
            str(option.hosts),
            str(option.ranks),
            "own" if option.gigabits is None else f"{option.gigabits:g}",
            step.algorithm,
            f"{step.seconds * 1e3:.1f}",
            f"{step.exposed * 1e3:.1f}",
            f"{step.exposed_share:.1%}",
            str(len(step.plan.buckets)),
        )
    return table


def _plot(path: Path, tried: Sequence[Option], best: Sequence[Option], title: str) -> None:
    """The step over ranks, a line for each speed and algorithm; the frontier is ringed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    lines: dict[tuple[float | None, str], list[Option]] = {}
    for option in tried:
        lines.setdefault((option.gigabits, option.step.algorithm), []).append(option)
    for (speed, spec), options in lines.items():
        label = spec if speed is None else f"{spec}, {speed:g} Gbit/s"
        points = sorted(options, key=lambda option: option.ranks)
        axes.plot([o.ranks for o in points], [o.step.seconds * 1e3 for o in points], marker="o", ms=3.5, label=label)
    ringed = [o.ranks for o in best], [o.step.seconds * 1e3 for o in best]
    axes.scatter(*ringed, s=90, facecolors="none", edgecolors="black", linewidths=1.0, label="worth its hardware")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    ranks = sorted({option.ranks for option in tried})
    axes.set_xticks(ranks, [str(number) for number in ranks])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:g}")
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel("ranks")
    axes.set_ylabel("step, ms")
    axes.set_title(title, fontsize=10)
    axes.legend(fontsize=8, frameon=False)
    figure.savefig(path, dpi=150)
