"""What may be said of an (ε, δ)."""

import math

import pytest

from sfumato.accounting import (
    ApproximateEvent,
    GaussianEvent,
    attacker_true_positive_rate,
    gaussian_noise_multiplier,
    largest_true_positive_rate,
    pure,
)
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
    assert warning.startswith("promises practically no protection: ")
    assert all(words in warning for words in named)
    assert "\n" not in warning


@pytest.mark.parametrize(("people", "warned"), [(None, False), (60_000, False), (100_000, True), (10**7, True)])
def test_a_delta_of_one_person_or_more_is_named(people, warned):
    warning = protection_warning(1.0, 1e-5, people)
    assert (warning is not None) == warned
    assert not warned or f"1 / {people} people" in warning


@pytest.mark.parametrize("delta", [0.0, 1e-5, LARGEST_DELTA / 2])
def test_the_largest_epsilon_promises_nothing(delta):
    """Something that keeps to it gives practically every member away: the event that is (ε, δ) and no more."""
    found = attacker_true_positive_rate(ApproximateEvent(LARGEST_EPSILON, delta))
    assert 0.9999 < found == pytest.approx(largest_true_positive_rate(LARGEST_EPSILON, delta), abs=1e-6)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 3.0, 8.0, 2000.0])
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_the_rate_of_a_budget_bounds_that_of_every_mechanism_within_it(epsilon, delta):
    most = largest_true_positive_rate(epsilon, delta)
    assert 0.01 <= most <= 1
    if 0 < epsilon < 100:
        assert attacker_true_positive_rate(pure(epsilon)) <= most + 1e-9
        if delta:
            noise = gaussian_noise_multiplier(epsilon, delta)
            assert attacker_true_positive_rate(GaussianEvent(noise)) <= most + 1e-9
