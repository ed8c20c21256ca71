"""Two towns that differ in one contact-day message, with the same noise: nothing public may differ.

A message is what one phone says about one day to one contact, in all its versions. Here the last person of the
town is the sender, met once by person 0; the two towns differ in what that phone says: its owner's tests.
"""

from functools import partial

import numpy as np
import pytest

from sfumato import audit
from sfumato.mechanisms import GridGaussian
from sfumato_lab.tracing import Disease, Kind, Population, Release, TestKit, release_scores

PEOPLE, DAYS, MEETING = 9, 18, 3
KINDS = (Kind(name="home", closeness=3.0, recurrence=1.0), Kind(name="chance", closeness=0.3, recurrence=0.1))
DISEASE = Disease(transmission=0.1, message_bound=0.7, kinds=KINDS, prevalence=0.001)


def _town(results, sampler, *, method, monkeypatch, noise=2.0, life_norm=None, repeat=False):
    """Live `DAYS` days; the sender's contacts hear nothing but what is replayed.

    What comes out of the mechanism is replaced by its noise alone, so that everything made of released values
    must be equal in both towns, while what went in is kept: the part that belongs to the receiver.
    """
    inputs = []

    def frozen(self, sums, sampler):
        if sums.size > 1:
            inputs.append(sums.reshape(-1, PEOPLE)[:, 0] * self.grid)
        return (self.sigma * sampler.normal(sums.size)).reshape(sums.shape).astype(np.float32)

    monkeypatch.setattr(GridGaussian, "release", frozen)
    population = Population(PEOPLE, DISEASE, TestKit())
    release = Release(method=method, noise_multiplier=noise, rounds=1, repeat=repeat)
    scores = []
    for day in range(DAYS):
        population.begin_day(_meetings(day))
        scores.append(release_scores(population, release, sampler)[: PEOPLE - 1])
        population.record_tests(np.array([2]), np.array([day == 5]))
        if results[day]:
            population.record_tests(np.array([PEOPLE - 1]), np.array([True]))
    price = release.price(DISEASE, contacts_per_day=population.contacts.contacts_per_day())
    bound = release.sensitivity(DISEASE)
    released = {f"day {day}": audit.ReplayedRelease(moved, bound) for day, moved in enumerate(inputs)}
    life = bound * (life_norm or release.life_norm(DISEASE))
    if inputs:
        released["life"] = audit.ReplayedRelease(np.concatenate(inputs), life)
    return audit.ReplayOutcome(public={"scores": scores, "price": price.epsilons(1e-3)}, released=released)


def _meetings(day):
    """Others meet daily, at home or by chance; person 0 meets the sender once, in both ways."""
    one, other, kind = [1, 2, 3, 4], [2, 3, 4, 5], [0, 1, 0, 1]
    if day == MEETING:
        one, other, kind = [*one, 0, 0], [*other, PEOPLE - 1, PEOPLE - 1], [*kind, 0, 1]
    return np.array(one), np.array(other), np.array(kind)


SPOKEN = {
    "positive at once": np.arange(DAYS) == MEETING,
    "positive later": np.arange(DAYS) == MEETING + 4,
    "always positive": np.ones(DAYS, dtype=bool),
}
SILENT = np.zeros(DAYS, dtype=bool)


@pytest.mark.parametrize("method", ["dpfn", "dpfn-daily", "dpfn-s", "traditional"])
@pytest.mark.parametrize("spoken", SPOKEN)
def test_one_message_moves_what_is_noised_within_bounds_and_nothing_else(replay, method, spoken, monkeypatch):
    pipeline = partial(_town, method=method, monkeypatch=monkeypatch)
    report = replay(pipeline, SPOKEN[spoken], SILENT)
    assert report.movements["life"] > 0.01  # the message was heard


@pytest.mark.parametrize("spoken", SPOKEN)
def test_news_told_daily_moves_within_its_price(replay, spoken, monkeypatch):
    pipeline = partial(_town, method="dpfn", monkeypatch=monkeypatch, repeat=True)
    assert replay(pipeline, SPOKEN[spoken], SILENT).movements["life"] > 0.01


def test_news_told_daily_and_priced_as_told_once_is_found_out(replay, monkeypatch):
    once = Release(method="dpfn", noise_multiplier=2.0).life_norm(DISEASE)
    pipeline = partial(_town, method="dpfn", monkeypatch=monkeypatch, repeat=True, life_norm=once)
    with pytest.raises(AssertionError, match="life moved"):
        replay(pipeline, SPOKEN["positive at once"], SILENT)


def test_a_release_without_noise_is_found_out(replay, monkeypatch):
    pipeline = partial(_town, method="dpfn", monkeypatch=monkeypatch, noise=0.0)
    with pytest.raises(AssertionError, match="scores"):
        replay(pipeline, SPOKEN["positive at once"], SILENT)


def test_a_window_noised_daily_and_priced_once_is_found_out(replay, monkeypatch):
    pipeline = partial(_town, method="dpfn-daily", monkeypatch=monkeypatch, life_norm=1.0)
    with pytest.raises(AssertionError, match="life moved"):
        replay(pipeline, SPOKEN["always positive"], SILENT)
