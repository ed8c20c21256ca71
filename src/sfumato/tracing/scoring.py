"""One day's release, for each method: the only place where messages turn into what people see."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import special

from sfumato.mechanisms import GridGaussian, to_grid
from sfumato.randomness import Sampler
from sfumato.tracing.contacts import Integers
from sfumato.tracing.disease import Disease, Floats
from sfumato.tracing.neighbours import Belief, Evidence, believe
from sfumato.tracing.population import Population
from sfumato.tracing.release import Release

_FLOAT_ERROR = 2.0**-30  # of a score computed in float64 from a few hundred additions and products
_FINE_GRID = 2.0**-40  # of what is summed but not released, so that sums do not depend on their order
_SLAB = 3.0  # messages' worth of exposure of someone who has any: a public guess
_NEWS_DELAY = 2  # days between a contact and the news of it: a public guess


def release_scores(population: Population, release: Release, sampler: Sampler) -> Floats:
    """Everyone's risk score after today's contacts, as `release` lets it out."""
    return _SCORES[release.method](population, release, sampler)


@dataclass(frozen=True, kw_only=True)
class _Channel:
    """Where whole grid steps go in and released values come out; without a mechanism, as they are."""

    grid: float
    sigma: float
    mechanism: GridGaussian | None

    def send(self, whole: Integers, sampler: Sampler) -> Floats:
        if self.mechanism is None:
            return np.asarray(whole * self.grid, dtype=np.float64)
        return self.mechanism.release(whole, sampler).astype(np.float64)


def _channel(release: Release, disease: Disease, size: int, *, rounds: int = 1) -> _Channel:
    """Noise of σ·√rounds on `size` values, of which one message moves one."""
    if release.noise_multiplier == 0:
        return _Channel(grid=_FINE_GRID, sigma=0.0, mechanism=None)
    mechanism = GridGaussian(
        clip_norm=release.sensitivity(disease),
        dimension=size,
        noise_multiplier=release.noise_multiplier * math.sqrt(rounds),
        float_error=_FLOAT_ERROR,
    )
    return _Channel(grid=mechanism.grid, sigma=mechanism.sigma, mechanism=mechanism)


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


def denoise(noisy: Floats, noise: float, contacts: Integers, *, slab: float) -> Floats:
    """E[x | x + N(0, noise²)] for x that is mostly 0, and else exponential with mean `slab`.

    The chance of the latter is proportional to one's number of contacts. Post-processing: its rate is estimated
    from the noised values themselves, and one's number of contacts is one's own. Nobody to meet, nothing to
    fear: 0. The posterior mixes 0 with a normal cut off at 0, whose centre lies `centre` noises from there.
    """
    if noise == 0:
        return noisy
    share = float(noisy.sum()) / (slab * max(1, int(contacts.sum())))
    floor = 1e-3 / max(1.0, float(contacts.mean()))
    chance = np.minimum(max(share, floor) * contacts, 0.5)
    centre = np.clip(noisy / noise - noise / slab, -1e3, 35.0)
    tail = special.erfcx(-centre / math.sqrt(2))  # 2·Φ(centre)·exp(centre²/2), without underflow
    odds = chance / (1 - chance) * (noise / slab) * math.sqrt(math.pi / 2) * tail
    mean = noise * (centre + math.sqrt(2 / math.pi) / tail)
    return odds / (1 + odds) * np.maximum(mean, 0.0)


def _score_dpfn(population: Population, release: Release, sampler: Sampler) -> Floats:
    """Each day's news, noised once and booked for good.

    Someone who tested positive says so to the contacts of the window: φ, from own tests and from the exposure
    released to them before. A message may only rise over its life. Released to each person and day is the sum
    of the rises of −ln(1−p1φ) since yesterday, over all messages of the window, plus N(0, σ²): log Π of the
    news. As the rises of one message add up to at most Δ = |ln(1−γp1)|, all releases of its life together move
    by at most √2·Δ when it is replaced, where noising the whole window anew every day costs √14·Δ. Releases
    are adaptive, which a Gaussian bounded this way allows (Smith & Thakurta 2022, "Fully adaptive composition
    for Gaussian differential privacy").
    """
    disease = population.disease
    channel = _channel(release, disease, population.people)
    own = believe(population.evidence(np.zeros_like(population.exposure)), disease)
    population.next_start = own.second_morning
    alone = _score_alone(disease)
    said = to_grid(_news_messages(population, own, alone), channel.grid)
    newest = np.maximum(population.booked, said)
    news = _received(population, newest - population.booked).sum(axis=0)
    noisy = channel.send(news, sampler)
    population.exposure[-1] = denoise(
        noisy, channel.sigma, _contacts_in_window(population), slab=_SLAB * release.sensitivity(disease)
    )
    population.booked = newest
    return (alone + _booked_risk(population)) * _odds(own.score) / _odds(alone)


def _news_messages(population: Population, own: Belief, alone: float) -> Floats:
    """(window, people): −ln(1 − p1·min(φ, γ)) of who tested positive, 0 of others.

    φ is the belief from own tests, with prior odds raised by how much more exposure was released to the sender
    than to people on average.
    """
    disease = population.disease
    risk = alone + _booked_risk(population)
    odds = _odds(own.infectious[: disease.window]) * (risk / risk.mean())
    infectious = np.minimum(odds / (1 + odds), disease.message_bound) * population.recently_positive()
    return -np.log1p(-disease.transmission * infectious)


def _booked_risk(population: Population) -> Floats:
    """P(I tomorrow) from all booked news, to first order; news is taken to be of contacts two days before."""
    disease = population.disease
    relevance = disease.infectious_after(disease.window + _NEWS_DELAY)[_NEWS_DELAY:][::-1]
    return relevance @ population.exposure


def _score_alone(disease: Disease) -> float:
    """The score of someone without contacts or tests."""
    return float(believe(untested(np.zeros((disease.window, 1)), disease), disease).score[0])


def _score_dpfn_daily(population: Population, release: Release, sampler: Sampler) -> Floats:
    """log Π of every day in the window noised anew each day: log-normal factors of mean Π (DPFN, Alg. 1)."""
    disease = population.disease
    size = disease.window * population.people
    channel = _channel(release, disease, size, rounds=release.rounds)
    total = np.zeros((disease.window, population.people))
    exposure = population.exposure
    for turn in range(1, release.rounds + 1):
        belief = believe(population.evidence(exposure), disease)
        messages = to_grid(message_exposure(belief, disease), channel.grid)
        total += channel.send(_received(population, messages), sampler)
        variance = channel.sigma**2 / turn
        exposure = np.maximum(0.0, total / turn + variance / 2)
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
    channel = _channel(release, disease, population.people)
    noisy = channel.send(to_grid(clean, channel.grid), sampler)
    steady, share = population.steady(noisy) if channel.sigma else (noisy, 0.0)
    noise = channel.sigma * math.sqrt(share)
    risk = alone + denoise(
        steady - alone, noise, _contacts_in_window(population), slab=_SLAB * release.sensitivity(disease)
    )
    return np.maximum(risk, 1e-9) * _odds(own.score) / _odds(alone)


def contact_score(population: Population, own: Belief, disease: Disease) -> tuple[Floats, float]:
    """The score without own tests, given the contacts' messages; and the same for someone without contacts."""
    received = _received(population, to_grid(message_exposure(own, disease), _FINE_GRID))
    exposure: Floats = received.astype(np.float64) * _FINE_GRID
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
        channel = _channel(release, disease, receivers.size)
        whole = to_grid(sent[day], channel.grid)[senders]
        noisy = channel.send(whole, sampler)
        heard = -np.log1p(-disease.transmission * np.clip(noisy, 0.0, disease.message_bound))
        population.exposure[day] = np.bincount(receivers, heard, minlength=population.people)
    return believe(population.evidence(population.exposure), disease).score


def _score_traditional(population: Population, release: Release, sampler: Sampler) -> Floats:
    """How many contacts of the window were with people who tested positive in it, plus N(0, σ²)."""
    positive = population.recently_positive()
    channel = _channel(release, population.disease, population.people)
    days = range(population.disease.window)
    count = np.zeros(population.people, dtype=np.int64)
    for day in days:
        count += population.contacts.sum_over_contacts(day, positive)
    return channel.send(to_grid(count, channel.grid), sampler)


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
