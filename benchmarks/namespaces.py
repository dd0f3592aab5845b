"""All-reduce between hosts: network namespaces joined by a bridge, shaped to a line rate. Needs root and iproute2.

Each host's link is shaped in both directions with ``tc tbf``, as a network card and a switch's port would do it. The
limit is what TCP moves there at the same time in both directions, measured with plain sockets in the same run: an
all-reduce has to send 2(n-1)/n times its size from every host. Ringleader and Gloo run in the same processes, in turn.
Writes results/namespaces.csv and .md.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from ringleader.cli.measure import Contestant, Point, Session, Setup  # noqa: E402
from ringleader.cli.operands import bus_factor  # noqa: E402
from ringleader.cli.system import system_info  # noqa: E402
from ringleader.cli.words import format_size, parse_size  # noqa: E402
from ringleader.schedule import Collective  # noqa: E402
from tests.hosts.conftest import PREFIX, Hosts, ip  # noqa: E402

TARGET = 0.95
PORT = 29777
LIMIT = 150.0  # seconds for all points of a rate
COLUMNS = (
    "rate_mbits", "hosts", "nbytes", "library", "median_us", "mean_us", "fastest_block_us", "slowest_block_us",
    "iterations", "wrong", "algorithm", "protocol", "windows", "goodput_mbits", "limit_us", "share",
)  # fmt: skip


# ------------------------------------------------------------------------------------------------------- on the hosts


def serve_rank(sizes: Sequence[int], seconds: float, blocks: int) -> None:
    """One rank: measure all sizes; rank 0 prints a line of JSON for each library at each size."""
    session = Session(Setup("auto", gloo=True))
    try:
        for nbytes in sizes:
            contestants = (Contestant("ringleader"), Contestant("gloo"))
            point = Point("all_reduce", nbytes, contestants, seconds=seconds, blocks=blocks, warmup=1)
            result = session.measure(point)
            for measured in result.measured if session.comm.rank == 0 else ():
                row = {
                    "nbytes": nbytes,
                    "library": measured.contestant.library,
                    **{f"{name}_us": value for name, value in asdict(measured.timing).items()},
                    "iterations": measured.timing.iterations,
                    "wrong": measured.wrong,
                    "algorithm": measured.algorithm,
                    "protocol": measured.protocol,
                    "windows": measured.windows,
                }
                print(json.dumps(row), flush=True)
    finally:
        session.close()


def exchange_bytes(address: str, serves: bool, nbytes: int) -> None:
    """One end of a TCP connection that carries `nbytes` each way at once; prints the Mbit/s that it received."""
    if serves:
        with socket.create_server(("", PORT)) as listener:
            print("listening", flush=True)
            connection, _ = listener.accept()
    else:
        connection = socket.create_connection((address, PORT), timeout=20)
        connection.settimeout(None)
    block = memoryview(bytes(1 << 18))

    def send() -> None:
        left = nbytes
        while left > 0:
            left -= connection.send(block[: min(left, len(block))])

    sender = threading.Thread(target=send)
    into, got, began = memoryview(bytearray(1 << 18)), 0, 0.0
    sender.start()
    skipped = nbytes // 4  # while TCP finds its pace
    while got < nbytes:
        got += connection.recv_into(into)
        if not began and got >= skipped:
            began, skipped = time.perf_counter(), got
    print((got - skipped) * 8 / (time.perf_counter() - began) / 1e6, flush=True)
    sender.join()
    connection.close()


# -------------------------------------------------------------------------------------------------------- around them


def shape(hosts: Hosts, mbits: int) -> None:
    """Limit every link in both directions, and choose CUBIC: the kernel's default may be another."""

    def tbf(namespace: str, device: str) -> None:
        limits = ["rate", f"{mbits}mbit", "burst", "256kb", "latency", "20ms"]
        command = ["tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf", *limits]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=20)

    for host in range(hosts.count):
        name = hosts.name(host)
        tbf(name, "eth0")
        tbf(f"{hosts.tag}sw", f"p{host}")
        route = [f"{PREFIX}.0/24", "dev", "eth0", "proto", "kernel", "scope", "link", "src", hosts.address(host)]
        ip("-n", name, "route", "replace", *route, "congctl", "cubic")


