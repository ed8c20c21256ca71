"""The daily news (method `dpfn`): which contacts tested positive since, noised once and booked for good."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sfumato.mechanisms import to_grid
from sfumato.randomness import Sampler
from sfumato_lab.tracing.channel import channel
from sfumato_lab.tracing.contacts import Integers
from sfumato_lab.tracing.denoising import expected_again, expected_count
from sfumato_lab.tracing.disease import Floats, Kind
from sfumato_lab.tracing.found import infectious_before
from sfumato_lab.tracing.neighbours import foresee, second_morning
from sfumato_lab.tracing.population import OwnTests, Population
from sfumato_lab.tracing.release import DAYS_AFTER_TEST, Release
from sfumato_lab.tracing.telling import Telling, telling, telling_daily

# Public guesses, chosen on simulated towns that are nobody's data.
_SPREAD = 0.15  # deviation of what a positive contact says in all, as a share of it


def score_news(population: Population, release: Release, sampler: Sampler) -> Callable[[OwnTests], Floats]:
    """P(I) tomorrow, from own tests and from the noised news of each day and kind of contact.

    A message about a contact day is u: 0 until its sender counts as positive, then 1. Nothing else that the
    sender's phone knows enters it, so that one test changes no more messages than it speaks of. It may only
    rise over its life. Released to each person, on each day and for each kind k of contact, is

        yₖ = Σ [aₙ · (rise since yesterday) + cₙ · (u of yesterday)] + N(0, σ²)

    over all messages of kind k in the window, n being how many releases a message has left. Told at once,
    aₙ = 1 and cₙ = 0; told daily, aₙ = cₙ = 1.

    *Guarantees*: a message belongs to one receiver and one kind, so it moves one number a day, by at most 1.
    As its rises are ≥ 0 and add up to at most 1, all releases of its life together move by at most √2 when it
    is replaced, and by 1 when it is told over its life (`telling`), however adaptively they were chosen
    (Smith & Thakurta 2022, "Fully adaptive composition for Gaussian differential privacy"); told daily, a life
    moves them by √14. The noise is the same for every kind: in units of log Π it is proportional to how
    infectious that kind of contact is. All that follows reads y, own tests, the own age and the own number of
    contacts: post-processing.
    """
    population.keep_to(release)
    disease = population.disease
    population.exposure[-1] = _quiet_exposure(population)
    for tests in (population.results, population.turns):
        tests.next_start = second_morning(tests.evidence(population.exposure), disease)
    line = channel(release, disease, population.contacts.met.size, roundings=disease.window)
    weights = telling_daily(disease.window) if release.repeat else telling(disease.window, release.overlap)
    newest = np.maximum(population.booked, to_grid(_messages(population), line.grid))
    rises = newest - population.booked
    said = to_grid(weights.first[:, None] * rises + weights.again[:, None] * population.booked, 1.0)
    population.booked = newest
    noisy = line.send(_received(population, said), sampler)
    if release.repeat and line.sigma:
        found = _heard_again(population, noisy, line.sigma)
    else:
        found = _heard_once(population, noisy, line.sigma, weights)
    _take_in(population, found)
    return lambda tests: foresee(tests.evidence(population.exposure), disease)[2]


def _quiet_exposure(population: Population) -> Floats:
    """What today's contacts bring while nobody says anything: p1·closeness·prevalence for each, by own age."""
    disease = population.disease
    closeness = np.array([kind.closeness for kind in disease.kinds])
    met = closeness @ population.contacts.counts(-1)
    return np.asarray(
        disease.transmission * disease.prevalence * population.susceptibility * met, dtype=np.float64
    )


def _messages(population: Population) -> Integers:
    """(window, people): 1 of who counts as positive, on the days until a week after it; 0 of others.

    Days before the sender can have been infectious count as well, so that it is heard above the noise.
    """
    days_ago = np.arange(population.disease.window)[::-1, None]
    since_test = population.day - population.last_positive
    return population.recently_positive() * (days_ago >= since_test - DAYS_AFTER_TEST)


