"""Draws of a wide discrete Gaussian, and shares of noise."""

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest

from sfumato.errors import InvalidInput, Refused
from sfumato.mechanisms import GaussianShares, discrete_gaussian_draws
from sfumato.mechanisms.discrete_draws import _Blocks
from sfumato.randomness import SecretStream

DRAWS = 40_000
TOLERANCE = math.sqrt(math.log(2 / 1e-8) / (2 * DRAWS))  # Massart 1990: a false alarm has chance 1e-8


def distance(draws, sigma):
    """The largest gap between the draws' distribution function and that of P(x) ∝ exp(−x²/2σ²)."""
    reach = np.arange(-int(12 * sigma) - 2, int(12 * sigma) + 3)
    weights = np.exp(-(reach.astype(float) ** 2) / (2 * sigma**2))
    seen = np.searchsorted(np.sort(draws), reach, side="right") / draws.size
    return np.abs(seen - np.cumsum(weights) / weights.sum()).max()


@pytest.mark.parametrize("sigma", [0.5, 0.9, 3.0, 31.9, 32.0, 500.0, 12_345.6])
def test_the_law_is_that_of_a_discrete_gaussian(sigma):
    draws = discrete_gaussian_draws(SecretStream(), sigma, DRAWS)
    assert distance(draws, sigma) < TOLERANCE
    assert distance(discrete_gaussian_draws(SecretStream(), sigma * 0.7, DRAWS), sigma) > TOLERANCE


def test_every_place_within_a_block_is_reached():
    draws = discrete_gaussian_draws(SecretStream(), 64.0, DRAWS)
    assert _Blocks(64.0).width == 4
    residues = np.bincount(draws % 8, minlength=8) / DRAWS
    # Hoeffding: off by t with chance 2·exp(−2nt²), for each of eight; a wide Gaussian is flat modulo 8.
    assert np.abs(residues - 1 / 8).max() < math.sqrt(math.log(16 / 1e-8) / (2 * DRAWS))


def test_chances_of_proposals_add_up_to_the_law():
    """Block chance · place chance · acceptance, in exact arithmetic, is ∝ exp(−x²/2σ²)."""
    blocks, sigma = _Blocks(40.0), 40.0
    with localcontext() as context:
        context.prec = 50
        ends = [Decimal(0), *blocks.ends, Decimal(2**63)]
        for place in (0, 1, 7, 80, 203):
            block = place // blocks.width
            start = block * blocks.width
            accept = blocks.weight(place) / blocks.weight(start)
            ratio = (ends[block + 1] - ends[block]) * accept / (ends[1] - ends[0])
            exact = (-(Decimal(place) ** 2) / (2 * Decimal(sigma) ** 2)).exp()
            assert abs(ratio / exact - 1) < Decimal(10) ** -40


class Words:
    """A sampler that plays chosen 63-bit words back."""

    private = False

    def __init__(self, *words):
        self.words = list(words)

    def integers(self, high, size):
        assert high == 2**63
        taken, self.words = self.words[:size], self.words[size:]
        return np.array(taken, dtype=np.int64)


@pytest.mark.parametrize(("second", "block"), [(0, 0), (2**63 - 1, 1)])
def test_a_word_on_an_end_is_decided_by_another(second, block):
    blocks = _Blocks(1.5)
    end = int(blocks.ends[0])
    assert 0 < blocks.ends[0] - end < 1
    assert blocks._choose(np.array([end]), Words(second)).tolist() == [block]


def test_a_word_near_the_chance_of_keeping_is_decided_in_decimals():
    blocks = _Blocks(64.0)
    start, place = np.array([8]), np.array([3])
    with localcontext() as context:
        context.prec = 50
        limit = int(blocks.weight(11) / blocks.weight(8) * 2**63)
    asked = Words(0, 2**63 - 1, 0)
    kept = [blocks._keep(start, place, np.array([limit + off]), asked)[0] for off in (-1, 0, 1)]
    assert kept[0]
    assert not kept[2]
    assert asked.words == []  # each of them asked for a second word
    far = Words()
    assert blocks._keep(start, place, np.array([limit - 2**30]), far)[0]
    assert not blocks._keep(start, place, np.array([limit + 2**30]), far)[0]


def test_doubles_err_less_than_what_is_left_undecided():
    blocks = _Blocks(1e9)
    for start, place in [
        (0, blocks.width - 1),
        (blocks.width * 400, blocks.width - 1),
        (blocks.width * 99, 77),
    ]:
        exponent = Fraction(place * (2 * start + place)) / (2 * Fraction(1e9) ** 2)
        with localcontext() as context:
            context.prec = 50
            exact = (-Decimal(exponent.numerator) / Decimal(exponent.denominator)).exp() * 2**63
        double = math.exp(float(place) * (2.0 * start + place) / (-2 * 1e9**2)) * 2**63
        assert abs(Decimal(double) - exact) < 2**16  # of the 2²⁰ that decimals decide


@pytest.mark.parametrize("sigma", [0.0, 0.1, -1.0, math.nan, math.inf, 2.0**46])
def test_a_width_beyond_reach_is_refused(sigma):
    with pytest.raises(InvalidInput, match="expected sigma"):
        discrete_gaussian_draws(SecretStream(), sigma, 1)


def test_no_draws():
    assert discrete_gaussian_draws(Words(), 3.0, 0).shape == (0,)


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
        def integers(self, high, size):
            return np.zeros(size, dtype=np.int64)

    shares = GaussianShares(clip_norm=1.0, dimension=64, noise_multiplier=1.0, shares=3)
    with pytest.raises(Refused, match="no noise"):
        shares.release(np.zeros(64, dtype=np.int64), Silent())
