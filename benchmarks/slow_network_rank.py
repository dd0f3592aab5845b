"""One rank of the slow-network benchmark: step times of all contestants in turn, and what went over the link.

Obeys lines on stdin: ``model <name>`` and ``measure <rounds>`` are answered by a line of JSON, ``end`` ends it. See
`slow_network`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from examples.train_text import CONTEXT, VOCABULARY, Gpt  # noqa: E402
from ringleader import compress  # noqa: E402
from ringleader.torch import hooks  # noqa: E402

FRAME_HEADERS = 14 + 20 + 32  # Ethernet, IPv4, TCP with time stamps: what tc counts of a frame and no program sends
RANK = 4  # PowerSGD
TOP = 0.01


@dataclass(frozen=True)
class Contestant:
    """A way to reduce gradients; `slow`: its steps are few, as each lasts seconds."""

    label: str
    hook: Callable[[], hooks.CompressionHook] | None = None
    backend: str = "ringleader"
    slow: bool = False


CONTESTANTS: dict[str, Contestant] = {
    "compute": Contestant("compute only", backend="gloo"),
    "gloo": Contestant("DDP over Gloo", backend="gloo", slow=True),
    "none": Contestant("DDP over Ringleader", slow=True),
    "bf16": Contestant("bf16", hooks.bf16, slow=True),
    "int4": Contestant("int4, feedback", hooks.int4),
    "onebit": Contestant("1-bit, feedback", hooks.onebit),
    "topk": Contestant("top-k 1%, feedback", functools.partial(hooks.topk, TOP)),
    "dgc": Contestant("DGC 1%", functools.partial(hooks.dgc, TOP)),
    "powersgd": Contestant(f"PowerSGD rank {RANK}, feedback", functools.partial(hooks.powersgd, RANK)),
}


def mlp() -> nn.Module:
    """10.0 million parameters."""
    return nn.Sequential(
        nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(),
        nn.Linear(2048, 10),
    )  # fmt: skip


def batch_of(model: str, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Inputs and targets."""
    if model == "mlp":
        return torch.randn(64, 784, generator=generator), torch.randint(10, (64,), generator=generator)
    tokens = torch.randint(VOCABULARY, (4, CONTEXT + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


MODELS: dict[str, Callable[[], nn.Module]] = {"transformer": Gpt, "mlp": mlp}


# ----------------------------------------------------------------------------------------------------------- counting


def expected_bytes(name: str, model: nn.Module, ranks: int, least: int = 1024) -> float | None:
    """What a step sends from each rank by the compressor's formula, without any headers; None if there is none here."""
    sizes = [tuple(parameter.shape) for parameter in model.parameters()]
    many = [size for size in sizes if len(size) > 1 and torch.Size(size).numel() >= least]
    elements = sum(torch.Size(size).numel() for size in many)
    rest = sum(torch.Size(size).numel() for size in sizes) - elements
    all_reduced = 2 * (ranks - 1) / ranks  # times the bytes that are reduced
    if name in ("none", "gloo"):
        return all_reduced * 4 * (elements + rest)
    if name == "bf16":
        return all_reduced * 2 * (elements + rest)
    blocks: dict[str, compress.Compressor] = {"onebit": compress.OneBit(), "int4": compress.Int4()}
    if name in blocks:
        return all_reduced * (blocks[name].wire_bytes(elements) + 4 * rest)
    if name == "dgc":  # all parameters
        return (ranks - 1) * 8 * TOP * (elements + rest)
    if name == "topk":
        return (ranks - 1) * 8 * TOP * elements + all_reduced * 4 * rest
    if name == "powersgd":
        factors = sum(RANK * (size[0] + torch.Size(size).numel() // size[0]) for size in many)
        return all_reduced * 4 * (factors + rest)
    return None


def link() -> dict[str, int]:
    """Bytes and frames that this host's shaper has let out, as ``tc -s`` tells."""
    said = subprocess.run(
        ["tc", "-s", "-j", "qdisc", "show", "dev", "eth0"], capture_output=True, check=True, text=True
    )
    shaper = json.loads(said.stdout)[0]
    return {"bytes": shaper["bytes"], "packets": shaper["packets"]}


def counted(group: Any) -> int:
    """Bytes that the engine has sent over sockets on all communicators of a process group."""
    return sum(channel.comm.counters()["bytes_sent_net"] for channel in group._channels())


# ----------------------------------------------------------------------------------------------------------- the steps


class Trainer:
    """A model of one contestant and its optimiser."""

    def __init__(self, name: str, kind: str, group: Any, bucket_mb: float) -> None:
        how = CONTESTANTS[name]
        torch.manual_seed(7)
        self.communicates = name != "compute"
        over = group if how.backend == "ringleader" else None
        options = {"bucket_cap_mb": bucket_mb} if how.hook is not None else {}
        self.model = DistributedDataParallel(
            MODELS[kind](), process_group=over, gradient_as_bucket_view=True, **options
        )
        if how.hook is not None:
            how.hook().register(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.kind, self.data = kind, torch.Generator().manual_seed(dist.get_rank())

    def step(self) -> None:
        """Forward, backward, the optimiser's step."""
        x, y = batch_of(self.kind, self.data)
        with contextlib.nullcontext() if self.communicates else self.model.no_sync():
            logits = self.model(x)
            functional.cross_entropy(logits.flatten(0, -2), y.flatten()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)


def block(trainer: Trainer, group: Any, steps: int, lead: int) -> dict[str, Any]:
    """`steps` timed steps, after `lead` others: a pause lets the shaper save up a burst, which they use up."""
    dist.barrier(group)
    before, sent = link(), counted(group)
    dist.barrier(group)
    for _ in range(lead):
        trainer.step()
    began, cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        trainer.step()
    elapsed, cpu = time.perf_counter() - began, time.process_time() - cpu
    dist.barrier(group)  # all have received what this rank sent
    after, total = link(), steps + lead
    nbytes, packets = (after[name] - before[name] for name in ("bytes", "packets"))
    return {
        "ms": elapsed / steps * 1e3,
        "cpu_ms": cpu / steps * 1e3,
        "counter_bytes": (counted(group) - sent) / total,
        "link_bytes": nbytes / total,
        "link_payload": (nbytes - FRAME_HEADERS * packets) / total,
    }


def measure(trainers: dict[str, Trainer], group: Any, rounds: int) -> dict[str, list[dict[str, Any]]]:
    """All contestants in turn, several times."""
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in trainers}
    for _ in range(rounds):
        for name, trainer in trainers.items():
            slow = CONTESTANTS[name].slow
            results[name].append(block(trainer, group, steps=1 if slow else 3, lead=0 if slow else 1))
    return results


def prepare(kind: str, names: list[str], group: Any, bucket_mb: float) -> dict[str, Trainer]:
    """A trainer for each contestant, after its first steps; prints what is to be known of the model."""
    trainers = {name: Trainer(name, kind, group, bucket_mb) for name in names}
    for trainer in trainers.values():
        for _ in range(2):  # DDP arranges its buckets anew after the first, hooks compress from the second on
            trainer.step()
    first = next(iter(trainers.values())).model.module
    expected = {name: expected_bytes(name, first, dist.get_world_size()) for name in names}
    parameters = sum(parameter.numel() for parameter in first.parameters())
    print(json.dumps({"expected": expected, "parameters": parameters}), flush=True)
    return trainers


def main() -> None:
    """Serve: contestants and the size of buckets are in the arguments."""
    names, bucket_mb = sys.argv[1].split(","), float(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    group = dist.new_group(backend="ringleader")
    trainers: dict[str, Trainer] = {}
    for line in sys.stdin:
        match line.split():
            case ["model", kind]:
                trainers.clear()
                trainers = prepare(kind, names, group, bucket_mb)
            case ["measure", rounds]:
                print(json.dumps(measure(trainers, group, int(rounds))), flush=True)
            case _:
                break
    trainers.clear()  # what of DDP outlives a Gloo group makes the process abort at times
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
