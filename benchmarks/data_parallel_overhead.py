"""What `ringleader.torch.DataParallel` costs besides the all-reduce itself: per parameter, and per bucket.

    python benchmarks/data_parallel_overhead.py [--ranks 2] [--json FILE]

Per parameter, for one rank: how much longer a backward pass over many tiny parameters takes, divided by their number;
with hooks that only count (within ``no_sync``), and with gradients collected in one bucket. Per bucket: how much longer
it takes for every further bucket of 1 KiB, beside the time of that all-reduce on its own; sent while the backward pass
goes on, or at its end. Kinds take turns. Of each the fastest rounds count (the tenth percentile, of the slowest rank):
these are small differences, and whatever else runs on the machine only ever adds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import ringleader as rl
from ringleader.torch import DataParallel

PARAMETERS = (100, 400)
BUCKETS = (4, 36)
ROUNDS = 200


class Many(nn.Module):
    """So many parameters of so many elements, whose gradients take next to no time."""

    def __init__(self, parameters: int, elements: int) -> None:
        super().__init__()
        self.parts = nn.ParameterList(torch.ones(elements) for _ in range(parameters))

    def forward(self) -> Tensor:
        return torch.cat(list(self.parts)).sum()


def backward_seconds(model: Any, quiet: bool = False) -> float:
    """One backward pass, gradients being there already."""
    if quiet:
        with model.no_sync():
            return backward_seconds(model)
    loss = model()
    began = time.perf_counter()
    loss.backward()
    return time.perf_counter() - began


def fastest(kinds: dict[str, Callable[[], float]]) -> dict[str, float]:
    """Seconds of each kind, the kinds taking turns; of the slowest rank."""
    samples: dict[str, list[float]] = {name: [] for name in kinds}
    for turn in range(ROUNDS + 10):
        for name, run in kinds.items():
            seconds = run()
            if turn >= 10:
                samples[name].append(seconds)
    told = torch.tensor([statistics.quantiles(values, n=10)[0] for values in samples.values()], dtype=torch.float64)
    dist.all_reduce(told, dist.ReduceOp.MAX)
    return dict(zip(samples, told.tolist(), strict=True))


def join(store: str) -> None:
    torch.set_num_threads(1)
    index, size = int(os.environ["RINGLEADER_RANK"]), int(os.environ["RINGLEADER_SIZE"])
    dist.init_process_group("ringleader", init_method=f"file://{store}", rank=index, world_size=size)


def parameters(store: str) -> dict[str, float]:
    """Seconds of backward passes over many parameters; by one rank, which waits for nobody."""
    join(store)
    kinds: dict[str, Callable[[], float]] = {}
    for n in PARAMETERS:
        plain, wrapped = Many(n, 1), DataParallel(Many(n, 1), overlap="fixed")
        kinds[f"plain {n}"] = lambda m=plain: backward_seconds(m)
        kinds[f"counted {n}"] = lambda m=wrapped: backward_seconds(m, quiet=True)
        kinds[f"reduced {n}"] = lambda m=wrapped: backward_seconds(m)
    times = fastest(kinds)
    dist.destroy_process_group()
    return times


def buckets(store: str) -> dict[str, float]:
    """Seconds of backward passes with many buckets of 1 KiB, and of such an all-reduce by itself."""
    join(store)
    kinds: dict[str, Callable[[], float]] = {}
    for n in BUCKETS:
        plain = Many(n, 256)
        kinds[f"alone {n}"] = lambda m=plain: backward_seconds(m)
        for overlap in ("fixed", "off"):
            wrapped = DataParallel(Many(n, 256), overlap=overlap, bucket_cap_mb=1e-4)
            kinds[f"{overlap} {n}"] = lambda m=wrapped: backward_seconds(m)
    x = torch.ones(256)
    kinds["all_reduce"] = lambda: timed(lambda: dist.all_reduce(x))
    times = fastest(kinds)
    dist.destroy_process_group()
    return times


def timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def slope(times: dict[str, float], kind: str, base: str, counts: tuple[int, int]) -> float:
    """Microseconds per further parameter or bucket, beyond what the base needs for it."""
    few, many = counts
    extra = [times[f"{kind} {n}"] - times[f"{base} {n}"] for n in counts]
    return (extra[1] - extra[0]) / (many - few) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    times: dict[str, float] = {}
    for work, ranks in ((parameters, 1), (buckets, options.ranks)):
        with tempfile.TemporaryDirectory() as folder, rl.WorkerGroup(ranks, env={"OMP_NUM_THREADS": "1"}) as group:
            times |= group.run(work, f"{folder}/store", timeout=300.0)[0]
    result = {
        "hook, us per parameter": slope(times, "counted", "plain", PARAMETERS),
        "hook and collecting, us per parameter": slope(times, "reduced", "plain", PARAMETERS),
        "bucket sent in the backward pass, us": slope(times, "fixed", "alone", BUCKETS),
        "bucket sent at its end, us": slope(times, "off", "alone", BUCKETS),
        "all_reduce of 1 KiB by itself, us": times["all_reduce"] * 1e6,
    }
    for name, value in result.items():
        print(f"{name:42} {value:7.2f}")
    if options.json is not None:
        options.json.write_text(json.dumps({"ranks": options.ranks, "results": result, "seconds": times}, indent=1))


if __name__ == "__main__":
    main()
