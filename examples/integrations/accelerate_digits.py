"""Train on handwritten digits with Hugging Face Accelerate: accumulation, clipping, gathered metrics, checkpoints.

torchrun --nproc-per-node 2 examples/integrations/accelerate_digits.py --backend ringleader
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, set_seed
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


def datasets() -> tuple[TensorDataset, TensorDataset]:
    """1500 digits to train on and 297 to test with: (1, 8, 8) images in 0..1, and labels."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    return TensorDataset(images[:1500], labels[:1500]), TensorDataset(images[1500:], labels[1500:])


def make_model() -> nn.Module:
    """A small convolutional network with batch normalisation, whose buffers DDP broadcasts."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 9, 10),
    )  # fmt: skip


def train(accelerator: Accelerator, epochs: int) -> dict[str, object]:
    """Losses (mean over the ranks) and the accuracy; halfway the state is saved, and loaded again."""
    set_seed(7)
    learn, test = datasets()
    loader, test_loader = DataLoader(learn, batch_size=25, shuffle=True), DataLoader(test, batch_size=25)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.9)
    model, optimizer, loader, test_loader, scheduler = accelerator.prepare(
        model, optimizer, loader, test_loader, scheduler
    )
    losses: list[float] = []
    folder = [tempfile.mkdtemp() if accelerator.is_main_process else None]
    broadcast_object_list(folder)
    for epoch in range(epochs):
        model.train()
        for images, labels in loader:
            with accelerator.accumulate(model):
                loss: Tensor = functional.cross_entropy(model(images), labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            losses.append(float(accelerator.reduce(loss.detach(), "mean")))
        if epoch == epochs // 2 - 1:
            accelerator.save_state(f"{folder[0]}/state")
            accelerator.wait_for_everyone()
            accelerator.load_state(f"{folder[0]}/state")
    model.eval()
    right = []
    with torch.no_grad():
        for images, labels in test_loader:
            guesses, truth = accelerator.gather_for_metrics((model(images).argmax(1), labels))
            right.append(guesses == truth)
    return {"losses": losses, "accuracy": float(torch.cat(right).float().mean()), "tested": len(torch.cat(right))}


def main() -> None:
    """Train; rank 0 prints, and writes what `--result` asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="ringleader")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--result", type=Path, help="file for losses and accuracy, as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    # On the CPU Accelerate knows no backend but MPI and Gloo; it uses the process group that is there.
    dist.init_process_group(arguments.backend)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    result = train(accelerator, arguments.epochs)
    losses = result["losses"]
    accelerator.print(
        f"Accelerate on {dist.get_backend()}, {accelerator.num_processes} ranks: {len(losses)} batches, "
        f"loss {losses[0]:.4f} -> {losses[-1]:.4f}, accuracy {result['accuracy']:.1%} of {result['tested']}"
    )
    if arguments.result and accelerator.is_main_process:
        arguments.result.write_text(json.dumps(result))
    accelerator.free_memory()
    accelerator.end_training()  # destroys the process group


if __name__ == "__main__":
    main()
