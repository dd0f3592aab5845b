"""A collective over hosts of several ranks: flat against hierarchical algorithms, or several wire formats.

Hosts are namespaces shaped to a line rate, as in namespaces.py. Each number is the slowest rank's time, the median over
alternating blocks. Bytes are what one host sends to others in an operation, counted by the engine. Needs root and
iproute2. Writes results/<name>.csv and .md.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import numpy as np  # noqa: E402
from namespaces import goodput, shape  # noqa: E402

import ringleader as rl  # noqa: E402
from ringleader.cli.exchange import exchange  # noqa: E402
from ringleader.cli.system import system_info  # noqa: E402
from ringleader.cli.words import format_size, parse_size  # noqa: E402
from tests.hosts.conftest import Hosts  # noqa: E402

COLLECTIVES = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter")
COLUMNS = (
    "collective", "rate_mbits", "hosts", "ranks_per_host", "nbytes", "asked", "wire", "median_us", "fastest_us",
    "slowest_us", "iterations", "host_bytes", "algorithm", "protocol", "reason", "goodput_mbits", "load",
)  # fmt: skip
AUTO = "auto"
LIMIT = 400.0  # seconds for everything


# ------------------------------------------------------------------------------------------------------- on the hosts


def serve_rank(
    collective: str, sizes: Sequence[int], contestants: Sequence[tuple[str, str]], blocks: int, seconds: float
) -> None:
    """One rank: all contestants (algorithm, wire) at all sizes in turn; rank 0 prints a line of JSON for each."""
    with rl.init() as comm:
        here = comm.nodes[comm.rank]
        for nbytes in sizes:
            x = comm.empty(nbytes // 4, np.float32)
            x[:] = np.random.default_rng(comm.rank).standard_normal(len(x), np.float32)
            call = _caller(comm, collective, x)
            measured = [_measure(comm, call, *contestant) for contestant in contestants]
            iterations = [max(2, int(seconds * 1e6 / blocks / max(one["us"], 1.0))) for one in measured]
            times: list[list[float]] = [[] for _ in contestants]
            for _ in range(blocks):
                for index, (algorithm, wire) in enumerate(contestants):
                    times[index].append(_measure(comm, call, algorithm, wire, iterations[index])["us"])
            for index, (algorithm, wire) in enumerate(contestants):
                one = measured[index]
                sent = exchange(comm, [here, one["sent"]])
                if comm.rank != 0:
                    continue
                row = {
                    "nbytes": nbytes, "asked": algorithm, "wire": wire, "median_us": float(np.median(times[index])),
                    "fastest_us": min(times[index]), "slowest_us": max(times[index]),
                    "iterations": iterations[index] * blocks,
                    "host_bytes": sum(number for node, number in sent if node == here),
                    "algorithm": one["choice"].algorithm, "protocol": one["choice"].protocol,
                    "reason": one["choice"].reason,
                }  # fmt: skip
                print(json.dumps(row), flush=True)


def _caller(comm: Any, collective: str, x: np.ndarray) -> Callable[..., Any]:
    """The collective on the whole of `x`, in place; with blocks, every rank's is its part of `x`."""
    verb = getattr(comm, collective)
    mine = x[: len(x) // comm.size * comm.size].reshape(comm.size, -1)[comm.rank]
    whole = x[: mine.size * comm.size]
    calls: dict[str, Callable[..., Any]] = {
        "broadcast": lambda **asked: verb(x, **asked),
        "all_gather": lambda **asked: verb(mine, whole, **asked),
        "reduce_scatter": lambda **asked: verb(whole, mine, op="avg", **asked),
    }
    return calls.get(collective, lambda **asked: verb(x, op="avg", **asked))


def _measure(comm: Any, call: Callable[..., Any], algorithm: str, wire: str, iterations: int = 2) -> dict[str, Any]:
    """Microseconds of an iteration (median, of the slowest rank), and the bytes that this rank sent in one."""
    asked = {"algorithm": None if algorithm == AUTO else algorithm, "wire": wire}
    call(**asked)
    comm.barrier()
    before, took = comm.counters()["bytes_sent_net"], []
    for _ in range(iterations):
        began = time.perf_counter_ns()
        call(**asked)
        took.append((time.perf_counter_ns() - began) / 1e3)
    choice, sent = comm.last_choice, (comm.counters()["bytes_sent_net"] - before) // iterations
    slowest = np.array([np.median(took)])
    comm.all_reduce(slowest, "max")
    return {"us": float(slowest[0]), "sent": sent, "choice": choice}


# -------------------------------------------------------------------------------------------------------- around them


def measure(hosts: Hosts, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The lines of the CSV."""
    shape(hosts, arguments.rate)
    reached = goodput(hosts, arguments.rate)
    print(f"{arguments.rate} Mbit/s: TCP moves {reached:.0f} Mbit/s each way", flush=True)
    each = arguments.ranks_per_host
    ranks = []
    try:
        for rank in range(hosts.count * each):
            host = rank // each
            variables = {
                "RANK": str(rank),
                "WORLD_SIZE": str(hosts.count * each),
                "LOCAL_RANK": str(rank % each),
                "LOCAL_WORLD_SIZE": str(each),
                "MASTER_ADDR": hosts.address(0),
                "MASTER_PORT": "29650",
                "RINGLEADER_SECRET": "a secret of the benchmark, 32 bytes",
                "OMP_NUM_THREADS": "1",
            }
            # One host name for all ranks of a host: each process gets a UTS namespace of its own with it.
            named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', hosts.name(host)]
            command = ["ip", "netns", "exec", hosts.name(host), *named, sys.executable, __file__, "--rank"]
            command += ["--sizes", ",".join(map(str, arguments.sizes)), "--algorithms", ",".join(arguments.algorithms)]
            command += ["--collective", arguments.collective]
            command += ["--wires", ",".join(arguments.wires), "--blocks", str(arguments.blocks)]
            command += ["--seconds", str(arguments.seconds)]
            output = subprocess.PIPE if rank == 0 else None
            ranks.append(subprocess.Popen(command, env={**os.environ, **variables}, stdout=output, text=True))
        text = _said(ranks[0])
    finally:
        for process in ranks:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    rows = []
    for line in text.splitlines():
        row = json.loads(line) | {"rate_mbits": arguments.rate, "hosts": hosts.count, "ranks_per_host": each}
        row |= {"collective": arguments.collective, "goodput_mbits": round(reached, 1), "load": os.getloadavg()[0]}
        print(f"{format_size(row['nbytes']):>8} {row['asked']:40} {row['wire']:7} {row['median_us'] / 1e3:9.2f} ms  "
              f"{row['host_bytes'] / row['nbytes']:.3f} x its size  {row['algorithm']}", flush=True)  # fmt: skip
        rows.append({name: round(row[name], 1) if isinstance(row[name], float) else row[name] for name in COLUMNS})
    return rows


def _said(rank: subprocess.Popen[str]) -> str:
    """What a rank printed until it ended, or until the time was up."""
    try:
        return rank.communicate(timeout=LIMIT)[0]
    except subprocess.TimeoutExpired:
        rank.kill()
        return rank.communicate()[0]


# --------------------------------------------------------------------------------------------------------- the report


def markdown(rows: Sequence[dict[str, Any]], name: str) -> str:
    """The page: one table; ratios are to the first contestant of the same size."""
    info, first, kind = system_info(), rows[0], rows[0]["collective"]
    day = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    layout = f"{first['hosts']} hosts x {first['ranks_per_host']} ranks, {first['rate_mbits']} Mbit/s"
    lines = [
        f"# {kind} over {layout}",
        "",
        f"float32, in place, registered memory. Written by `benchmarks/hierarchical.py --name {name}`: network "
        f"namespaces on one machine ({info['cpu']}, {info['usable_cores']} cores, {info['kernel']}), each host's link "
        f"shaped in both directions with tc tbf; TCP moves {first['goodput_mbits']} Mbit/s each way. Ringleader "
        f"{info['ringleader']}; {day}.",
        "",
        "Time is the slowest rank's, the median over alternating blocks; *faster* compares with the first row of the "
        "size. Bytes are what one host sends in an operation, in units of the array's size. The shaper lets bursts of "
        "256 KB pass at once: operations that send less are not held to the rate. The machine's load average was "
        f"{float(first['load']):.0f}: other work disturbs, most where much is computed.",
        "",
        "| size | asked for | wire | time | faster | bytes of a host | what ran |",
        "|---|---|---|---|---|---|---|",
    ]
    base: dict[int, float] = {}
    for row in rows:
        size = int(row["nbytes"])
        base.setdefault(size, float(row["median_us"]))
        lines.append(
            f"| {format_size(size)} | {row['asked']} | {row['wire']} | {float(row['median_us']) / 1e3:.2f} ms "
            f"| {base[size] / float(row['median_us']):.2f}x | {int(row['host_bytes']) / size:.3f} "
            f"| {row['algorithm']} ({row['protocol']}) |"
        )
    return "\n".join(lines) + "\n"


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2, help="default %(default)s")
    parser.add_argument("--ranks-per-host", type=int, default=4, help="default %(default)s")
    parser.add_argument("--rate", type=int, default=200, help="Mbit/s (default %(default)s)")
    parser.add_argument("--collective", default="all_reduce", choices=COLLECTIVES)
    parser.add_argument("--sizes", default="64K,256K,1M,4M,16M", help="default %(default)s")
    parser.add_argument("--algorithms", default=f"ring,rabenseifner,hierarchical,{AUTO}", help="default %(default)s")
    parser.add_argument("--wires", default="f32", help="default %(default)s")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each number (default %(default)s)")
    parser.add_argument("--blocks", type=int, default=3, help="turns at a point (default %(default)s)")
    parser.add_argument("--name", default="hierarchical", help="of the results (default %(default)s)")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)  # started by this script
    arguments = parser.parse_args()
    arguments.sizes = [parse_size(text) for text in arguments.sizes.split(",")]
    arguments.algorithms, arguments.wires = arguments.algorithms.split(","), arguments.wires.split(",")
    return arguments


def main() -> int:
    """Measure and write; exit code 1 if there are no namespaces, or if a rank failed."""
    arguments = parse_arguments()
    contestants = [(algorithm, wire) for wire in arguments.wires for algorithm in arguments.algorithms]
    if arguments.rank:
        serve_rank(arguments.collective, arguments.sizes, contestants, arguments.blocks, arguments.seconds)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # removes the namespaces on the way out
    hosts = Hosts(arguments.hosts)
    try:
        hosts.create()
        rows = measure(hosts, arguments)
    except subprocess.CalledProcessError as error:
        print(f"cannot make namespaces (root and iproute2 are needed): {error.stderr.strip()}", file=sys.stderr)
        return 1
    finally:
        hosts.destroy()
    if rows:
        with (arguments.output / f"{arguments.name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
        (arguments.output / f"{arguments.name}.md").write_text(markdown(rows, arguments.name))
    return 0 if len(rows) == len(contestants) * len(arguments.sizes) else 1


if __name__ == "__main__":
    sys.exit(main())
