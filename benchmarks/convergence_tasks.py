"""What the convergence benchmark trains: small models on real data, with any compressor. Runs on the ranks.

- ``digits``: scikit-learn's 1797 handwritten digits (UCI, CC BY 4.0); two convolutions and two dense layers, SGD with
  momentum.
- ``text``: the language reference that Python carries (``pydoc_data.topics``, Python's licence); a byte-level
  transformer, SGD with momentum.
- ``text-adamw``: the same with AdamW.

All runs of a seed start from the same weights and see the same batches, so that differences are the compressor's. The
learning rate falls to zero in a straight line.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from ringleader import compress
from ringleader.torch import hooks

CONTEXT = 48
EVALUATIONS = 8
UNCOUNTED_STEPS = 2  # a hook does not compress the first step; bytes are counted after it
MOMENTUM = 0.9
# DGC takes the momentum from what it sends, so the same learning rate would move the weights less.
DGC_RATE = 3.0


@dataclass(frozen=True)
class Method:
    """A way to reduce gradients; `make` is given the seed and the number of steps.

    `own_momentum`: it takes the place of the optimiser's. `alone`: without the error feedback that it should have.
    """

    label: str
    make: Callable[[int, int], hooks.CompressionHook] | None
    own_momentum: bool = False
    alone: bool = False


# Warm-ups of top-k and DGC, which send more and more sparsely, last a tenth of the run; those of "after warm-up", which
# send uncompressed, a fifth.
METHODS: dict[str, Method] = {
    "none": Method("uncompressed", None),
    "fp16": Method("fp16", lambda seed, steps: hooks.fp16()),
    "bf16": Method("bf16", lambda seed, steps: hooks.bf16()),
    "int8": Method("int8, feedback", lambda seed, steps: hooks.int8()),
    "int4": Method("int4, feedback", lambda seed, steps: hooks.int4()),
    "qsgd8": Method("QSGD 8 bits", lambda seed, steps: hooks.qsgd(8, seed=seed)),
    "qsgd4": Method("QSGD 4 bits", lambda seed, steps: hooks.qsgd(4, seed=seed)),
    "efsgd4": Method("EF-SGD 4 bits", lambda seed, steps: hooks.compressed(compress.EFSGD(4, seed))),
    "natural": Method("natural", lambda seed, steps: hooks.natural(seed)),
    "onebit": Method("1-bit, feedback", lambda seed, steps: hooks.onebit()),
    "onebit_warm": Method("1-bit, feedback, after warm-up", lambda seed, steps: hooks.onebit(warmup_steps=steps // 5)),
    "topk1": Method("top-k 1%, feedback", lambda seed, steps: hooks.topk(0.01)),
    "topk1_sampled": Method(
        "top-k 1%, sampled, warm-up, feedback",
        lambda seed, steps: hooks.topk(0.01, selection="sampled", warmup_steps=steps // 10),
    ),
    "dgc1": Method(
        "DGC 1%, warm-up", lambda seed, steps: hooks.dgc(0.01, MOMENTUM, warmup_steps=steps // 10), own_momentum=True
    ),
    "randomk1": Method("random-k 1%, feedback", lambda seed, steps: hooks.randomk(0.01, seed=seed)),
    "randomk10": Method("random-k 10%, feedback", lambda seed, steps: hooks.randomk(0.1, seed=seed)),
    "powersgd2": Method("PowerSGD rank 2, feedback", lambda seed, steps: hooks.powersgd(2, seed=seed)),
    "powersgd4": Method("PowerSGD rank 4, feedback", lambda seed, steps: hooks.powersgd(4, seed=seed)),
    "powersgd4_warm": Method(
        "PowerSGD rank 4, feedback, after warm-up",
        lambda seed, steps: hooks.powersgd(4, seed=seed, warmup_steps=steps // 5),
    ),
    "onebit_alone": Method("1-bit alone", lambda seed, steps: hooks.onebit(error_feedback=False), alone=True),
    "topk1_alone": Method("top-k 1% alone", lambda seed, steps: hooks.topk(0.01, error_feedback=False), alone=True),
    "powersgd2_alone": Method(
        "PowerSGD rank 2 alone", lambda seed, steps: hooks.powersgd(2, seed=seed, error_feedback=False), alone=True
    ),
}


# ---------------------------------------------------------------------------------------------------------- the tasks


def sgd(parameters: Any, rate: float, own_momentum: bool) -> torch.optim.Optimizer:
    """With momentum, the optimiser's or the compressor's."""
    momentum = 0.0 if own_momentum else MOMENTUM
    return torch.optim.SGD(parameters, lr=rate * (DGC_RATE if own_momentum else 1.0), momentum=momentum)


class Digits:
    """Images of 8 x 8 pixels, ten classes; a third is held out."""

    methods = tuple(METHODS)
    batch_size, steps, ranks = 16, 300, 4

    def __init__(self) -> None:
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
        x = torch.from_numpy(images).float().view(-1, 1, 8, 8)[order] / 16
        y = torch.from_numpy(labels).long()[order]
        held = len(y) // 3
        self.test, self.train = (x[:held], y[:held]), (x[held:], y[held:])

    def model(self) -> nn.Module:
        """72000 parameters."""
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 10),
        )  # fmt: skip

    def optimizer(self, parameters: Any, own_momentum: bool) -> torch.optim.Optimizer:
        """SGD; without momentum where the compressor brings it."""
        return sgd(parameters, 0.05, own_momentum)

    def batch(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Random examples of the training set."""
        chosen = torch.randint(len(self.train[1]), (self.batch_size,), generator=generator)
        return self.train[0][chosen], self.train[1][chosen]

    def held_out(self) -> tuple[Tensor, Tensor]:
        """What is never trained on."""
        return self.test


