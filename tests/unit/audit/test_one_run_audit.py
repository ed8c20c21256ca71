"""Canaries inside a run: what they do to a model, what is heard of them, and what that proves."""

import json
import math
from functools import partial

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from sfumato import datasets, models
from sfumato.audit import Guesses, one_run
from sfumato.audit.runs import canaries as run_audit
from sfumato.audit.runs import one_run as one_run_audit
from sfumato.audit.runs.planted import Canaries, LabelCanaries, WithCanaries
from sfumato.cli.app import app
from sfumato.errors import InvalidInput
from sfumato.models import MLP
from sfumato.randomness import SecretStream, public_torch_generator
from sfumato.training import Optimization, TrainingPlan, clipped_gradient_sum, cross_entropy, train
from sfumato_lab.reproduce import shuffle as shuffle_audit

PLAN = TrainingPlan(sample_rate=0.5, expected_batch=35, steps=4, noise_multiplier=1.0)


def test_canaries_beside_a_model():
    """A canary's gradient is minus the loudness at its own weight; the model's own gradients are untouched."""
    model = MLP(in_features=4, hidden=(3,), classes=2)
    canaries = Canaries(included=np.array([True, False, True, True, False]), loudness=4.0)
    joint, loss = canaries.beside(model), canaries.loss(cross_entropy)
    inputs, targets = torch.randn(3, 4, generator=public_torch_generator(5)), torch.tensor([0, 1, 1])
    rows, labels = canaries.among(inputs, targets)
    sums = clipped_gradient_sum(joint, loss, rows, labels, 1.0)
    expected = torch.tensor([-1.0, 0, -1, -1, 0, 0, 0, 0, 0])
    torch.testing.assert_close(sums["canaries.weight"].flatten(), expected, rtol=1e-5, atol=1e-6)
    alone = clipped_gradient_sum(model, cross_entropy, inputs, targets, 1.0)
    for name, value in alone.items():
        torch.testing.assert_close(sums[f"model.{name}"], value)


def test_left_out_canaries_may_keep_an_idle_row():
    canaries = Canaries(included=np.array([True, False]), loudness=4.0)
    rows, targets = canaries.among(torch.zeros(1, 4), torch.tensor([0]), zero_out=True)
    assert rows["codes"].tolist() == [[0.0, 0.0], [4.0, 0.0], [0.0, 0.0]]
    assert targets.tolist() == [0, -1, -1]


def heard(values):
    joint = WithCanaries(MLP(in_features=4, hidden=(3,), classes=2), 2)
    joint.canaries.weight.grad = -torch.tensor(values).reshape(2, 2) / 10
    return joint


def test_evidence_of_a_step():
    """ln of ((1 − q)·N(x; 0, s²) + q·N(x; 1, s²)) over N(x; 0, s²), with the densities written out."""
    seen, rate, deviation = np.array([0.0, 0.5, 1.0, 3.0]), 0.3, 0.8
    joint = heard(seen.tolist())
    joint.hear(10.0, deviation=deviation, rate=rate)
    out, taken = (np.exp(-((seen - mean) ** 2) / (2 * deviation**2)) for mean in (0, 1))
    expected = np.log(((1 - rate) * out + rate * taken) / out)
    np.testing.assert_allclose(joint.evidence.numpy(), expected, rtol=1e-5, atol=1e-7)
    joint.hear(10.0, deviation=deviation, rate=1.0)  # everybody takes part: the plain ratio of two normals
    np.testing.assert_allclose(joint.evidence.numpy(), expected + np.log(taken / out), rtol=1e-5, atol=1e-7)


