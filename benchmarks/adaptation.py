"""Adaptive all-reduce against fixed choices while the network changes. Needs root and iproute2.

Network namespaces, one rank in each. A step is computing (a sleep: the work of an accelerator) beside an all-reduce of
a gradient, whose result the step waits for. All lines go from 1 Gbit/s to 100 Mbit/s and back, between two steps;
nobody is told. The oracle knows the changes: in each phase it takes the fixed choice that was the fastest there. Then
one host alone becomes slow. Writes results/adaptation.csv, .md and .png.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import numpy as np  # noqa: E402
from adaptation_report import (  # noqa: E402
    ADAPTIVE,
    COLUMNS,
    COMPUTE,
    ELEMENTS,
    FAST,
    HOSTS,
    SLOW,
    STATIC,
    UNEVEN,
    markdown,
    plot,
    summary,
)

import ringleader as rl  # noqa: E402
from ringleader import compress  # noqa: E402
from tests.hosts.conftest import PREFIX, Hosts, ip  # noqa: E402

# ------------------------------------------------------------------------------------------------------- on the hosts


def policies() -> list[Any]:
    """What the adaptive contestant may use beside float32."""
    return ["bf16", "int8", compress.ErrorFeedback(compress.OneBit())]


class Rank:
    """One rank; does what the lines on standard input say, and rank 0 answers with the time of each step."""

    def __init__(self) -> None:
        self.comm = rl.init()
        self.gradient = np.random.default_rng(self.comm.rank).standard_normal(ELEMENTS, np.float32)
        self.one_bit = compress.ErrorFeedback(compress.OneBit())
        self.fresh: dict[str, Any] = {}

    def serve(self) -> None:
        """Until the end of the input."""
        for line in sys.stdin:
            order = json.loads(line)
            rows = self.run(**order)
            if self.comm.rank == 0:
                print(json.dumps(rows), flush=True)
        for reduce in self.fresh.values():
            reduce.close()
        self.comm.close()

    def run(self, contestant: str, steps: int, overlap: bool, new: bool) -> list[tuple[float, str]]:
        """Seconds of each step, and what it used."""
        if contestant == ADAPTIVE:
            if new and (old := self.fresh.pop(contestant, None)) is not None:
                old.close()
            if contestant not in self.fresh:
                self.fresh[contestant] = rl.adapt.AdaptiveAllReduce(
                    self.comm, policies() if overlap else None, overlap=overlap
                )
        self.comm.barrier()
        rows = []
        for _ in range(steps):
            begun = time.perf_counter()
            used = self.step(contestant, overlap)
            rows.append((time.perf_counter() - begun, used))
        return rows

    def step(self, contestant: str, overlap: bool) -> str:
        """A step of training."""
        x = self.gradient.copy()
        if contestant == ADAPTIVE:
            reduce = self.fresh[contestant]
            if overlap:
                work = reduce(x, "avg", async_op=True)
                time.sleep(COMPUTE)
                work.wait()
            else:
                reduce(x, "avg")
            return str(reduce.latest)
        if contestant == "1-bit":
            work = _pool().submit(lambda: self.comm.all_reduce(x, "avg", compression=self.one_bit.at("x")))
            time.sleep(COMPUTE)
            work.result()
        elif overlap:
            work = self.comm.all_reduce(x, "avg", wire=contestant, async_op=True)
            time.sleep(COMPUTE)
            work.wait()
        else:
            self.comm.all_reduce(x, "avg", algorithm=contestant)
        return contestant


def _pool() -> Any:
    from concurrent.futures import ThreadPoolExecutor

    if not hasattr(_pool, "made"):
        _pool.made = ThreadPoolExecutor(1)  # type: ignore[attr-defined]
    return _pool.made  # type: ignore[attr-defined]


# -------------------------------------------------------------------------------------------------------- around them


def shape(hosts: Hosts, rates: Sequence[int]) -> None:
    """The rate of each host's line, both ways, in Mbit/s; 2 ms of it may go at once."""
    for host, mbits in enumerate(rates):
        for namespace, device in ((hosts.name(host), "eth0"), (f"{hosts.tag}sw", f"p{host}")):
            limits = ["rate", f"{mbits}mbit", "burst", str(mbits * 250), "latency", "20ms"]
            command = ["tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf", *limits]
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=20)


