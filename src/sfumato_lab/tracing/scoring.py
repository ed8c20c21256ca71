"""One day's release, for each method: the only place where messages turn into what people see."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from sfumato.mechanisms import to_grid
from sfumato.randomness import Sampler
from sfumato_lab.tracing.channel import FINE_GRID, channel
from sfumato_lab.tracing.contacts import Integers
from sfumato_lab.tracing.denoising import denoise
from sfumato_lab.tracing.disease import Disease, Floats
from sfumato_lab.tracing.neighbours import Belief, Evidence, believe, foresee
from sfumato_lab.tracing.news import score_news
from sfumato_lab.tracing.population import OwnTests, Population
from sfumato_lab.tracing.release import Release

_Risks = Callable[[OwnTests], Floats]
_SLAB = 3.0  # messages' worth of exposure of someone who has any: a public guess


def release_scores(population: Population, release: Release, sampler: Sampler) -> Floats:
    """Release everyone's risk score after today's contacts.

    Args:
        population: What is known of everybody.
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
    """Release what contacts say to everybody; own tests make a score of it.

    With `population.results` it is the score that is shown to its owner. With `population.turns` it is a score
    that follows from released values and from who had a turn before, and from nobody's result: by it tests are
    handed out.
    """
    return _SCORES[release.method](population, release, sampler)


def message_exposure(belief: Belief, disease: Disease) -> Floats:
    """−ln(1 − p1·min(φ, γ)) of every sender and day: what a message adds to its receiver's −log Π."""
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
    A sender's test enters the messages for as long as it is in the window: what comes before the window is not
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
