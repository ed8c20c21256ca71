"""One day's release, for each method: the only place where messages turn into what people see."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy import special

from sfumato.mechanisms import GridGaussian, to_grid
from sfumato.randomness import Sampler
from sfumato.tracing.contacts import Integers
from sfumato.tracing.disease import Disease, Floats
from sfumato.tracing.neighbours import Belief, Evidence, believe
from sfumato.tracing.population import Population
from sfumato.tracing.release import METHODS, Release

_FLOAT_ERROR = 2.0**-30  # of a score computed in float64 from a few hundred additions and products
_NEWS_DECAY = 0.8  # a public guess: exposure learned of today happened `lag` days ago with weight 0.8^lag


def release_scores(population: Population, release: Release, sampler: Sampler) -> Floats:
    """Everyone's risk score after today's contacts, as `release` lets it out."""
    return _SCORES[release.method](population, release, sampler)


def _mechanism(release: Release, disease: Disease, size: int, *, rounds: int = 1) -> GridGaussian:
    """Noise of σ·√rounds on `size` values, of which one message moves one."""
    return GridGaussian(
        clip_norm=release.sensitivity(disease),
        dimension=size,
        # An unprotected release still lives on the grid; only its noise is left out.
        noise_multiplier=(release.noise_multiplier or 1.0) * math.sqrt(rounds),
        float_error=_FLOAT_ERROR,
    )


def _noised(values: Integers, mechanism: GridGaussian, release: Release, sampler: Sampler) -> Integers:
    return mechanism.add_noise(values, sampler) if release.noise_multiplier else values


def message_exposure(belief: Belief, disease: Disease) -> Floats:
    """−ln(1 − p1·min(φ, γ)) of every sender and day: what a message adds to its receiver's −log Π."""
    infectious = np.minimum(belief.infectious[: disease.window], disease.message_bound)
    return -np.log1p(-disease.transmission * infectious)


def _received(population: Population, messages: Integers) -> Integers:
    """(window, people) sums over each day's contacts."""
    days = range(population.disease.window)
    return np.stack([population.contacts.sum_over_contacts(day, messages[day]) for day in days])


def _contacts_in_window(population: Population) -> Integers:
    ones = np.ones(population.people, dtype=np.int64)
    days = range(population.disease.window)
    total = np.zeros(population.people, dtype=np.int64)
    for day in days:
        total += population.contacts.sum_over_contacts(day, ones)
    return total


def denoise(noisy: Floats, noise: float, contacts: Integers) -> Floats:
    """E[x | x + N(0, noise²)] for x ≥ 0 exponential with mean proportional to the number of contacts.

    Post-processing: the rate is estimated from the noised values themselves, and one's number of contacts is
    one's own. Nobody to meet, nothing to fear: 0.
    """
    if noise == 0:
        return noisy
    floor = 1e-3 * noise / max(1.0, float(contacts.mean()))
    rate = max(floor, float(noisy.sum()) / max(1, int(contacts.sum())))
    with np.errstate(divide="ignore"):
        tilted = noisy / noise - noise / (rate * contacts)  # mean of the untruncated posterior, in noises
    # Mean of a normal truncated at 0: a + φ(a)/Φ(a), with erfcx so that far tails do not underflow.
    mean = tilted + math.sqrt(2 / math.pi) / special.erfcx(-tilted / math.sqrt(2))
    return np.where(contacts > 0, noise * np.maximum(mean, 0.0), 0.0)


def _score_dpfn(population: Population, release: Release, sampler: Sampler) -> Floats:
    """Each day's news, noised once and booked for good.

    A message may only rise over its life. Released per person and day is Σ ω·(rise of −ln(1−p1φ) since
    yesterday) over all messages of the window, plus N(0, σ²), with public weights ω ≤ 1 (relevance of the day).
    As the rises of one message add up to at most Δ, all releases of its life together move by at most Δ·√2
    when it is replaced, where noising the whole window anew every day costs √14·Δ.
    """
    disease = population.disease
    mechanism = _mechanism(release, disease, population.people, rounds=release.rounds)
    relevance = disease.still_infected()[::-1, None]  # (window, 1), oldest day first
    spread = _news_spread(disease)
    contacts = _contacts_in_window(population)
    known, newest = population.exposure, population.booked
    total = np.zeros(population.people, dtype=np.int64)
    exposure = known
    for turn in range(1, release.rounds + 1):
        belief = believe(population.evidence(exposure), disease)
        newest = np.maximum(newest, to_grid(message_exposure(belief, disease), mechanism.grid))
        rise = np.floor(relevance * (newest - population.booked)).astype(np.int64)
        news = _received(population, rise).sum(axis=0)
        total += _noised(news, mechanism, release, sampler)
        noise = mechanism.sigma / math.sqrt(turn) if release.noise_multiplier else 0.0
        exposure = known + spread * denoise(total * (mechanism.grid / turn), noise, contacts)
    population.booked, population.exposure = newest, exposure
    belief = believe(population.evidence(exposure), disease)
    population.next_start = belief.second_morning
    return belief.score


def _news_spread(disease: Disease) -> Floats:
    """(window, 1) shares by which today's news is booked on the days of the window, oldest first."""
    weight = _NEWS_DECAY ** np.arange(disease.window)
    return (weight / weight.sum())[::-1, None]


