"""Record a training step, measure the all-reduce, and plan which gradients travel together.

    python examples/plan_overlap.py                              two local ranks, a transformer
    python examples/plan_overlap.py --model mlp --picture plan.png
    torchrun --nproc-per-node 4 examples/plan_overlap.py         the ranks of a launcher

Nothing is trained: each rank records a few steps of its own, the slowest rank's times count, and rank 0 prints the
plan. ``ringleader.torch.DataParallel`` does the same in its first steps by itself.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
from pathlib import Path

import torch
from torch import Tensor, nn

import ringleader as rl
from ringleader.overlap import CostCurve, Timeline, plan_buckets, plan_priority
from ringleader.torch.recording import record_timeline

BATCH, LENGTH, WORDS, WIDTH, DEPTH = 4, 64, 1500, 384, 5


class Transformer(nn.Module):
    """About ten million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 6, 4 * WIDTH, dropout=0.0, batch_first=True) for _ in range(DEPTH)
        )
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        """Scores of every word at every place."""
        x = self.embed(words)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def timeline_of(name: str) -> Timeline:
    """Record some steps."""
    torch.manual_seed(0)
    if name == "mlp":
        sizes = [1024, *[1800] * 3, 1024]
        layers = [layer for a, b in itertools.pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
        model, inputs = nn.Sequential(*layers), torch.randn(64, 1024)
    else:
        model, inputs = Transformer(), torch.randint(WORDS, (BATCH, LENGTH))

    def step() -> Tensor:
        model.zero_grad(set_to_none=True)
        return model(inputs).square().mean()

    return record_timeline(model, step, steps=7)


def main_of_rank(options: argparse.Namespace) -> None:
    """What every rank does."""
    torch.set_num_threads(1)
    with rl.init() as comm:
        mine = timeline_of(options.model)
        # The slowest rank's times count. Parameters are lined up by name: the order of readiness could differ.
        order = sorted(range(len(mine)), key=lambda i: mine.names[i])
        ready, needed = (torch.from_numpy(x[order]) for x in (mine.ready, mine.needed))
        lengths = torch.tensor([mine.backward_end, mine.forward], dtype=torch.float64)
        for x in (ready, needed, lengths):
            comm.all_reduce(x, op="max")
        names = [mine.names[i] for i in order]
        line, _ = Timeline.sorted(names, mine.nbytes[order], ready.numpy(), needed.numpy(), *lengths.tolist())
        cost = CostCurve.from_communicator(comm)
        if comm.rank == 0:
            show(line, cost, options)


def show(line: Timeline, cost: CostCurve, options: argparse.Namespace) -> None:
    """Print the plans."""
    plan = plan_buckets(line, cost)
    print(plan.table())
    print(plan_priority(line, cost).table())
    if options.picture:
        plan.picture(options.picture)
    if options.save:
        Path(options.save).write_text(json.dumps(line.to_json()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("transformer", "mlp"), default="transformer")
    parser.add_argument("--picture", help="draw the plan into this file")
    parser.add_argument("--save", help="write the timeline here, for `ringleader overlap`")
    given = parser.parse_args()
    if "RANK" in os.environ:
        main_of_rank(given)
    else:
        rl.spawn(main_of_rank, 2, given, env={"OMP_NUM_THREADS": "1"})
