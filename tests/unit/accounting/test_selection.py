"""Choosing the best of a random number of trials: the distribution, the bound, its calibration."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from sfumato.accounting import (
    Budget,
    GaussianEvent,
    best_of,
    calibrate_selection,
    draw_trials,
    rdp,
    rdp_epsilon,
    repeat,
)
from sfumato.accounting.selection import selection_epsilon, trial_parameter
from sfumato.errors import InvalidInput
from sfumato.randomness import SecretStream


def logarithmic(gamma: float, most: int = 4000) -> np.ndarray:
    """P[K = k], k = 1…, straight from the definition (Papernot & Steinke 2022, definition 1, η = 0)."""
    counts = np.arange(1, most + 1)
    return np.exp(counts * math.log1p(-gamma) - np.log(counts)) / math.log(1 / gamma)


@pytest.mark.parametrize("mean", [1.5, 5.0, 20.0])
def test_the_parameter_gives_the_mean(mean):
    chances = logarithmic(trial_parameter(mean))
    assert chances.sum() == pytest.approx(1, abs=1e-6)
    assert chances @ np.arange(1, len(chances) + 1) == pytest.approx(mean, rel=1e-4)


def test_trials_follow_the_logarithmic_distribution():
    """20,000 draws; each frequency within 5.6 standard deviations: false alarms below 5 × 2e-8 = 1e-7."""
    stream, count = SecretStream(), 20_000
    drawn = np.array([draw_trials(5.0, stream) for _ in range(count)])
    expected = logarithmic(trial_parameter(5.0))
    assert drawn.min() == 1
    for trials in range(1, 6):
        chance = expected[trials - 1]
        tolerance = 5.6 * math.sqrt(chance * (1 - chance) / count)
        assert abs((drawn == trials).mean() - chance) < tolerance, trials


def renyi(p: np.ndarray, q: np.ndarray, order: float) -> float:
    seen = (p > 0) & (q > 0)
    return float(np.log((p[seen] ** order * q[seen] ** (1 - order)).sum()) / (order - 1))


def released(trial: np.ndarray, mean: float) -> np.ndarray:
    """The best of K trials whose outputs are ranked by position, the last one best, by brute force over K.

    P[best ≤ y] = E[F(y)^K].
    """
    chances = logarithmic(trial_parameter(mean), most=1000)
    numbers = np.arange(1, len(chances) + 1)
    powers = np.array([chances @ value**numbers for value in np.cumsum(trial)])
    return np.diff(np.concatenate([[0.0], powers]))


def gaussian(centre: float, sigma: float) -> np.ndarray:
    """Chances of the cells of a grid, the outer ones without end: divergences can only be smaller on it."""
    edges = stats.norm.cdf(np.linspace(-5 * sigma, 5 * sigma + 1, 400), loc=centre, scale=sigma)
    return np.diff(np.concatenate([[0.0], edges, [1.0]]))


@pytest.mark.parametrize("mean", [2.0, 5.0])
@pytest.mark.parametrize("sigma", [1.0, 3.0])
def test_the_bound_holds_for_gaussian_trials_by_brute_force(mean, sigma):
    """A trial tells a noised sum, and whoever selects prefers large sums, or small ones."""
    with_person, without = gaussian(1.0, sigma), gaussian(0.0, sigma)
    orders = [1.5, 2.0, 4.0, 8.0, 16.0]
    bound = rdp(best_of(GaussianEvent(sigma), mean), orders)
    pairs = [(with_person, without), (with_person[::-1], without[::-1])]
    pairs += [(q, p) for p, q in pairs]
    best = [(released(p, mean), released(q, mean)) for p, q in pairs]
    exact = np.array([max(renyi(p, q, order) for p, q in best) for order in orders])
    assert (exact <= bound).all()
    assert exact[1] > 1 / sigma**2  # choosing does cost: one trial's price, α/2σ², would be too low


def test_selection_costs_more_than_a_trial_and_less_than_all_of_them():
    trial = repeat(GaussianEvent(75.0), 100)
    one, many = rdp_epsilon(trial, 1e-5), rdp_epsilon(repeat(trial, 20), 1e-5)
    assert one < rdp_epsilon(best_of(trial, 20.0), 1e-5) < many


def test_the_calibrated_noise_fits_and_hardly_more_than_that():
    budget = Budget(epsilon=1, delta=1e-5)
    noise = calibrate_selection(GaussianEvent, budget, mean_trials=5.0)
    assert 0.99 < selection_epsilon(best_of(GaussianEvent(noise), 5.0), budget) <= 1
    assert rdp_epsilon(best_of(GaussianEvent(noise), 5.0), 1e-5) <= 1


@pytest.mark.parametrize("mean", [1.0, 0.0, math.nan])
def test_one_trial_is_no_selection(mean):
    with pytest.raises(InvalidInput):
        best_of(GaussianEvent(1.0), mean)
