"""Train on handwritten digits with Lightning: Trainer, DDP strategy, synchronised logs, TorchMetrics, checkpoints.

torchrun --nproc-per-node 2 examples/integrations/lightning_digits.py --backend ringleader
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
import warnings
from pathlib import Path

import lightning
import torch
import torchmetrics
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    """A perceptron with one hidden layer for the 64 pixels of a digit."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        self.accuracy = torchmetrics.Accuracy("multiclass", num_classes=10)  # counts on all ranks
        self.losses: list[float] = []

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        """The loss of a batch, also logged as the mean of all ranks."""
        loss = functional.cross_entropy(self.layers(batch[0]), batch[1])
        self.log("loss", loss, sync_dist=True)
        return loss

    def on_train_batch_end(self, *_: object) -> None:
        """Remember what was logged."""
        self.losses.append(float(self.trainer.callback_metrics["loss"]))

    def validation_step(self, batch: list[Tensor], _: int) -> None:
        """Count the right guesses."""
        self.accuracy(self.layers(batch[0]), batch[1])
        self.log("accuracy", self.accuracy, on_epoch=True, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """SGD with momentum."""
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def loaders() -> tuple[DataLoader[list[Tensor]], DataLoader[list[Tensor]]]:
    """1500 digits to train on, 297 to test with. Lightning gives each rank its share."""
    digits = load_digits()
    images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    learn, test = TensorDataset(images[:1500], labels[:1500]), TensorDataset(images[1500:], labels[1500:])
    return DataLoader(learn, batch_size=25, shuffle=True), DataLoader(test, batch_size=25)


def main() -> None:
    """Train; rank 0 prints, and writes what `--result` asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="ringleader")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--result", type=Path, help="file for losses and accuracy, as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", module="lightning")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    lightning.seed_everything(7, verbose=False)
    model = Classifier()
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator="cpu", devices=2, strategy=DDPStrategy(process_group_backend=arguments.backend),
            max_epochs=arguments.epochs, log_every_n_steps=1, logger=False, enable_progress_bar=False,
            enable_model_summary=False, num_sanity_val_steps=0, callbacks=[ModelCheckpoint(folder, monitor="accuracy")],
        )  # fmt: skip
        trainer.fit(model, *loaders())
        used = torch.distributed.get_backend()
        result = {"losses": model.losses, "accuracy": float(trainer.callback_metrics["accuracy"])}
        if trainer.is_global_zero:
            print(
                f"Lightning on {used}, {trainer.world_size} ranks: {len(model.losses)} batches, loss "
                f"{model.losses[0]:.4f} -> {model.losses[-1]:.4f}, accuracy {result['accuracy']:.1%}"
            )
            if arguments.result:
                arguments.result.write_text(json.dumps(result))
        trainer.strategy.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
