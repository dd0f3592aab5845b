"""What the built-in choice costs against the best simulated algorithm, for up to 512 hosts (make bench-scale)."""

from __future__ import annotations

import argparse
import csv
import functools
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ringleader.algorithms import check, get, name_of, names, parse_spec
from ringleader.errors import InvalidArgument, RingleaderError
from ringleader.simulate import Fabric, Simulation
from ringleader.topology import generate
from ringleader.tune.rules import PROTOCOLS
from ringleader.tune.select import select

RESULTS = Path(__file__).parent / "results"
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")
SPEEDS = {"1 Gbit/s": 1, "10 Gbit/s": 10, "25 Gbit/s": 25, "100 Gbit/s": 100, "400 Gbit/s": 400}
HOSTS = (1, 2, 3, 4, 6, 8, 12, 16, 32, 48, 64, 100, 128, 256, 384, 512)
EACH = (1, 2, 4, 8)
SIZES = tuple(8 << (3 * k) for k in range(10))  # 8 B to 1 GiB
SEGMENTS = (4, 16, 64)
# What is tried inside and outside of two-level algorithms.
OUTER = {
    "all_reduce": (
        "ring",
        "rabenseifner",
        "recursive_doubling",
        "recursive_multiplying",
        "bcube",
        "double_binary_tree",
    ),
    "reduce_scatter": ("ring", "recursive_halving", "direct", "pat"),
    "all_gather": ("ring", "bruck", "recursive_doubling", "direct", "pat"),
    "broadcast": ("binomial", "chain", "knomial", "scatter_allgather"),
}


@dataclass(frozen=True)
class Point:
    """One request and what it would cost, seconds."""

    speed: str
    collective: str
    hosts: int
    each: int
    nbytes: int
    chosen: str
    seconds: float
    best: str
    least: float

    @property
    def regret(self) -> float:
        """How many times longer the choice takes than the best."""
        return self.seconds / self.least


def candidates(collective: str, n: int, nodes: Sequence[int]) -> Iterator[str]:
    """Every algorithm that can run, in some segments, and two-level ones of some others."""
    for name in names(collective):
        specs = [name]
        if "segments" in get(collective, name).defaults and n <= 512:
            specs += [f"{name}:segments={k}" for k in SEGMENTS]
        if name in ("hierarchical", "hierarchical_leader"):
            specs += [f"{name}:outer={outer}" for outer in OUTER[collective]]
        for spec in specs:
            try:
                check(collective, spec, n, nodes=nodes)
            except InvalidArgument:
                continue
            yield spec


@functools.lru_cache(maxsize=4)
def fabric(speed: str, hosts: int, each: int) -> Fabric:
    """Hosts of one socket on a switch that does not block."""
    host = generate.cpu_host(sockets=1, speed=SPEEDS[speed] * generate.GIGABIT)
    cluster = generate.fat_tree(host, hosts, radix=2 * max(hosts, 1))
    return Fabric(cluster, [node for node in cluster.ranks for _ in range(each)])


def points(speed: str, collective: str, hosts: int, each: int, limit: float) -> Iterator[Point]:
    """All sizes of one layout."""
    net = fabric(speed, hosts, each)
    n, nodes = net.size, net.hosts
    if n == 1:
        return
    choices = [select(collective, size, n, nodes, itemsize=4, env={}) for size in SIZES]
    chosen = [(choice.algorithm, choice.protocol) for choice in choices]
    specs = {spec for spec, _ in chosen}
    times: dict[tuple[str, str], np.ndarray] = {}
    for spec in dict.fromkeys([*candidates(collective, n, nodes), *specs]):
        if spec not in specs and name_of(spec) != "ring" and _rows(collective, spec, n, nodes) > limit:
            continue
        try:
            for protocol in PROTOCOLS if each > 1 else PROTOCOLS[:1]:
                simulation = Simulation(spec, net, collective=collective, pull=protocol == "pull")
                times[spec, protocol] = simulation.seconds(SIZES)
        except RingleaderError as error:
            print(f"{collective} {spec} over {hosts} x {each}: {error}", file=sys.stderr)
    for i, size in enumerate(SIZES):
        taken = float(times[chosen[i] if each > 1 else (chosen[i][0], PROTOCOLS[0])][i])
        best = min(times, key=lambda key: float(times[key][i]))
        yield Point(
            speed, collective, hosts, each, size, " ".join(chosen[i]), taken, " ".join(best), float(times[best][i])
        )


def _rows(collective: str, spec: str, n: int, nodes: Sequence[int]) -> int:
    entry, values = parse_spec(collective, spec)
    return int(entry.transfers(n, values, nodes))


