"""Views of one image: its neighbours by a pixel, of which each comes from that image alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sfumato import models
from sfumato.datasets import load
from sfumato.errors import InvalidInput
from sfumato.recipes import Canaries, Classifier, Settings
from sfumato.training import (
    Flat,
    PrivateTrainer,
    TrainingPlan,
    clip_chunk,
    cross_entropy,
    moved_by_a_pixel,
    survey,
)
from sfumato.training.own_code import OWN_CODE
from sfumato.training.rowwise import DIRECT


def test_five_views_of_an_image_are_it_and_its_neighbours():
    images = torch.zeros(2, 1, 5, 5)
    images[0, 0, 2, 2] = images[1, 0, 1, 3] = 1.0
    views = moved_by_a_pixel(images)
    assert views.shape == (2, 5, 1, 5, 5)
    assert views[:, 0].equal(images)
    places = [tuple(view[0].nonzero()[0].tolist()) for view in views[0]]
    assert sorted(places) == [(1, 2), (2, 1), (2, 2), (2, 3), (3, 2)]


def test_they_are_as_the_same_function_of_somebody_else_only_known():
    """Shown all rows at once, it gives the bits that a stranger's function gives one row at a time."""
    torch.manual_seed(0)
    model, rows = models.build("cnn"), (torch.randn(40, 1, 28, 28), torch.randint(0, 10, (40,)))
    stranger = lambda images: moved_by_a_pixel(images)  # noqa: E731
    assert survey(model, cross_entropy, *rows, views=moved_by_a_pixel).views.how == DIRECT
    assert survey(model, cross_entropy, *rows, views=stranger).views.how != DIRECT
    ours, theirs = (
        clip_chunk(model, cross_entropy, *rows, Flat(norm=1.0), views=views)
        for views in (moved_by_a_pixel, stranger)
    )
    assert ours.norms.equal(theirs.norms)
    assert all(ours.sums[name].equal(theirs.sums[name]) for name in ours.sums)
    assert (ours.norms > 0).all()


def test_five_views_are_averaged_and_clipped_as_one_row():
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    rows = torch.randn(6, 1, 4, 4), torch.randint(0, 2, (6,))
    result = clip_chunk(model, cross_entropy, *rows, Flat(norm=1e-3), views=moved_by_a_pixel)
    for row in range(6):
        seen = moved_by_a_pixel(rows[0][row : row + 1])[0]
        loss = cross_entropy(model(seen), rows[1][row].repeat(5)).mean()
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        norm = torch.cat([each.flatten() for each in gradients]).norm()
        assert result.norms[row].item() == pytest.approx(norm.item(), rel=1e-3)
        assert result.coefficients[row] * norm <= 1e-3 * 1.001


@pytest.mark.parametrize("views", [moved_by_a_pixel, lambda images: moved_by_a_pixel(images)])
def test_only_a_strangers_views_are_code_of_the_users_own(views):
    plan = TrainingPlan(sample_rate=0.5, expected_batch=10, steps=1, noise_multiplier=2.0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    trainer = PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), plan)
    for batch in trainer.batches((torch.randn(20, 1, 4, 4), torch.randint(0, 2, (20,))), views=views):
        trainer.step(batch, cross_entropy)
    assert (OWN_CODE in trainer.certificate(delta=1e-5).caveats) == (views is not moved_by_a_pixel)


def test_a_network_can_learn_from_moved_images_and_the_recipe_cannot():
    rows = load("digits", "train", side=8)
    settings = Settings(epochs=1, batch=256, moved=True)
    ready = Classifier.prepare(rows, epsilon=1, model="mlp", settings=settings)
    plain = Classifier.prepare(rows, epsilon=1, model="mlp", settings=Settings(epochs=1, batch=256))
    assert ready.views is moved_by_a_pixel
    assert ready.plan == plain.plan  # views of one person are one person's
    assert ready.train().epsilon <= 1
    with pytest.raises(InvalidInput, match="choose a network"):
        Classifier.prepare(rows, epsilon=1, settings=Settings(moved=True))
    with pytest.raises(InvalidInput, match="canaries"):
        Classifier.prepare(rows, epsilon=1, model="mlp", settings=settings, canaries=Canaries(count=5))
