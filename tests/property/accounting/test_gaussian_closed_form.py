"""The closed form of a Gaussian is dp-accounting's, to the last bit; with very much noise it is a bound."""

import math

import mpmath
import pytest
from dp_accounting import gaussian_mechanism
from hypothesis import given
from hypothesis import strategies as st

from sfumato.accounting import GaussianEvent, delta, epsilon
from sfumato.accounting.gaussian import epsilon_of, log_delta

SIGMAS = st.floats(1e-3, 1e6, allow_nan=False)
DELTAS = st.floats(1e-300, 1.0, exclude_min=True)

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@given(SIGMAS, DELTAS)
def test_epsilon_has_the_same_bits(sigma, target):
    assert epsilon_of(sigma, target) == float(gaussian_mechanism.get_epsilon_gaussian(sigma, target))


@given(SIGMAS, st.floats(0.0, 1e6))
def test_delta_has_the_same_bits(sigma, at):
    expected = float(gaussian_mechanism._get_log_delta(sigma, at))
    found = log_delta(sigma, at)
    assert found == expected or (math.isnan(found) and math.isnan(expected))


@pytest.mark.parametrize(
    ("sigma", "target"), [(0.0, 1e-5), (math.inf, 1e-5), (1.0, 1.0), (50.0, 0.5), (1e9, 1e-6)]
)
def test_the_ends(sigma, target):
    assert epsilon_of(sigma, target) == float(gaussian_mechanism.get_epsilon_gaussian(sigma, target))


def test_the_price_of_a_gaussian_is_that():
    assert epsilon(GaussianEvent(3.5), 1e-6) == float(gaussian_mechanism.get_epsilon_gaussian(3.5, 1e-6))
    assert math.log(delta(GaussianEvent(3.5), 0.5)) == pytest.approx(
        gaussian_mechanism._get_log_delta(3.5, 0.5)
    )


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