def command_on(hosts: Hosts, host: int, *arguments: str) -> list[str]:
    """This script, on a host, with a host name of its own: by that torch's side tells hosts apart."""
    name = hosts.name(host)
    named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', name]
    return ["ip", "netns", "exec", name, *named, sys.executable, __file__, *arguments]


def goodput(hosts: Hosts, mbits: int) -> float:
    """Mbit/s of TCP between two hosts, each way while both ways are busy; the slower way."""
    nbytes = str(int(mbits * 1e6 / 8 * 2))  # two seconds
    ends = []
    try:
        for host, role in ((1, "serve"), (0, "connect")):
            command = command_on(hosts, host, "--exchange", role, hosts.address(1), nbytes)
            ends.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            if role == "serve":
                assert ends[0].stdout is not None
                ends[0].stdout.readline()
        return min(float(end.communicate(timeout=60)[0]) for end in ends)
    finally:
        for end in ends:
            end.kill()
            end.wait()


def measure(hosts: Hosts, mbits: int, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The lines of the CSV for a rate."""
    shape(hosts, mbits)
    reached = goodput(hosts, mbits)
    print(f"\n{mbits} Mbit/s: TCP moves {reached:.0f} Mbit/s each way", flush=True)
    ranks = []
    try:
        for host in range(hosts.count):
            variables = {
                "RANK": str(host),
                "WORLD_SIZE": str(hosts.count),
                "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "1",
                "MASTER_ADDR": hosts.address(0),
                "MASTER_PORT": "29650",
                "RINGLEADER_SECRET": "a secret of the benchmark, 32 bytes",
                "GLOO_SOCKET_IFNAME": "eth0",
                "OMP_NUM_THREADS": "1",
            }
            sizes = ",".join(map(str, arguments.sizes))
            command = command_on(hosts, host, "--rank", "--sizes", sizes, "--seconds", str(arguments.seconds))
            command += ["--blocks", str(arguments.blocks)]
            output = subprocess.PIPE if host == 0 else None
            ranks.append(subprocess.Popen(command, env={**os.environ, **variables}, stdout=output, text=True))
        said = _said(ranks[0])
    finally:
        for rank in ranks:
            try:
                rank.wait(10)
            except subprocess.TimeoutExpired:
                rank.kill()
                rank.wait()
    if codes := [rank.returncode for rank in ranks if rank.returncode]:
        print(f"  ranks ended with exit codes {codes}: what they measured before counts", flush=True)
    rows = []
    for line in said.splitlines():
        row = json.loads(line)
        limit = bus_factor(Collective.ALL_REDUCE, hosts.count) * row["nbytes"] * 8 / reached
        row |= {"rate_mbits": mbits, "hosts": hosts.count, "goodput_mbits": round(reached, 1), "limit_us": limit}
        row["share"] = limit / row["median_us"]
        print(f"{format_size(row['nbytes']):>8} {row['library']:>10}  {row['median_us'] / 1e3:9.2f} ms  "
              f"{row['share']:.1%} of the limit", flush=True)  # fmt: skip
        rows.append({name: round(row[name], 4) if isinstance(row[name], float) else row[name] for name in COLUMNS})
    return rows


def _said(rank: subprocess.Popen[str]) -> str:
    """What a rank printed until it ended, or until the time was up."""
    try:
        return rank.communicate(timeout=LIMIT)[0]
    except subprocess.TimeoutExpired:
        rank.kill()
        return rank.communicate()[0]


# --------------------------------------------------------------------------------------------------------- the report


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The page."""
    info = system_info()
    day = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    lines = [
        "# All-reduce between hosts",
        "",
        "float32, sum, in place. Written by `benchmarks/namespaces.py`; method: "
        "[docs/benchmarks.md](../../docs/benchmarks.md#between-hosts).",
        "",
        f"Network namespaces on one machine ({info['cpu']}, {info['usable_cores']} cores, {info['kernel']}), each link "
        f"shaped in both directions with tc tbf, CUBIC; {_priority()}torch {info['torch']}, Ringleader "
        f"{info['ringleader']}; {day}.",
    ]
    for rate in dict.fromkeys(row["rate_mbits"] for row in rows):
        here = [row for row in rows if row["rate_mbits"] == rate]
        ours = [row for row in here if row["library"] == "ringleader"]
        met = sum(float(row["share"]) >= TARGET for row in ours)
        lines += [
            "",
            f"## {here[0]['hosts']} hosts, {rate} Mbit/s",
            "",
            f"Measured goodput of TCP: {here[0]['goodput_mbits']} Mbit/s each way while both ways are busy. Of the "
            f"limit that it sets, at least {TARGET:.0%} is demanded: met at {met} of {len(ours)} sizes.",
            "",
            "| size | limit | Ringleader | share | Gloo | share | algorithm |",
            "|---|---|---|---|---|---|---|",
        ]
        for mine in ours:
            gloo = next((r for r in here if r["library"] == "gloo" and r["nbytes"] == mine["nbytes"]), None)
            lines.append(
                f"| {format_size(int(mine['nbytes']))} | {float(mine['limit_us']) / 1e3:.2f} ms | {_cells(mine)} "
                f"| {_cells(gloo)} | {mine['algorithm']} ({mine['protocol']}) |"
            )
    return "\n".join(lines) + "\n"


def _priority() -> str:
    real_time = os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR)
    return (
        "all processes at real-time priority (chrt), so that nothing else on the machine disturbs; "
        if real_time
        else ""
    )