def _score_dpfn_daily(population: Population, release: Release, sampler: Sampler) -> Floats:
    """log Π of every day in the window noised anew each day: log-normal factors of mean Π (DPFN, Alg. 1)."""
    disease = population.disease
    size = disease.window * population.people
    mechanism = _mechanism(release, disease, size, rounds=release.rounds)
    total = np.zeros((disease.window, population.people), dtype=np.int64)
    exposure = population.exposure
    for turn in range(1, release.rounds + 1):
        belief = believe(population.evidence(exposure), disease)
        messages = to_grid(message_exposure(belief, disease), mechanism.grid)
        total += _noised(_received(population, messages), mechanism, release, sampler)
        variance = mechanism.sigma**2 / turn if release.noise_multiplier else 0.0
        exposure = np.maximum(0.0, total * (mechanism.grid / turn) + variance / 2)
    population.exposure = exposure
    return believe(population.evidence(exposure), disease).score


def _score_dpfn_s(population: Population, release: Release, sampler: Sampler) -> Floats:
    """The score of the contacts alone, noised; own tests weigh in afterwards.

    Without tests the score is s = const + (1−p0)·Πₜ·P(S until t)·(v − k), with v, k ∈ [0, 1] the chances of
    being infected tomorrow if spared, or infected, on day t. One message moves Πₜ by at most γ·p1, hence s by
    at most γ·p1·max(k, 1−k). With the own positive test inside, Bayes' rule would magnify that manyfold.
    """
    disease = population.disease
    nothing = np.zeros_like(population.exposure)
    own = believe(population.evidence(nothing), disease)
    population.next_start = own.second_morning
    clean, alone = contact_score(population, own, disease)
    mechanism = _mechanism(release, disease, population.people)
    noisy = _noised(to_grid(clean, mechanism.grid), mechanism, release, sampler) * mechanism.grid
    noise = mechanism.sigma if release.noise_multiplier else 0.0
    risk = alone + denoise(noisy - alone, noise, _contacts_in_window(population))
    return np.clip(risk, 1e-9, None) * _odds(own.score) / _odds(alone)


def contact_score(population: Population, own: Belief, disease: Disease) -> tuple[Floats, float]:
    """The score without own tests, given the contacts' messages; and the same for someone without contacts."""
    unit = disease.sensitivity * 2.0**-30
    received = _received(population, to_grid(message_exposure(own, disease), 2.0 ** math.floor(math.log2(unit))))
    exposure = received * 2.0 ** math.floor(math.log2(unit))
    score = believe(untested(exposure, disease), disease).score
    alone = believe(untested(np.zeros((disease.window, 1)), disease), disease).score
    return score, float(alone[0])


def untested(exposure: Floats, disease: Disease) -> Evidence:
    """Evidence of people of whom nothing but the exposure is known."""
    window, people = exposure.shape
    ones = np.ones((window + 1, people))
    start = np.repeat(disease.start()[:, None], people, axis=1)
    return Evidence(exposure=exposure, if_infectious=ones, if_other=ones, start=start)


def _odds(chance: Floats | float) -> Floats | float:
    return chance / (1 - np.minimum(chance, 1 - 1e-12))


def _score_per_message(population: Population, release: Release, sampler: Sampler) -> Floats:
    """Each message min(φ, γ) + N(0, σ²), cut to [0, γ], before it leaves its sender."""
    disease = population.disease
    belief = believe(population.evidence(population.exposure), disease)
    sent = np.minimum(belief.infectious, disease.message_bound)
    for day in range(disease.window):
        receivers, senders = population.contacts.messages(day)
        population.exposure[day] = 0.0
        if receivers.size == 0:
            continue
        mechanism = _mechanism(release, disease, receivers.size)
        whole = to_grid(sent[day], mechanism.grid)[senders]
        noisy = _noised(whole, mechanism, release, sampler) * mechanism.grid
        heard = -np.log1p(-disease.transmission * np.clip(noisy, 0.0, disease.message_bound))
        population.exposure[day] = np.bincount(receivers, heard, minlength=population.people)
    return believe(population.evidence(population.exposure), disease).score


def _score_traditional(population: Population, release: Release, sampler: Sampler) -> Floats:
    """How many contacts of the window were with people who tested positive in it, plus N(0, σ²)."""
    positive = population.recently_positive()
    mechanism = _mechanism(release, population.disease, population.people)
    days = range(population.disease.window)
    count = np.zeros(population.people, dtype=np.int64)
    for day in days:
        count += population.contacts.sum_over_contacts(day, positive)
    return _noised(to_grid(count, mechanism.grid), mechanism, release, sampler) * mechanism.grid


def _score_nothing(population: Population, release: Release, sampler: Sampler) -> Floats:
    return np.zeros(population.people)


_SCORES: dict[str, Callable[[Population, Release, Sampler], Floats]] = {
    "dpfn": _score_dpfn,
    "dpfn-daily": _score_dpfn_daily,
    "dpfn-s": _score_dpfn_s,
    "per-message": _score_per_message,
    "traditional": _score_traditional,
    "random": _score_nothing,
    "none": _score_nothing,
}
assert _SCORES.keys() == METHODS.keys()
