"""Time to compress and decompress one gradient bucket on one core, against torch's own hooks and torch.topk.

    python benchmarks/compression.py [--elements 6250000] [--repeat 15] [--json FILE] [--docs FILE]

Each line is the best of the repetitions (the least disturbed), in milliseconds of wall time. "memory" is the time with
error feedback. No network is involved: torch's hooks run in a group of one rank over Gloo, which moves nothing.
"""

import argparse
import json
import os
import time
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook  # noqa: E402

import ringleader as rl  # noqa: E402
from ringleader import _core, compress  # noqa: E402


class Bucket:
    """What torch's hooks ask of a bucket: one square matrix."""

    def __init__(self, x: torch.Tensor) -> None:
        self._x = x
        side = int(x.numel() ** 0.5)
        self._matrix = x[: side * side].view(side, side)

    def buffer(self) -> torch.Tensor:
        return self._x

    def gradients(self) -> list[torch.Tensor]:
        return [self._matrix]

    def parameters(self) -> list[torch.Tensor]:
        return [self._matrix]

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True

    def set_buffer(self, x: torch.Tensor) -> None:
        self._x = x


def best(call: object, repeat: int) -> float:
    """Milliseconds of the fastest call, after two that do not count."""
    times = []
    for number in range(repeat + 2):
        begin = time.perf_counter()
        call()  # type: ignore[operator]
        if number >= 2:
            times.append(time.perf_counter() - begin)
    return min(times) * 1e3


def ours(x: np.ndarray, repeat: int) -> list[dict[str, object]]:
    side = int(x.size**0.5)
    makes = {
        "fp16": compress.FP16, "bf16": compress.BF16, "int8": compress.Int8, "int4": compress.Int4,
        "onebit": compress.OneBit, "qsgd 8 bits": lambda: compress.QSGD(8), "qsgd 4 bits": lambda: compress.QSGD(4),
        "natural": compress.Natural, "topk 1%": lambda: compress.TopK(ratio=0.01),
        "topk 1% sampled": lambda: compress.TopK(ratio=0.01, selection="sampled"),
        "topk 0.1%": lambda: compress.TopK(ratio=0.001), "randomk 1%": lambda: compress.RandomK(ratio=0.01),
        "powersgd rank 4": lambda: compress.PowerSGD(rank=4),
    }  # fmt: skip
    out = np.empty(x.size, np.float32)
    rows: list[dict[str, object]] = [{"name": "a copy of the array", "both": best(lambda: np.copyto(out, x), repeat)}]
    for name, make in makes.items():
        codec, memory, shaped = make(), compress.ErrorFeedback(make()), x.reshape(side, -1)
        payload = codec.compress(shaped)
        packing = best(lambda c=codec, s=shaped: c.compress(s), repeat)
        unpacking = best(lambda c=codec, p=payload: c.decompress(p, out), repeat)
        remembering = best(lambda c=memory, s=shaped: c.decompress(c.compress(s), out), repeat)
        row = {"name": name, "compress": packing, "decompress": unpacking, "both": packing + unpacking}
        rows.append({**row, "memory": remembering, "ratio": x.nbytes / payload.nbytes})
    rows.append({"name": "powersgd rank 4, as all-reduced", **power_sgd(shaped, repeat)})
    return rows


def power_sgd(x: np.ndarray, repeat: int) -> dict[str, object]:
    """The whole of PowerSGD with error feedback as an all-reduce runs it: both rounds, the result and the new error."""
    codec = compress.PowerSGD(rank=4)
    error, lost, out = (np.zeros(x.size, np.float32) for _ in range(3))

    def step() -> None:
        nonlocal error, lost
        codec.average(x.reshape(-1), lambda factors: None, "", x.shape, error, lost, out)
        error, lost = lost, error

    elapsed = best(step, repeat)
    return {"memory": elapsed, "ratio": x.nbytes / codec.wire_bytes(x.size)}


def torchs(x: torch.Tensor, repeat: int) -> list[dict[str, object]]:
    k = x.numel() // 100

    def top_k() -> None:
        _, index = torch.topk(x.abs(), k)
        values = x[index]
        torch.zeros_like(x).scatter_(0, index, values)

    def fp16() -> None:
        default_hooks.fp16_compress_hook(dist.group.WORLD, bucket).wait()

    def power_sgd() -> None:
        powerSGD_hook.powerSGD_hook(state, bucket).wait()

    bucket, state = Bucket(x.clone()), powerSGD_hook.PowerSGDState(None, 4, start_powerSGD_iter=2)
    return [
        {"name": "torch: topk 1%", "both": best(top_k, repeat)},
        {"name": "torch: fp16_compress_hook", "both": best(fp16, repeat)},
        {"name": "torch: powerSGD_hook rank 4", "memory": best(power_sgd, repeat)},
    ]


COLUMNS = ("compress", "decompress", "both", "memory", "ratio")
BEGIN, END = "<!-- costs -->", "<!-- end of costs -->"


def markdown(rows: list[dict[str, object]], machine: dict[str, object]) -> str:
    """The documentation's table, with its conditions."""
    lines = [
        f"{machine['elements']} float32 numbers, {machine['isa']}, torch {machine['torch']}; "
        f"best of {machine['repeat']}, load {machine['load']:.1f}; milliseconds.",
        "",
        "| | compress | decompress | both | with memory | times fewer bytes |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        digits = {"ratio": 1}
        cells = (f"{row[column]:.{digits.get(column, 2)}f}" if column in row else "" for column in COLUMNS)
        lines.append(f"| {row['name']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=6_250_000, help="float32 numbers; a square")
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--json", help="file for the raw numbers")
    parser.add_argument("--docs", help="file with a table of costs, which is written anew")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    load = os.getloadavg()[0]
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    x = np.random.default_rng(0).standard_normal(arguments.elements, np.float32)
    rows = ours(x, arguments.repeat) + torchs(torch.from_numpy(x), arguments.repeat)
    dist.destroy_process_group()
    machine: dict[str, object] = {
        **_core.build_info(), "isa": _core.kernel_isa(), "elements": x.size, "repeat": arguments.repeat,
        "load": load, "torch": torch.__version__, "ringleader": rl.version,
    }  # fmt: skip
    print(markdown(rows, machine))
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"machine": machine, "rows": rows}, file, indent=1)
    if arguments.docs:
        page = Path(arguments.docs).read_text()
        before, rest = page.split(BEGIN)
        Path(arguments.docs).write_text(f"{before}{BEGIN}\n{markdown(rows, machine)}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
