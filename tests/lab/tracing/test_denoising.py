"""Posterior means against brute force, and against every other estimate on drawn data."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from sfumato.randomness import public_generator
from sfumato_lab.tracing.denoising import expected_again, expected_count


def _by_brute_force(seen, noise, expected, size, spread):
    """Σ k·P(k)·P(seen | k) / Σ P(k)·P(seen | k), term by term from the definitions."""
    weights = [
        stats.poisson.pmf(k, expected) * stats.norm.pdf(seen, size * k, math.sqrt(noise**2 + k * spread**2))
        for k in range(5)
    ]
    return sum(k * weight for k, weight in enumerate(weights)) / sum(weights)


@pytest.mark.parametrize(
    ("noise", "expected", "size", "spread"),
    list(itertools.product([0.5, 2.6, 9.6], [1e-4, 0.02, 0.8], [1.0, 12.6], [0.0, 4.0])),
)
def test_expected_count_is_the_posterior_mean(noise, expected, size, spread):
    # Below −size·noise²/spread² the estimate is held, so that it never falls as more is seen.
    least = -size * (noise / spread) ** 2 if spread else -np.inf
    seen = np.maximum(np.array([-1.3, 0.0, 0.4, 1.0, 2.2, 4.0]) * noise, least)
    found = expected_count(seen, noise, expected=np.full(6, expected), size=size, spread=spread)
    wanted = [_by_brute_force(value, noise, expected, size, spread) for value in seen]
    assert found == pytest.approx(wanted, rel=1e-9, abs=1e-300)


def _drawn(people=40_000, expected=0.05, size=12.6, noise=3.64):
    """Counts from the prior, and what is seen of them."""
    random = public_generator(5)
    counts = random.poisson(expected, people)
    return counts, size * counts + noise * random.normal(size=people), noise, size, expected


def test_expected_count_is_calibrated_and_beats_the_unbiased_estimate():
    counts, seen, noise, size, expected = _drawn()
    prior = np.full(counts.size, expected)
    found = expected_count(seen, noise, expected=prior, size=size, spread=0.0)
    # E[found] = E[K]: a mean of n differences of variance ≤ Var K = 0.05 is off by 4.9 √(0.05 / n) at most,
    # with a false-alarm rate of 1e-6.
    assert abs(float((found - counts).mean())) < 4.9 * math.sqrt(expected / counts.size)
    error = float(((found - counts) ** 2).mean())
    # y/size is unbiased, of variance (noise/size)² = 0.083; saying 0.05 of everyone has variance 0.05.
    assert error < 0.5 * expected
    assert error < 0.5 * float(((seen / size - counts) ** 2).mean())


def test_a_wrong_prior_does_worse_than_the_right_one():
    counts, seen, noise, size, expected = _drawn()
    errors = []
    for factor in (0.01, 1.0, 30.0):
        prior = np.full(counts.size, factor * expected)
        found = expected_count(seen, noise, expected=prior, size=size, spread=0.0)
        errors.append(float(((found - counts) ** 2).mean()))
    assert errors[1] == min(errors)


def test_expected_count_rises_with_what_is_seen_and_is_zero_for_the_lonely():
    seen = np.linspace(-40.0, 80.0, 600)
    found = expected_count(seen, 3.64, expected=np.full(600, 0.01), size=12.6, spread=4.2)
    assert (np.diff(found) >= -1e-12).all()
    assert 0 <= found.min() < 1e-4
    assert found.max() == pytest.approx(4, abs=0.2)
    assert expected_count(seen, 3.64, expected=np.zeros(600), size=12.6, spread=4.2).max() == 0


def test_without_noise_the_count_is_read_off():
    assert expected_count(np.array([0.0, 6.3, 12.6]), 0.0, expected=np.ones(3), size=12.6, spread=1.0) == (
        pytest.approx([0, 0.5, 1])
    )


def test_told_again_of_the_same_people_is_the_posterior_mean_of_all_days():
    noise, expected, signal = 2.6, 0.02, np.array([4.0, 5.0, 6.0])
    seen = public_generator(1).normal(3.0, 4.0, size=(3, 1, 50))
    weights = np.zeros((5, 50))
    for count in range(5):
        near = stats.norm.logpdf(seen[:, 0], signal[:, None] * count, noise).sum(axis=0)
        weights[count] = stats.poisson.pmf(count, expected) * np.exp(near)
    wanted = (np.arange(5) @ weights) / weights.sum(axis=0)
    told = np.zeros((3, 3, 1))
    told[2, :, 0] = signal  # all of whom were first told of two days ago
    prior = np.full((1, 50), expected)
    found = expected_again(seen, noise, before=np.zeros((3, 1, 50)), expected=prior, signal=told)
    assert found[2, 0] == pytest.approx(wanted)
    assert found[:2] == pytest.approx(expected, rel=0.02)  # of whom nothing was told; at most 4 are counted


def test_told_on_several_days_errs_less_than_told_once_and_days_are_kept_apart():
    random, days, people, noise, expected = public_generator(2), 6, 20_000, 3.6, 0.02
    counts = random.poisson(expected, size=(days, 1, people))  # first told of so many days ago
    told = np.zeros((days, days, 1))
    for first in range(days):
        told[first, : first + 1, 0] = 12.6 - np.arange(first + 1)[::-1]
    prior = np.full((1, people), expected)
    seen = np.einsum("jak,jkp->akp", told, counts) + noise * random.normal(size=(days, 1, people))
    found = np.zeros((days, 1, people))
    for today in range(days - 1, -1, -1):  # as the days go by
        found[today:] = expected_again(
            seen[today:], noise, before=found[today:], expected=prior, signal=told[today:, today:]
        )
    heard = 12.6 * counts + noise * random.normal(size=counts.shape)
    once = np.stack(
        [expected_count(day[0], noise, expected=prior[0], size=12.6, spread=0.0)[None] for day in heard]
    )
    errors = [float(((guess.sum(axis=0) - counts.sum(axis=0)) ** 2).mean()) for guess in (found, once)]
    assert errors[0] < 0.4 * errors[1]  # of how many there were on all days
    by_day = [float(((guess - counts) ** 2).mean()) for guess in (found, once)]
    assert by_day[0] < by_day[1]
    assert abs(float((found - counts).mean())) < 0.1 * expected
