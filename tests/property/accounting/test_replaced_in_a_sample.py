"""Replace-one with Poisson sampling: no two contributions within the norm bound cost more than the price.

The truth is integrated on a grid, for any two vectors of the plane of norm ≤ C: two vectors span no more.
"""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sfumato.accounting import (
    ClippedGaussianEvent,
    GaussianEvent,
    Relation,
    delta,
    epsilon,
    poisson_sampled,
    rdp_epsilon,
    repeat,
)
from sfumato.accounting.rdp import rdp
from sfumato.errors import NotPrivate

REPLACE = Relation.REPLACE_ONE


def density(rate: float, vector: tuple[float, float], sigma: float, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of a sampled vector plus noise."""
    there = np.exp(-((x - vector[0]) ** 2 + (y - vector[1]) ** 2) / (2 * sigma**2))
    away = np.exp(-(x**2 + y**2) / (2 * sigma**2))
    return ((1 - rate) * away + rate * there) / (2 * math.pi * sigma**2)


def told_apart(rate: float, one: tuple[float, float], other: tuple[float, float], sigma: float, level: float):
    """δ at ε = level of the two laws, and their Rényi divergence of order 2."""
    reach, step = 1 + 9 * sigma, sigma / 16
    line = np.arange(-reach, reach, step)
    x, y = np.meshgrid(line, line)
    p, q = (density(rate, vector, sigma, x, y) for vector in (one, other))
    failure = np.maximum(p - math.exp(level) * q, 0).sum() * step**2
    return failure, math.log((p**2 / q).sum() * step**2)


def vectors():
    return st.tuples(st.floats(0, 1), st.floats(-math.pi, math.pi)).map(
        lambda polar: (polar[0] * math.cos(polar[1]), polar[0] * math.sin(polar[1]))
    )


@settings(max_examples=10, deadline=None)
@given(st.floats(0.01, 0.99), vectors(), vectors(), st.floats(0.35, 4), st.floats(0, 4))
@example(0.5, (0.0, 0.0), (1.0, 0.0), 1.0, 1.0)  # values in [0, C]: the sensitivity is the norm bound
@example(0.5, (1.0, 0.0), (0.0, 0.0), 1.0, 1.0)
@example(0.01, (1.0, 0.0), (0.0, 0.0), 0.5, 0.2)
@example(0.3, (1.0, 0.0), (0.0, 1.0), 0.7, 0.5)
@example(0.3, (1.0, 0.0), (-1.0, 0.0), 0.7, 0.5)  # the worst
def test_no_pair_of_contributions_costs_more_than_the_price(rate, one, other, sigma, level):
    """The noise is σ·C and the event says σC/2C."""
    event = poisson_sampled(rate, ClippedGaussianEvent(sigma / 2))
    failure, divergence = told_apart(rate, one, other, sigma, level)
    assert failure <= delta(event, level, relation=REPLACE) * (1 + 1e-3) + 1e-9
    assert divergence <= rdp(event, [2.0], relation=REPLACE)[0] * (1 + 1e-6) + 1e-9


@settings(max_examples=5, deadline=None)
@given(st.floats(0.02, 0.98), st.floats(0.4, 3), st.floats(0, 2))
def test_opposite_contributions_of_full_length_cost_the_price(rate, sigma, level):
    """The bound is not slack: a price twice too high would fail here."""
    event = poisson_sampled(rate, ClippedGaussianEvent(sigma / 2))
    failure, _ = told_apart(rate, (1.0, 0.0), (-1.0, 0.0), sigma, level)
    assert failure >= delta(event, level, relation=REPLACE) * (1 - 2e-2) - 1e-7


@settings(max_examples=5, deadline=None)
@given(st.floats(0.001, 0.9), st.floats(0.4, 5), st.integers(1, 200))
def test_replacing_contains_removing(rate, sigma, count):
    """To replace a contribution of norm C by nothing is to remove it: the same noise never costs less."""
    replaced = repeat(poisson_sampled(rate, ClippedGaussianEvent(sigma / 2)), count)
    removed = repeat(poisson_sampled(rate, GaussianEvent(sigma)), count)
    cost = epsilon(replaced, 1e-5, relation=REPLACE)
    assert cost >= epsilon(removed, 1e-5) * (1 - 1e-3) - 1e-4


@pytest.mark.keeps_out("Sampled sums of values in [0, Δ] under replace-one priced as if each were at most Δ/2")
@pytest.mark.parametrize(
    ("rate", "sigma"),
    [(0.5, 1.0), (0.1, 1.0), (0.5, 0.5), (0.01, 0.5)],
)
def test_a_sensitivity_alone_has_no_price_when_sampled(rate, sigma):
    """Values in [0, Δ], noise σΔ: half of Δ on each side was too low, 1.95 for 3.53 at the first of these."""
    event = poisson_sampled(rate, GaussianEvent(sigma))
    for price in (epsilon, rdp_epsilon):
        with pytest.raises(NotPrivate, match="expected a bound"):
            price(event, 1e-5, relation=REPLACE)
    with pytest.raises(NotPrivate, match="ClippedGaussianEvent"):
        delta(repeat(event, 3), 1.0, relation=REPLACE)
    bounded = poisson_sampled(rate, ClippedGaussianEvent(sigma / 2))  # no value is longer than Δ
    assert delta(bounded, 1.0, relation=REPLACE) > told_apart(rate, (1.0, 0.0), (0.0, 0.0), sigma, 1.0)[0]


def test_a_bound_of_the_norm_changes_no_other_price():
    for relation in (Relation.ADD_REMOVE, Relation.ZERO_OUT):
        plain, clipped = (poisson_sampled(0.1, kind(1.2)) for kind in (GaussianEvent, ClippedGaussianEvent))
        assert epsilon(clipped, 1e-5, relation=relation) == epsilon(plain, 1e-5, relation=relation)
        assert rdp_epsilon(clipped, 1e-5, relation=relation) == rdp_epsilon(plain, 1e-5, relation=relation)
    assert epsilon(ClippedGaussianEvent(2.0), 1e-5, relation=REPLACE) == epsilon(GaussianEvent(2.0), 1e-5)
