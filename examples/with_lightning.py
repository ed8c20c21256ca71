"""Train privately inside Lightning: its Trainer runs the loop, a PrivateTrainer takes the steps.

Lightning keeps its progress bar, loggers, callbacks and validation on public rows. Its module optimizes by
hand, because a private step clips, adds noise and moves the weights as one.

    python examples/with_lightning.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sfumato import Budget, Ledger, PrivateTrainer, TrainingPlan
from sfumato.datasets import Dataset, load
from sfumato.training import Callback, StepReport, cross_entropy


class Curve(Callback):
    """Hands public figures to Lightning's logger, each step once it is durable."""

    def __init__(self, module: lightning.LightningModule) -> None:
        self.module = module

    def on_step(self, report: StepReport) -> None:
        if self.module.logger is not None:
            self.module.logger.log_metrics({"gradient_norm": report.gradient_norm}, step=report.step)


class PrivateModule(lightning.LightningModule):
    """A classifier that learns from private rows and is validated on public ones."""

    def __init__(self, rows: Dataset, plan: TrainingPlan, ledger: Ledger) -> None:
        super().__init__()
        self.automatic_optimization = False  # a private step is taken as a whole
        self.network = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
        self.rows, self.plan, self.ledger = rows, plan, ledger

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.network.parameters(), lr=0.5, momentum=0.9)

    def train_dataloader(self):
        """All batches of the plan, each drawn in secret: Lightning sees one long epoch."""
        optimizer = self.optimizers(use_pl_optimizer=False)
        self.private = PrivateTrainer(
            self.network, optimizer, self.plan, ledger=self.ledger, callbacks=[Curve(self)]
        )
        return self.private.batches(self.rows)

    def transfer_batch_to_device(self, batch, device, dataloader_idx):
        return batch if not isinstance(batch, list) else [part.to(device) for part in batch]

    def training_step(self, batch, batch_idx: int) -> None:
        self.private.step(batch, cross_entropy)  # it returns no loss: that of a batch is private

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        images, labels = batch
        self.log("public_accuracy", (self.network(images).argmax(1) == labels).float().mean(), prog_bar=True)


def main(*, epsilon: float, epochs: float, ledger: Path) -> dict[str, float]:
    rows, public = load("digits", "train"), load("digits", "test")
    plan = TrainingPlan.calibrated(
        epsilon=epsilon, delta=1e-5, public_size=rows.public_size, expected_batch=256, epochs=epochs
    )
    validation = TensorDataset(torch.from_numpy(public.inputs), torch.from_numpy(public.targets))
    torch.manual_seed(0)
    with Ledger.open(ledger, budget=Budget(epsilon=epsilon, delta=1e-5)) as book:
        module = PrivateModule(rows, plan, book)
        runner = lightning.Trainer(
            max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
            enable_model_summary=False, enable_progress_bar=False, num_sanity_val_steps=0,
        )  # fmt: skip
        runner.fit(module, val_dataloaders=DataLoader(validation, batch_size=360))
        certificate = module.private.certificate(delta=1e-5)
    certificate.verify()
    accuracy = float(runner.callback_metrics["public_accuracy"])
    return {"accuracy": accuracy, "epsilon": module.private.epsilon(1e-5), "steps": float(plan.steps)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--epochs", type=float, default=20)
    parser.add_argument("--ledger", type=Path, default=Path("digits.db"))
    for name, value in main(**vars(parser.parse_args())).items():
        print(f"{name:8} {value:.4g}")