def test_evidence_of_a_pass():
    """Exactly one of two steps: the mean of both ratios, and its logarithm only when the pass is over."""
    joint = heard([1.0, 0.0, 2.0, 0.5])
    joint.hear_in_pass(10.0, deviation=1.0, steps=2, last=False)
    assert joint.evidence.abs().max() == 0
    joint.canaries.weight.grad = torch.zeros(2, 2)
    joint.hear_in_pass(10.0, deviation=1.0, steps=2, last=True)
    expected = [math.log((math.exp(x - 0.5) + math.exp(-0.5)) / 2) for x in (1.0, 0.0, 2.0, 0.5)]
    assert joint.evidence.tolist() == pytest.approx(expected, rel=1e-5)


def test_one_run_on_digits(tmp_path):
    """2,000 canaries at ε = 8, sampled at ½: about 108 of 112 sure guesses are right; 82 by luck: 1e-6."""
    verdict = one_run_audit.run(tmp_path, canaries=2000, epsilon=8.0, steps=6)
    assert verdict.details["guesses"] == round(2.5 * math.sqrt(2000))
    assert verdict.details["right"] > 82
    assert verdict.lower_bound > 0.7 * verdict.claimed_epsilon  # every canary counts
    assert verdict.sure_bound < verdict.claimed_epsilon
    assert verdict.details["lower_bound_by_few_guesses"] < verdict.lower_bound
    record = json.loads((tmp_path / "private" / "canaries.json").read_text())
    again = Guesses.of_scores(record["scores"], record["included"], guesses=record["guesses"])
    assert again.right == verdict.details["right"]
    assert not list((tmp_path / "release").glob("*canar*"))
    released = load_file(tmp_path / "release" / "model.safetensors")
    assert released.keys() == models.build("mlp", side=8).state_dict().keys()
    # The run folder can be audited again, without training: the same coins, the same guesses.
    audit = run_audit.run(tmp_path, pairs=1)
    written = json.loads((tmp_path / "private" / "audit.json").read_text())
    assert written["one run"]["details"]["right"] == again.right
    assert not audit.refuted


def poisoned(tmp_path, *, epsilon):
    """Fifty rows and two hundred poisoned ones, half of them in."""
    rows, network = datasets.load("digits", "train").excerpt(50), models.build("mlp", side=8)
    plan = TrainingPlan.calibrated(epsilon=epsilon, delta=1e-5, public_size=250, expected_batch=200, steps=60)
    plain = Optimization(learning_rate=1.0, momentum=0.0)

    def training(model, data, loss_fn, watch):
        return train(model, data, plan, delta=1e-5, loss_fn=loss_fn, optimization=plain, on_step=watch)

    return one_run_audit.audited(network, rows, training, plan=plan, kind="labels", canaries=200, out=tmp_path)[
        1
    ]


def test_poisoned_labels_refute_a_run_without_noise(tmp_path, monkeypatch):
    """The model knows the canaries by heart: 34 or 35 guesses of 35 are right."""
    monkeypatch.setattr(SecretStream, "rounded_normal", lambda self, scale, size: np.ones(size, dtype=np.int64))
    verdict = poisoned(tmp_path, epsilon=0.2)
    assert verdict.details["right"] >= 30
    assert verdict.refuted


def test_poisoned_labels_tell_little_of_a_private_run(tmp_path):
    """About 31 of 35 right at ε = 8; 18 are expected of luck, and fewer than 20 of this attack once in 1e6."""
    verdict = poisoned(tmp_path, epsilon=8.0)
    assert verdict.details["right"] >= 20
    assert not verdict.refuted


def test_poisoned_labels_through_an_honest_run(tmp_path):
    verdict = one_run_audit.run(tmp_path, kind="labels", canaries=100, epsilon=4.0, steps=4)
    assert not verdict.refuted
    record = json.loads((tmp_path / "private" / "canaries.json").read_text())
    assert len(record["scores"]) == len(record["included"]) == 100
    released = load_file(tmp_path / "release" / "model.safetensors")
    assert released.keys() == models.build("mlp", side=8).state_dict().keys()


