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

from ringleader.algorithms import check, get, names
from ringleader.errors import InvalidArgument, RingleaderError
from ringleader.simulate import Fabric, Simulation
from ringleader.topology import generate
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
    chosen = [select(collective, size, n, nodes, itemsize=4, env={}).algorithm for size in SIZES]
    times: dict[str, np.ndarray] = {}
    for spec in dict.fromkeys([*candidates(collective, n, nodes), *chosen]):
        entry = get(collective, spec.partition(":")[0])
        if spec not in chosen and entry.name != "ring" and _rows(collective, spec, n, nodes) > limit:
            continue
        try:
            times[spec] = Simulation(spec, net, collective=collective).seconds(SIZES)
        except RingleaderError as error:
            print(f"{collective} {spec} over {hosts} x {each}: {error}", file=sys.stderr)
    for i, size in enumerate(SIZES):
        best = min(times, key=lambda spec: float(times[spec][i]))
        yield Point(
            speed, collective, hosts, each, size, chosen[i], float(times[chosen[i]][i]), best, float(times[best][i])
        )


def _rows(collective: str, spec: str, n: int, nodes: Sequence[int]) -> int:
    from ringleader.algorithms import parse_spec

    entry, values = parse_spec(collective, spec)
    return int(entry.transfers(n, **entry.arguments(values, nodes)))


def summary(found: Sequence[Point]) -> str:
    """Median, 95th percentile and maximum of the regret."""
    regrets = sorted(point.regret for point in found)
    at = lambda share: regrets[min(int(share * len(regrets)), len(regrets) - 1)]  # noqa: E731
    return f"{len(regrets)} points: median {at(0.5):.2f}, 95% {at(0.95):.2f}, max {regrets[-1]:.2f}"


def main(arguments: Iterable[str] | None = None) -> None:
    """Measure, print what is worst, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--speeds", default=",".join(SPEEDS))
    parser.add_argument("--collectives", default=",".join(COLLECTIVES))
    parser.add_argument("--hosts", default=",".join(map(str, HOSTS)))
    parser.add_argument("--each", default=",".join(map(str, EACH)))
    parser.add_argument("--rows", type=float, default=3e5, help="leave out candidates with more transfers")
    parser.add_argument("--output", type=Path, default=RESULTS / "scale.csv")
    given = parser.parse_args(arguments)
    found: list[Point] = []
    for collective in given.collectives.split(","):
        for hosts in map(int, given.hosts.split(",")):
            for each in map(int, given.each.split(",")):
                for speed in given.speeds.split(","):
                    start = time.monotonic()
                    new = list(points(speed, collective, hosts, each, given.rows))
                    found += new
                    if new:
                        print(
                            f"{collective} {hosts} x {each} {speed}: {summary(new)}  {time.monotonic() - start:.1f} s",
                            flush=True,
                        )
                        for p in new:
                            if p.regret > 1.2:
                                took, could = p.seconds * 1e6, p.least * 1e6
                                print(
                                    f"  {p.nbytes:>11} {p.regret:5.2f}  {p.chosen} {took:.0f} us, {p.best} {could:.0f}"
                                )
    with given.output.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*Point.__dataclass_fields__, "regret"])
        writer.writerows([*vars(p).values(), f"{p.regret:.3f}"] for p in found)
    for collective in given.collectives.split(","):
        print(collective, summary([p for p in found if p.collective == collective]))


if __name__ == "__main__":
    main()