def _received(population: Population, said: Integers) -> Integers:
    """(kinds, people): sums over the contacts of all days."""
    news = np.zeros_like(population.contacts.met)
    for day in np.flatnonzero(said.any(axis=1)):
        news += population.contacts.sums_by_kind(int(day), said[day])
    return news


def _take_in(population: Population, found: Floats) -> None:
    """What news says of each receiver: that they were exposed to those of whom it tells.

    On days on which a positive contact was infectious one was exposed. Whoever counts as positive stays at
    home, so the day after the test exposes nobody. `found` is (days, kinds, people): how many one was first
    told of on each of the last days, today first. Where it differs from what was expected before, the exposure
    is corrected.
    """
    disease = population.disease
    days = min(population.day + 1, disease.window)
    before = infectious_before(disease, population.kit)
    closeness = np.array([kind.closeness * _meetings(kind, days) / days for kind in disease.kinds])
    for ago, positives in enumerate(found):
        change = closeness @ (positives - population.positives[ago])
        population.positives[ago] = positives
        infects = disease.transmission * population.susceptibility * change  # a day
        last = disease.window - 1 - ago
        population.exposure[:last] += before[ago:-1, None] * infects


def _meetings(kind: Kind, days: int) -> float:
    """On how many of so many days one met the same person of this kind."""
    return max(1.0, days * kind.recurrence)


def _heard_once(population: Population, noisy: Floats, noise: float, weights: Telling) -> Floats:
    """(1, kinds, people): of how many positive contacts today's news tells for the first time."""
    kinds = population.disease.kinds
    days = min(population.day + 1, population.disease.window)
    again = np.array([_meetings(kind, days) for kind in kinds])
    sizes = again * weights.first[-days:].mean()
    noisy = noisy - _told_before(population, again / days, weights)
    contacts = population.contacts.met / again[:, None]
    rate = population.news_rate(float((noisy.sum(axis=1) / sizes).sum()), float(contacts.sum()))
    found = [
        expected_count(each, noise, expected=rate * met, size=size, spread=_SPREAD * size)
        for each, met, size in zip(noisy, contacts, sizes, strict=True)
    ]
    return np.stack(found)[None]


def _heard_again(population: Population, noisy: Floats, noise: float) -> Floats:
    """(days, kinds, people): of how many positive contacts one was first told on each of the last days."""
    population.heard[0] = noisy
    days = min(population.day + 1, population.disease.window)
    again = np.array([_meetings(kind, days) for kind in population.disease.kinds])
    contacts = population.contacts.met / again[:, None]
    lately = population.positives[1:4].sum() / 3
    rate = population.news_rate(float(lately), float(contacts.sum()))
    return expected_again(
        population.heard,
        noise,
        before=population.positives,
        expected=rate * contacts,
        signal=_signal(population),
    )


def _signal(population: Population) -> Floats:
    """(told, days, kinds): what a contact of whom one was first told j days ago adds to the news a days ago.

    It speaks of the days before the test for as long as they are in the window.
    """
    window = population.disease.window
    signal = np.zeros((window, len(population.heard), len(population.disease.kinds)))
    for told in range(min(population.day, window)):
        first = population.day - told
        spoken = min(first, window - 1)
        for ago in range(min(told + 1, len(population.heard))):
            left = max(0, first - max(0, population.day - ago - window + 1))
            signal[told, ago] = [_meetings(kind, spoken) * left / spoken for kind in population.disease.kinds]
    return signal


def _told_before(population: Population, met: Floats, weights: Telling) -> Floats:
    """(kinds, people): what today's news is expected to repeat of the positive contacts of earlier days.

    Of a contact who was first told of `ago` days back, the days before that are left in the window.
    """
    window = population.disease.window
    days = min(population.day + 1, window)
    left = [float(weights.again[window - days : window - 1 - ago].sum()) for ago in range(window)]
    repeated = np.tensordot(np.array(left), population.positives, axes=1)
    return np.asarray(met[:, None] * repeated, dtype=np.float64)
