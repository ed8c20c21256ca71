"""How often the leading class wins, and a query is answered, against the formulas.

Hoeffding: a share of n independent trials is further than t = √(ln(2/α)/2n) from its chance with probability
at most α. α = 1e-7 for each of the few checks: together below 1e-6. Noise that is wrong by ×0.7 moves each
chance by more than 2t, so that it fails with the same confidence.
"""

import math

import numpy as np
import pytest
from scipy import stats

from sfumato.pate import VotePlan, aggregate

TRIALS = 20_000
TOLERANCE = math.sqrt(math.log(2 / 1e-7) / (2 * TRIALS))  # 0.0205


def two_classes(lead):
    """100 teachers; class 0 leads by so many votes, on every query."""
    votes = np.ones(100, int)
    votes[: 50 + lead // 2] = 0
    return np.repeat(votes[:, None], TRIALS, axis=1)


def laplace_win(lead, gamma):
    """P[L₁ − L₂ < lead] of two Laplace variables of scale 1/γ: 1 − (2 + γ·lead) / (4·e^{γ·lead})."""
    return 1 - (2 + gamma * lead) / (4 * math.exp(gamma * lead))


CASES = {
    "gnmax": (lambda scale: {"sigma": 14.0 * scale}, stats.norm.cdf(10 / (14.0 * math.sqrt(2)))),
    "laplace": (lambda scale: {"gamma": 0.1 / scale}, laplace_win(10, 0.1)),
}


def share_won(mechanism, scale):
    fields, _ = CASES[mechanism]
    plan = VotePlan(mechanism=mechanism, teachers=100, queries=TRIALS, classes=2, **fields(scale))
    return float((aggregate(two_classes(10), plan).labels == 0).mean())


@pytest.mark.parametrize("mechanism", CASES)
def test_the_leader_wins_as_often_as_the_formula_says(mechanism):
    expected = CASES[mechanism][1]
    assert abs(share_won(mechanism, 1.0) - expected) < TOLERANCE


@pytest.mark.parametrize("mechanism", CASES)
def test_too_little_noise_is_seen(mechanism):
    assert abs(share_won(mechanism, 0.7) - CASES[mechanism][1]) > TOLERANCE


def share_answered(sigma_threshold):
    plan = VotePlan(
        mechanism="confident",
        teachers=100,
        queries=TRIALS,
        classes=2,
        sigma=1.0,
        sigma_threshold=sigma_threshold,
        threshold=50.0,
        answers=TRIALS,
    )
    return aggregate(two_classes(10), plan).answered / TRIALS


def test_queries_pass_as_often_as_the_formula_says():
    expected = stats.norm.cdf((55 - 50) / 10.0)
    assert abs(share_answered(10.0) - expected) < TOLERANCE
    assert abs(share_answered(7.0) - expected) > TOLERANCE