def _cells(row: dict[str, Any] | None) -> str:
    return "- | -" if row is None else f"{float(row['median_us']) / 1e3:.2f} ms | {float(row['share']):.0%}"


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=4, help="default %(default)s")
    parser.add_argument("--rates", default="1000,200", help="Mbit/s (default %(default)s)")
    parser.add_argument("--sizes", default="64K,256K,1M,4M,16M", help="default %(default)s")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each number (default %(default)s)")
    parser.add_argument("--blocks", type=int, default=5, help="turns at a point (default %(default)s)")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)  # started by this script
    parser.add_argument("--exchange", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.sizes = [parse_size(text) for text in arguments.sizes.split(",")]
    return arguments


def main() -> int:
    """Measure and write; exit code 1 if there are no namespaces, or if a rank failed."""
    arguments = parse_arguments()
    if arguments.exchange:
        role, address, nbytes = arguments.exchange
        exchange_bytes(address, role == "serve", int(nbytes))
        return 0
    if arguments.rank:
        serve_rank(arguments.sizes, arguments.seconds, arguments.blocks)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # removes the namespaces on the way out
    rows: list[dict[str, Any]] = []
    rates = [int(text) for text in arguments.rates.split(",")]
    hosts = Hosts(arguments.hosts)
    try:
        hosts.create()
        for mbits in rates:
            rows += measure(hosts, mbits, arguments)
    except subprocess.CalledProcessError as error:
        print(f"cannot make namespaces (root and iproute2 are needed): {error.stderr.strip()}", file=sys.stderr)
        return 1
    finally:
        hosts.destroy()
    arguments.output.mkdir(parents=True, exist_ok=True)
    with (arguments.output / "namespaces.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    (arguments.output / "namespaces.md").write_text(markdown(rows))
    return 0 if len(rows) == 2 * len(rates) * len(arguments.sizes) else 1


if __name__ == "__main__":
    sys.exit(main())
