"""Does training with compressed gradients end where training without does? Real data, every compressor, several seeds.

    python benchmarks/convergence.py [--tasks digits,text,text-adamw] [--methods onebit,topk1] [--seeds 5] [--keep]

Each run is DistributedDataParallel with a hook of `ringleader.torch.hooks` on 2 or 4 ranks, over sockets on this host,
so that the engine's counters tell what was sent. Runs of a seed are compared in pairs: same weights, same batches.
Writes results/convergence.csv (one line a run), convergence_curves.csv, convergence.md and convergence.png. The results
do not depend on how busy the machine is. Needs scikit-learn, which brings SciPy, and matplotlib.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import convergence_report as report
import convergence_tasks as tasks

import ringleader as rl

LAST_STEPS = 20  # the training loss of a run is the mean over so many
RUN_LIMIT = 300.0  # seconds


def measure(workers: rl.WorkerGroup, task: str, method: str, seed: int, folder: str) -> tuple[Any, list[Any]]:
    """The line of a run, and the lines of its curve."""
    store = f"{folder}/{task}-{method}-{seed}"
    ranks: list[dict[str, Any]] = workers.run(tasks.train, store, task, method, seed, timeout=RUN_LIMIT)
    first = ranks[0]
    losses = [statistics.fmean(each) for each in zip(*(rank["losses"] for rank in ranks), strict=True)]
    _, loss, accuracy = first["evaluations"][-1]
    run = {
        "task": task,
        "method": method,
        "seed": seed,
        "ranks": len(ranks),
        "parameters": first["parameters"],
        "steps": len(losses),
        "train_loss": round(statistics.fmean(losses[-LAST_STEPS:]), 6),
        "loss": round(loss, 6),
        "accuracy": round(accuracy, 6),
        # Of the rank that sent most, as a link has to carry that.
        "bytes_per_step": round(max(rank["sent"] / rank["counted_steps"] for rank in ranks), 1),
        "seconds": round(first["seconds"], 2),
    }
    curve = [
        {"task": task, "method": method, "seed": seed, "step": s, "loss": round(a, 5), "accuracy": round(b, 5)}
        for s, a, b in first["evaluations"]
    ]
    return run, curve


def read(path: Path) -> list[dict[str, str]]:
    """The lines of a CSV; none if there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """A CSV of lines with equal columns."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def missing(task: str, methods: Iterable[str], seeds: int, done: set[tuple[str, str, str]]) -> list[tuple[str, int]]:
    """What is still to be run, seed by seed."""
    allowed = tasks.TASKS[task].methods
    order = [method for method in methods if method in allowed]
    return [(m, seed) for seed in range(seeds) for m in order if (task, m, str(seed)) not in done]


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(tasks.TASKS), help="default %(default)s")
    parser.add_argument("--methods", default=",".join(tasks.METHODS), help="default: all")
    parser.add_argument("--seeds", type=int, default=5, help="default %(default)s")
    parser.add_argument("--keep", action="store_true", help="only run what is not in the CSV")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    return parser.parse_args()


def main() -> None:
    """Run what is asked for and write all results."""
    arguments = parse_arguments()
    arguments.output.mkdir(parents=True, exist_ok=True)
    paths = [arguments.output / name for name in ("convergence.csv", "convergence_curves.csv")]
    runs, curves = ([*read(path)] if arguments.keep else [] for path in paths)
    done = {(row["task"], row["method"], row["seed"]) for row in runs}
    for task in arguments.tasks.split(","):
        wanted = missing(task, arguments.methods.split(","), arguments.seeds, done)
        if not wanted:
            continue
        env = {"OMP_NUM_THREADS": "1"}
        with (
            tempfile.TemporaryDirectory() as folder,
            rl.WorkerGroup(tasks.TASKS[task].ranks, env=env, transport="tcp") as workers,
        ):
            for method, seed in wanted:
                began = time.perf_counter()
                run, curve = measure(workers, task, method, seed, folder)
                runs, curves = [*runs, run], [*curves, *curve]
                print(
                    f"{task:>10} {method:>16} seed {seed}: loss {run['loss']:.4f}, accuracy {run['accuracy']:.3f}, "
                    f"{run['bytes_per_step']:8.0f} bytes a step, {time.perf_counter() - began:.1f} s",
                    flush=True,
                )
                write(paths[0], runs)
                write(paths[1], curves)
    report.write(arguments.output)


if __name__ == "__main__":
    main()
