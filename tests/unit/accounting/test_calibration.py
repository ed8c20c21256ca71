import pytest

from sfumato import accounting
from sfumato.accounting import (
    Budget,
    ClippedGaussianEvent,
    GaussianEvent,
    LaplaceEvent,
    Relation,
    poisson_sampled,
    repeat,
)
from sfumato.errors import InvalidInput


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 1, 3, 10, 40])
@pytest.mark.parametrize(
    "make",
    [
        GaussianEvent,
        lambda sigma: repeat(poisson_sampled(0.01, GaussianEvent(sigma)), 500),
        lambda scale: repeat(LaplaceEvent(scale), 20),
    ],
    ids=["gaussian", "dp-sgd", "laplace"],
)
def test_fits_and_is_tight(epsilon, make):
    value = accounting.calibrate(make, Budget(epsilon=epsilon, delta=1e-5))
    assert 0.99 * epsilon <= accounting.epsilon(make(value), 1e-5) <= epsilon


def test_a_value_that_makes_things_dearer():
    def at_rate(rate):
        return repeat(poisson_sampled(min(rate, 1), GaussianEvent(5.0)), 100)

    rate = accounting.calibrate(at_rate, Budget(epsilon=1, delta=1e-5), guess=0.01)
    assert 0.99 <= accounting.epsilon(at_rate(rate), 1e-5) <= 1


def test_under_replace_one():
    budget = Budget(epsilon=1, delta=1e-5, relation=Relation.REPLACE_ONE)

    def make(sigma):
        return repeat(poisson_sampled(0.1, ClippedGaussianEvent(sigma)), 50)

    value = accounting.calibrate(make, budget)
    assert 0.99 <= accounting.epsilon(make(value), 1e-5, relation=Relation.REPLACE_ONE) <= 1


@pytest.mark.parametrize(
    "fields", [{"epsilon": 0}, {"epsilon": -1}, {"epsilon": float("nan")}, {"epsilon": 1, "delta": 1}]
)
def test_a_budget_that_makes_no_sense(fields):
    with pytest.raises(InvalidInput):
        Budget(**fields)