def test_poisoned_labels_are_public_and_their_coins_are_not():
    coins = one_run.toss(300, SecretStream())
    one, other = (LabelCanaries.drawn(c, shape=(1, 4, 4), classes=3, seed=7) for c in (coins, ~coins))
    assert torch.equal(one.inputs, other.inputs)
    assert torch.equal(one.targets, other.targets)
    rows, targets = one.among(torch.zeros(2, 1, 4, 4), torch.tensor([0, 1]))
    assert len(rows) == len(targets) == 2 + coins.sum()
    assert torch.equal(rows[2:], one.inputs[torch.from_numpy(coins)])


def test_margins_and_their_rise():
    """ln(p / (1 − p)) of the label, and what it rose by beyond the median of its class."""
    canaries = LabelCanaries(
        inputs=torch.eye(3), targets=torch.tensor([0, 0, 1]), included=np.array([True, False, True])
    )
    found = canaries.margins(torch.nn.Linear(3, 2, bias=False).requires_grad_(False))
    assert found.shape == (3,)
    layer = torch.nn.Linear(3, 2, bias=False)
    layer.weight.data = torch.tensor([[2.0, 0.0, 1.0], [0.0, 0.5, 4.0]])
    np.testing.assert_allclose(canaries.margins(layer), [2.0, -0.5, 3.0])
    rise = canaries.scores(np.zeros(3), np.array([2.0, 1.0, 5.0]))
    np.testing.assert_allclose(rise, [0.5, -0.5, 0.0])


@pytest.mark.parametrize("kind", one_run_audit.KINDS)
def test_an_interrupted_run_keeps_its_coins(tmp_path, kind):
    def stopped(*_):
        raise KeyboardInterrupt

    rows, network = datasets.load("digits", "train").excerpt(20), models.build("mlp", side=8)
    begin = partial(one_run_audit.audited, network, rows, stopped, plan=PLAN, out=tmp_path)
    records = []
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            begin(kind=kind, canaries=50)
        records.append((tmp_path / "private" / "canaries.json").read_text())
    assert records[0] == records[1]
    with pytest.raises(InvalidInput, match="begun with, 50"):
        begin(kind=kind, canaries=60)


def test_coins_are_fair_and_secret():
    one, other = (one_run.toss(1000, SecretStream()) for _ in range(2))
    assert 380 < one.sum() < 620
    assert (one != other).any()


def test_planned_guesses():
    assert [one_run.planned_guesses(m) for m in (2, 4, 10_000)] == [2, 4, 250]


def test_shuffled_batches_keep_their_own_price_and_break_that_of_poisson_sampling():
    """Errors of 18% a side where Poisson sampling leaves 25% and 19%: seven deviations beyond the limit."""
    prices = shuffle_audit.run()
    assert not prices.shuffled.refuted
    assert 0 < prices.shuffled.lower_bound < prices.shuffled.claimed_epsilon
    assert prices.poisson.refuted
    assert prices.poisson.claimed_epsilon < prices.shuffled.claimed_epsilon


@pytest.mark.parametrize("kind", one_run_audit.KINDS)
def test_train_command_with_canaries(tmp_path, kind):
    words = "train --data digits --model mlp --epsilon 4 --epochs 1 --batch 512 --audit 60 --json"
    result = CliRunner().invoke(app, [*words.split(), "--canaries", kind, "--out", str(tmp_path)])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["audit_lower_bound"] >= 0
    assert json.loads((tmp_path / "private" / "canaries.json").read_text())["kind"] == kind
    assert (tmp_path / "private" / "canaries.png").exists()
    assert not [path for path in (tmp_path / "release").rglob("*") if "canar" in path.name]


def test_train_command_knows_its_kinds(tmp_path):
    words = "train --data digits --model mlp --epsilon 4 --audit 60 --canaries parrots"
    result = CliRunner().invoke(app, [*words.split(), "--out", str(tmp_path)])
    assert isinstance(result.exception, InvalidInput)
