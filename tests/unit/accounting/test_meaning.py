"""What may be said of an (ε, δ)."""

import math

import pytest
from scipy import stats

from sfumato.accounting import GaussianEvent, attacker_true_positive_rate, gaussian_noise_multiplier
from sfumato.accounting.meaning import LARGEST_DELTA, LARGEST_EPSILON, protection_warning


@pytest.mark.parametrize(("epsilon", "delta"), [(1e-3, 0.0), (1.0, 1e-5), (LARGEST_EPSILON, LARGEST_DELTA / 2)])
def test_a_budget_that_protects_gets_no_warning(epsilon, delta):
    assert protection_warning(epsilon, delta) is None


@pytest.mark.parametrize(
    ("epsilon", "delta", "named"),
    [
        (1e6, 1e-5, ["epsilon=1e+06"]),
        (math.inf, 1e-5, ["no finite epsilon"]),
        (math.nan, 1e-5, ["no finite epsilon"]),
        (None, 1e-5, ["no finite epsilon"]),
        (1.0, 0.5, ["delta=0.5", "1 in 2 people"]),
        (1.0, LARGEST_DELTA, ["delta=0.001", "1 in 1000 people"]),
        (1e6, 0.5, ["epsilon=1e+06", "delta=0.5"]),
    ],
)
def test_a_budget_that_protects_nobody_is_named_in_one_sentence(epsilon, delta, named):
    warning = protection_warning(epsilon, delta)
    assert warning is not None
    assert warning.startswith("gives practically no protection: ")
    assert all(words in warning for words in named)
    assert "\n" not in warning


def test_the_largest_epsilon_leaves_nothing_of_the_kindest_mechanism():
    """The attacker on Gaussian noise at the limit, by the formula Φ(μ − Φ⁻¹(1 − FPR))."""
    noise = gaussian_noise_multiplier(LARGEST_EPSILON, 1e-5)
    found = stats.norm.cdf(1 / noise - stats.norm.isf(0.01))
    assert 0.9999 < found <= attacker_true_positive_rate(GaussianEvent(noise))
