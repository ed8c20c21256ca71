"""The closed form of a Gaussian is exact to nine digits; with very much noise it is a bound."""

import math

import mpmath
import pytest
from dp_accounting import gaussian_mechanism
from hypothesis import given
from hypothesis import strategies as st

from sfumato.accounting import GaussianEvent, delta, epsilon
from sfumato.accounting.gaussian import epsilon_of, gaussian_noise_multiplier, log_delta

SIGMAS = st.floats(1e-3, 1e6, allow_nan=False)
DELTAS = st.floats(1e-300, 1.0, exclude_min=True)

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


CLOSE = 1e-7  # relative: dp-accounting's own rounding at large σ


@given(SIGMAS, DELTAS)
def test_epsilon_is_that_of_dp_accounting(sigma, target):
    expected = float(gaussian_mechanism.get_epsilon_gaussian(sigma, target))
    assert epsilon_of(sigma, target) == pytest.approx(expected, rel=CLOSE, abs=1e-10)


@given(st.floats(1e-3, 1e3), st.floats(0.0, 1e3))
def test_delta_is_that_of_dp_accounting(sigma, at):
    expected = float(gaussian_mechanism._get_log_delta(sigma, at))
    if expected > -700:
        assert math.exp(log_delta(sigma, at)) == pytest.approx(math.exp(expected), rel=1e-8, abs=1e-14)


@given(st.floats(1e-3, 100.0), st.floats(1e-12, 0.1))
def test_the_least_noise_is_that_of_dp_accounting_and_on_the_private_side(wanted, target):
    sigma = gaussian_noise_multiplier(wanted, target)
    assert sigma == pytest.approx(gaussian_mechanism.get_sigma_gaussian(wanted, target), rel=1e-6)
    assert epsilon_of(sigma, target) <= wanted


@pytest.mark.parametrize(
    ("sigma", "target"), [(0.0, 1e-5), (math.inf, 1e-5), (1.0, 1.0), (50.0, 0.5), (1e9, 1e-6)]
)
def test_the_ends(sigma, target):
    assert epsilon_of(sigma, target) == float(gaussian_mechanism.get_epsilon_gaussian(sigma, target))


def test_the_price_of_a_gaussian_is_that():
    assert epsilon(GaussianEvent(3.5), 1e-6) == epsilon_of(3.5, 1e-6)
    assert math.log(delta(GaussianEvent(3.5), 0.5)) == pytest.approx(log_delta(3.5, 0.5))


@pytest.mark.parametrize("sigma", [0.01, 0.3, 1.0, 40.0, 1e3, 9e4])
@pytest.mark.parametrize("target", [1e-300, 1e-100, 1e-20, 1e-12, 1e-5, 0.3])
def test_epsilon_is_the_truth_to_nine_digits(sigma, target):
    with mpmath.workdps(400):
        h, wanted = 1 / mpmath.mpf(sigma), mpmath.mpf(target)
        found = mpmath.mpf(epsilon_of(sigma, target))

        def exact(at):
            return mpmath.ncdf(h / 2 - at / h) - mpmath.exp(at) * mpmath.ncdf(-h / 2 - at / h)

        assert exact(found * (1 + mpmath.mpf(10) ** -9)) <= wanted
        assert found == 0 or exact(found * (1 - mpmath.mpf(10) ** -9)) > wanted


@pytest.mark.parametrize("sigma", [1.1e6, 1e8, 3e9, 1e13, 1e15, 1e18, 1e40])
@pytest.mark.parametrize("target", [1e-300, 1e-100, 1e-20, 1e-12])
def test_with_very_much_noise_epsilon_is_never_below_the_truth(sigma, target):
    """The truth, by as many digits as the difference of the two Φ loses, and more."""
    with mpmath.workdps(360 + 2 * int(math.log10(sigma))):
        h, wanted = 1 / mpmath.mpf(sigma), mpmath.mpf(target)

        def exact(at):
            return mpmath.ncdf(h / 2 - at / h) - mpmath.exp(at) * mpmath.ncdf(-h / 2 - at / h)

        found = epsilon_of(sigma, target)
        assert exact(mpmath.mpf(found)) <= wanted
        assert found == 0 or exact(found * (1 - mpmath.mpf(10) ** -8)) > wanted
