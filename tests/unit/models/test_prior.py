"""The net learned from drawings: its weights are those we made, its features fit for a private head."""

from __future__ import annotations

import hashlib
import json

import pytest
import safetensors.torch
import torch

from sfumato import datasets
from sfumato.errors import DataCorrupted, DataUnavailable, InvalidInput
from sfumato.models import JoinedPriors, prior
from sfumato_lab.drawings import shapes, strokes


@pytest.fixture(scope="module")
def net():
    return prior.load_prior("strokes")


def images(count: int) -> torch.Tensor:
    return torch.linspace(0, 1, count * 784).reshape(count, 1, 28, 28)


def test_features_have_unit_length_and_the_declared_number(net):
    features = net.features(images(5))
    assert features.shape == (5, prior.PriorNet.feature_count)
    torch.testing.assert_close(features.norm(dim=1), torch.ones(5))


def test_a_blank_image_has_finite_features(net):
    features = net.features(torch.zeros(1, 1, 28, 28))
    assert torch.isfinite(features).all()
    assert features.norm() <= 1 + 1e-6


def test_both_heads_know_the_digits_of_drawings(net):
    drawn, labels = strokes.draw(1000, seed=1)
    inputs, targets = torch.from_numpy(drawn).unsqueeze(1) / 255, torch.from_numpy(labels)
    with torch.inference_mode():
        answers = net(inputs), net.linear(net.features(inputs))
    expected = prior.prior_note("strokes")["accuracy"]["strokes"]
    for answer in answers:
        # The linear head may be a little worse; one that was never trained is right a tenth of the time.
        assert (answer.argmax(dim=1) == targets).float().mean() > expected - 0.05


def test_examples_do_not_mix(net):
    inputs = images(4)
    together = net.features(inputs)
    for row in range(4):
        torch.testing.assert_close(net.features(inputs[row : row + 1])[0], together[row], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", prior.PRIORS)
def test_weights_are_small_and_their_note_says_how_they_were_made(name):
    note = prior.prior_note(name)
    content = prior._weights_folder().joinpath(f"{name}.safetensors").read_bytes()
    assert note["recipe"]["name"] == name
    assert note["bytes"] == len(content) < 2_000_000
    assert {"sha256", "recipe", "versions", "accuracy", "data"} <= note.keys()


@pytest.mark.parametrize("place", ["header", "values"])
def test_changed_weights_are_refused(tmp_path, place):
    shipped = prior._weights_folder()
    content = bytearray(shipped.joinpath("strokes.safetensors").read_bytes())
    content[10 if place == "header" else -1] ^= 1
    (tmp_path / "strokes.safetensors").write_bytes(content)
    (tmp_path / "strokes.json").write_text(json.dumps(prior.prior_note("strokes")))
    with pytest.raises(DataCorrupted, match="sha256"):
        prior.load_prior("strokes", folder=tmp_path)


@pytest.mark.parametrize("note", [{}, [], {"sha256": None}, "none"])
def test_a_note_that_is_none_is_refused(tmp_path, note):
    (tmp_path / "strokes.safetensors").write_bytes(b"weights")
    (tmp_path / "strokes.json").write_text("{" if note == "none" else json.dumps(note))
    with pytest.raises(DataCorrupted):
        prior.load_prior("strokes", folder=tmp_path)


def test_weights_that_are_no_numbers_are_refused(tmp_path):
    weights = {name: value * float("nan") for name, value in prior.shipped_weights("strokes").items()}
    content = safetensors.torch.save(weights)
    (tmp_path / "strokes.safetensors").write_bytes(content)
    (tmp_path / "strokes.json").write_text(json.dumps({"sha256": hashlib.sha256(content).hexdigest()}))
    with pytest.raises(DataCorrupted, match="NaN"):
        prior.load_prior("strokes", folder=tmp_path)


def test_a_folder_without_the_network_says_how_to_make_it(tmp_path):
    with pytest.raises(DataUnavailable, match="sfumato prior strokes-wide --out"):
        prior.load_prior("strokes-wide", folder=tmp_path)


@pytest.mark.parametrize("name", prior.PRIORS)
def test_every_prior_loads_with_the_head_of_its_drawings(name):
    net = prior.load_prior(name)
    classes = shapes.CLASSES if name == "shapes" else 10
    assert net(images(2)).shape == net.linear(net.features(images(2))).shape == (2, classes)
    assert not net.training


def test_an_unknown_prior_is_refused_with_the_known_ones():
    with pytest.raises(InvalidInput, match="strokes"):
        prior.load_prior("photographs")


def test_real_handwriting_is_read_without_any_private_data(net):
    try:
        test = datasets.load("mnist", "test").take(2000)
    except DataUnavailable as error:
        pytest.skip(str(error))
    inputs, targets = test.tensors()
    with torch.inference_mode():
        right = (net(inputs).argmax(dim=1) == targets).float().mean().item()
    # The note's accuracy is over all 10,000; a share of 2,000 lies within five of its deviations.
    expected = prior.prior_note("strokes")["accuracy"]["mnist"]
    assert expected >= 0.955
    assert right == pytest.approx(expected, abs=5 * (expected * (1 - expected) / 2000) ** 0.5)


def test_priors_joined_answer_by_the_mean_of_their_heads():
    nets = [prior.load_prior(name) for name in ("strokes", "strokes-wide")]
    joined, seen = JoinedPriors.of(nets, classes=10), images(4)
    with torch.inference_mode():
        torch.testing.assert_close(joined.features(seen).norm(dim=1), torch.ones(4))
        expected = torch.stack([net.linear(net.features(seen)) for net in nets]).mean(0)
        torch.testing.assert_close(joined(seen), expected, rtol=1e-4, atol=1e-4)
