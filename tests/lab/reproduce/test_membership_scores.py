"""Attacks on scores made to order, where what they can achieve is known."""

import numpy as np
import pytest
from scipy import stats

from sfumato.audit import auc
from sfumato.errors import InvalidInput
from sfumato.randomness import public_generator
from sfumato_lab.reproduce.membership import (
    calibrated_scores,
    lira_scores,
    loss_scores,
    margins,
    shadow_classifier_scores,
)


def made_up(rows=2000, networks=17, shift=1.0):
    """Margins: a row's own difficulty (sd 3), noise (sd 1), and a shift where it was trained on."""
    draw = public_generator(1)
    inside = draw.random((networks, rows)) < 0.5
    inside[0], inside[1] = True, False  # every row somewhere in and somewhere out, whoever the target is
    inside[2] = draw.random(rows) < 0.5
    values = draw.normal(0, 3, rows) + draw.normal(0, 1, (networks, rows)) + shift * inside
    return values, inside


def test_margin_is_the_log_odds():
    probabilities = np.array([0.01, 0.5, 0.999])
    assert margins(-np.log(probabilities)).tolist() == pytest.approx(stats.logistic.ppf(probabilities).tolist())
    assert np.isfinite(margins([0.0, 800.0])).all()


def test_lira_knows_each_rows_difficulty():
    """The best area is Φ(1/√2) = .76; a threshold on the margin, blind to difficulty, has Φ(1/√20) = .59."""
    values, inside = made_up()
    rest = np.arange(len(values)) != 2
    found = lira_scores(values[2], values[rest], inside[rest])
    blind = values[2]
    calibrated = calibrated_scores(values[2], values[rest], inside[rest])
    areas = [auc(scores[inside[2]], scores[~inside[2]]).value for scores in (found, calibrated, blind)]
    # n = 1000 a side: sd of an area ≤ .013; five of them
    assert areas[0] == pytest.approx(0.74, abs=0.065)
    assert areas[1] == pytest.approx(0.74, abs=0.065)
    assert areas[2] == pytest.approx(0.59, abs=0.065)


def test_lira_without_signal_is_guessing():
    values, inside = made_up(shift=0.0)
    rest = np.arange(len(values)) != 2
    found = lira_scores(values[2], values[rest], inside[rest])
    assert auc(found[inside[2]], found[~inside[2]]).value == pytest.approx(0.5, abs=0.07)


def test_shadow_classifier_learns_confidence():
    draw = public_generator(2)
    inside = draw.random((6, 600)) < 0.5
    labels = np.arange(600) % 3
    logits = draw.normal(0, 1, (6, 600, 3))
    np.put_along_axis(
        logits, labels[None, :, None], (2 * inside + draw.normal(0, 1, (6, 600)))[..., None], axis=2
    )
    confidences = logits - np.log(np.exp(logits).sum(2, keepdims=True))
    scores = shadow_classifier_scores(confidences[0], confidences[1:], inside[1:], labels)
    assert auc(scores[inside[0]], scores[~inside[0]]).value > 0.8
    assert ((scores > 0) == inside[0]).mean() > 0.7


def test_low_loss_means_member():
    assert loss_scores([0.1, 2.0]).tolist() == [-0.1, -2.0]


def test_rows_need_shadows_on_both_sides():
    with pytest.raises(InvalidInput, match="add shadows"):
        lira_scores(np.zeros(2), np.zeros((2, 2)), np.ones((2, 2)))
    with pytest.raises(InvalidInput, match="expected target"):
        lira_scores(np.zeros(3), np.zeros((2, 2)), np.ones((2, 2)))