def summary(regrets: Sequence[float]) -> tuple[float, float, float]:
    """Median, 95th percentile and maximum."""
    return float(np.median(regrets)), float(np.percentile(regrets, 95)), float(np.max(regrets))


def report(rows: Sequence[dict[str, str]], before: Sequence[dict[str, str]], folder: Path) -> None:
    """Write scale.md and scale.png: what the choice costs; by hosts and size, the worst of all speeds."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    collectives = [c for c in COLLECTIVES if any(row["collective"] == c for row in rows)]
    lines = [
        "# The built-in choice, in simulation",
        "",
        "Time of what the built-in rules choose over that of the best algorithm, both simulated (docs/simulation.md,",
        "the costs of the library's engine): hosts of one socket on a switch that does not block.",
        f"{len(rows)} points: {_values(rows, 'speed')}; {_values(rows, 'hosts')} hosts of {_values(rows, 'each')}",
        "ranks each, 8 B to 1 GiB. `make bench-scale` simulates them again; scale.csv has each point.",
        "",
        "| collective | median | 95% | max | before: median | 95% | max |",
        "|---|---|---|---|---|---|---|",
    ]
    for collective in collectives:
        cells = [
            f"{value:.2f}"
            for table in (rows, before)
            for value in (
                summary([float(r["regret"]) for r in table if r["collective"] == collective]) if table else ()
            )
        ]
        lines.append(f"| {collective} | " + " | ".join(cells) + " |")
    lines += ["", "![regret by hosts and size](scale.png)", ""]
    (folder / "scale.md").write_text("\n".join(lines), encoding="utf-8")
    figure = Figure(figsize=(5 * len(collectives), 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, collective in zip(np.atleast_1d(figure.subplots(1, len(collectives))), collectives, strict=True):
        mine = [row for row in rows if row["collective"] == collective]
        places = sorted({(int(row["hosts"]), int(row["each"])) for row in mine})
        sizes = sorted({int(row["nbytes"]) for row in mine})
        worst = np.ones((len(places), len(sizes)))
        for row in mine:
            at = places.index((int(row["hosts"]), int(row["each"]))), sizes.index(int(row["nbytes"]))
            worst[at] = max(worst[at], float(row["regret"]))
        image = axes.imshow(worst, vmin=1, vmax=3, cmap="viridis_r", aspect="auto")
        axes.set_title(collective)
        axes.set_xticks(range(len(sizes)), [f"{size:,}" for size in sizes], rotation=60, ha="right", fontsize=7)
        axes.set_yticks(range(len(places)), [f"{hosts} x {each}" for hosts, each in places], fontsize=7)
        axes.set_xlabel("bytes")
    figure.colorbar(image, label="choice over best, worst of all link speeds")
    figure.savefig(folder / "scale.png", dpi=100)


def _values(rows: Sequence[dict[str, str]], column: str) -> str:
    return ", ".join(dict.fromkeys(row[column] for row in rows))


def main(arguments: Iterable[str] | None = None) -> None:
    """Measure, print what is worst, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--speeds", default=",".join(SPEEDS))
    parser.add_argument("--collectives", default=",".join(COLLECTIVES))
    parser.add_argument("--hosts", default=",".join(map(str, HOSTS)))
    parser.add_argument("--each", default=",".join(map(str, EACH)))
    parser.add_argument("--rows", type=float, default=3e5, help="leave out candidates with more transfers")
    parser.add_argument("--output", type=Path, default=RESULTS / "scale.csv")
    parser.add_argument("--before", type=Path, help="the same of earlier rules, for the table")
    parser.add_argument("--report-only", action="store_true", help="simulate nothing: write the table of --output")
    given = parser.parse_args(arguments)
    if not given.report_only:
        found: list[Point] = []
        for collective in given.collectives.split(","):
            for hosts in map(int, given.hosts.split(",")):
                for each in map(int, given.each.split(",")):
                    for speed in given.speeds.split(","):
                        start = time.monotonic()
                        found += (new := list(points(speed, collective, hosts, each, given.rows)))
                        if new:
                            median, most, worst = summary([point.regret for point in new])
                            print(
                                f"{collective} {hosts} x {each} {speed}: median {median:.2f}, 95% {most:.2f}, "
                                f"max {worst:.2f}  {time.monotonic() - start:.1f} s",
                                flush=True,
                            )
        with given.output.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*Point.__dataclass_fields__, "regret"])
            writer.writerows([*vars(p).values(), f"{p.regret:.3f}"] for p in found)
    tables = []
    for path in (given.output, given.before):
        tables.append(list(csv.DictReader(path.open())) if path is not None else [])
    report(tables[0], tables[1], given.output.parent)


if __name__ == "__main__":
    main()
