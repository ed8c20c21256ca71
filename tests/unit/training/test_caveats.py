"""What a certificate of training says besides its ε."""

import types
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from sfumato.audit.replay import RecordingSampler
from sfumato.caveats import Code
from sfumato.datasets import Dataset
from sfumato.errors import UnsupportedModel
from sfumato.randomness import OWN_NOISE, SecretStream
from sfumato.training import (
    HeldOut,
    PrivateClassifier,
    PrivateTrainer,
    TrainingPlan,
    cross_entropy,
    resume,
    save_checkpoint,
)

PLAN = TrainingPlan(sample_rate=0.5, expected_batch=10, steps=1, noise_multiplier=4.0)
ROWS = torch.rand(20, 2), torch.zeros(20, dtype=torch.long)
DATA = Dataset(inputs=ROWS[0].numpy(), targets=ROWS[1].numpy(), name="toy", visibility="private")
TABLE = torch.rand(2, 3)


class Items(torch.utils.data.Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, row):
        return ROWS[0][row], int(ROWS[1][row])


def trained(rows=ROWS, *, loss=cross_entropy, **options):
    model = nn.Linear(2, 2)
    trainer = PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), PLAN, **options)
    for batch in trainer.batches(rows):
        trainer.step(batch, loss)
    return trainer.certificate(delta=1e-5).caveats


@pytest.mark.parametrize(
    "rows",
    [
        (pd.DataFrame(ROWS[0].numpy()), pd.Series(ROWS[1].numpy())),
        (ROWS[0].numpy(), ROWS[1].numpy()),
        {"inputs": ROWS[0], "labels": ROWS[1]},
        types.SimpleNamespace(inputs=ROWS[0], targets=ROWS[1]),
        torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*ROWS)),
    ],
    ids=["tables", "arrays", "a dict", "a namespace", "a loader"],
)
def test_columns_need_no_caveat(rows):
    model = nn.Sequential(nn.Linear(2, 2)) if isinstance(rows, dict) else nn.Linear(2, 2)
    if isinstance(rows, dict):
        rows = {"input": rows["inputs"], "labels": rows["labels"]}
    trainer = PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), PLAN)
    for batch in trainer.batches(rows):
        trainer.step(batch, cross_entropy)
    said = set(trainer.certificate(delta=1e-5).caveats)
    assert said == {Code.UNRECORDED(), "the float64 normal sampler is taken as ideal"}


@pytest.mark.parametrize(
    "rows",
    [Items(), torch.utils.data.DataLoader(Items()), [*zip(*ROWS, strict=True)]],
    ids=["set", "loader", "list"],
)
def test_items_that_are_read_one_by_one_are_named(rows):
    assert {Code.ITEMS_BY_OWN_CODE(), Code.SHAPE_READ()} <= set(trained(rows))


@pytest.mark.keeps_out(
    "A private estimator behind a scaler that saw the rows, or chosen by scores without noise, or on "
    "folds by position"
)
def test_an_estimator_takes_rows_as_they_are_and_says_so():
    declared = {"classes": (0, 1), "public_size": 20, "bounds": (0.0, 1.0), "epochs": 1}
    fitted = PrivateClassifier(epsilon=1.0, **declared).fit(ROWS[0].numpy(), np.arange(20) % 2)
    assert Code.ITEMS_BY_OWN_CODE() in fitted.result_.certificate.caveats


def test_a_tensor_that_a_loss_brings_along_is_named_by_its_shape_and_line():
    table = torch.rand(2)
    found = trained(loss=lambda outputs, _: (outputs * table).sum(1))
    assert any("a tensor of shape (2,) in the code at test_caveats.py:" in caveat for caveat in found)


@pytest.mark.keeps_out(
    "A large tensor in a loss or views, or a part of the private rows, that is taken as public without a word"
)
def test_a_large_tensor_that_a_loss_brings_along_is_declared_or_refused():
    table = torch.rand(2, 1000)

    def loss(outputs, _):
        return (outputs @ table).sum(1)

    with pytest.raises(UnsupportedModel, match=r"public=\[tensor\]"):
        trained(loss=loss)
    assert any("of shape (2, 1000)" in caveat for caveat in trained(loss=loss, public=[table]))


ARRAYS = ROWS[0].numpy().copy(), ROWS[1].numpy()


class Bank(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("bank", ROWS[0][2:5])

    def forward(self, rows):
        return self.layer(rows) @ self.bank.T @ self.bank


@pytest.mark.keeps_out(
    "A large tensor in a loss or views, or a part of the private rows, that is taken as public without a word"
)
@pytest.mark.parametrize(
    ("rows", "loss", "model"),
    [
        (ROWS, lambda outputs, _: (outputs * ROWS[0][3]).sum(1), None),
        (ARRAYS, lambda outputs, _: (outputs * torch.from_numpy(ARRAYS[0][3])).sum(1), None),
        (ROWS, cross_entropy, Bank()),
    ],
    ids=["a tensor", "a row of an array", "a buffer"],
)
@pytest.mark.parametrize("rehearsed", [False, True])
def test_private_rows_in_code_are_refused(rows, loss, model, rehearsed):
    model = nn.Linear(2, 2) if model is None else model
    trainer = PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), PLAN)
    if rehearsed:
        trainer.rehearse((torch.zeros(1, 2), torch.zeros(1, dtype=torch.long)), loss)
    batch = next(trainer.batches(rows))
    with pytest.raises(UnsupportedModel, match="a part of the training data"):
        trainer.step(batch, loss)


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
    assert {Code.ITEMS_BY_OWN_CODE(), Code.SHAPE_READ()} <= set(before.caveats)
    assert {Code.ITEMS_BY_OWN_CODE(), Code.SHAPE_READ()} <= set(after.caveats)
    assert before.eta == after.eta


class Ones(SecretStream):
    def rounded_normal(self, scale, size):
        return np.ones(size, dtype=np.int64)


@pytest.mark.parametrize(
    ("sampler", "expected"),
    [
        (None, False),
        (SecretStream(), False),
        (RecordingSampler(SecretStream()), False),
        (Ones(), True),
        (RecordingSampler(Ones()), True),
    ],
)
def test_a_sampler_of_ones_own_is_named(sampler, expected):
    found = HeldOut(rows=DATA).accuracy(nn.Linear(2, 2), epsilon=1.0, sampler=sampler)
    for caveats in (trained(sampler=sampler), found.certificate.caveats):
        assert (OWN_NOISE in caveats) == expected
