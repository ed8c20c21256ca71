"""Mixing that happens on rare draws: a look at a few runs sees none of them.

In each test the draw comes out ordinary while the model is looked at, and rare afterwards.
"""

from __future__ import annotations

import datetime
import random
import secrets
import time

import numpy as np
import pytest
import torch
from torch import nn

from sfumato.errors import UnsupportedModel
from sfumato.training import clipped_gradient_sum, cross_entropy
from sfumato.training.probe import survey

CLIP = 0.1
ROWS = 12


class Mixing(nn.Module):
    """Takes the mean of all rows off each of them, where `gate` says so."""

    def __init__(self, gate):
        super().__init__()
        self.layer, self.gate = nn.Linear(6, 3), gate

    def forward(self, inputs):
        return self.layer(self.gate(inputs, inputs - 9 * inputs.mean(0)))


def rows():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(ROWS, 6, generator=generator)
    inputs[-1] *= 100
    return inputs, torch.zeros(ROWS, dtype=torch.long)


def moved(model):
    inputs, targets = rows()
    with_row = clipped_gradient_sum(model, cross_entropy, inputs, targets, CLIP)
    without = clipped_gradient_sum(model, cross_entropy, inputs[:-1], targets[:-1], CLIP)
    return float(torch.sqrt(sum((with_row[k] - without[k]).square().sum() for k in with_row))) / CLIP


def by_python(inputs, mixed):
    return mixed if random.random() < 0.05 else inputs


def by_numpy(inputs, mixed):
    return mixed if np.random.random() > 0.95 else inputs  # noqa: NPY002


def by_system(inputs, mixed):
    return mixed if secrets.randbelow(100) == 50 else inputs


def by_clock(inputs, mixed):
    return mixed if time.time() % 1 > 0.95 else inputs


def by_date(inputs, mixed):
    return mixed if datetime.datetime.now().microsecond > 950_000 else inputs


class Rigged(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2020, 1, 1, microsecond=990_000)


RARE = {
    by_python: (random, "random", lambda: 0.0),
    by_numpy: (np.random, "random", lambda: 0.99),
    by_system: (secrets, "randbelow", lambda _: 50),
    by_clock: (time, "time", lambda: 0.99),
    by_date: (datetime, "datetime", Rigged),
}


@pytest.mark.filterwarnings("ignore:the model calls")
@pytest.mark.parametrize("gate", RARE, ids=lambda gate: gate.__name__)
def test_a_draw_outside_torch_brings_no_rows_together(gate, monkeypatch):
    torch.manual_seed(0)
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    model = Mixing(gate)
    while True:
        try:
            known = survey(model, cross_entropy, *rows())
            break
        except UnsupportedModel:  # it did mix; try again until it does not
            continue
    assert known.alone
    monkeypatch.setattr(*RARE[gate])
    assert moved(model) <= 1.001


def low(inputs, mixed):
    return torch.where(torch.rand(()) < 0.05, mixed, inputs)


def high(inputs, mixed):
    return torch.where(torch.rand(len(inputs), 1) > 0.97, mixed, inputs)


def far_out(inputs, mixed):
    return torch.where(torch.randn(1).abs() > 3, mixed, inputs)


def one_in_twenty(inputs, mixed):
    return torch.where(torch.randint(20, ()) == 7, mixed, inputs)


def one_number(inputs, mixed):
    return torch.where((torch.rand(()) - 0.3).abs() < 0.01, mixed, inputs)


def by_a_coin(inputs, mixed):
    return torch.where(torch.bernoulli(torch.full((1,), 0.03)).bool(), mixed, inputs)


def by_product(inputs, mixed):
    gate = (torch.empty(1).uniform_(-1, 1) > 0.96).float()
    return inputs * (1 - gate) + mixed * gate


def by_filling(inputs, mixed):
    return inputs + (mixed - inputs).masked_fill(torch.randint(30, (1,)) != 11, 0.0)


def by_exponential(inputs, mixed):
    return torch.where(torch.empty(()).exponential_() > 4, mixed, inputs)


def by_dropout(inputs, mixed):
    kept = nn.functional.dropout(torch.ones(1), 0.97)
    return torch.where(kept > 0, mixed, inputs)


GATES = [low, high, far_out, one_in_twenty, one_number, by_a_coin, by_product, by_filling, by_exponential]


@pytest.mark.filterwarnings("ignore:the model brings rows together")
@pytest.mark.parametrize("gate", [*GATES, by_dropout], ids=lambda gate: gate.__name__)
def test_a_rare_draw_of_torch_brings_no_rows_together(gate):
    torch.manual_seed(0)
    try:
        alone = survey(Mixing(gate), cross_entropy, *rows()).alone
    except UnsupportedModel:  # it did mix
        return
    assert alone


@pytest.mark.filterwarnings("ignore:the model looks at values")
def test_a_generator_of_the_models_own_brings_no_rows_together():
    def gate(inputs, mixed):
        own = torch.Generator()
        own.seed()
        return torch.where(torch.rand((), generator=own) < 1e-6, mixed, inputs)

    assert survey(Mixing(gate), cross_entropy, *rows()).alone


def honest(inputs, mixed):
    kept = torch.where(torch.rand_like(inputs) < 0.5, inputs, torch.zeros_like(inputs))
    return nn.functional.dropout(kept, 0.2).masked_fill(torch.rand_like(inputs) < 0.1, 0.0)


def test_a_model_that_draws_for_each_row_is_not_refused(recwarn):
    assert not survey(Mixing(honest), cross_entropy, *rows()).alone
    assert not recwarn.list
