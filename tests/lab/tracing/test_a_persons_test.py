"""One person tests positive, or does not: all news of everybody moves by no more than a person is priced at."""

import math

import numpy as np
import pytest

from sfumato.errors import InvalidInput
from sfumato_lab.tracing import Disease, Release, release_scores
from sfumato_lab.tracing import scoring as channel
from sfumato_lab.tracing.contacts import Meetings
from sfumato_lab.tracing.disease import Kind, TestKit
from sfumato_lab.tracing.population import Population

CONTACTS = 3


def told(
    disease: Disease,
    release: Release,
    monkeypatch: pytest.MonkeyPatch,
    *,
    positive: bool,
    confirm: bool = False,
    agrees: bool = True,
) -> np.ndarray:
    """What would be released on each day, while everybody hears the same."""
    sent = []

    def send(line: channel.Channel, whole: np.ndarray, sampler: object) -> np.ndarray:
        sent.append(whole * line.grid)
        return np.full(whole.shape, 2.0)

    monkeypatch.setattr(channel.Channel, "send", send)
    people = Population(CONTACTS + 1, disease, TestKit(confirm=confirm))
    for day in range(4 * disease.window):
        people.begin_day(Meetings(np.zeros(CONTACTS, int), np.arange(1, CONTACTS + 1)))
        release_scores(people, release, None)
        if positive and day == disease.window:
            people.record_tests(np.array([0]), np.array([True]), counts=not confirm)
            if confirm:
                people.record_tests(np.array([0]), np.array([agrees]))
    return np.array(sent)


@pytest.mark.parametrize("window", [2, 3, 5, 8])
@pytest.mark.parametrize("overlap", [0.0, 0.5])
def test_a_test_is_within_the_price_of_a_person_who_stays_among_others(window, overlap, monkeypatch):
    disease = Disease(window=window, kinds=(Kind(recurrence=1.0),), onset=0.5, recovery=0.1)
    release = Release(method="dpfn", noise_multiplier=2.0, overlap=overlap)
    worlds = [told(disease, release, monkeypatch, positive=positive) for positive in (True, False)]
    moved = float(np.linalg.norm(worlds[0] - worlds[1]))
    price = release.price(disease, contacts_per_day=CONTACTS).person
    assert 0 < moved <= release.noise_multiplier / price.noise_multiplier
    only_the_window = window * math.sqrt(2 * CONTACTS * (1 - overlap))
    if overlap and window > 2:
        assert moved > only_the_window  # the days after the test count


@pytest.mark.parametrize("window", [2, 3, 5, 8, 14])
def test_a_test_that_is_told_daily_is_within_the_price_of_a_person(window, monkeypatch):
    disease = Disease(window=window, kinds=(Kind(recurrence=1.0),), onset=0.5, recovery=0.1)
    release = Release(method="dpfn", noise_multiplier=2.0, repeat=True)
    worlds = [told(disease, release, monkeypatch, positive=positive) for positive in (True, False)]
    moved = float(np.linalg.norm(worlds[0] - worlds[1]))
    price = release.price(disease, contacts_per_day=CONTACTS).person
    assert moved == pytest.approx(release.noise_multiplier / price.noise_multiplier)  # all of it


@pytest.mark.parametrize("window", [2, 3, 5, 8, 14])
def test_a_test_that_is_counted_daily_is_within_the_price_of_a_person(window, monkeypatch):
    disease = Disease(window=window)
    release = Release(method="traditional", noise_multiplier=2.0)
    worlds = [told(disease, release, monkeypatch, positive=positive) for positive in (True, False)]
    moved = float(np.linalg.norm(worlds[0] - worlds[1]))
    price = release.price(disease, contacts_per_day=CONTACTS).person
    assert moved <= release.noise_multiplier / price.noise_multiplier
    while_the_window_moves_on = [*range(1, window + 1), *range(window - 1, 0, -1)]
    if window > 3:  # priced as the messages of one window alone, it would be too cheap
        assert moved > math.sqrt(CONTACTS) * float(np.linalg.norm(while_the_window_moves_on))


@pytest.mark.parametrize("repeat", [False, True])
def test_two_tests_that_agree_cost_a_person_what_one_test_does(repeat, monkeypatch):
    disease = Disease(window=5, kinds=(Kind(recurrence=1.0),), onset=0.5, recovery=0.1)
    release = Release(method="dpfn", noise_multiplier=2.0, repeat=repeat)
    silent = told(disease, release, monkeypatch, positive=False)
    once = told(disease, release, monkeypatch, positive=True)
    twice = told(disease, release, monkeypatch, positive=True, confirm=True)
    refuted = told(disease, release, monkeypatch, positive=True, confirm=True, agrees=False)
    price = release.price(disease, contacts_per_day=CONTACTS).person
    assert np.array_equal(refuted, silent)
    assert np.linalg.norm(once - silent) > 0
    assert np.linalg.norm(twice - silent) <= release.noise_multiplier / price.noise_multiplier


def test_a_population_is_told_in_one_way():
    people = Population(2, Disease(), TestKit())
    people.keep_to(Release(method="dpfn", noise_multiplier=2.0))
    people.keep_to(Release(method="dpfn", noise_multiplier=2.0))
    with pytest.raises(InvalidInput, match="one way"):
        people.keep_to(Release(method="dpfn", noise_multiplier=2.0, overlap=0.5))


@pytest.mark.parametrize("overlap", ["0.5", None, math.nan, -0.1, 0.6, True])
def test_an_overlap_is_a_number_up_to_a_half(overlap):
    with pytest.raises(InvalidInput, match="overlap"):
        Release(method="dpfn", noise_multiplier=2.0, overlap=overlap)
