"""Networks trained as one batch against the trainer's own clipped sums, and the attacks that use them."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from sfumato import datasets, models
from sfumato.audit import Guesses
from sfumato.audit.canary_layer import Canaries
from sfumato.experiments import black_box, ensemble, membership, one_run_audit, run_audit
from sfumato.models import MLP
from sfumato.randomness import SecretStream, public_torch_generator
from sfumato.training import clipped_gradient_sum, cross_entropy


def as_module(weights, network):
    model = MLP(
        in_features=weights.first.shape[1], hidden=(weights.first.shape[2],), classes=weights.second.shape[2]
    )
    first, second = model.layers[1], model.layers[3]
    for layer, matrix, bias in (
        (first, weights.first, weights.first_bias),
        (second, weights.second, weights.second_bias),
    ):
        layer.weight.data = matrix[network].mT.clone()
        layer.bias.data = bias[network, 0].clone()
    return model


@pytest.mark.parametrize("clip_norm", [0.3, 1e6])
def test_the_private_step_is_the_trainers(clip_norm):
    draw = public_torch_generator(1)
    inputs, targets = torch.randn(12, 6, generator=draw), torch.arange(12) % 4
    weights = ensemble.Weights.drawn(3, 6, 5, 4, seed=2)
    members = (torch.rand(3, 12, generator=draw) < 0.5).float()
    found = ensemble.gradients(weights, inputs, targets, members, clip_norm)
    for network in range(3):
        rows = members[network].bool()
        model = as_module(weights, network)
        sums = clipped_gradient_sum(model, cross_entropy, inputs[rows], targets[rows], clip_norm)
        for ours, name in zip(found, sums_in_order(sums), strict=True):
            torch.testing.assert_close(ours[network].mT.squeeze(-1), name, rtol=1e-4, atol=1e-5)


def sums_in_order(sums):
    return [sums["layers.1.weight"], sums["layers.1.bias"], sums["layers.3.weight"], sums["layers.3.bias"]]


def test_plain_gradient_without_clipping():
    inputs, targets = torch.randn(5, 4, generator=public_torch_generator(3)), torch.tensor([0, 1, 2, 1, 0])
    weights = ensemble.Weights.drawn(1, 4, 3, 3, seed=4)
    found = ensemble.gradients(weights, inputs, targets, torch.ones(1, 5))
    model = as_module(weights, 0)
    nn.functional.cross_entropy(model(inputs), targets, reduction="sum").backward()
    torch.testing.assert_close(found.first[0].mT, model.layers[1].weight.grad)
    losses = ensemble.losses(weights, inputs, targets)[0]
    torch.testing.assert_close(losses, nn.functional.cross_entropy(model(inputs), targets, reduction="none"))


def test_black_box_proves_something_of_ten():
    """Networks differ by 1.8 deviations: 270 a side err in 19%; ε ≤ 2 needs 33%, eight deviations off."""
    verdict = black_box.run(data="digits", networks=600, rows=100)
    assert verdict.claimed_epsilon == pytest.approx(10, rel=0.01)
    assert verdict.lower_bound > 2
    assert not verdict.refuted


def test_black_box_without_noise_is_refuted(monkeypatch):
    monkeypatch.setattr(ensemble, "_noised", lambda slope, step, sampler: slope / step.expected_batch)
    assert black_box.run(data="digits", networks=200, rows=50, steps=4, epsilon=1.0).refuted


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


def test_one_run_on_digits(tmp_path):
    """2,000 canaries at ε = 8: about 97 of the surest 100 guesses are right; 75 by luck: 1e-6."""
    verdict = one_run_audit.run(tmp_path, canaries=2000, epsilon=8.0, steps=6, sample_rate=1.0)
    assert verdict.details["right"] > 75
    assert 0 < verdict.lower_bound < verdict.claimed_epsilon
    record = json.loads((tmp_path / "private" / "canaries.json").read_text())
    again = Guesses.of_scores(record["scores"], record["included"], guesses=record["guesses"])
    assert again.right == verdict.details["right"]
    assert not list((tmp_path / "release").glob("*canar*"))
    released = load_file(tmp_path / "release" / "model.safetensors")
    assert released.keys() == models.build("mlp", side=8).state_dict().keys()
    # The run folder can be audited again, without training: the same coins, the same guesses.
    audit = run_audit.run(tmp_path, pairs=1)
    written = json.loads((tmp_path / "private" / "audit.json").read_text())
    assert written["one run"]["right"] == again.right
    assert not audit.refuted


def test_an_interrupted_run_keeps_its_coins(tmp_path):
    def stopped(*_):
        raise KeyboardInterrupt

    rows, network = datasets.load("digits", "train").take(20), models.build("mlp", side=8)
    records = []
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            one_run_audit.audited(network, rows, stopped, clip_norm=1.0, canaries=50, out=tmp_path)
        records.append((tmp_path / "private" / "canaries.json").read_text())
    assert records[0] == records[1]


def test_coins_are_fair_and_secret():
    one, other = (Canaries.drawn(1000, SecretStream(), loudness=1.0).included for _ in range(2))
    assert 380 < one.sum() < 620
    assert (one != other).any()


def test_membership_recipe(tmp_path, monkeypatch):
    monkeypatch.setattr(
        membership,
        "strongest",
        lambda *_: {name: {"measured_epsilon": 1.0} for name in membership.ATTACKERS[3:]},
    )
    answer = membership.run(
        tmp_path, data="digits", rows=120, networks=12, targets=4, epsilons=(4.0,), sizes=(60,), delta=1e-3
    )
    assert answer["claimed"] == {"ε = 4": 4.0}
    plain = answer["attacks"]["plain"]["LiRA"]["auc"]
    assert plain["lower"] <= plain["value"] <= plain["upper"]
    assert {path.name for path in (tmp_path / "release" / "figures").iterdir()} == {
        "membership-roc.png",
        "claimed-measured.png",
        "membership-precision.png",
    }
