"""One day's release, for each method: the only place where messages become visible scores."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sfumato.mechanisms import GridGaussian, to_grid
from sfumato.randomness import Sampler
from sfumato_lab.tracing.contacts import Integers
from sfumato_lab.tracing.denoising import denoise, expected_again, expected_count
from sfumato_lab.tracing.disease import Disease, Floats, Kind
from sfumato_lab.tracing.found import infectious_before
from sfumato_lab.tracing.neighbours import Belief, Evidence, believe, foresee, second_morning
from sfumato_lab.tracing.population import OwnTests, Population
from sfumato_lab.tracing.release import DAYS_AFTER_TEST, Release
from sfumato_lab.tracing.telling import Telling, telling, telling_daily

# Public guesses, chosen on simulated towns, without personal data.
_SPREAD = 0.15  # deviation of the sum of a positive contact's messages, as a share of it


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
    noisy = line.send(_news_received(population, said), sampler)
    if release.repeat and line.sigma:
        found = _heard_again(population, noisy, line.sigma)
    else:
        found = _heard_once(population, noisy, line.sigma, weights)
    _take_in(population, found)
    return lambda tests: foresee(tests.evidence(population.exposure), disease)[2]


def _quiet_exposure(population: Population) -> Floats:
    """Return today's exposure in the absence of messages: p1·closeness·prevalence per contact, by own age."""
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


def _news_received(population: Population, said: Integers) -> Integers:
    """(kinds, people): sums over the contacts of all days."""
    news = np.zeros_like(population.contacts.met)
    for day in np.flatnonzero(said.any(axis=1)):
        news += population.contacts.sums_by_kind(int(day), said[day])
    return news


def _take_in(population: Population, found: Floats) -> None:
    """Add the exposure to the positive contacts that the news reports to each receiver.

    On days on which a positive contact was infectious one was exposed. A person who counts as positive stays at
    home, so the day after the test exposes no contact. `found` is (days, kinds, people): how many one was first
    told of on each of the last days, today first. Where it differs from the earlier expectation, the exposure
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
    """(told, days, kinds): the contribution of a contact first reported j days ago to the news of a days ago.

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
    """(kinds, people): the part of today's news expected to repeat positive contacts of earlier days.

    Of a contact who was first told of `ago` days back, the days before that are left in the window.
    """
    window = population.disease.window
    days = min(population.day + 1, window)
    left = [float(weights.again[window - days : window - 1 - ago].sum()) for ago in range(window)]
    repeated = np.tensordot(np.array(left), population.positives, axes=1)
    return np.asarray(met[:, None] * repeated, dtype=np.float64)


FINE_GRID = 2.0**-40  # of summed values that are not released, so that sums do not depend on their order
_FLOAT_ERROR = 2.0**-30  # of a score computed in float64 from a few hundred additions and products


@dataclass(frozen=True, kw_only=True)
class Channel:
    """Whole grid steps in, released values out; without a mechanism, as they are."""

    grid: float
    sigma: float
    mechanism: GridGaussian | None

    def send(self, whole: Integers, sampler: Sampler) -> Floats:
        if self.mechanism is None:
            return np.asarray(whole * self.grid, dtype=np.float64)
        return self.mechanism.release(whole, sampler).astype(np.float64)


def channel(release: Release, disease: Disease, size: int, *, rounds: int = 1, roundings: int = 0) -> Channel:
    """Noise of σ·√rounds on `size` values, of which one message moves one.

    A message that is rounded on each of n days of its life moves by up to grid·√n more, with a grid of at most
    2⁻¹⁰ Δ/√size.
    """
    if release.noise_multiplier == 0:
        return Channel(grid=FINE_GRID, sigma=0.0, mechanism=None)
    mechanism = GridGaussian(
        clip_norm=release.sensitivity(disease),
        dimension=size,
        noise_multiplier=release.noise_multiplier * math.sqrt(rounds),
        float_error=_FLOAT_ERROR + 2.0**-10 * math.sqrt(roundings / size),
    )
    return Channel(grid=mechanism.grid, sigma=mechanism.sigma, mechanism=mechanism)


_Risks = Callable[[OwnTests], Floats]
_SLAB = 3.0  # messages' worth of exposure of someone who has any: a public guess


def release_scores(population: Population, release: Release, sampler: Sampler) -> Floats:
    """Release everyone's risk score after today's contacts.

    Args:
        population: The state of all people.
        release: The method and its noise.
        sampler: The secret stream.

    Returns:
        (people,) scores.

    >>> from sfumato.randomness import SecretStream
    >>> from sfumato_lab.tracing import Disease, TestKit
    >>> people = Population(3, Disease(), TestKit())
    >>> people.begin_day((np.array([0]), np.array([1])))
    >>> release_scores(people, Release(method="traditional", noise_multiplier=1.0), SecretStream()).shape
    (3,)
    """
    return release_risks(population, release, sampler)(population.results)


def release_risks(population: Population, release: Release, sampler: Sampler) -> _Risks:
    """Release the contacts' messages to all people; own tests turn them into scores.

    With `population.results` it is the score that is shown to its owner. With `population.turns` it is a score
    that follows from released values and from who had a turn before, and from no result: tests are handed out
    by it.
    """
    return _SCORES[release.method](population, release, sampler)


def message_exposure(belief: Belief, disease: Disease) -> Floats:
    """−ln(1 − p1·min(φ, γ)) of every sender and day: a message's term in its receiver's −log Π."""
    infectious = np.minimum(belief.infectious[: disease.window], disease.message_bound)
    return -np.log1p(-disease.transmission * infectious)


