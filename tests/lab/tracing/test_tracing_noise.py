"""The noise that is drawn is the noise that is declared, and the attack measures no more than it allows."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from sfumato import accounting
from sfumato.randomness import SecretStream
from sfumato_lab.tracing import Disease, Population, Release, TestKit, attack, release_scores
from sfumato_lab.tracing.attack import lower_bound

FALSE_ALARM = 1e-6
PEOPLE = 20_000


def _noise_of_counts(noise_multiplier):
    """A count of nobody's contacts is noise alone."""
    population = Population(PEOPLE, Disease(), TestKit())
    population.begin_day((np.array([0]), np.array([1])))
    release = Release(method="traditional", noise_multiplier=noise_multiplier)
    return release_scores(population, release, SecretStream())


def _variance_is(noise, sigma):
    low, high = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], noise.size)
    return low <= float(noise @ noise) / sigma**2 <= high


def test_noise_has_the_declared_scale_and_a_weaker_one_would_be_noticed():
    sigma = 3.0 * (1 + 2.0**-10)  # the sensitivity is declared larger by the rounding to the grid
    assert _variance_is(_noise_of_counts(3.0), sigma)
    assert not _variance_is(_noise_of_counts(0.7 * 3.0), sigma)


def test_noise_differs_between_days():
    first, second = _noise_of_counts(1.0), _noise_of_counts(1.0)
    # |correlation| of independent samples exceeds 4.9/√n with probability < 1e-6
    assert abs(np.corrcoef(first, second)[0, 1]) < 4.9 / math.sqrt(PEOPLE)


@pytest.mark.parametrize("method", ["dpfn", "dpfn-daily", "dpfn-s", "traditional"])
def test_without_noise_one_app_reads_the_victims_test(method):
    result = attack(Release(method=method, rounds=2), disease=Disease(), sampler=SecretStream(), victims=400)
    assert result.accuracy == 1


@pytest.mark.parametrize("method", ["dpfn", "dpfn-s", "traditional"])
def test_with_noise_the_attack_measures_no_more_than_the_declared_epsilon(method):
    disease = Disease()
    release = Release.calibrated(method=method, epsilon=1, delta=1e-3, disease=disease, span="release")
    result = attack(release, disease=disease, sampler=SecretStream(), victims=8000, confidence=1 - FALSE_ALARM)
    assert result.epsilon_lower_bound <= 1
    assert 0.5 - 0.06 < result.accuracy < 0.75
    # Sabotage: far too little noise must be caught by the same attack.
    weak = Release(method=method, noise_multiplier=release.noise_multiplier / 16)
    caught = attack(weak, disease=disease, sampler=SecretStream(), victims=8000, confidence=1 - FALSE_ALARM)
    assert caught.epsilon_lower_bound > 1


def test_watching_a_whole_life_measures_no_more_than_the_declared_epsilon():
    disease = Disease()
    release = Release.calibrated(method="dpfn", epsilon=1, delta=1e-3, disease=disease)
    options = {"disease": disease, "victims": 4000, "days": disease.window - 1, "confidence": 1 - FALSE_ALARM}
    assert attack(release, sampler=SecretStream(), **options).epsilon_lower_bound <= 1
    weak = replace(release, noise_multiplier=release.noise_multiplier / 16)
    assert attack(weak, sampler=SecretStream(), **options).epsilon_lower_bound > 1


def test_colluders_see_more_than_one_and_stay_within_the_group_price():
    disease = Disease()
    release = Release.calibrated(method="dpfn", epsilon=1, delta=1e-3, disease=disease, span="release")
    one = attack(release, disease=disease, sampler=SecretStream(), victims=4000)
    nine = attack(
        release, disease=disease, sampler=SecretStream(), victims=4000, colluders=9, confidence=1 - FALSE_ALARM
    )
    assert nine.accuracy > one.accuracy
    allowed = accounting.epsilon(accounting.GaussianEvent(release.noise_multiplier / 3), 1e-3)
    assert nine.epsilon_lower_bound <= allowed


def test_lower_bound_of_a_perfect_attack_is_clopper_and_pearsons():
    # 1 − (α/4)^{1/n} is the upper end for 0 of n at one-sided α/4, and (α/4)^{1/n} the lower for n of n.
    n, risk = 500, 0.01 / 4
    wanted = math.log(risk ** (1 / n) / (1 - risk ** (1 / n)))
    assert lower_bound(n, 0, n, delta=0, confidence=0.99) == pytest.approx(wanted)
    assert lower_bound(250, 250, n, delta=0, confidence=0.99) == 0
