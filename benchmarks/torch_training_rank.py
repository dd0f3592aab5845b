"""One rank of the training benchmark: steps of all cases in turn. Obeys lines on stdin, see `torch_training`.

``model <name> <cases>`` makes a trainer for each case and lets it settle, ``measure <rounds> <steps>`` times them in
turn, ``overhead`` measures what buckets and hooks cost; each is answered by a line of JSON. ``end`` ends it.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import ringleader.torch  # noqa: E402
from benchmarks.slow_network_rank import MODELS, batch_of  # noqa: E402

SETTLE = {"plan": 25, "priority": 25}
"""Steps before the first that counts: plans record some, and are judged in some. Others need 3."""


class Trainer:
    """A model as a case has it, and its optimiser.

    Cases: ``compute`` (DDP in `no_sync`), ``ddp-gloo``, ``ddp``, ``ddp-registered``, ``dp-off``, ``dp-fixed-<MiB>``,
    ``dp-plan``, ``dp-priority``, ``fsdp-gloo``, ``fsdp``.
    """

    def __init__(self, case: str, kind: str, group: Any) -> None:
        torch.manual_seed(7)
        style, _, how = case.partition("-")
        net = MODELS[kind]()
        self.model: Any
        self.communicates = style != "compute"
        if style == "fsdp":
            self.model = sharded(net, dist.group.WORLD if how == "gloo" else group)
        elif style == "dp":
            overlap, _, mib = how.partition("-")
            options = {"bucket_cap_mb": float(mib)} if mib else {}
            self.model = ringleader.torch.DataParallel(net, group, overlap=overlap, **options)
        else:
            over = group if style == "ddp" and how != "gloo" else None
            self.model = DistributedDataParallel(net, process_group=over, gradient_as_bucket_view=True)
            if how == "registered":
                ringleader.torch.register_ddp(self.model)
        if how == "priority":
            self.optimizer = self.model.optimizer(torch.optim.SGD, lr=0.01, momentum=0.9)
        else:
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.kind, self.data = kind, torch.Generator().manual_seed(dist.get_rank())
        for _ in range(SETTLE.get(how, 3)):
            self.step()

    def step(self) -> None:
        """Forward, backward, the optimiser's step."""
        x, y = batch_of(self.kind, self.data)
        with contextlib.nullcontext() if self.communicates else self.model.no_sync():
            logits = self.model(x)
            functional.cross_entropy(logits.flatten(0, -2), y.flatten()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def finish(self) -> None:
        """Nothing of the last step is left to do for the next."""
        if isinstance(self.model, ringleader.torch.DataParallel):
            self.model.synchronize()


class Whole:
    """The whole gradient in one all-reduce, with nothing else going on."""

    def __init__(self, case: str, kind: str, group: Any) -> None:
        self.group = dist.group.WORLD if case == "whole-gloo" else group
        self.x = torch.rand(sum(p.numel() for p in MODELS[kind]().parameters()))
        self.step()

    def step(self) -> None:
        """One all-reduce."""
        dist.all_reduce(self.x, group=self.group)
        self.x /= dist.get_world_size()

    def finish(self) -> None:
        """Nothing is left."""


def sharded(net: nn.Module, group: Any) -> Any:
    """FSDP2 by blocks, or by layers where there are none."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    mesh = DeviceMesh.from_group(group, "cpu")
    for part in [*getattr(net, "blocks", [])] or [m for m in net.modules() if isinstance(m, nn.Linear)]:
        fully_shard(part, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def block(trainer: Any, group: Any, steps: int) -> list[float]:
    """Milliseconds of `steps` steps, after one that does not count.

    A step that leaves communication to the next one's forward pass is charged for it: the steps are timed between the
    same places of consecutive steps, and there is a step before the first.
    """
    dist.barrier(group)
    trainer.step()
    times = []
    began = time.perf_counter()
    for _ in range(steps):
        trainer.step()
        now = time.perf_counter()
        times.append(round((now - began) * 1e3, 4))
        began = now
    trainer.finish()
    return times


def measure(trainers: dict[str, Any], group: Any, rounds: int, steps: int) -> dict[str, list[list[float]]]:
    """All cases in turn, several times."""
    results: dict[str, list[list[float]]] = {case: [] for case in trainers}
    for _ in range(rounds):
        for case, trainer in trainers.items():
            results[case].append(block(trainer, group, steps))
    return results


# ------------------------------------------------------------------------------------------------------- overheads


class Many(nn.Module):
    """Many small parameters, each used once: next to nothing is computed."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.ones(64)) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        """The sum of x times each."""
        return torch.stack([(w * x).sum() for w in self.weights]).sum()


def hooked(model: nn.Module) -> nn.Module:
    """With hooks on the parameters that do nothing: what any hook in Python costs."""
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda _: None)
    return model


def passes(models: dict[str, Any], group: Any, times: int) -> dict[str, float]:
    """Median microseconds of a forward and backward pass of each model, in turn."""
    found: dict[str, list[float]] = {name: [] for name in models}
    x = torch.full((64,), 1e-3)
    for repeat in range(times + 5):
        for name, model in models.items():
            dist.barrier(group)
            began = time.perf_counter()
            model(x).backward()
            if repeat >= 5:
                found[name].append((time.perf_counter() - began) * 1e6)
            model.zero_grad()
    return {name: median(each) for name, each in found.items()}


def overhead(group: Any, few: int = 200, many: int = 1200, times: int = 40) -> dict[str, float]:
    """Microseconds that a further bucket costs, and a further parameter, in a step with almost no computing.

    A bucket: of as many buckets as parameters, and of one. A parameter: of many in one bucket, and of few.
    """
    wrap = {
        "ddp-gloo": lambda net, mib: DistributedDataParallel(net, bucket_cap_mb=mib, gradient_as_bucket_view=True),
        "ddp": lambda net, mib: DistributedDataParallel(
            net, process_group=group, bucket_cap_mb=mib, gradient_as_bucket_view=True
        ),
        "dp": lambda net, mib: ringleader.torch.DataParallel(net, group, overlap="fixed", bucket_cap_mb=mib),
    }
    sizes = {"each": 1e-4, "all": 25.0}
    found = passes(
        {f"{name} {size}": make(Many(few), mib) for name, make in wrap.items() for size, mib in sizes.items()},
        group,
        times,
    )
    result = {f"bucket {name}": (found[f"{name} each"] - found[f"{name} all"]) / (few - 1) for name in wrap}
    models: dict[str, Any] = {}
    for n in (few, many):
        models |= {f"plain {n}": Many(n), f"hook {n}": hooked(Many(n))}
        models |= {f"{name} {n}": wrap[name](Many(n), 25.0) for name in ("ddp", "dp")}
    found = passes(models, group, times)
    for name in ("hook", "ddp", "dp"):
        above = {n: found[f"{name} {n}"] - found[f"plain {n}"] for n in (few, many)}
        result[f"parameter {name}"] = (above[many] - above[few]) / (many - few)
    return result


# ----------------------------------------------------------------------------------------------------------- the rank


def prepare(kind: str, cases: list[str], group: Any) -> dict[str, Any]:
    """A trainer for each case; prints what is to be known of the model, and the plan's buckets."""
    trainers = {c: (Whole if c.startswith("whole") else Trainer)(c, kind, group) for c in cases}
    told: dict[str, Any] = {"parameters": sum(p.numel() for p in MODELS[kind]().parameters())}
    if "dp-plan" in trainers:
        plan = trainers["dp-plan"].model.plan()
        told["buckets"] = None if plan is None else len(plan.buckets)
    print(json.dumps(told), flush=True)
    return trainers


def main() -> None:
    """Serve."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    group = dist.new_group(backend="ringleader")
    trainers: dict[str, Any] = {}
    for line in sys.stdin:
        match line.split():
            case ["model", kind, cases]:
                trainers.clear()
                trainers = prepare(kind, cases.split(","), group)
            case ["measure", rounds, steps]:
                print(json.dumps(measure(trainers, group, int(rounds), int(steps))), flush=True)
            case ["overhead"]:
                print(json.dumps(overhead(group)), flush=True)
            case _:
                break
    trainers.clear()  # what of DDP outlives a Gloo group makes the process abort at times
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
