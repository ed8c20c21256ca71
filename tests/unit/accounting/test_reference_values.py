"""Published and independently recomputed prices.

Sources: "rdp" rows are the values printed by
 TensorFlow Privacy's and Opacus's own tests and tutorials under the
current conversion; "pld" rows agree between Google's, Microsoft's (prv-accountant) and our own quadrature;
Gaussian values follow from the closed form of Balle & Wang (2018).
"""

import math

import pytest

from sfumato import accounting
from sfumato.accounting import GaussianEvent, LaplaceEvent, poisson_sampled, repeat


def dp_sgd(rate, sigma, steps):
    return repeat(poisson_sampled(rate, GaussianEvent(sigma)), steps)


@pytest.mark.parametrize(
    ("rate", "sigma", "steps", "delta", "expected"),
    [
        (0.04, 1.5, 2250, 1e-5, 7.32911),
        (0.0025, 1.3, 6000, 1e-5, 0.724223),
        (0.001, 1, 30000, 1e-7, 1.415499),
        (256 / 60000, 1.1, 14062, 1e-5, 2.5966),
        (1, 4.530877, 1, 1e-6, 1.0),
    ],
)
def test_rdp(rate, sigma, steps, delta, expected):
    assert accounting.rdp_epsilon(dp_sgd(rate, sigma, steps), delta) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    ("rate", "sigma", "steps", "delta", "expected"),
    [
        (0.04, 1.5, 2249, 1e-5, 6.76704),
        (0.001, 0.8, 1000, 1e-6, 0.46768),
        (0.05, 3, 100, 1e-6, 0.75788),
        (0.01, 0.7, 120, 1e-5, 2.46124),
        (1, 0.7, 2, 1e-5, 10.12249),
        (256 / 60000, 1.1, 14062, 1e-5, 2.38169),
        (1, 4.530877, 1, 1e-6, 0.92739),
    ],
)
def test_pld(rate, sigma, steps, delta, expected):
    assert accounting.epsilon(dp_sgd(rate, sigma, steps), delta) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("noise_multiplier", "epsilon", "expected"),
    [(10, 0.1, 0.008751768), (10 / 5, math.log(3), 0.004159742)],
)
def test_delta_of_a_gaussian(noise_multiplier, epsilon, expected):
    assert accounting.delta(GaussianEvent(noise_multiplier), epsilon) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("epsilon", "expected"), [(1, 3.730632), (3, 1.390593), (10, 0.499889)])
def test_analytic_gaussian(epsilon, expected):
    assert accounting.gaussian_noise_multiplier(epsilon, 1e-5) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("mu", "expected"), [(0.5, 1.99309), (1, 4.37718)])
def test_gaussian_differential_privacy(mu, expected):
    assert accounting.epsilon(GaussianEvent(1 / mu), 1e-5) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("scale", "count", "delta", "expected"), [(10, 50, 1e-6, 3.1207), (1, 10, 1e-5, 9.98996)]
)
def test_laplace(scale, count, delta, expected):
    assert accounting.epsilon(repeat(LaplaceEvent(scale), count), delta) == pytest.approx(expected, abs=1e-4)


@pytest.mark.keeps_out("The classical Gaussian formula at ε > 1")
def test_the_classical_gaussian_formula_fails_beyond_one():
    """At ε=10 the textbook σ = √(2 ln(1.25/δ))/ε is not (10, 1e-5)-DP; the analytic one is."""
    classical = math.sqrt(2 * math.log(1.25 / 1e-5)) / 10
    assert accounting.delta(GaussianEvent(classical), 10) == pytest.approx(2.3e-5, abs=1e-6)
    assert accounting.delta(GaussianEvent(accounting.gaussian_noise_multiplier(10, 1e-5)), 10) <= 1e-5


def test_two_noised_reports_of_one_person():
    """An image at ε=6, δ=1e-5 and a label at pure ε=2 together are 7.754 and not 8."""
    image = GaussianEvent(accounting.gaussian_noise_multiplier(6, 1e-5))
    keep = math.exp(2) / (math.exp(2) + 9)
    label = accounting.RandomizedResponseEvent((1 - keep) * 10 / 9, 10)
    both = accounting.compose(image, label)
    assert accounting.epsilon(both, 1e-5, relation=accounting.Relation.REPLACE_ONE) == pytest.approx(
        7.754, abs=2e-3
    )