def _received(population: Population, messages: Integers) -> Integers:
    """(window, people) sums over each day's contacts."""
    days = range(population.disease.window)
    return np.stack([population.contacts.sum_over_contacts(day, messages[day]) for day in days])


def _score_alone(disease: Disease) -> float:
    """The score of someone without contacts or tests."""
    return float(believe(untested(np.zeros((disease.window, 1)), disease), disease).score[0])


def _score_dpfn_daily(population: Population, release: Release, sampler: Sampler) -> _Risks:
    """log Π of every day in the window noised anew each day: log-normal factors of mean Π (DPFN, Alg. 1)."""
    disease = population.disease
    size = disease.window * population.people
    line = channel(release, disease, size, rounds=release.rounds)
    total = np.zeros((disease.window, population.people))
    exposure = population.exposure
    for turn in range(1, release.rounds + 1):
        belief = believe(population.evidence(exposure), disease)
        messages = to_grid(message_exposure(belief, disease), line.grid)
        total += line.send(_received(population, messages), sampler)
        variance = line.sigma**2 / turn
        exposure = np.maximum(0.0, total / turn + variance / 2)
    population.exposure = exposure
    return lambda tests: foresee(tests.evidence(exposure), disease)[2]


def _score_dpfn_s(population: Population, release: Release, sampler: Sampler) -> _Risks:
    """The score of the contacts alone, noised; own tests weigh in afterwards.

    Without tests the score is s = const + (1−p0)·Πₜ·P(S until t)·(v − k), with v, k ∈ [0, 1] the chances of
    being infected tomorrow if spared, or infected, on day t. One message moves Πₜ by at most γ·p1, hence s by
    at most γ·p1·max(k, 1−k). With the own positive test inside, Bayes' rule would magnify that manyfold.
    A sender's test enters the messages for as long as it is in the window: earlier evidence is not
    carried on (`OwnTests.next_start`), as it would move messages for ever.
    """
    disease = population.disease
    nothing = np.zeros_like(population.exposure)
    own = believe(population.evidence(nothing), disease)
    clean, alone = contact_score(population, own, disease)
    line = channel(release, disease, population.people)
    noisy = line.send(to_grid(clean, line.grid), sampler)
    steady, share = population.steady(noisy) if line.sigma else (noisy, 0.0)
    noise = line.sigma * math.sqrt(share)
    risk = alone + denoise(
        steady - alone, noise, population.contacts.met.sum(axis=0), slab=_SLAB * release.sensitivity(disease)
    )
    return lambda tests: (
        np.maximum(risk, 1e-9) * _odds(foresee(tests.evidence(nothing), disease)[2]) / _odds(alone)
    )


def contact_score(population: Population, own: Belief, disease: Disease) -> tuple[Floats, float]:
    """The score without own tests, given the contacts' messages; and the same for someone without contacts."""
    received = _received(population, to_grid(message_exposure(own, disease), FINE_GRID))
    exposure: Floats = received.astype(np.float64) * FINE_GRID
    score = believe(untested(exposure, disease), disease).score
    return score, _score_alone(disease)


def untested(exposure: Floats, disease: Disease) -> Evidence:
    """Evidence of people of whom nothing but the exposure is known."""
    window, people = exposure.shape
    ones = np.ones((window + 1, people))
    start = np.repeat(disease.start()[:, None], people, axis=1)
    return Evidence(exposure=exposure, if_infectious=ones, if_other=ones, start=start)


def _odds(chance: Floats | float) -> Floats | float:
    return chance / (1 - np.minimum(chance, 1 - 1e-12))


def _score_per_message(population: Population, release: Release, sampler: Sampler) -> _Risks:
    """Each message min(φ, γ) + N(0, σ²), cut to [0, γ], before it leaves its sender."""
    disease = population.disease
    belief = believe(population.evidence(population.exposure), disease)
    sent = np.minimum(belief.infectious, disease.message_bound)
    for day in range(disease.window):
        receivers, senders = population.contacts.messages(day)
        population.exposure[day] = 0.0
        if receivers.size == 0:
            continue
        line = channel(release, disease, receivers.size)
        whole = to_grid(sent[day], line.grid)[senders]
        noisy = line.send(whole, sampler)
        heard = -np.log1p(-disease.transmission * np.clip(noisy, 0.0, disease.message_bound))
        population.exposure[day] = np.bincount(receivers, heard, minlength=population.people)
    return lambda tests: foresee(tests.evidence(population.exposure), disease)[2]


def _score_traditional(population: Population, release: Release, sampler: Sampler) -> _Risks:
    """How many contacts of the window were with people who tested positive in it, plus N(0, σ²)."""
    positive = population.recently_positive()
    line = channel(release, population.disease, population.people)
    days = range(population.disease.window)
    count = np.zeros(population.people, dtype=np.int64)
    for day in days:
        count += population.contacts.sum_over_contacts(day, positive)
    noisy = line.send(to_grid(count, line.grid), sampler)
    return lambda tests: noisy


def _score_nothing(population: Population, release: Release, sampler: Sampler) -> _Risks:
    return lambda tests: np.zeros(population.people)


_SCORES: dict[str, Callable[[Population, Release, Sampler], _Risks]] = {
    "dpfn": score_news,
    "dpfn-daily": _score_dpfn_daily,
    "dpfn-s": _score_dpfn_s,
    "per-message": _score_per_message,
    "traditional": _score_traditional,
    "random": _score_nothing,
    "none": _score_nothing,
}