class Job:
    """The ranks of all hosts."""

    def __init__(self, hosts: Hosts) -> None:
        self.ranks = []
        for host in range(hosts.count):
            name = hosts.name(host)
            route = [f"{PREFIX}.0/24", "dev", "eth0", "proto", "kernel", "scope", "link", "src", hosts.address(host)]
            ip("-n", name, "route", "replace", *route, "congctl", "cubic")
            variables = {
                "RANK": str(host), "WORLD_SIZE": str(hosts.count), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
                "MASTER_ADDR": hosts.address(0), "MASTER_PORT": "29650", "OMP_NUM_THREADS": "1",
                "RINGLEADER_SECRET": "a secret of the benchmark, 32 bytes", "RINGLEADER_TUNING_FILE": "none",
            }  # fmt: skip
            command = ["ip", "netns", "exec", name, sys.executable, __file__, "--rank"]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE if host == 0 else None}
            self.ranks.append(subprocess.Popen(command, env={**os.environ, **variables}, text=True, **pipes))  # type: ignore[call-overload]

    def run(self, contestant: str, steps: int, overlap: bool = True, new: bool = False) -> list[tuple[float, str]]:
        """Let all ranks make steps."""
        order = {"contestant": contestant, "steps": steps, "overlap": overlap, "new": new}
        for rank in self.ranks:
            rank.stdin.write(json.dumps(order) + "\n")
            rank.stdin.flush()
        line = self.ranks[0].stdout.readline()
        if not line:
            raise RuntimeError("rank 0 ended; see its error above")
        return [(seconds, used) for seconds, used in json.loads(line)]

    def end(self) -> None:
        """Let them go."""
        for rank in self.ranks:
            rank.stdin.close()
        for rank in self.ranks:
            try:
                rank.wait(15)
            except subprocess.TimeoutExpired:
                rank.kill()
                rank.wait()


def measure(hosts: Hosts, job: Job, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """All rows of the CSV."""
    rows: list[dict[str, Any]] = []

    def keep(part: str, repeat: int, contestant: str, mbits: int, seen: Sequence[tuple[float, str]]) -> None:
        print(
            f"{part:8} {contestant:10} {mbits:5} Mbit/s  {sum(s for s, _ in seen) / len(seen) * 1e3:8.1f} ms a step",
            flush=True,
        )
        for step, (seconds, used) in enumerate(seen):
            values = (part, repeat, contestant, mbits, step, round(seconds, 6), used)
            rows.append(dict(zip(COLUMNS, values, strict=True)))

    every = (FAST,) * HOSTS
    for repeat in range(arguments.repeats):
        for mbits in (FAST, SLOW):
            shape(hosts, (mbits,) * HOSTS)
            for contestant in STATIC:
                job.run(contestant, 2)
                keep("static", repeat, contestant, mbits, job.run(contestant, arguments.static_steps))
        for phase, mbits in enumerate((FAST, SLOW, FAST)):
            shape(hosts, (mbits,) * HOSTS)
            keep("change", repeat, ADAPTIVE, mbits, job.run(ADAPTIVE, arguments.steps, new=phase == 0))
        for turn in range(arguments.turns):
            for contestant in ("f32", ADAPTIVE):
                keep(
                    "steady",
                    repeat,
                    contestant,
                    FAST,
                    job.run(contestant, arguments.steps, new=turn == 0),
                )
    for repeat in range(arguments.repeats):
        shape(hosts, UNEVEN)
        for contestant in ("ring", "two_shot"):
            job.run(contestant, 2, overlap=False)
            keep("uneven", repeat, contestant, min(UNEVEN), job.run(contestant, 8, overlap=False))
        keep("uneven", repeat, ADAPTIVE, min(UNEVEN), job.run(ADAPTIVE, 30, overlap=False, new=True))
        shape(hosts, every)
    return rows


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, help="of a phase (default %(default)s)")
    parser.add_argument("--static-steps", type=int, default=8, help="default %(default)s")
    parser.add_argument("--turns", type=int, default=3, help="of the steady comparison (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="default %(default)s")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)  # started by this script
    return parser.parse_args()


def main() -> int:
    """Measure and write; exit code 1 if there are no namespaces."""
    arguments = parse_arguments()
    if arguments.rank:
        Rank().serve()
        return 0
    hosts = Hosts(HOSTS)
    try:
        hosts.create()
        shape(hosts, (FAST,) * HOSTS)
        job = Job(hosts)
        try:
            rows = measure(hosts, job, arguments)
        finally:
            job.end()
    except subprocess.CalledProcessError as error:
        print(f"cannot make namespaces (root and iproute2 are needed): {error.stderr.strip()}", file=sys.stderr)
        return 1
    finally:
        hosts.destroy()
    arguments.output.mkdir(parents=True, exist_ok=True)
    with (arguments.output / "adaptation.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    (arguments.output / "adaptation.md").write_text(markdown(rows))
    plot(rows, arguments.output / "adaptation.png")
    for each in summary(rows):
        print(json.dumps({name: round(value, 4) for name, value in each.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
