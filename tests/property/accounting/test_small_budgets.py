"""A budget below what any Rényi order can state is calibrated to, with work that is bounded and counted."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato import accounting
from sfumato.accounting import (
    Budget,
    GaussianEvent,
    PrivacyFilter,
    calibration,
    pld,
    poisson_sampled,
    pure,
    repeat,
)

EVALUATIONS = 30  # exact prices asked for; from any guess a bracket takes few, and each turn then halves it
POINTS = 2**20


@pytest.fixture(scope="module")
def counted():
    """How many exact prices were asked for, and the largest grid of one."""
    seen = {"prices": 0, "points": 0.0}
    price, interval = calibration.epsilon, pld._interval

    def counting_price(*arguments, **options):
        seen["prices"] += 1
        return price(*arguments, **options)

    def counting_interval(parts, bound, precision, relation):
        step = interval(parts, bound, precision, relation)
        seen["points"] = max(seen["points"], 2 * pld._reach(parts, relation) / step)
        return step

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "epsilon", counting_price)
        patch.setattr(pld, "_interval", counting_interval)
        yield seen


@settings(max_examples=10, deadline=None)
@given(
    epsilon=st.floats(-4, -0.5).map(lambda power: 10**power),
    rate=st.sampled_from([0.001, 0.01, 0.1, 0.5, 1.0]),
    steps=st.sampled_from([1, 10, 100]),
    delta=st.sampled_from([1e-5, 1e-7]),
)
def test_a_small_budget_is_kept_closely_with_little_work(counted, epsilon, rate, steps, delta):
    counted.update(prices=0, points=0.0)

    def plan(noise):
        return repeat(poisson_sampled(rate, GaussianEvent(noise)), steps)

    noise = accounting.calibrate(plan, Budget(epsilon=epsilon, delta=delta))
    assert counted["prices"] <= EVALUATIONS
    assert counted["points"] <= POINTS * (1 + 1e-9)
    assert 0.99 * epsilon <= pld.epsilon(plan(noise), delta) <= epsilon


@pytest.mark.keeps_out("A small ε rounded up by a grid as wide as the losses")
@pytest.mark.parametrize(
    ("rate", "noise", "steps"), [(0.1, 1000.0, 10), (0.1, 1e4, 1000), (0.001, 100.0, 10_000)]
)
def test_a_small_epsilon_is_exact(rate, noise, steps):
    """Many faint releases are one Gaussian, μ = q·√(T·(e^{1/σ²} − 1)) (Dong, Roth & Su 2022, corollary 5.4)."""
    mu = rate * math.sqrt(steps * math.expm1(noise**-2))
    limit = accounting.epsilon(GaussianEvent(1 / mu), 1e-5)
    exact = accounting.epsilon(repeat(poisson_sampled(rate, GaussianEvent(noise)), steps), 1e-5)
    assert exact == pytest.approx(limit, rel=2e-3)


@pytest.mark.keeps_out("A hostile certificate that breaks the verifier, or keeps it busy for hours")
@pytest.mark.parametrize(
    "event",
    [
        repeat(poisson_sampled(0.1, GaussianEvent(100.0)), 10**18),
        repeat(accounting.LaplaceEvent(1e-9), 7),
        repeat(accounting.DiscreteLaplaceEvent(1.0, 0), 10**6),
        repeat(accounting.pure(1e300), 3),
        accounting.compose(GaussianEvent(1e-6), accounting.LaplaceEvent(1.0)),
    ],
    ids=["many", "loud", "idle", "enormous", "mixed"],
)
def test_no_event_asks_for_an_unbounded_grid(event):
    """Past a million releases, or losses of 100,000, the Rényi bound stands in: dearer, never cheaper."""
    assert accounting.epsilon(event, 1e-5) <= accounting.rdp_epsilon(event, 1e-5)


@given(st.floats(1e-9, 20.0), st.floats(0.01, 10.0), st.sampled_from([0.0, 1e-6, 1e-3]))
def test_a_pure_charge_counts_the_same_by_its_own_formula(value, size, delta):
    """What the search for the largest charge uses is what a charge of that event counts."""
    rule = PrivacyFilter(Budget(epsilon=size, delta=delta))
    assert rule._of_pure(value) == rule.spending(pure(value))
