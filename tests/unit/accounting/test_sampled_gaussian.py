"""The Poisson-sampled Gaussian, priced on whole arrays: against dp-accounting and against integrals."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as distributions
from dp_accounting.rdp.rdp_privacy_accountant import RdpAccountant
from scipy import integrate

from sfumato.accounting import GaussianEvent, MixtureOfGaussiansEvent, PoissonSampledEvent, Relation
from sfumato.accounting.losses import loss_distribution
from sfumato.accounting.rdp import ORDERS, rdp

CASES = [(0.01, 1.1), (0.2, 5.0), (0.01, 0.3), (0.9, 0.5), (0.5, 20.0), (0.3, 0.08), (1e-5, 1.0)]


def integral(rate, sigma, order):
    """ln E_Q[(P/Q)^α], by another rule than the product's, and with the same linear part taken off."""

    def part(x):
        ratio = math.log1p(rate * math.expm1((2 * x - 1) / (2 * sigma**2)))
        return math.exp(-0.5 * (x / sigma) ** 2) * (math.expm1(order * ratio) - order * math.expm1(ratio))

    centre = order if rate > 1e-3 else 0.0
    ends = sorted({-10 * sigma, 0.0, 1.0, centre, order + 10 * sigma})
    pieces = (integrate.quad(part, a, b, epsabs=0, epsrel=1e-7)[0] for a, b in itertools.pairwise(ends))
    return math.log1p(sum(pieces) / (sigma * math.sqrt(2 * math.pi)))


@pytest.mark.parametrize(("rate", "sigma"), CASES)
def test_divergences_are_those_of_dp_accounting_at_whole_orders_and_no_larger_between(rate, sigma):
    event = PoissonSampledEvent(rate, GaussianEvent(sigma))
    library = RdpAccountant(list(ORDERS))
    library.compose(event)
    orders, ours, theirs = np.array(ORDERS), rdp(event), np.asarray(library.rdp)
    whole = orders == np.floor(orders)
    assert ours[whole] == pytest.approx(theirs[whole], rel=1e-9)
    assert (ours[~whole] <= theirs[~whole] * (1 + 1e-8)).all()
    assert (np.diff(ours) > 0).all()  # divergences grow with their order
    logs = (orders - 1) * ours  # a convex function of the order, 0 at 1
    slopes = np.diff(logs, prepend=0.0) / np.diff(orders, prepend=1.0)
    assert (np.diff(slopes) >= -1e-7 * slopes[1:]).all()


@pytest.mark.parametrize(("rate", "sigma"), [(0.01, 1.1), (0.2, 5.0), (0.5, 2.0), (1e-5, 1.0), (1e-8, 1.0)])
@pytest.mark.parametrize("order", [1.1, 1.7, 2, 3.5, 8, 10.9])
def test_divergences_are_the_integral(rate, sigma, order):
    event = PoissonSampledEvent(rate, GaussianEvent(sigma))
    expected = integral(rate, sigma, order) / (order - 1)
    assert rdp(event, [order])[0] == pytest.approx(expected, rel=2e-6)


@pytest.mark.parametrize(
    ("rate", "sigma", "interval"),
    [(rate, sigma, 10 * sigma**-1 * 1e-4) for rate, sigma in CASES] + [(1.0, 2.0, 1e-3), (0.99999, 1.0, 1e-3)],
)
def test_loss_distributions_are_those_of_dp_accounting(rate, sigma, interval):
    event = PoissonSampledEvent(rate, GaussianEvent(sigma)) if rate < 1 else GaussianEvent(sigma)
    ours = loss_distribution(event, Relation.ADD_REMOVE, interval)
    theirs = distributions.from_gaussian_mechanism(
        sigma, sampling_prob=rate, value_discretization_interval=interval
    )
    check_same(ours, theirs, atol=2e-15 / interval)


@pytest.mark.parametrize(
    ("sigma", "shifts", "chances"),
    [
        (1.1, (0, 1, 2), (0.81, 0.18, 0.01)),
        (2.0, (1, 2), (0.5, 0.5)),
        (1.0, (0, 0.5, 3), (0.999, 0.0009, 0.0001)),
    ],
)
def test_those_of_mixtures_are_those_of_dp_accounting(sigma, shifts, chances):
    ours = loss_distribution(MixtureOfGaussiansEvent(sigma, shifts, chances), Relation.ADD_REMOVE, 0.02)
    theirs = distributions.from_mixture_gaussian_mechanism(
        sigma, shifts, chances, value_discretization_interval=0.02
    )
    check_same(ours, theirs, atol=1e-10)


def check_same(ours, theirs, *, atol):
    for mine, other in ((ours._pmf_remove, theirs._pmf_remove), (ours._pmf_add, theirs._pmf_add)):
        one, two = mine.to_dense_pmf(), other.to_dense_pmf()
        assert one._lower_loss == two._lower_loss
        assert one._infinity_mass == pytest.approx(two._infinity_mass, rel=1e-6, abs=1e-30)
        np.testing.assert_allclose(one._probs, two._probs, rtol=0, atol=atol)
