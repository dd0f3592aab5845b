"""All-reduce of GPU tensors: staged by Ringleader, by Gloo, by NCCL, and in two levels. For a machine with a GPU.

    python benchmarks/device.py --ranks 2 --out results.json

Several ranks may share one GPU; NCCL, alone or inside a host, is measured where there is a GPU for each rank.
``--device cpu`` runs the same code on the CPU, where copies between "device" and host are copies in memory by threads:
for a look at the script, not for numbers.

The ways alternate within each round, so that what else happens on the machine meets all of them. A time is the slowest
rank's of one call, from the moment at which all ranks have left a barrier until the result is on the device; shown is
the median of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import ringleader as rl
from ringleader.torch.devices import StreamThreads, register_device

SIZES = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 128 << 20]
SEGMENTS = ["1M", "4M", "16M"]


def ways(ranks: int, device: str) -> dict[str, tuple[str, dict[str, Any] | None]]:
    """What is compared: a name, and the backend with its options."""
    found: dict[str, tuple[str, dict[str, Any] | None]] = {
        f"ringleader, segments of {segment}": ("ringleader", {"device_segment": segment}) for segment in SEGMENTS
    }
    found["gloo"] = ("gloo", None)
    if device == "cuda" and torch.cuda.device_count() >= ranks:
        found["nccl"] = ("nccl", None)
        found["ringleader, NCCL inside"] = ("ringleader", {"inside": "nccl"})
    return found


def measure(folder: str, device: str, sizes: list[int], rounds: int) -> dict[str, dict[int, list[float]]]:
    """On one rank: seconds of each call by way and size."""
    rank, ranks = int(os.environ["RINGLEADER_RANK"]), int(os.environ["RINGLEADER_SIZE"])
    torch.set_num_threads(1)
    where = torch.device("cpu")
    if device == "cuda":
        where = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(where)
    else:
        register_device("cpu", lambda _: StreamThreads())
    # The group of all is Gloo's, so that a barrier between measurements is nobody's whose time is taken.
    limit = timedelta(seconds=300)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks, timeout=limit)
    chosen = ways(ranks, device)
    groups = {
        name: dist.new_group(backend=backend, pg_options=options, timeout=limit)
        for name, (backend, options) in chosen.items()
    }
    seconds: dict[str, dict[int, list[float]]] = {name: {size: [] for size in sizes} for name in chosen}
    for size in sizes:
        x = torch.full((size // 4,), 1.0, device=where)
        for round_ in range(rounds + 2):
            for name, group in groups.items():
                x.fill_(1.0)
                took = one(x, group, where)
                slowest = torch.tensor(took)
                dist.all_reduce(slowest, dist.ReduceOp.MAX)
                if float(x[-1]) != ranks:
                    raise RuntimeError(f"{name}: the sum of {ranks} ones is {float(x[-1])}")
                if round_ >= 2:
                    seconds[name][size].append(float(slowest))
    dist.destroy_process_group()
    return seconds


def one(x: torch.Tensor, group: Any, where: torch.device) -> float:
    """Seconds of one all-reduce."""
    if where.type == "cuda":
        torch.cuda.synchronize(where)
    dist.barrier()
    begun = time.perf_counter()
    dist.all_reduce(x, group=group)
    if where.type == "cuda":
        torch.cuda.synchronize(where)
    return time.perf_counter() - begun


def table(medians: dict[str, dict[int, float]]) -> str:
    """Milliseconds as a Markdown table."""
    sizes = list(next(iter(medians.values())))
    lines = ["| way | " + " | ".join(_text(size) for size in sizes) + " |", "|---" * (len(sizes) + 1) + "|"]
    for name, row in medians.items():
        lines.append(f"| {name} | " + " | ".join(f"{row[size] * 1e3:.3g} ms" for size in sizes) + " |")
    return "\n".join(lines)


def _text(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="largest tensor in bytes")
    parser.add_argument("--out", type=Path, help="file for all times, as JSON")
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no GPU here; --device cpu runs the script without")
    sizes = [size for size in SIZES if size <= given.largest]
    with (
        tempfile.TemporaryDirectory() as folder,
        rl.WorkerGroup(given.ranks, env={"PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}) as workers,
    ):
        import device as this_module  # by its name, under which the ranks can import it

        found = workers.run(this_module.measure, folder, given.device, sizes, given.rounds, timeout=3600)[0]
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    medians = {name: {size: statistics.median(times) for size, times in row.items()} for name, row in found.items()}
    if given.out is not None:
        about = {"ranks": given.ranks, "device": given.device, "gpus": gpus, "torch": torch.__version__}
        given.out.write_text(json.dumps({**about, "seconds": found}, indent=1) + "\n")
    print(f"{given.ranks} ranks, {given.device}, GPUs: {', '.join(gpus) or 'none'}, torch {torch.__version__}\n")
    print(table(medians))


if __name__ == "__main__":
    main()
