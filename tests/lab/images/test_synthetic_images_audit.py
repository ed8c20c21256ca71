"""Canaries in a whole release of images: who was in stays hidden, and is found where the noise is left out.

The bound holds with probability 1 − 10⁻⁴, so that the first test fails by chance as seldom.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from sfumato.audit import one_run
from sfumato.datasets import Dataset
from sfumato.learn import DIGITS
from sfumato.ledger import Unrecorded
from sfumato.randomness import SecretStream
from sfumato_lab.images import ImageRequest, StatisticsPlan, Styles, StyleSettings, learn_sampler
from sfumato_lab.images.styles import DRAW, clipped

EPSILON, DELTA, ALPHA = 1.0, 1e-5, 1e-4
CANARIES = 100
SETTINGS = StyleSettings(drawings=2000, directions=64)
QUICK = replace(DIGITS, drawn=60, directions=16, steps=4, sample_rate=0.5)


@pytest.fixture(scope="module")
def canaries():
    """Images and labels, ten of each digit, in directions of their own: the sums tell each from the others."""
    images, labels = DRAW["strokes"](2000, seed=41)
    chosen = np.argsort(labels, kind="stable").reshape(10, -1)[:, : CANARIES // 10].ravel()
    return images[chosen], labels[chosen]


def weighed(styles: Styles, sums, images, labels) -> np.ndarray:
    """How much of each canary is in the noisy sums of its class, by least squares."""
    found = np.zeros(len(images))
    residuals = clipped((styles.view.places(images) - styles.centres[labels]) / styles.reach)
    for label in range(10):
        own = labels == label
        found[own] = np.linalg.lstsq(residuals[own].T, sums[label], rcond=None)[0]
    return found


def bound(canaries) -> float:
    """The lower bound on ε that one release proves."""
    images, labels = canaries
    included = one_run.toss(CANARIES, SecretStream())
    rows = Dataset(
        inputs=(images[included][:, np.newaxis] / 255).astype(np.float32), targets=labels[included],
        visibility="private", name="strokes", classes=10, public_size=CANARIES,
    )  # fmt: skip
    request = ImageRequest.of(rows, images=1, epsilon=EPSILON, delta=DELTA, settings=SETTINGS, recipe=QUICK)
    made = learn_sampler(request, rows, ledger=Unrecorded(delta=DELTA), sampler=SecretStream())
    answers = torch.log_softmax(made.head(torch.from_numpy(images).unsqueeze(1) / 255), dim=1).detach().numpy()
    scores = 10 * weighed(made.styles, made.statistics.sums, images, labels)
    scores += answers[np.arange(CANARIES), labels]
    guesses = one_run.Guesses.of_scores(scores, included, guesses=CANARIES)
    return one_run.epsilon_bound(guesses, delta=DELTA, alpha=ALPHA)


def test_a_release_gives_away_no_more_than_was_paid_for(canaries):
    assert bound(canaries) <= EPSILON


def test_sums_with_next_to_no_noise_give_everybody_away(canaries, monkeypatch):
    honest = StatisticsPlan.measure
    monkeypatch.setattr(
        StatisticsPlan, "measure", lambda plan, *more: honest(replace(plan, noise_multiplier=0.02), *more)
    )
    assert bound(canaries) > EPSILON
