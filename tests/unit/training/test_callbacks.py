"""Loggers hear of public figures, and of a step once it is durable."""

import math
from dataclasses import fields

import pytest
import torch
from torch import nn

from sfumato.accounting import Budget
from sfumato.ledger import Ledger
from sfumato.training import (
    Callback,
    PrivateTrainer,
    StepReport,
    TrainingPlan,
    cross_entropy,
    save_checkpoint,
    train,
)
from sfumato.training.checkpoint import keep_from_start

PLAN = TrainingPlan(sample_rate=0.5, expected_batch=4, steps=4, noise_multiplier=1.0, clip_norm=1.0)


class Heard(Callback):
    def __init__(self):
        self.steps, self.epochs = [], []

    def on_step(self, report):
        self.steps.append(report)

    def on_epoch(self, report):
        self.epochs.append((len(self.steps), report.step))


def rows():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, 3, generator=generator), torch.randint(0, 2, (8,), generator=generator)


def trainer(heard, **more):
    model = nn.Linear(3, 2)
    return PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), PLAN, callbacks=[heard], **more)


def book(tmp_path):
    return Ledger.open(tmp_path / "book.db", budget=Budget(epsilon=50, delta=1e-5))


@pytest.mark.keeps_out(
    "A logger that publishes the training loss, or a step that a crash takes away and that is taken again"
)
def test_a_report_holds_public_figures_only():
    """Were the loss or the size of the batch among them, a logger would publish private values."""
    assert {field.name for field in fields(StepReport)} == {
        "step",
        "learning_rate",
        "clip_norm",
        "gradient_norm",
    }


def test_the_norm_is_that_of_the_noised_gradient():
    heard = Heard()
    running = trainer(heard)
    for batch in running.batches(rows()):
        running.step(batch, cross_entropy)
        squares = sum(float(p.grad.double().square().sum()) for p in running.model.parameters())
        assert heard.steps[-1].gradient_norm == pytest.approx(math.sqrt(squares))
    assert [report.step for report in heard.steps] == [1, 2, 3, 4]


@pytest.mark.keeps_out(
    "A logger that publishes the training loss, or a step that a crash takes away and that is taken again"
)
@pytest.mark.parametrize("paid", [True, False])
def test_a_step_is_told_after_its_checkpoint(paid, tmp_path):
    heard = Heard()
    running = trainer(heard, ledger=book(tmp_path) if paid else None)
    keep_from_start(running, tmp_path / "c")
    for number, batch in enumerate(running.batches(rows()), 1):
        running.step(batch, cross_entropy)
        if number == 2:
            assert heard.steps == []  # a crash here would take these steps away
            save_checkpoint(running, tmp_path / "c")
            assert [report.step for report in heard.steps] == [1, 2]
    assert [report.step for report in heard.steps] == [1, 2, 3, 4]  # `finish` told the ledger


def test_a_checkpoint_that_fails_tells_nothing(tmp_path, monkeypatch):
    heard = Heard()
    running = trainer(heard, ledger=book(tmp_path))
    batches = running.batches(rows())
    running.step(next(batches), cross_entropy)
    monkeypatch.setattr("sfumato.training.checkpoint.write_whole", _full_disk)
    with pytest.raises(OSError, match="full"):
        save_checkpoint(running, tmp_path / "c")
    assert heard.steps == []


def _full_disk(*_):
    raise OSError("the disk is full")


def test_train_tells_steps_then_their_epoch(tmp_path):
    heard = Heard()
    train(nn.Linear(3, 2), rows(), PLAN, ledger=book(tmp_path), out=tmp_path / "run", callbacks=[heard])
    assert heard.epochs == [(2, 2), (4, 4)]  # two steps an epoch, told before it
