"""Counts on records kept out: one record moves one count by one, whatever the model does in evaluation mode."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from sfumato.datasets import Dataset
from sfumato.training import hold_out
from sfumato.training.answers import NONE, answers
from sfumato.training.hold_out import HeldOut

ROWS = 60


class Centred(nn.Module):
    """Rows are apart in training, and meet in evaluation mode."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.last, self.before = nn.Linear(4, 2), None

    def forward(self, inputs):
        return self.last(inputs if self.training else inputs - inputs.mean(0, keepdim=len(inputs) == 1))


class Rescaling(Centred):
    """Rows meet where one of them is large, which no made-up row is."""

    def forward(self, inputs):
        return self.last(
            inputs / inputs.abs().max() * 3 - inputs.mean() if inputs.abs().max() > 1e4 else inputs
        )


class Limited(Centred):
    def forward(self, inputs):
        return self.last(inputs - torch.where(inputs.abs().amax() > 1e4, inputs.mean(0), 0.0))


class Remembering(Centred):
    def forward(self, inputs):
        seen = inputs if self.before is None else inputs + self.before
        self.before = inputs.mean(0)
        return self.last(seen)


class Writing(Centred):
    def forward(self, inputs):
        with torch.no_grad():
            self.last.bias += inputs.mean(0)[:2]
        return self.last(inputs)


def rows(count):
    draw = np.random.default_rng(0)
    inputs, targets = draw.normal(size=(ROWS, 4)).astype(np.float32), draw.integers(0, 2, ROWS)
    inputs[-1] = 1e5
    return HeldOut(
        rows=Dataset(
            inputs=inputs[:count],
            targets=targets[:count],
            name="toy",
            visibility="private",
            public_size=ROWS,
            classes=2,
        )
    )


def counted(monkeypatch, held, model):
    """The counts of right and wrong answers before noise."""
    seen, release = [], hold_out.DiscreteLaplace.release
    with monkeypatch.context() as patch:
        patch.setattr(
            hold_out.DiscreteLaplace,
            "release",
            lambda self, counts, sampler: seen.append(counts) or release(self, counts, sampler),
        )
        held.accuracy(model, epsilon=1.0)
    return seen[0]


@pytest.mark.keeps_out(
    "A model that lets rows meet in evaluation mode on a large value only, where right answers are counted"
)
@pytest.mark.keeps_out(
    "A model whose rows meet in evaluation mode, so that one record kept out moves many answers, or "
    "ends the run with an error that quotes it"
)
@pytest.mark.parametrize(
    "make",
    [
        Centred,
        Rescaling,
        Limited,
        Remembering,
        Writing,
        lambda: nn.Sequential(nn.Linear(4, 2), nn.Softmax(0)),
    ],
)
def test_a_record_kept_out_moves_one_count_by_one(make, monkeypatch):
    model = make()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with_record, without = (counted(monkeypatch, rows(count), model) for count in (ROWS, ROWS - 1))
    assert np.abs(with_record - without).sum() == 1
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.keeps_out(
    "A model whose rows meet in evaluation mode, so that one record kept out moves many answers, or "
    "ends the run with an error that quotes it"
)
@pytest.mark.parametrize(
    ("seed", "draw"),
    [
        (torch.manual_seed, lambda: torch.rand(1).item()),
        (random.seed, random.random),
        (np.random.seed, np.random.rand),
    ],
)
def test_a_row_that_seeds_decides_nothing_for_others(seed, draw):
    """Nor does a seed set outside: a row less would give others the draws of their neighbours."""
    seed(5)
    known = draw()

    class Seeding(Centred):
        def forward(self, inputs):
            is_known = float(draw() == known)
            seed(5)
            return torch.tensor([[0.5, is_known]]).expand(len(inputs), 2)

    seed(5)
    assert not answers(Seeding(), torch.zeros(4, 4)).any()


@pytest.mark.keeps_out(
    "A model whose rows meet in evaluation mode, so that one record kept out moves many answers, or "
    "ends the run with an error that quotes it"
)
def test_a_label_outside_the_classes_or_a_row_that_raises_is_a_wrong_answer(monkeypatch):
    held = rows(ROWS)
    held.rows.targets[3] = 93
    assert counted(monkeypatch, held, nn.Linear(4, 2)).sum() == ROWS

    class Strict(Centred):
        def forward(self, inputs):
            if (inputs > 1e4).any():
                raise ValueError(str(inputs))
            return self.last(inputs)

    assert answers(Strict(), held.rows.tensors()[0]).tolist().count(NONE) == 1
