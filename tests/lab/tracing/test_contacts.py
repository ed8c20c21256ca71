"""The corners of the contact graph."""

import numpy as np
import pytest

from sfumato.errors import InvalidInput
from sfumato.randomness import SecretStream
from sfumato_lab.tracing import METHODS, ContactWindow, Disease, Population, Release, TestKit, release_scores

NOBODY = (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


def _day(window, *meetings):
    one, other = np.array(meetings).reshape(-1, 2).T
    window.add_day((one, other))


def test_contacts_are_mutual_and_counted_once_a_day():
    window = ContactWindow(4, 2)
    _day(window, (0, 1), (1, 0), (0, 1), (2, 2), (1, 3))
    assert window.sum_over_contacts(1, np.array([1, 10, 100, 1000])).tolist() == [10, 1001, 0, 10]
    assert window.sum_over_contacts(0, np.array([1, 10, 100, 1000])).tolist() == [0, 0, 0, 0]


def test_days_fall_out_of_the_window_and_gaps_stay_empty():
    window = ContactWindow(2, 3)
    _day(window, (0, 1))
    window.add_day(NOBODY)
    ones = np.ones(2, dtype=np.int64)
    assert [window.sum_over_contacts(day, ones)[0] for day in range(3)] == [0, 1, 0]
    window.add_day(NOBODY)
    assert [window.sum_over_contacts(day, ones)[0] for day in range(3)] == [1, 0, 0]
    window.add_day(NOBODY)
    assert sum(window.sum_over_contacts(day, ones)[0] for day in range(3)) == 0


def test_nine_hundred_contacts_give_the_product_of_their_factors():
    people, disease = 901, Disease(background=0.001)
    population = Population(people, disease, TestKit())
    population.begin_day((np.zeros(900, dtype=np.int64), np.arange(1, 901)))
    release_scores(population, Release(method="dpfn-daily", rounds=1), None)
    # Nobody was tested: all 900 are infectious this morning with the same prior chance.
    chance = _prior_infectious(disease, mornings=13)
    assert population.exposure[-1, 0] == pytest.approx(
        -900 * np.log1p(-disease.transmission * chance), rel=1e-3
    )


def _prior_infectious(disease, mornings):
    s, e, i, r = disease.start()
    for _ in range(mornings):
        s, e, i, r = (
            s * (1 - disease.background),
            s * disease.background + e * (1 - disease.onset),
            e * disease.onset + i * (1 - disease.recovery),
            r + i * disease.recovery,
        )
    return i


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("noise", [0.0, 2.0])
def test_every_method_scores_people_without_contacts_or_all_isolated(method, noise):
    population = Population(6, Disease(), TestKit())
    release = Release(method=method, noise_multiplier=noise, rounds=2)
    for _ in range(20):
        population.begin_day(NOBODY)
        scores = release_scores(population, release, SecretStream(test_seed=1))
        assert scores.shape == (6,)
        assert np.isfinite(scores).all()


@pytest.mark.parametrize("method", METHODS)
def test_every_method_bears_repeated_contacts_and_day_gaps(method):
    population = Population(5, Disease(), TestKit())
    release = Release(method=method, noise_multiplier=1.0, rounds=2)
    for day in range(16):
        pairs = (np.array([0, 0, 1]), np.array([1, 1, 2])) if day % 3 == 0 else NOBODY
        population.begin_day(pairs)
        assert np.isfinite(release_scores(population, release, SecretStream(test_seed=day))).all()
        population.record_tests(np.array([1]), np.array([day % 2 == 0]))


@pytest.mark.parametrize("pairs", [([0, 1], [1]), ([0], [7]), ([-1], [0])])
def test_impossible_contacts_are_refused(pairs):
    with pytest.raises(InvalidInput):
        ContactWindow(3, 2).add_day((np.array(pairs[0]), np.array(pairs[1])))
