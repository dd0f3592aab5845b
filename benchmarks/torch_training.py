"""Training steps through PyTorch on two ranks: DDP over Gloo and over Ringleader, DataParallel, FSDP2.

    python benchmarks/torch_training.py [--models transformer,mlp] [--places loopback,1000] [--rounds 5] [--steps 2]

All cases live in the same two processes and take turns, one thread a rank. Places: ``loopback`` (both ranks on this
host) and rates in Mbit/s, where the ranks are on two hosts (network namespaces; needs root and iproute2) with shaped
links. What a step exposes of its communication is its time less that of a step that communicates nothing. Writes
results/torch_training.csv (one line a step), torch_training_overhead.csv, torch_training.md and .png.
"""

from __future__ import annotations

import argparse
import csv
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch_training_report as report
from namespaces import goodput, shape
from slow_network import Job

from tests.hosts.conftest import Hosts

FIXED = (1, 4, 10, 25)  # MiB of a bucket
CASES = (
    "compute", "whole", "whole-gloo", "ddp-gloo", "ddp", "ddp-registered", "dp-off", *(f"dp-fixed-{m}" for m in FIXED),
    "dp-plan", "dp-priority", "fsdp-gloo", "fsdp",
)  # fmt: skip
NOT_BETWEEN_HOSTS = ("whole-gloo", "ddp-registered", "dp-off", "dp-fixed-10", "fsdp-gloo", "fsdp")
"""Left out where steps are long: registered memory does not reach other hosts, the others would tell little more."""
START_LIMIT, MEASURE_LIMIT = 150.0, 150.0  # seconds
WARM_UP_RATE = 10_000  # Mbit/s, while models are made
COLUMNS = (
    "place", "goodput_mbits", "model", "parameters", "buckets", "case", "round", "step", "ms", "rank0_ms", "rank1_ms",
)  # fmt: skip
RANK = Path(__file__).with_name("torch_training_rank.py")


class TwoRanks(Job):
    """Two ranks that are alive over all models: on this host, or on two."""

    def __init__(self, hosts: Hosts | None) -> None:
        self.processes = []
        for rank in range(2):
            variables = {
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "LOCAL_RANK": "0" if hosts else str(rank),
                "LOCAL_WORLD_SIZE": "1" if hosts else "2",
                "MASTER_ADDR": hosts.address(0) if hosts else "127.0.0.1",
                "MASTER_PORT": "29655",
                "OMP_NUM_THREADS": "1",
            }
            command = [sys.executable, str(RANK)]
            if hosts:  # by its name torch's side tells hosts apart
                variables |= {"RINGLEADER_SECRET": "a secret of the benchmark, 32 bytes", "GLOO_SOCKET_IFNAME": "eth0"}
                named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', hosts.name(rank)]
                command = ["ip", "netns", "exec", hosts.name(rank), *named, *command]
            pipe = subprocess.PIPE
            process = subprocess.Popen(command, env={**os.environ, **variables}, stdin=pipe, stdout=pipe, text=True)
            self.processes.append(process)


def rows_of(answers: list[dict[str, Any]], common: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A line for each step; its time is that of the slower rank."""
    for case, rounds in answers[0].items():
        for turn, steps in enumerate(rounds):
            for step in range(len(steps)):
                each = [answer[case][turn][step] for answer in answers]
                numbers = {"ms": max(each), "rank0_ms": each[0], "rank1_ms": each[1]}
                yield {**common, "case": case, "round": turn, "step": step, **numbers}


def measure_place(
    place: str, arguments: argparse.Namespace
) -> Iterator[tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    """All models in a place: lines of both files."""
    hosts = None if place == "loopback" else Hosts(2)
    job = None
    try:
        common: dict[str, Any] = {"place": place, "goodput_mbits": ""}
        if hosts is not None:
            hosts.create()
            shape(hosts, int(place))
            common["goodput_mbits"] = round(goodput(hosts, int(place)), 1)
        job = TwoRanks(hosts)
        cases = [c for c in arguments.cases if hosts is None or c not in NOT_BETWEEN_HOSTS]
        for model in arguments.models:
            began = time.monotonic()
            told = job.ask(f"model {model} {','.join(cases)}", START_LIMIT)[0]
            settled = time.monotonic()
            answers = job.ask(f"measure {arguments.rounds} {arguments.steps}", MEASURE_LIMIT)
            found = list(rows_of(answers, {**common, "model": model, **told}))
            print(
                f"\n{place}, {model}: {settled - began:.0f} s to settle, {time.monotonic() - settled:.0f} s", flush=True
            )
            print("\n".join(report.lines(found)), flush=True)
            yield found, []
        if hosts is None:
            answers = [job.ask("overhead", MEASURE_LIMIT) for _ in range(3)]
            yield (
                [],
                [
                    {"what": what, "turn": turn, "us": round(max(rank[what] for rank in ranks), 3)}
                    for turn, ranks in enumerate(answers)
                    for what in ranks[0]
                ],
            )
    finally:
        if job is not None:
            job.close()
        if hosts is not None:
            hosts.destroy()


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="transformer,mlp", help="default %(default)s")
    parser.add_argument("--places", default="loopback,1000", help="default %(default)s")
    parser.add_argument("--cases", default=",".join(CASES), help="default %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each case (default %(default)s)")
    parser.add_argument("--steps", type=int, default=2, help="steps of a turn (default %(default)s)")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    for name in ("models", "places", "cases"):
        setattr(arguments, name, getattr(arguments, name).split(","))
    return arguments


def _write(path: Path, columns: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def _late(*_: Any) -> None:
    raise TimeoutError(f"the ranks did not answer within {START_LIMIT:.0f} or {MEASURE_LIMIT:.0f} s")


def main() -> int:
    """Measure and write; exit code 1 if there are no namespaces."""
    arguments = parse_arguments()
    # Both by exceptions, which remove the namespaces on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGALRM, _late)
    arguments.output.mkdir(parents=True, exist_ok=True)
    steps: list[dict[str, Any]] = []
    overheads: list[dict[str, Any]] = []
    try:
        for place in arguments.places:
            for found, costs in measure_place(place, arguments):
                steps += found
                overheads += costs
                _write(arguments.output / "torch_training.csv", COLUMNS, steps)
                _write(arguments.output / "torch_training_overhead.csv", ("what", "turn", "us"), overheads)
    except subprocess.CalledProcessError as error:
        print(f"cannot make namespaces (root and iproute2 are needed): {error.stderr}", file=sys.stderr)
        return 1
    report.write(arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