class Text:
    """Bytes of Python's language reference; the next is to be told. The last tenth is held out."""

    methods = tuple(name for name in METHODS if name not in ("efsgd4", "qsgd4", "randomk1"))
    batch_size, steps, ranks = 4, 250, 2

    def __init__(self) -> None:
        from pydoc_data.topics import topics

        data = "\n\n".join(topics[name] for name in sorted(topics)).encode()
        text = torch.frombuffer(bytearray(data), dtype=torch.uint8).long()
        edge = len(text) * 9 // 10
        self.train = text[:edge]
        rest = text[edge:]
        starts = torch.linspace(0, len(rest) - CONTEXT - 1, 96).long()
        self.test = self._windows(rest, starts)

    @staticmethod
    def _windows(text: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        window = text[starts[:, None] + torch.arange(CONTEXT + 1)]
        return window[:, :-1], window[:, 1:]

    def model(self) -> nn.Module:
        """136000 parameters."""
        return Transformer(width=64, heads=4, layers=2)

    def optimizer(self, parameters: Any, own_momentum: bool) -> torch.optim.Optimizer:
        """SGD; without momentum where the compressor brings it."""
        return sgd(parameters, 0.1, own_momentum)

    def batch(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Random windows of the text."""
        starts = torch.randint(len(self.train) - CONTEXT - 1, (self.batch_size,), generator=generator)
        return self._windows(self.train, starts)

    def held_out(self) -> tuple[Tensor, Tensor]:
        """Windows spread evenly over the end of the text."""
        return self.test


class TextAdamW(Text):
    """The same with the optimiser that is usual for transformers."""

    methods = (
        "none", "int8", "int4", "onebit", "onebit_warm", "topk1", "powersgd2", "powersgd4", "powersgd4_warm",
        "onebit_alone",
    )  # fmt: skip

    def optimizer(self, parameters: Any, own_momentum: bool) -> torch.optim.Optimizer:
        """AdamW, for compressors without momentum."""
        return torch.optim.AdamW(parameters, lr=1e-2, betas=(0.9, 0.99))


class Transformer(nn.Module):
    """Byte-level, causal."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(256, width), nn.Embedding(CONTEXT, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 256)
        self.mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)  # no buffer: DDP would broadcast it

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, context) of bytes -> (batch, 256, context) of logits."""
        x = self.token(tokens) + self.place.weight
        return self.head(self.blocks(x, self.mask, is_causal=True)).transpose(1, 2)


TASKS: dict[str, type[Digits] | type[Text]] = {"digits": Digits, "text": Text, "text-adamw": TextAdamW}


@functools.cache
def task(name: str) -> Digits | Text:
    """One of the tasks, with its data."""
    return TASKS[name]()


# --------------------------------------------------------------------------------------------------------- on a rank


def bytes_sent() -> int:
    """What this rank's process group has sent over sockets, by the engine's counters of all its communicators."""
    group: Any = dist.group.WORLD
    return sum(channel.comm.counters()["bytes_sent_net"] for channel in group._channels())


def evaluate(model: nn.Module, held_out: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """Mean loss and accuracy on what was held out."""
    x, y = held_out
    model.eval()
    with torch.no_grad():
        logits = model(x)
    model.train()
    return functional.cross_entropy(logits, y).item(), (logits.argmax(1) == y).float().mean().item()


def train(store: str, name: str, method: str, seed: int, steps: int = 0) -> dict[str, Any]:
    """One training run, this rank's part, in a worker of `ringleader.WorkerGroup`.

    Returns
    -------
    dict
        ``losses`` of this rank's batches by step; ``sent``, bytes of this rank from the third step to the last, and
        ``counted_steps``; ``evaluations``: (step, loss, accuracy) on what was held out, on rank 0; ``parameters``.
    """
    torch.set_num_threads(1)
    job, how = task(name), METHODS[method]
    rank, ranks, steps = int(os.environ["RINGLEADER_RANK"]), int(os.environ["RINGLEADER_SIZE"]), steps or job.steps
    dist.init_process_group(
        "ringleader", store=dist.FileStore(store, ranks), rank=rank, world_size=ranks, timeout=timedelta(seconds=120)
    )
    torch.manual_seed(seed)
    module = job.model()
    model = DistributedDataParallel(module)
    if how.make is not None:
        how.make(seed, steps).register(model)
    optimizer = job.optimizer(model.parameters(), how.own_momentum)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    data = torch.Generator().manual_seed(1000 * (seed + 1) + rank)
    losses, evaluations, sent, began = [], [], 0, time.perf_counter()
    for step in range(steps):
        if step == UNCOUNTED_STEPS:
            sent = bytes_sent()
        x, y = job.batch(data)
        loss = functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if rank == 0 and (step + 1) % (steps // EVALUATIONS) == 0:
            evaluations.append((step + 1, *evaluate(module, job.held_out())))
    result = {
        "losses": losses,
        "evaluations": evaluations,
        "sent": bytes_sent() - sent,
        "counted_steps": steps - UNCOUNTED_STEPS,
        "seconds": time.perf_counter() - began,
        "parameters": sum(parameter.numel() for parameter in module.parameters()),
    }
    del model
    dist.destroy_process_group()
    return result
