"""One message changes, everything else stays: releases never move by more than what is declared."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato import accounting
from sfumato.randomness import public_generator
from sfumato_lab.tracing import Disease, Evidence, Release, believe
from sfumato_lab.tracing.scoring import untested
from sfumato_lab.tracing.telling import telling


def _score_of_contacts(log_factors, disease):
    return float(believe(untested(log_factors[:, None], disease), disease).score[0])


diseases = st.builds(
    Disease,
    background=st.floats(1e-4, 0.3),
    transmission=st.floats(0.01, 0.9),
    onset=st.floats(0.05, 1.0),
    recovery=st.floats(0.05, 1.0),
    message_bound=st.floats(0.1, 1.0),
    window=st.integers(1, 14),
)


@settings(max_examples=150, deadline=None)
@given(disease=diseases, seed=st.integers(0, 10**6))
def test_the_score_without_own_tests_moves_by_at_most_the_declared_sensitivity(disease, seed):
    random = public_generator(seed)
    others = random.exponential(0.2, disease.window) * random.integers(0, 2, disease.window)
    day = int(random.integers(disease.window))
    old, new = random.choice([0.0, 1.0, random.random()], 2) * disease.message_bound
    scores = []
    for message in (old, new):
        exposure = others.copy()
        exposure[day] -= math.log1p(-disease.transmission * message)
        scores.append(_score_of_contacts(exposure, disease))
    declared = Release(method="dpfn-s").sensitivity(disease)
    moved = abs(scores[0] - scores[1])
    assert moved <= declared * (1 + 2.0**-30)
    # And by lag, as the price over a message's life assumes.
    chance = disease.infectious_after(disease.window)[disease.window - 1 - day]
    assert moved <= declared * max(chance, 1 - chance) * (1 + 2.0**-30)


@settings(max_examples=150, deadline=None)
@given(disease=diseases, seed=st.integers(0, 10**6))
def test_log_factors_move_by_at_most_the_declared_sensitivity(disease, seed):
    random = public_generator(seed)
    old, new = random.choice([0.0, 1.0, random.random()], 2) * disease.message_bound
    moved = abs(math.log1p(-disease.transmission * old) - math.log1p(-disease.transmission * new))
    assert moved <= Release(method="dpfn-daily").sensitivity(disease) * (1 + 1e-12)


def test_own_positive_test_inside_the_score_breaks_the_published_sensitivity():
    # Romijnders et al. 2024 declare p1·γ = 0.05 for the whole score; with the own positive test inside it, one
    # message moves it by 0.43.
    disease = Disease(background=0.001)
    window = disease.window
    worst = 0.0
    for day in range(window):
        for morning in range(window + 1):
            scores = []
            for message in (0.0, 1.0):
                exposure = np.zeros((window, 1))
                exposure[day] = -math.log1p(-disease.transmission * message)
                infectious, other = np.ones((window + 1, 1)), np.ones((window + 1, 1))
                infectious[morning], other[morning] = 0.999, 0.01
                start = np.array([[1.0], [0.0], [0.0], [0.0]])
                evidence = Evidence(exposure=exposure, if_infectious=infectious, if_other=other, start=start)
                scores.append(believe(evidence, disease).tomorrow[1:3].sum())
            worst = max(worst, abs(scores[1] - scores[0]))
    assert disease.message_bound * disease.transmission == pytest.approx(0.05)
    assert worst > 0.4


def test_published_noise_composed_over_the_window_costs_three_not_one():
    # √(2 ln(5/(4δ)))/ε at ε = 1, δ = 1e-3 (Romijnders et al. 2024); a message is noised on fourteen days.
    multiplier = math.sqrt(2 * math.log(1.25 / 1e-3))
    assert multiplier == pytest.approx(3.776, abs=1e-3)
    price = Release(method="dpfn-daily", noise_multiplier=3.847).price(Disease(), contacts_per_day=10)
    assert price.epsilons(1e-3)["lifetime"] == pytest.approx(3.03, abs=0.005)
    by_hand = accounting.epsilon(accounting.repeat(accounting.GaussianEvent(3.847), 14), 1e-3)
    assert price.epsilons(1e-3)["lifetime"] == pytest.approx(by_hand, rel=1e-9)
    assert accounting.gaussian_noise_multiplier(1, 1e-3) == pytest.approx(2.575, abs=1e-3)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**6), days=st.integers(1, 14), overlap=st.sampled_from([0.0, 0.3, 0.5]))
def test_two_messages_that_only_rise_differ_by_no_more_than_is_paid(seed, days, overlap):
    random = public_generator(seed)
    weights = telling(days, overlap)
    moved = []
    for _ in range(2):
        rises = random.dirichlet(np.full(days, 0.2)) * random.choice([0.0, 1.0, random.random()])
        before = np.cumsum(rises) - rises
        moved.append(weights.first[::-1] * rises + weights.again[::-1] * before)
    release = Release(method="dpfn", noise_multiplier=1.0, overlap=overlap)
    price = release.price(Disease(), contacts_per_day=0)
    assert np.linalg.norm(moved[0] - moved[1]) <= 1 / price.lifetime.noise_multiplier + 1e-12
    assert np.abs(moved[0] - moved[1]).max() <= 1 / price.release.noise_multiplier + 1e-12
