"""Train privately with the Trainer of transformers: arguments, evaluation, logs and saving are its own.

Only `train` is replaced. A PrivateTrainer draws the batches and takes the steps; the collator pads each
sentence to the length of a public example, so that its length tells nothing about the others.

    python examples/with_hugging_face_trainer.py
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from sfumato import Budget, Ledger, PrivateTrainer, TrainingPlan
from sfumato.training import default_loss

VOCABULARY, LONGEST = 30, 8


class Private(Trainer):
    """A Trainer whose training is private; what it evaluates on must be public."""

    def __init__(self, *, plan: TrainingPlan, ledger: Ledger, example: Any, **usual: Any) -> None:
        super().__init__(**usual)
        self.plan, self.ledger, self.example = plan, ledger, example

    def train(self) -> None:
        self.create_optimizer_and_scheduler(num_training_steps=self.plan.steps)
        loader = DataLoader(
            self.train_dataset,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,  # they read the next step's rows meanwhile
        )
        self.private = PrivateTrainer(self.model, self.optimizer, self.plan, ledger=self.ledger)
        self.model.train()
        self.control = self.callback_handler.on_train_begin(self.args, self.state, self.control)
        for batch in self.private.batches(loader, example=self.example):
            self.private.step(batch, default_loss(self.model))
            self.lr_scheduler.step()
            self.state.global_step += 1
            self.control = self.callback_handler.on_step_end(self.args, self.state, self.control)
        self.control = self.callback_handler.on_train_end(self.args, self.state, self.control)


def sentences(count: int, seed: int) -> list[dict[str, Any]]:
    """Token numbers of different lengths; the label says whether word 7 is among them."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        words = [draw.randrange(8, VOCABULARY) for _ in range(draw.randrange(3, LONGEST))]
        label = draw.randrange(2)
        found.append({"input_ids": [7, *words] if label else words, "labels": label})
    return found


def padded(batch: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    longest = max(len(item["input_ids"]) for item in batch)
    tokens = [item["input_ids"] + [0] * (longest - len(item["input_ids"])) for item in batch]
    masks = [[int(token > 0) for token in row] for row in tokens]
    return {
        "input_ids": torch.tensor(tokens),
        "attention_mask": torch.tensor(masks),
        "labels": torch.tensor([item["labels"] for item in batch]),
    }


def main(*, people: int, epsilon: float, epochs: float, workers: int, ledger: Path) -> dict[str, float]:
    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=16, num_labels=2,
    )  # fmt: skip
    plan = TrainingPlan.calibrated(
        epsilon=epsilon, delta=1e-5, public_size=people, expected_batch=people // 8, epochs=epochs
    )
    torch.manual_seed(0)
    with (
        tempfile.TemporaryDirectory() as folder,
        Ledger.open(ledger, budget=Budget(epsilon=epsilon, delta=1e-5)) as book,
    ):
        trainer = Private(
            model=BertForSequenceClassification(config),
            args=TrainingArguments(
                output_dir=folder,
                learning_rate=5e-3,
                report_to=[],
                use_cpu=True,
                dataloader_num_workers=workers,
            ),
            train_dataset=sentences(people, seed=-1),
            eval_dataset=sentences(300, seed=-2),  # public here, so that we may look
            data_collator=padded,
            compute_metrics=lambda seen: {
                "accuracy": float((seen.predictions.argmax(1) == seen.label_ids).mean())
            },
            plan=plan,
            ledger=book,
            example={"input_ids": [1] * LONGEST, "labels": 0},  # public, and as long as any
        )
        trainer.train()
        trainer.private.certificate(delta=1e-5).verify()
        accuracy = trainer.evaluate()["eval_accuracy"]
    return {"accuracy": accuracy, "epsilon": trainer.private.epsilon(1e-5), "steps": trainer.state.global_step}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--people", type=int, default=1200, help="private sentences, one of each person")
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--epochs", type=float, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--ledger", type=Path, default=Path("sentences.db"))
    for name, value in main(**vars(parser.parse_args())).items():
        print(f"{name:8} {value:.4g}")
