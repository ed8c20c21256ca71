"""Pre-training on drawings: reproducible, and better than guessing after a few steps."""

from __future__ import annotations

import hashlib
import json

import pytest
import torch

from sfumato.datasets import load
from sfumato.errors import DataUnavailable, InvalidInput
from sfumato.models.prior import PriorNet
from sfumato_lab.drawings import prior, strokes

QUICK = prior.PriorRecipe(epochs=1, drawings=1280, batch=64, threads=1, seed=3)


@pytest.fixture(scope="module")
def trained():
    return prior.pretrain(QUICK)


def test_the_same_recipe_gives_the_same_weights(trained):
    again = prior.pretrain(QUICK)
    for name, value in trained.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name


def test_another_seed_gives_other_weights(trained):
    other = prior.pretrain(prior.PriorRecipe(epochs=1, drawings=128, batch=64, threads=1, seed=4))
    assert not torch.equal(other.linear.weight, trained.linear.weight)


def test_twenty_steps_teach_something(trained):
    images, labels = strokes.draw(1000, seed=99)
    with torch.inference_mode():
        guesses = trained(torch.from_numpy(images).unsqueeze(1) / 255).argmax(dim=1).numpy()
    # Guessing is right one time in ten, give or take .01: .3 is twenty deviations above.
    assert (guesses == labels).mean() > 0.3


def test_accuracies_are_measured_on_public_images_only(trained, monkeypatch):
    monkeypatch.setattr(prior, "_HELD_OUT", 100)
    asked = []

    def unavailable(name, split, **options):
        asked.append((name, split))
        if name == "mnist":
            raise DataUnavailable("nowhere")
        return load(name, split, **options)

    monkeypatch.setattr(prior, "load", unavailable)
    found = prior.accuracies(trained, "strokes", seed=99)
    assert ("mnist", "train") not in asked
    assert found["mnist"] is None
    assert 0 < found["digits"] <= 1
    assert 0 < found["strokes"] <= 1


def test_threads_are_put_back(trained):
    before = torch.get_num_threads()
    prior.pretrain(prior.PriorRecipe(epochs=1, drawings=64, batch=64, threads=before + 1, seed=3))
    assert torch.get_num_threads() == before


def test_progress_counts_every_step():
    seen = []
    recipe = prior.PriorRecipe(epochs=2, drawings=192, batch=64, threads=1)
    prior.pretrain(recipe, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(step, 6) for step in range(1, 7)]


def test_what_is_written_is_the_net_and_its_note(tmp_path, monkeypatch, trained):
    monkeypatch.setattr(prior, "pretrain", lambda recipe, progress: trained)
    monkeypatch.setattr(
        prior, "accuracies", lambda net, name, seed: {"strokes": 0.5, "digits": 0.5, "mnist": None}
    )
    made = prior.make_prior(tmp_path, recipe=QUICK)
    content = (tmp_path / "strokes.safetensors").read_bytes()
    note = json.loads((tmp_path / "strokes.json").read_text())
    assert note["sha256"] == made["sha256"] == hashlib.sha256(content).hexdigest()
    assert note["recipe"]["seed"] == 3
    net = PriorNet()
    net.load_state_dict(prior.safetensors.torch.load(content))
    assert torch.equal(net.linear.weight, trained.linear.weight)


@pytest.mark.parametrize(
    ("field", "value"), [("epochs", 0), ("batch", 0), ("learning_rate", 0.0), ("threads", 0)]
)
def test_a_senseless_recipe_is_refused(field, value):
    with pytest.raises(InvalidInput, match=f"got {field}={value}"):
        prior.PriorRecipe(**{field: value})
