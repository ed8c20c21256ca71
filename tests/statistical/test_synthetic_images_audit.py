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
from sfumato.ledger import Unrecorded
from sfumato.randomness import SecretStream
from sfumato.recipes import DIGITS
from sfumato.recipes.images import ImageRequest, StatisticsPlan, Styles, StyleSettings, learn_sampler
from sfumato.recipes.images.styles import DRAW

EPSILON, DELTA, ALPHA = 1.0, 1e-5, 1e-4
CANARIES = 100
SETTINGS = StyleSettings(drawings=2000, directions=8)
QUICK = replace(DIGITS, drawn=60, directions=16, steps=4, sample_rate=0.5)


@pytest.fixture(scope="module")
def canaries():
    """Images and labels, each alone in its cluster: what the counts could give away of them, they would."""
    styles = Styles.of(SETTINGS, classes=10)
    images, labels = DRAW["strokes"](2000, seed=41)
    clusters = styles.clusters(styles.view.places(images), labels)
    _, firsts = np.unique(labels * SETTINGS.fine + clusters, return_index=True)
    chosen = firsts[:CANARIES]
    assert len(chosen) == CANARIES
    return images[chosen], labels[chosen], clusters[chosen]


def bound(canaries) -> float:
    """The lower bound on ε that one release proves."""
    images, labels, clusters = canaries
    included = one_run.toss(CANARIES, SecretStream())
    rows = Dataset(
        inputs=(images[included][:, np.newaxis] / 255).astype(np.float32), targets=labels[included],
        visibility="private", name="strokes", classes=10, public_size=CANARIES,
    )  # fmt: skip
    request = ImageRequest.of(rows, images=1, epsilon=EPSILON, delta=DELTA, settings=SETTINGS, recipe=QUICK)
    made = learn_sampler(request, rows, ledger=Unrecorded(delta=DELTA), sampler=SecretStream())
    answers = torch.log_softmax(made.head(torch.from_numpy(images).unsqueeze(1) / 255), dim=1).detach().numpy()
    scores = 10 * made.statistics.counts[labels, clusters] + answers[np.arange(CANARIES), labels]
    guesses = one_run.Guesses.of_scores(scores, included, guesses=CANARIES)
    return one_run.epsilon_bound(guesses, delta=DELTA, alpha=ALPHA)


def test_a_release_gives_away_no_more_than_was_paid_for(canaries):
    assert bound(canaries) <= EPSILON


def test_counts_with_next_to_no_noise_give_everybody_away(canaries, monkeypatch):
    honest = StatisticsPlan.measure
    monkeypatch.setattr(
        StatisticsPlan, "measure", lambda plan, *more: honest(replace(plan, noise_multiplier=0.1), *more)
    )
    assert bound(canaries) > EPSILON
