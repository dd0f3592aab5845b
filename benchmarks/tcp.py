"""All-reduce of two ranks over loopback TCP against the exchange of a message by bare sockets (tcp_exchange.c).

The exchange is what the kernel needs: nobody's all-reduce over TCP can be faster. Turns alternate in short blocks.
Writes results/tcp.csv and results/tcp.md.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import ringleader as rl
from ringleader.cli.system import system_info
from ringleader.cli.words import format_size, parse_size

SOURCE = Path(__file__).with_name("tcp_exchange.c")
COLUMNS = ("nbytes", "contestant", "median_us", "fastest_block_us", "slowest_block_us")
# Of bare sockets: congestion control, way of sending and waiting.
EXCHANGES = (("reno", "spin"), ("reno", "spin+sendmsg"), ("bbr", "spin"), ("cubic", "spin"), ("reno", "sleep"))
OURS = ("plain", "persistent")


def exchange(program: Path, nbytes: int, congestion: str, mode: str, iterations: int) -> float:
    """Microseconds of one exchange, of a block."""
    command = [str(program), str(nbytes), congestion, mode, "1", str(iterations)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return float(ran.stdout) if ran.returncode == 0 else float("nan")  # a congestion control that is not there


def all_reduce(nbytes: int, way: str, iterations: int) -> float:
    """Microseconds of one all-reduce on this rank, of a block; in registered memory and on one communicator."""
    comm: Any = vars(all_reduce).setdefault("comm", None) or rl.init(timeout=60)
    all_reduce.comm = comm  # type: ignore[attr-defined]
    x = comm.empty(nbytes // 4, np.float32)
    x[:] = comm.rank
    operation = comm.all_reduce_init(x, "max")
    run = operation if way == "persistent" else lambda: comm.all_reduce(x, "max")
    for _ in range(max(iterations // 4, 2)):
        run()
    comm.barrier()
    began = time.perf_counter()
    for _ in range(iterations):
        run()
    return (time.perf_counter() - began) / iterations * 1e6


def measure(sizes: list[int], blocks: int) -> list[dict[str, Any]]:
    """The lines of the CSV."""
    rows = []
    with tempfile.TemporaryDirectory() as folder, rl.WorkerGroup(2, transport="tcp") as ranks:
        program = Path(folder) / "exchange"
        compiler = shutil.which(os.environ.get("CC", "cc")) or sys.exit("a C compiler is needed")
        subprocess.run([compiler, "-std=gnu11", "-O2", str(SOURCE), "-o", str(program)], check=True)
        for nbytes in sizes:
            iterations = int(np.clip(2e7 / max(nbytes, 20_000), 10, 1000))
            times: dict[str, list[float]] = {}
            for _ in range(blocks):
                for congestion, mode in EXCHANGES:
                    took = exchange(program, nbytes, congestion, mode, iterations)
                    times.setdefault(f"{congestion}, {mode}", []).append(took)
                for way in OURS:
                    took = max(ranks.run(all_reduce, nbytes, way, iterations, timeout=60))
                    times.setdefault(way, []).append(took)
            for contestant, took_all in times.items():
                numbers = (statistics.median(took_all), min(took_all), max(took_all))
                rows.append(dict(zip(COLUMNS, (nbytes, contestant, *(round(it, 3) for it in numbers)), strict=True)))
            shown = "  ".join(f"{row['contestant']} {row['median_us']}" for row in rows if row["nbytes"] == nbytes)
            print(f"{format_size(nbytes):>8}  {shown}", flush=True)
    return rows


def markdown(rows: list[dict[str, Any]]) -> str:
    """The page."""
    info = system_info()
    day = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    real_time = os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR)
    priority = "real-time priority (chrt), " if real_time else ""
    names = list(dict.fromkeys(row["contestant"] for row in rows))
    lines = [
        "# TCP over loopback: an all-reduce of two ranks, and bare sockets",
        "",
        "Microseconds (median of blocks). Bare sockets: both processes send a message with a header of 120 bytes and "
        "receive the other's, by congestion control, way of waiting, and `send` or `sendmsg`; they do not reduce. "
        "Written by `benchmarks/tcp.py`.",
        "",
        f"{info['cpu']}, {info['usable_cores']} cores, {info['kernel']}, {priority}{day}.",
        "",
        "| size | " + " | ".join(names) + " | plain / best exchange |",
        "|---" * (len(names) + 2) + "|",
    ]
    for nbytes in dict.fromkeys(row["nbytes"] for row in rows):
        here = {row["contestant"]: row["median_us"] for row in rows if row["nbytes"] == nbytes}
        best = np.nanmin([value for name, value in here.items() if name not in OURS])
        cells = " | ".join(f"{here[name]:.3g}" for name in names)
        lines.append(f"| {format_size(nbytes)} | {cells} | {here['plain'] / best:.2f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="8,1K,8K,64K,256K,1M", help="default %(default)s")
    parser.add_argument("--blocks", type=int, default=9, help="turns at a size (default %(default)s)")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    rows = measure([parse_size(text) for text in arguments.sizes.split(",")], arguments.blocks)
    arguments.output.mkdir(parents=True, exist_ok=True)
    with (arguments.output / "tcp.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    (arguments.output / "tcp.md").write_text(markdown(rows))


if __name__ == "__main__":
    main()
