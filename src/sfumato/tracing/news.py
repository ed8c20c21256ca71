"""The daily news (method `dpfn`): which contacts tested positive since, noised once and booked for good."""

from __future__ import annotations

import numpy as np

from sfumato.mechanisms import to_grid
from sfumato.randomness import Sampler
from sfumato.tracing.channel import channel
from sfumato.tracing.contacts import Integers
from sfumato.tracing.denoising import expected_count
from sfumato.tracing.disease import Floats
from sfumato.tracing.neighbours import Belief, believe, foresee
from sfumato.tracing.population import Population
from sfumato.tracing.release import DAYS_AFTER_TEST, Release
from sfumato.tracing.sources import found_positive
from sfumato.tracing.telling import Telling, telling

# Public guesses, chosen on simulated towns that are nobody's data.
_CONVINCING = 0.1  # the belief from which on a message says all it can
_FIRMNESS = 0.95  # what a message of someone who tested positive says on average
_SPREAD = 0.15  # its deviation, as a share of that


def score_news(population: Population, release: Release, sampler: Sampler) -> Floats:
    """P(I) tomorrow, from own tests and from the noised news of each day and kind of contact.

    A message about a contact day is u ∈ [0, 1]: 0 until its sender tests positive, then min(φ / 0.1, 1) with φ
    the sender's belief to be infectious, from own tests and from what was released to the sender before. It may
    only rise over its life. Released to each person, on each day and for each kind k of contact, is

        yₖ = Σ [aₙ · (rise since yesterday) + cₙ · (u of yesterday)] + N(0, σ²)

    over all messages of kind k in the window, n being how many releases a message has left. Told at once,
    aₙ = 1 and cₙ = 0.

    *Guarantees*: a message belongs to one receiver and one kind, so it moves one number a day, by at most 1.
    As its rises are ≥ 0 and add up to at most 1, all releases of its life together move by at most √2 when it
    is replaced, and by 1 when it is told over its life (`telling`), however adaptively they were chosen
    (Smith & Thakurta 2022, "Fully adaptive composition for Gaussian differential privacy"); noising the whole
    window anew every day would cost √14. The noise is the same for every kind: in units of log Π it is
    proportional to how infectious that kind of contact is. All that follows reads y, own tests and the own
    number of contacts: post-processing.
    """
    population.keep_to(release)
    disease = population.disease
    population.exposure[-1] = _quiet_exposure(population)
    own = believe(population.evidence(population.exposure), disease)
    population.next_start = own.second_morning
    line = channel(release, disease, population.contacts.met.size, roundings=disease.window)
    weights = telling(disease.window, release.overlap)
    newest = np.maximum(population.booked, to_grid(_messages(population, own), line.grid))
    rises = newest - population.booked
    said = to_grid(weights.first[:, None] * rises + weights.again[:, None] * population.booked, 1.0)
    population.booked = newest
    _take_in(population, line.send(_received(population, said), sampler), line.sigma, weights)
    return foresee(population.evidence(population.exposure), disease)[2]


def _quiet_exposure(population: Population) -> Floats:
    """What today's contacts bring while nobody says anything: p1·closeness·prevalence for each."""
    disease = population.disease
    closeness = np.array([kind.closeness for kind in disease.kinds])
    met = closeness @ population.contacts.counts(-1)
    return np.asarray(disease.transmission * disease.prevalence * met, dtype=np.float64)


def _messages(population: Population, own: Belief) -> Floats:
    """(window, people): u of who tested positive, on the days until a week after it; 0 of others.

    Days before the sender can have been infectious count as well: the contact may have been the source.
    """
    said = np.minimum(own.infectious.max(axis=0) / _CONVINCING, 1.0)
    days_ago = np.arange(population.disease.window)[::-1, None]
    since_test = population.day - population.last_positive
    return said * population.recently_positive() * (days_ago >= since_test - DAYS_AFTER_TEST)


def _received(population: Population, said: Integers) -> Integers:
    """(kinds, people): sums over the contacts of all days."""
    news = np.zeros_like(population.contacts.met)
    for day in np.flatnonzero(said.any(axis=1)):
        news += population.contacts.sums_by_kind(int(day), said[day])
    return news


def _take_in(population: Population, noisy: Floats, noise: float, weights: Telling) -> None:
    """What a day's news says of each receiver: that they were exposed, and that they may have been the source.

    A kind's news of a certain size is one positive contact. On days on which that contact was infectious one
    was exposed; days on which one was infectious oneself make the contact's test more likely (`sources.Found`).
    The contact was infected once: over the m days of an infectious time the likelihood is 1 + Σₜ xₜ and not
    Π (1 + xₜ), so each day is given the m-th root of 1 + m·xₜ. Whoever tests positive stays at home, so today
    exposes nobody.
    """
    disease = population.disease
    days = min(population.day + 1, disease.window)
    again = np.array([max(1.0, days * kind.recurrence) for kind in disease.kinds])
    sizes = _FIRMNESS * again * weights.first[-days:].mean()
    noisy = noisy - _told_before(population, again / days, weights)
    contacts = population.contacts.met / again[:, None]
    rate = population.news_rate(float((noisy.sum(axis=1) / sizes).sum()), float(contacts.sum()))
    found = found_positive(disease, population.kit)
    time = 1 / disease.recovery
    for number, kind in enumerate(disease.kinds):
        size = sizes[number]
        positives = expected_count(
            noisy[number], noise, expected=rate * contacts[number], size=size, spread=_SPREAD * size
        )
        population.positives[0, number] = positives
        infects = disease.transmission * kind.closeness * again[number] / days  # a day, if one of both can
        population.exposure[:-1] += infects * found.infectious[:-1, None] * positives
        likelier = np.log1p(time * infects * found.infected) / time
        population.if_infectious[:-1] *= np.exp(likelier[:, None] * positives)


def _told_before(population: Population, met: Floats, weights: Telling) -> Floats:
    """(kinds, people): what today's news is expected to repeat of the positive contacts of earlier days.

    Of a contact who was first told of `ago` days back, the days before that are left in the window.
    """
    window = population.disease.window
    days = min(population.day + 1, window)
    left = [float(weights.again[window - days : window - 1 - ago].sum()) for ago in range(window)]
    repeated = np.tensordot(np.array(left), population.positives, axes=1)
    return np.asarray(_FIRMNESS * met[:, None] * repeated, dtype=np.float64)
