"""``ringleader simulate``: what collectives would take on a cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from ringleader.algorithms import all_algorithms
from ringleader.cli.output import console as make_console
from ringleader.cli.plot import Series, check_plot, plot_times
from ringleader.cli.topo import load
from ringleader.cli.words import algorithm_specs, collective_name, format_size, size_steps
from ringleader.errors import InvalidArgument, RingleaderError
from ringleader.simulate import Fabric, Result, Simulation

__all__ = ["run_simulate"]

_IN_NETWORK = "in-network"


def run_simulate(
    console: Console,
    source: str,
    algorithm: str,
    limits: tuple[int, int, float],
    options: dict[str, Any],
    stragglers: Sequence[str],
    in_network: bool,
    best: int,
    as_json: bool,
    plot: Path | None,
    trace: Path | None,
) -> None:
    """Simulate each algorithm at each size, and show the fastest."""
    if plot is not None:
        check_plot(plot)
    options["collective"] = collective_name(options["collective"])
    options["stragglers"] = dict(map(_straggler, stragglers))
    sizes = size_steps(*limits, 0)
    fabric = Fabric(load(source, None))
    everything = algorithm.strip().lower() == "all"
    specs = (
        [entry.name for entry in all_algorithms() if entry.collective == options["collective"]]
        if everything
        else algorithm_specs(options["collective"], algorithm)
    )
    found: dict[str, Simulation] = {}
    left_out: list[str] = []
    with Progress(console=make_console(stderr=True), transient=True) as progress:
        for spec in progress.track([*specs, *([_IN_NETWORK] if in_network else [])], description="simulating"):
            try:
                found[spec] = Simulation(spec, fabric, **options, in_network=spec == _IN_NETWORK)
            except RingleaderError as error:
                if not everything:
                    raise
                left_out.append(f"{spec}: {error}")
        if not found:
            raise InvalidArgument(f"no algorithm can run on {source}: " + "; ".join(left_out))
        times = {spec: simulation.seconds(sizes) for spec, simulation in found.items()}
    ranked = [sorted(times, key=lambda spec: float(times[spec][i])) for i in range(len(sizes))]
    results = [
        [found[spec].result(size) for spec in order[: len(order) if as_json else best]]
        for size, order in zip(sizes, ranked, strict=True)
    ]
    notes = [*dict.fromkeys(text for simulation in found.values() for text in simulation.warnings), *left_out]
    if as_json:
        print(json.dumps(_facts(source, fabric, results, notes), indent=1))
    else:
        console.print(_table(source, fabric, results))
        for text in notes:
            console.print(f"note: {text}", highlight=False, markup=False, soft_wrap=True)
    if plot is not None:
        lines = [Series(spec, sizes, (seconds * 1e6).tolist(), {}) for spec, seconds in times.items()]
        plot_times(plot, lines, f"{options['collective']}, {fabric.size} ranks: {fabric.topology.name}")
    if trace is not None:
        results[-1][0].trace(trace)


def _straggler(text: str) -> tuple[int, float]:
    rank, _, microseconds = text.partition("=")
    try:
        return int(rank), float(microseconds) * 1e-6
    except ValueError:
        raise InvalidArgument(
            f"straggler {text!r}; expected RANK=MICROSECONDS that it starts late, as in 3=500"
        ) from None


def _table(source: str, fabric: Fabric, results: Sequence[Sequence[Result]]) -> Table:
    table = Table(title=f"{results[0][0].collective} on {source}: {fabric.size} ranks, {len(set(fabric.hosts))} hosts")
    for heading in ("size", "algorithm", "time us", "algbw GB/s", "busbw GB/s", "busiest link"):
        table.add_column(heading, justify="left" if heading in ("algorithm", "busiest link") else "right")
    for of_size in results:
        for place, result in enumerate(of_size):
            busiest = result.bottleneck
            table.add_row(
                format_size(int(result.nbytes)) if place == 0 else "",
                result.algorithm,
                f"{result.seconds * 1e6:.1f}",
                f"{result.algorithm_bandwidth / 1e9:.3g}",
                f"{result.bus_bandwidth / 1e9:.3g}",
                "" if busiest is None else f"{busiest.name}, {busiest.busy:.0%}",
                end_section=place == len(of_size) - 1,
            )
    return table


def _facts(
    source: str, fabric: Fabric, results: Sequence[Sequence[Result]], notes: Sequence[str]
) -> Mapping[str, object]:
    rows = [
        {
            "bytes": result.nbytes, "algorithm": result.algorithm, "seconds": result.seconds,
            "algorithm_bandwidth": result.algorithm_bandwidth, "bus_bandwidth": result.bus_bandwidth,
            "costs": result.costs.name,
            "busiest_links": [{"name": k.name, "bytes": k.nbytes, "busy": k.busy} for k in result.links[:5]],
        }
        for of_size in results
        for result in of_size
    ]  # fmt: skip
    return {
        "topology": source,
        "collective": results[0][0].collective,
        "ranks": fabric.size,
        "hosts": len(set(fabric.hosts)),
        "results": rows,
        "notes": list(notes),
    }
