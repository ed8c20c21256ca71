"""What a certificate of training says besides its ε."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from sfumato.training import PrivateTrainer, TrainingPlan, cross_entropy, resume, save_checkpoint
from sfumato.training.trainer import OWN_CODE, SHAPE_READ

PLAN = TrainingPlan(sample_rate=0.5, expected_batch=10, steps=1, noise_multiplier=4.0)
ROWS = torch.rand(20, 2), torch.zeros(20, dtype=torch.long)


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, rows):
        return self.layer(rows)


class Items(torch.utils.data.Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, row):
        return ROWS[0][row], int(ROWS[1][row])


def caveats_of(model, *, loss=cross_entropy, rows=ROWS):
    trainer = PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), PLAN)
    for batch in trainer.batches(rows):
        trainer.step(batch, loss)
    return trainer.certificate(delta=1e-5).caveats


def test_code_of_libraries_needs_no_caveat():
    assert OWN_CODE not in caveats_of(nn.Linear(2, 2))


def test_a_model_of_ones_own_is_named():
    assert OWN_CODE in caveats_of(Own())


def test_a_loss_of_ones_own_is_named():
    assert OWN_CODE in caveats_of(nn.Linear(2, 2), loss=lambda out, targets: out.square().sum(1))


def test_a_data_set_of_ones_own_is_named():
    assert OWN_CODE in caveats_of(nn.Linear(2, 2), rows=Items())


@pytest.mark.parametrize("name", ["linear", "cross_entropy"])
def test_a_function_in_the_place_of_torchs_is_named(monkeypatch, name):
    original = getattr(nn.functional, name)
    monkeypatch.setattr(nn.functional, name, lambda *args, **kwargs: original(*args, **kwargs))
    assert OWN_CODE in caveats_of(nn.Linear(2, 2))


@pytest.mark.parametrize("steps_before", [1, 2])
def test_a_resumed_run_says_what_its_first_steps_met(tmp_path, steps_before):
    """Also where they were all."""
    plan = replace(PLAN, steps=2)

    def trainer():
        model = nn.Linear(2, 2)
        return PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), plan)

    first = trainer()
    batches = first.batches(Items())
    for _ in range(steps_before):
        first.step(next(batches), cross_entropy)
    save_checkpoint(first, tmp_path / "run.safetensors")
    second = trainer()
    resume(second, tmp_path / "run.safetensors")
    for batch in second.batches(ROWS):
        second.step(batch, cross_entropy)
    before, after = (each.certificate(delta=1e-5) for each in (first, second))
    assert {OWN_CODE, SHAPE_READ} <= set(before.caveats)
    assert {OWN_CODE, SHAPE_READ} <= set(after.caveats)
    assert before.eta == after.eta
