from __future__ import annotations

import math
from itertools import chain

import numpy as np
import pytest
import torch
from torch import nn

from sfumato.datasets import Dataset, load
from sfumato.errors import InvalidInput
from sfumato.fitting import FitConfig, evaluate, fit
from sfumato.models import build

# Over 20 seeds the MLP reached 97.8% on the 360 test digits with a deviation of .7% (least 95.8%); the floor
# lies six deviations below the mean. Guessing gives 10%.
DIGITS_FLOOR = 0.935


class Fixed(nn.Module):
    """Answers with its inputs."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs


def toy(inputs: list[list[float]], targets: list[int]) -> Dataset:
    return Dataset(
        inputs=np.array(inputs, dtype=np.float32).reshape(len(inputs), -1),
        targets=np.array(targets, dtype=np.int64),
        name="toy",
        visibility="public",
    )


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("batch_size", [1, 2, 3, 4, 100])
def test_evaluation_by_hand(batch_size):
    # Softmax of (ln 3, 0) is (3/4, 1/4): losses ln(4/3), ln 4, ln 2, ln(4/3). Right are the first, the last,
    # and the third, whose tie goes to class 0.
    data = toy([[math.log(3), 0], [math.log(3), 0], [0, 0], [0, math.log(3)]], [0, 1, 0, 1])
    found = evaluate(Fixed(), data, batch_size=batch_size)
    assert found.accuracy == 3 / 4
    assert found.loss == pytest.approx((2 * math.log(4 / 3) + math.log(4) + math.log(2)) / 4, rel=1e-6)


@pytest.mark.parametrize("training", [True, False])
def test_evaluation_switches_dropout_off_and_puts_the_mode_back(training):
    model = nn.Sequential(nn.Dropout(0.9), Fixed()).train(training)
    data = toy([[1.0, 0.0]] * 200, [0] * 200)
    assert evaluate(model, data).accuracy == 1
    assert model.training is training


def test_one_step_is_one_step_of_gradient_descent():
    data = toy([[1.0, 2.0], [3.0, -1.0]], [0, 1])
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.zero_()
    history = fit(model, data, FitConfig(epochs=1, batch_size=2, learning_rate=0.1, momentum=0))
    # At zero weights softmax is (½, ½): the gradient of the logits is (−½, ½) and (½, −½), over 2 rows.
    direction = torch.tensor([[-0.5, 0.5], [0.5, -0.5]])
    gradient = direction.T @ torch.tensor([[1.0, 2.0], [3.0, -1.0]]) / 2
    assert torch.allclose(model.weight, -0.1 * gradient)
    assert torch.allclose(model.bias, torch.zeros(2))
    assert history[0].loss == pytest.approx(math.log(2))


@pytest.mark.parametrize("seed", [0, 1])
def test_it_learns_digits(seed):
    model = build("mlp", side=8, seed=seed)
    config = FitConfig(epochs=10, batch_size=32, seed=seed)
    history = fit(model, load("digits"), config, evaluate_on=load("digits", "test"))
    assert [epoch.number for epoch in history] == list(range(1, 11))
    assert history[-1].evaluation.accuracy >= DIGITS_FLOOR
    assert history[-1].loss < history[0].loss / 4
    assert all(epoch.seconds > 0 for epoch in history)


def test_the_seed_fixes_the_order_of_rows_and_disturbs_no_other_draw():
    data = load("digits").excerpt(200)
    before = torch.get_rng_state()
    fitted = []
    for seed in (1, 1, 2):
        model = build("mlp", side=8)
        fit(model, data, FitConfig(epochs=2, seed=seed))
        fitted.append(weights(model))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(fitted[0], fitted[1])
    assert not torch.equal(fitted[0], fitted[2])


def test_every_row_is_met_once_an_epoch_in_changing_order():
    seen: list[list[float]] = []

    class Watching(nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            seen.append(inputs[:, 0].tolist())
            return super().forward(inputs)

    data = toy([[float(row), 0.0] for row in range(10)], [0] * 10)
    fit(Watching(2, 2), data, FitConfig(epochs=2, batch_size=4))
    assert [len(batch) for batch in seen] == [4, 4, 2] * 2
    first, second = list(chain(*seen[:3])), list(chain(*seen[3:]))
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second


def test_progress_is_silent_unless_on_a_terminal(capsys, monkeypatch):
    data = load("digits").excerpt(64)
    fit(build("mlp", side=8), data, FitConfig(epochs=1))
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    fit(build("mlp", side=8), data, FitConfig(epochs=1), progress=False)
    assert capsys.readouterr() == ("", "")
    fit(build("mlp", side=8), data, FitConfig(epochs=1))
    shown = capsys.readouterr()
    assert shown.out == ""  # standard output is for results
    assert "epoch 1/1" in shown.err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": -1}, "epochs"),
        ({"batch_size": 0}, "batch_size"),
        ({"optimizer": "lion"}, "sgd, adam, adamw"),
        ({"learning_rate": float("nan")}, "learning_rate"),
        ({"momentum": -0.1}, "momentum"),
        ({"weight_decay": -1}, "weight_decay"),
        ({"seed": 0.5}, "seed"),
    ],
)
def test_a_senseless_configuration_is_refused(changes, message):
    with pytest.raises(InvalidInput, match=message):
        FitConfig(**changes)


def test_no_rows_are_refused():
    nothing = toy([[0.0, 0.0]], [0]).select(np.array([], dtype=np.int64))
    with pytest.raises(InvalidInput, match="toy to have rows"):
        fit(Fixed(), nothing)
    with pytest.raises(InvalidInput, match="toy to have rows"):
        evaluate(Fixed(), nothing)
