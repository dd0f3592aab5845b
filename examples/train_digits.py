"""Train on handwritten digits (scikit-learn's), in every style of data parallel training that torch has, and in ours.

    torchrun --nproc-per-node 2 examples/train_digits.py                   # all styles
    torchrun --nproc-per-node 2 examples/train_digits.py ddp fsdp2         # some

All styles start from the same weights and see the same batches, so they end with the same numbers.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import ringleader.torch

Trained = tuple[nn.Module, torch.optim.Optimizer]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """The optimiser of all styles but ZeRO."""
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def ddp(net: nn.Module) -> Trained:
    """DistributedDataParallel."""
    model = DistributedDataParallel(net)
    return model, sgd(model)


def registered(net: nn.Module) -> Trained:
    """DistributedDataParallel with its gradients in registered memory."""
    model = ringleader.torch.register_ddp(DistributedDataParallel(net, gradient_as_bucket_view=True))
    return model, sgd(model)


def data_parallel(net: nn.Module) -> Trained:
    """Ringleader's DataParallel, which plans its buckets."""
    model = ringleader.torch.DataParallel(net)
    return model, sgd(model)


def fsdp2(net: nn.Module) -> Trained:
    """Parameters, gradients and the optimiser's state are sharded."""
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in net.children():
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    model = fully_shard(net, mesh=mesh)
    return model, sgd(model)


def zero(net: nn.Module) -> Trained:
    """The optimiser's state is sharded."""
    model = DistributedDataParallel(net)
    return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)


def compiled(net: nn.Module) -> Trained:
    """torch.compile of DistributedDataParallel."""
    model = DistributedDataParallel(net)
    return torch.compile(model), sgd(model)


STYLES: dict[str, Callable[[nn.Module], Trained]] = {
    each.__name__: each for each in (ddp, registered, data_parallel, fsdp2, zero, compiled)
}


def train(style: str, images: Tensor, labels: Tensor, epochs: int) -> None:
    """Train in a style and print what came of it."""
    torch.manual_seed(7)
    model, optimizer = STYLES[style](nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    first = last = torch.zeros(())
    for epoch in range(epochs):
        order = torch.randperm(1500, generator=torch.Generator().manual_seed(epoch))[rank::ranks]
        for rows in order.split(50):
            loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            last = loss.detach() / ranks
            dist.all_reduce(last)  # the mean over the ranks
            first = first if first else last.clone()
    with torch.no_grad():
        right = (model(images[1500:]).argmax(1) == labels[1500:]).float().mean()
    if rank == 0:
        print(f"{style:14} loss {first.item():.6f} -> {last.item():.6f}, {right.item():.1%} of 297 right", flush=True)


def main() -> None:
    """All the styles that are asked for, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("styles", nargs="*", help=", ".join(STYLES))
    parser.add_argument("--backend", default="ringleader")
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(arguments.backend)
    digits = load_digits()
    images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    for style in arguments.styles or STYLES:
        train(style, images, labels, arguments.epochs)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
