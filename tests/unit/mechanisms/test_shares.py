"""Shares of discrete Gaussian noise."""

import math
from dataclasses import replace

import numpy as np
import pytest

from sfumato.errors import InvalidInput, Refused
from sfumato.mechanisms import GaussianShares
from sfumato.randomness import SecretStream

DRAWS = 40_000
TOLERANCE = math.sqrt(math.log(2 / 1e-8) / (2 * DRAWS))  # Massart 1990: a false alarm has chance 1e-8


def distance(draws, sigma):
    """The largest gap between the draws' distribution function and that of P(x) ∝ exp(−x²/2σ²)."""
    reach = np.arange(-int(12 * sigma) - 2, int(12 * sigma) + 3)
    weights = np.exp(-(reach.astype(float) ** 2) / (2 * sigma**2))
    seen = np.searchsorted(np.sort(draws), reach, side="right") / draws.size
    return np.abs(seen - np.cumsum(weights) / weights.sum()).max()


def of_width(sigma, dimension=DRAWS):
    """Shares of this many grid steps each."""
    unit = GaussianShares(clip_norm=1.0, dimension=dimension, noise_multiplier=1.0, shares=3)
    return replace(unit, noise_multiplier=sigma / unit.share_sigma)


def noise_of(sigma):
    return of_width(sigma).release(np.zeros(DRAWS, dtype=np.int64), SecretStream())


@pytest.mark.parametrize("sigma", [0.51, 0.9, 3.0, 31.9, 32.0, 500.0, 12_345.6])
def test_the_law_is_that_of_a_discrete_gaussian(sigma):
    assert distance(noise_of(sigma), sigma) < TOLERANCE
    if 0.7 * sigma >= 0.5:  # sabotage: less noise is seen
        assert distance(noise_of(0.7 * sigma), sigma) > TOLERANCE


def test_every_residue_is_reached():
    residues = np.bincount(noise_of(64.0) % 8, minlength=8) / DRAWS
    # Hoeffding: off by t with chance 2·exp(−2nt²), for each of eight; a wide Gaussian is flat modulo 8.
    assert np.abs(residues - 1 / 8).max() < math.sqrt(math.log(16 / 1e-8) / (2 * DRAWS))


@pytest.mark.parametrize("sigma", [0.1, -1.0, math.nan, math.inf, 2.0**46])
def test_a_width_beyond_reach_is_refused(sigma):
    with pytest.raises(InvalidInput, match="expected"):
        of_width(sigma, dimension=4)


def test_shares_of_one_width_seen_by_others():
    five = GaussianShares(clip_norm=0.2, dimension=5130, noise_multiplier=8.0, shares=5)
    eight = five.under(8)
    assert eight.share_sigma == pytest.approx(five.share_sigma)
    assert eight.noise_multiplier == pytest.approx(8 * math.sqrt(8 / 5))


def test_a_larger_error_than_declared_is_refused():
    shares = GaussianShares(clip_norm=0.2, dimension=5130, noise_multiplier=8.0, shares=5)
    shares.check_covers(shares.margin)
    for eta in (shares.margin * 1.01, math.nan):
        with pytest.raises(InvalidInput, match="margin"):
            shares.check_covers(eta)


def test_a_sampler_without_noise_is_noticed():
    class Silent(SecretStream):
        def discrete_gaussian(self, scale, size):
            return np.zeros(size, dtype=np.int64)

    shares = GaussianShares(clip_norm=1.0, dimension=64, noise_multiplier=1.0, shares=3)
    with pytest.raises(Refused, match="no noise"):
        shares.release(np.zeros(64, dtype=np.int64), Silent())
