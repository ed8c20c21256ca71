"""Views of one image: its neighbours by a pixel, of which each comes from that image alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from sfumato.accounting import Budget
from sfumato.datasets import load
from sfumato.errors import InvalidInput, Refused
from sfumato.learn import Canaries, Classifier, Settings
from sfumato.ledger import Ledger
from sfumato.training import (
    Flat,
    PrivateTrainer,
    TrainingPlan,
    clip_chunk,
    cross_entropy,
    moved_by_a_pixel,
    resume,
    save_checkpoint,
    train,
)


def test_five_views_of_an_image_are_it_and_its_neighbours():
    images = torch.zeros(2, 1, 5, 5)
    images[0, 0, 2, 2] = images[1, 0, 1, 3] = 1.0
    views = moved_by_a_pixel(images)
    assert views.shape == (2, 5, 1, 5, 5)
    assert views[:, 0].equal(images)
    places = [tuple(view[0].nonzero()[0].tolist()) for view in views[0]]
    assert sorted(places) == [(1, 2), (2, 1), (2, 2), (2, 3), (3, 2)]


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


def test_rows_that_are_no_images_are_not_moved():
    with pytest.raises(InvalidInput, match="height, width"):
        moved_by_a_pixel(torch.zeros(3, 64))


def _trainer():
    plan = TrainingPlan(sample_rate=0.5, expected_batch=10, steps=2, noise_multiplier=2.0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    return PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), plan)


ROWS = torch.randn(20, 1, 4, 4), torch.randint(0, 2, (20,))


def test_a_run_that_is_taken_up_sees_rows_as_it_did(tmp_path):
    first = _trainer()
    for batch in first.batches(ROWS, views=moved_by_a_pixel):
        first.step(batch, cross_entropy)
        save_checkpoint(first, tmp_path / "checkpoint")
        break
    for views, allowed in ((None, False), (lambda images: images[:, None], False), (moved_by_a_pixel, True)):
        again = _trainer()
        resume(again, tmp_path / "checkpoint")
        batch = next(again.batches(ROWS, views=views))
        if allowed:
            again.step(batch, cross_entropy)
        else:
            with pytest.raises(Refused, match="got another graph"):
                again.step(batch, cross_entropy)
        assert again.steps_done == 1 + allowed


def test_a_checkpoint_of_another_model_is_refused_with_a_sentence(tmp_path):
    first = _trainer()
    for batch in first.batches(ROWS):
        first.step(batch, cross_entropy)
        save_checkpoint(first, tmp_path / "checkpoint")
        break
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    other = PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), first.plan)
    with pytest.raises(Refused, match="give the same options"):
        resume(other, tmp_path / "checkpoint")


def test_what_was_rehearsed_otherwise_is_looked_at_again_before_the_charge(tmp_path):
    """Views have more rows to add up: a bound without them might refuse the first step, after the charge."""
    ledger = Ledger.open(tmp_path / "ledger.db", budget=Budget(epsilon=30, delta=1e-5))
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    plan = TrainingPlan(sample_rate=0.5, expected_batch=10, steps=1, noise_multiplier=2.0)
    trainer = PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), plan, ledger=ledger)
    trainer.rehearse((torch.zeros(1, 1, 4, 4), torch.zeros(1, dtype=torch.long)), cross_entropy)
    rehearsed = trainer.eta
    for batch in trainer.batches(ROWS, views=moved_by_a_pixel):
        trainer.step(batch, cross_entropy)
    assert trainer.steps_done == 1
    assert trainer.eta != rehearsed
    views = moved_by_a_pixel
    trainer = PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), plan, ledger=ledger)
    trainer.rehearse((torch.zeros(1, 1, 4, 4), torch.zeros(1, dtype=torch.long)), cross_entropy, views=views)
    assert trainer.eta != rehearsed


@pytest.mark.parametrize("first", ["rehearse", "resume"])
def test_what_was_rehearsed_otherwise_is_looked_at_again_after_a_resume(tmp_path, first):
    plan = TrainingPlan(sample_rate=0.5, expected_batch=10, steps=3, noise_multiplier=2.0)

    def begin():
        model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
        return PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), plan)

    def rehearse(trainer):
        trainer.rehearse((torch.zeros(1, 1, 4, 4), torch.zeros(1, dtype=torch.long)), cross_entropy)

    before, after = begin(), begin()
    for batch in before.batches(ROWS, views=moved_by_a_pixel):
        before.step(batch, cross_entropy)
        save_checkpoint(before, tmp_path / "checkpoint")
        break
    if first == "rehearse":
        rehearse(after)
    resume(after, tmp_path / "checkpoint")
    if first == "resume":
        rehearse(after)
    assert after.eta != before.eta
    for batch in after.batches(ROWS, views=moved_by_a_pixel):
        after.step(batch, cross_entropy)
    assert after.steps_done == 3
    assert after.eta == before.eta
    with pytest.raises(Refused, match="before the first step"):
        rehearse(after)


def test_the_cost_of_a_plan_for_persons_is_estimated():
    rows = replace(load("digits", "train", side=8), unit="patient")
    settings = Settings(epochs=1, batch=256, moved=True)
    ready = Classifier.prepare(rows, epsilon=1, model="mlp", settings=settings)
    assert ready.estimate().seconds > 0
    assert "moved by a pixel" in ready.purpose


def broken(images):
    raise KeyError("broken")


def of_a_random_number(images):
    return images.unsqueeze(1).repeat(1, 1 + int(torch.rand(()) * 9), 1, 1, 1)


MISTAKES = {
    "raises": (broken, "got KeyError at .*test_views.py:.*: 'broken'"),
    "nothing": (lambda images: None, r"expected views to return \(rows, K, …\) .* got NoneType"),
    "one number": (lambda images: images.mean(), r"expected views to return \(rows, K, …\)"),
    "views first": (lambda images: torch.stack([images, images]), r"expected views to return \(rows, K, …\)"),
    "more rows": (lambda images: torch.cat([images, images]), r"expected views to return \(rows, K, …\)"),
    "an array": (lambda images: images.numpy(), "test_views.py:"),
    "a number a row": (lambda images: images.flatten(1).sum(1), r"expected views to return \(rows, K, …\)"),
    "no views": (lambda images: images.unsqueeze(1)[:, :0], r"expected views to return \(rows, K, …\)"),
    "any number": (of_a_random_number, "a question about a value .* at .*test_views.py:"),
    "no function": (3, "expected model and loss to run .* 'int' object is not callable"),
    "another size": (lambda images: torch.stack([images[..., :2]] * 3, 1), "got RuntimeError"),
    "a question": (
        lambda images: torch.stack([images] * (3 if float(images.max()) > 50 else 2), 1),
        "a question about a value .* at .*test_views.py:",
    ),
}


@pytest.mark.parametrize(("views", "sentence"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_views_is_said_to_be_one(tmp_path, views, sentence):
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    rows = torch.randn(20, 1, 4, 4), torch.randint(0, 2, (20,))
    with Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=5, delta=1e-5)) as ledger:
        with pytest.raises((InvalidInput, Refused), match=sentence):
            train(model, rows, epsilon=1, public_size=20, epochs=1, views=views, ledger=ledger)
        assert ledger.epsilon_spent == 0
