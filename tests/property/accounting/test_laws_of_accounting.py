"""Laws that hold whatever the parameters."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato import accounting
from sfumato.accounting import (
    ClippedGaussianEvent,
    DiscreteGaussianEvent,
    GaussianEvent,
    LaplaceEvent,
    Relation,
    poisson_sampled,
    repeat,
)

rates = st.floats(1e-3, 0.5)
sigmas = st.floats(0.6, 20)
steps = st.integers(1, 1000)
deltas = st.floats(1e-9, 1e-2)


def dp_sgd(rate, sigma, count):
    return repeat(poisson_sampled(rate, ClippedGaussianEvent(sigma)), count)


@settings(max_examples=30, deadline=None)
@given(rates, sigmas, steps, deltas, st.sampled_from(list(Relation)))
def test_rdp_is_never_below_pld(rate, sigma, count, delta, relation):
    """The two accountants are independent code; the exact one may not be the larger."""
    event = dp_sgd(rate, sigma, count)
    exact = accounting.epsilon(event, delta, relation=relation, precision=1e-3)
    assert accounting.rdp_epsilon(event, delta, relation=relation) >= exact * (1 - 2e-3) - 2e-3


@pytest.mark.keeps_out("An accountant that returns 0 or less for less noise")
@settings(max_examples=5, deadline=None)
@given(rates, sigmas, st.integers(1, 500), deltas)
def test_more_noise_fewer_steps_or_a_lower_rate_never_cost_more(rate, sigma, count, delta):
    cost = accounting.epsilon(dp_sgd(rate, sigma, count), delta)
    slack = 1e-4 + 1e-3 * cost  # the discretisation of the loss
    assert accounting.epsilon(dp_sgd(rate, sigma * 1.3, count), delta) <= cost + slack
    assert accounting.epsilon(dp_sgd(rate, sigma, count + 100), delta) >= cost - slack
    assert accounting.epsilon(dp_sgd(min(1, rate * 1.5), sigma, count), delta) >= cost - slack
    assert accounting.epsilon(dp_sgd(rate, sigma, count), delta / 2) >= cost - slack


@settings(max_examples=30, deadline=None)
@given(st.floats(0.3, 20), deltas)
def test_epsilon_and_delta_are_inverse(scale, delta):
    for event in (GaussianEvent(scale), LaplaceEvent(scale), DiscreteGaussianEvent(scale, 1)):
        level = accounting.epsilon(event, delta)
        assert accounting.delta(event, level) <= delta * 1.01 + 1e-12


@settings(max_examples=30, deadline=None)
@given(st.floats(0.05, 5), st.integers(1, 20))
def test_composition_never_costs_more_than_adding(epsilon, count):
    together = accounting.epsilon(repeat(accounting.pure(epsilon), count), 1e-6)
    assert together <= epsilon * count * (1 + 1e-12)
    assert math.isfinite(together)
