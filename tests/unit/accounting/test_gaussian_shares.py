"""The price of a sum of discrete Gaussian shares (Kairouz, Liu, Steinke 2021)."""

import math

import numpy as np
import pytest

from sfumato import accounting
from sfumato.accounting import (
    GaussianEvent,
    GaussianSharesEvent,
    Relation,
    compose,
    event_from_json,
    event_to_json,
    poisson_sampled,
    pure,
    rdp,
    repeat,
)
from sfumato.errors import InvalidInput, NotPrivate


def law(sigma, reach=200):
    points = np.arange(-reach, reach + 1, dtype=float)
    weights = np.exp(-(points**2) / (2 * sigma**2))
    return weights / weights.sum()


def summed(sigma, shares):
    one = total = law(sigma)
    for _ in range(shares - 1):
        total = np.convolve(total, one, mode="same")
    return total


@pytest.mark.parametrize("sigma", [0.5, 0.6, 0.8])
@pytest.mark.parametrize("shares", [2, 3, 10])
def test_the_distance_bounds_the_sum_of_shares(sigma, shares):
    event = GaussianSharesEvent(1.0, sigma, shares, 1)
    near = slice(200 - 12, 200 + 13)  # further out the convolution of doubles underflows
    ratios = np.log(summed(sigma, shares)[near] / law(sigma * math.sqrt(shares))[near])
    assert 0 < np.abs(ratios).max() <= event.distance
    assert event.distance < 100 * np.abs(ratios).max()  # a bound, not an empty one


@pytest.mark.keeps_out("A sum of discrete Gaussian shares priced as if it were one discrete Gaussian")
@pytest.mark.parametrize(("sigma", "shares", "shift"), [(0.5, 4, 1), (0.7, 3, 2), (2.0, 5, 3)])
@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_the_price_bounds_exact_divergences_both_ways(sigma, shares, shift, rate):
    noise = summed(sigma, shares)
    moved = np.roll(noise, shift)
    keep = (noise > 1e-60) & (moved > 1e-60)
    p, q = noise[keep], ((1 - rate) * noise + rate * moved)[keep]
    multiplier = math.sqrt(shares) * sigma / shift
    event = poisson_sampled(rate, GaussianSharesEvent(multiplier, sigma, shares, 1))
    for order in (1.5, 2.0, 3.0, 4.5):
        exact = max(
            math.log(np.sum(p**order * q ** (1 - order))), math.log(np.sum(q**order * p ** (1 - order)))
        )
        assert exact / (order - 1) <= rdp(event, [order])[0] * (1 + 1e-9)


def test_wide_shares_cost_at_whole_orders_what_a_gaussian_costs():
    wide = GaussianSharesEvent(1.7, 400.0, 7, 11_000_000)
    assert wide.distance == 0.0  # below 1e-300
    for make in (lambda event: event, lambda event: poisson_sampled(0.2, event)):
        orders = [2, 3, 8, 32, 256]
        expected = rdp(make(GaussianEvent(1.7)), orders)
        assert rdp(make(wide), orders) == pytest.approx(expected, rel=1e-12)


def test_narrow_shares_cost_the_dimension_times_their_distance():
    one = rdp(GaussianSharesEvent(2.0, 0.5, 3, 1), [2])[0]
    many = rdp(GaussianSharesEvent(2.0, 0.5, 3, 101), [2])[0]
    c = 5 * math.exp(-(math.pi**2) / 4) + 5 * math.exp(-(math.pi**2) / 3)
    assert many - one == pytest.approx(100 * 3 * c)
    assert one == pytest.approx(2 / 8 + 3 * c)


def test_golden_prices():
    """As the Rényi figures for the continuous Gaussian that other tools print, whole orders only."""
    for rate, sigma, steps, delta, expected in [
        (0.0025, 1.3, 6000, 1e-5, 0.724223),
        (256 / 60000, 1.1, 14062, 1e-5, 2.5966),
    ]:
        event = repeat(poisson_sampled(rate, GaussianSharesEvent(sigma, 1000.0, 5, 5130)), steps)
        found = accounting.epsilon(event, delta)
        assert expected - 1e-3 <= found <= 1.01 * expected
        assert found == accounting.rdp_epsilon(event, delta)  # no loss distribution is claimed for it
    single = GaussianSharesEvent(4.530877, 1000.0, 5, 5130)
    assert accounting.epsilon(single, 1e-6) == pytest.approx(1.0, abs=1e-3)


def test_delta_is_the_inverse_of_epsilon():
    event = repeat(poisson_sampled(0.2, GaussianSharesEvent(9.0, 1000.0, 5, 5130)), 200)
    level = accounting.epsilon(event, 1e-5)
    assert accounting.delta(event, level) == pytest.approx(1e-5, rel=1e-6)
    together = compose(event, pure(0.1))
    assert level < accounting.epsilon(together, 1e-5) <= level + 0.1


def test_calibration_finds_the_noise():
    def make(sigma):
        return repeat(poisson_sampled(0.2, GaussianSharesEvent(sigma, 1000.0, 5, 5130)), 200)

    sigma = accounting.calibrate(make, accounting.Budget(epsilon=1, delta=1e-5))
    assert 0.99 <= accounting.epsilon(make(sigma), 1e-5) <= 1


def test_what_has_no_proof_has_no_price():
    event = poisson_sampled(0.2, GaussianSharesEvent(9.0, 1000.0, 5, 10))
    with pytest.raises(NotPrivate):
        rdp(event, [2], relation=Relation.REPLACE_ONE)
    with pytest.raises(NotPrivate):
        accounting.for_group(event, 2)
    assert accounting.for_group(event.event, 3).noise_multiplier == pytest.approx(3.0)


@pytest.mark.parametrize("wrong", [(-1.0, 9.0, 2, 1), (1.0, 0.4, 2, 1), (1.0, 9.0, 0, 1), (1.0, 9.0, 2, 0)])
def test_impossible_shares_are_refused(wrong):
    with pytest.raises(InvalidInput, match="expected"):
        GaussianSharesEvent(*wrong)


def test_no_noise_costs_everything():
    assert accounting.epsilon(GaussianSharesEvent(0.0, 9.0, 2, 1), 1e-5) == math.inf


def test_json_there_and_back():
    event = repeat(poisson_sampled(0.2, GaussianSharesEvent(9.0, 1000.5, 5, 5130)), 200)
    assert event_from_json(event_to_json(event)) == event
