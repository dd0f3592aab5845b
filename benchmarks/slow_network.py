"""Training steps over slow networks: over Gloo, over Ringleader, and compressed. Needs root and iproute2.

    python benchmarks/slow_network.py [--ranks 4,2] [--rates 200,1000] [--models transformer,mlp] [--rounds 2]

One rank on each of 2 and 4 hosts (network namespaces), whose links are shaped in both directions as in `namespaces`.
All contestants live in the same processes and take turns. Beside the times stand the bytes of a step: by the engine's
counters, by ``tc -s`` on the link, and by the compressor's formula. Writes results/compression_training.csv (one line a
turn), .md and .png.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import slow_network_report as report
from namespaces import goodput, shape
from slow_network_rank import CONTESTANTS, MODELS

from tests.hosts.conftest import Hosts

WARM_UP_RATE = 10_000  # Mbit/s
START_LIMIT, MEASURE_LIMIT = 240.0, 240.0  # seconds
COLUMNS = (
    "model", "parameters", "ranks", "rate_mbits", "goodput_mbits", "contestant", "turn", "ms", "cpu_ms",
    "counter_bytes", "link_bytes", "link_payload", "expected_bytes",
)  # fmt: skip


class Job:
    """One rank on each host, alive over all models and rates."""

    def __init__(self, hosts: Hosts, ranks: int, arguments: argparse.Namespace) -> None:
        self.processes: list[subprocess.Popen[str]] = []
        script = Path(__file__).with_name("slow_network_rank.py")
        for rank in range(ranks):
            variables = {
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "1",
                "MASTER_ADDR": hosts.address(0),
                "MASTER_PORT": "29650",
                "RINGLEADER_SECRET": "a secret of the benchmark, 32 bytes",
                "GLOO_SOCKET_IFNAME": "eth0",
                "OMP_NUM_THREADS": "1",
            }
            # A host name of its own: by that torch's side tells hosts apart.
            named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', hosts.name(rank)]
            command = ["ip", "netns", "exec", hosts.name(rank), *named, sys.executable, str(script)]
            command += [",".join(arguments.contestants), str(arguments.bucket_mb)]
            pipe = subprocess.PIPE
            process = subprocess.Popen(command, env={**os.environ, **variables}, stdin=pipe, stdout=pipe, text=True)
            self.processes.append(process)

    def ask(self, line: str, limit: float) -> list[Any]:
        """What each rank answers to a line."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(line + "\n")
            process.stdin.flush()
        signal.alarm(int(limit))
        answers = []
        for process in self.processes:
            assert process.stdout is not None
            said = process.stdout.readline()
            if not said:
                raise RuntimeError("a rank ended; what it said stands above")
            answers.append(json.loads(said))
        signal.alarm(0)
        return answers

    def close(self) -> None:
        """End the ranks."""
        for process in self.processes:
            assert process.stdin is not None
            try:
                process.stdin.write("end\n")
                process.stdin.close()
                process.wait(15)
            except (BrokenPipeError, subprocess.TimeoutExpired):
                process.kill()
                process.wait()


def _late(*_: Any) -> None:
    raise TimeoutError(
        f"the ranks did not answer within {START_LIMIT:.0f} s to start or {MEASURE_LIMIT:.0f} s to measure"
    )


def rows_of(answers: list[dict[str, Any]], common: dict[str, Any], expected: dict[str, Any]) -> list[dict[str, Any]]:
    """A line for each contestant's turn: the slowest rank's time, the bytes of the rank that sent most."""
    rows = []
    for name, turns in answers[0].items():
        for turn in range(len(turns)):
            each = [answer[name][turn] for answer in answers]
            numbers = {key: round(max(one[key] for one in each), 2) for key in turns[turn]}
            formula = expected[name]
            rows.append(
                {
                    **common,
                    "contestant": name,
                    "turn": turn,
                    **numbers,
                    "expected_bytes": "" if formula is None else round(formula),
                }
            )
    return rows


def measure(ranks: int, arguments: argparse.Namespace, goodputs: dict[int, float]) -> Iterator[list[dict[str, Any]]]:
    """All models and rates on so many hosts; what TCP moves at each rate is measured once."""
    hosts = Hosts(ranks)
    job = None
    try:
        hosts.create()
        shape(hosts, WARM_UP_RATE)
        job = Job(hosts, ranks, arguments)
        for model in arguments.models.split(","):
            shape(hosts, WARM_UP_RATE)
            told = job.ask(f"model {model}", START_LIMIT)[0]
            for rate in arguments.rates:
                shape(hosts, rate)
                if rate not in goodputs:
                    goodputs[rate] = goodput(hosts, rate)
                common = {
                    "model": model,
                    "parameters": told["parameters"],
                    "ranks": ranks,
                    "rate_mbits": rate,
                    "goodput_mbits": round(goodputs[rate], 1),
                }
                found = rows_of(job.ask(f"measure {arguments.rounds}", MEASURE_LIMIT), common, told["expected"])
                print(f"\n{model}, {ranks} ranks, {rate} Mbit/s", flush=True)
                print("\n".join(report.lines(found)), flush=True)
                yield found
    finally:
        if job is not None:
            job.close()
        hosts.destroy()


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="4,2", help="default %(default)s")
    parser.add_argument("--rates", default="200,1000", help="Mbit/s (default %(default)s)")
    parser.add_argument("--models", default=",".join(MODELS), help="default %(default)s")
    parser.add_argument("--contestants", default=",".join(CONTESTANTS), help="default %(default)s")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each contestant (default %(default)s)")
    parser.add_argument("--bucket-mb", type=float, default=8, help="DDP's buckets for hooks (default %(default)s)")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    arguments.rates = [int(rate) for rate in arguments.rates.split(",")]
    arguments.contestants = arguments.contestants.split(",")
    return arguments


def main() -> int:
    """Measure and write; exit code 1 if there are no namespaces."""
    arguments = parse_arguments()
    # Both by exceptions, which remove the namespaces on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGALRM, _late)
    rows: list[dict[str, Any]] = []
    goodputs: dict[int, float] = {}
    arguments.output.mkdir(parents=True, exist_ok=True)
    path = arguments.output / "compression_training.csv"
    try:
        for ranks in map(int, arguments.ranks.split(",")):
            for found in measure(ranks, arguments, goodputs):
                rows += found
                with path.open("w", newline="") as file:
                    writer = csv.DictWriter(file, COLUMNS)
                    writer.writeheader()
                    writer.writerows(rows)
    except subprocess.CalledProcessError as error:
        print(f"cannot make namespaces (root and iproute2 are needed): {error.stderr.strip()}", file=sys.stderr)
        return 1
    report.write(arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
