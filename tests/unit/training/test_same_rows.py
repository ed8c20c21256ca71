"""An interrupted run goes on with the rows that it began with."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset as Items

from sfumato.errors import Refused, SettingsChanged
from sfumato.storage import CHECKPOINT
from sfumato.training import TrainingPlan, run, train
from sfumato.training.run import ROWS_NOTE as NAME
from sfumato.training.run import check_rows, note_rows

PLAN = TrainingPlan(sample_rate=0.5, expected_batch=20, steps=4, noise_multiplier=1.0)
INPUTS = torch.linspace(-1, 1, 200).reshape(40, 5)
TARGETS = torch.arange(40) % 3


class Stopped(Exception):
    pass


def stop(trainer):
    if trainer.steps_done == 3:  # the first epoch, of two steps, is durable
        raise Stopped


@pytest.fixture
def interrupted(tmp_path):
    with pytest.raises(Stopped):
        train(nn.Linear(5, 3), (INPUTS, TARGETS), PLAN, out=tmp_path, on_step=stop)
    return tmp_path


def changed(column, value):
    found = column.clone()
    found.view(-1)[-1] = value
    return found


OTHERS = [
    (INPUTS[:-1], TARGETS[:-1]),
    (INPUTS, changed(TARGETS, 1)),
    (INPUTS, TARGETS.flip(0)),
    (INPUTS.double(), TARGETS),
]


@pytest.mark.parametrize("rows", OTHERS, ids=["fewer", "another label", "another order", "another type"])
def test_other_rows_are_refused(tmp_path, rows):
    note_rows((INPUTS, TARGETS), tmp_path)
    with pytest.raises(Refused, match="began with, in the same order, got others; give the same, end the run"):
        check_rows(rows, tmp_path)


def test_other_real_numbers_are_told_of(tmp_path):
    """Features are computed, and another machine may round them otherwise."""
    note_rows((INPUTS, TARGETS), tmp_path)
    with pytest.warns(SettingsChanged, match="began with other numbers in its rows"):
        check_rows((changed(INPUTS, 0.5), TARGETS), tmp_path)


def test_the_same_rows_in_another_dress_pass(tmp_path):
    note_rows((INPUTS, TARGETS), tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_rows((INPUTS.numpy(), TARGETS.tolist()), tmp_path)
        check_rows((INPUTS.t().contiguous().t(), TARGETS), tmp_path)  # the same values, laid out otherwise


def test_a_run_is_not_taken_up_with_other_rows(interrupted):
    before = (interrupted / "private" / CHECKPOINT).read_bytes()
    with pytest.raises(Refused, match="got others"):
        train(nn.Linear(5, 3), OTHERS[1], PLAN, out=interrupted)
    assert (interrupted / "private" / CHECKPOINT).read_bytes() == before
    train(nn.Linear(5, 3), (INPUTS, TARGETS), PLAN, out=interrupted)
    assert not (interrupted / "private" / NAME).exists()  # of no use any more


def test_what_is_kept_of_the_rows_is_private_and_keyed(interrupted, tmp_path_factory):
    places = [path for path in interrupted.rglob("*") if path.is_file()]
    kept = (interrupted / "private" / NAME).read_bytes()
    digests = re.findall(rb"[0-9a-f]{64}", kept)
    assert len(digests) == 4  # the key, and three
    assert not [each for path in places if path.name != NAME for each in digests if each in path.read_bytes()]
    other = tmp_path_factory.mktemp("other")
    note_rows((INPUTS, TARGETS), other)
    assert set(digests).isdisjoint(re.findall(rb"[0-9a-f]{64}", (other / NAME).read_bytes()))


def test_a_run_is_ended_without_rows(interrupted):
    train(nn.Linear(5, 3), (INPUTS[:0], TARGETS[:0]), PLAN, out=interrupted, finish=True)


class OneByOne(Items):
    def __len__(self):
        raise AssertionError("nobody asks")

    def __getitem__(self, row):
        raise AssertionError("nobody reads")


def test_items_are_not_read_for_it(tmp_path):
    note_rows((INPUTS, TARGETS), tmp_path)
    check_rows(OneByOne(), tmp_path)
    note_rows(OneByOne(), tmp_path)
    assert not (tmp_path / NAME).exists()  # nor is what was kept of others believed


def test_of_large_data_some_rows_are_looked_at(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "_MOST_BYTES", 1000)
    monkeypatch.setattr(run, "_AT_ONCE", 64)
    labels = np.arange(1000)
    note_rows((labels, labels), tmp_path)
    check_rows((labels, labels), tmp_path)
    with pytest.raises(Refused):
        check_rows((labels, labels + 1), tmp_path)
