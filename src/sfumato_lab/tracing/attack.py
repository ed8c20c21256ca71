"""The attack of one person with an app: meet only the victim, then watch tomorrow's score.

A person who met only the victim on only one day sees the victim's message in their own score. Colluders who
each met the victim once see it several times over. Run on many victims at once, half of whom tested positive,
the attack's errors bound the ε of the release from below.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy import stats

from sfumato import _validate
from sfumato.audit import DISPLAY_ALPHA, Errors, Verdict, balanced_mu_bound, best_threshold, gdp_epsilon
from sfumato.randomness import Sampler, SecretStream
from sfumato_lab.tracing.disease import Disease, Floats, TestKit
from sfumato_lab.tracing.population import Population
from sfumato_lab.tracing.release import Release, Span
from sfumato_lab.tracing.scoring import release_scores

_DELTA = 1e-3
_VICTIMS = 20_000
_POSITIVE_TESTS = 3  # so many at once that the victim's phone is sure


@dataclass(frozen=True, kw_only=True)
class AttackResult:
    """How often the colluders are right, and the ε that this proves at `confidence`.

    Attributes:
        accuracy: How often the colluders are right.
        true_positive_rate: The share of positive victims that they name.
        false_positive_rate: The share of other victims that they name.
        epsilon_lower_bound: The ε that this proves.
        confidence: The confidence of that bound.
    """

    accuracy: float
    true_positive_rate: float
    false_positive_rate: float
    epsilon_lower_bound: float
    confidence: float


def attack(
    release: Release,
    *,
    disease: Disease,
    sampler: Sampler,
    victims: int = 20_000,
    colluders: int = 1,
    days: int = 1,
    delta: float = 1e-3,
    confidence: float = 0.95,
) -> AttackResult:
    """Guess from the colluders' scores which victims tested positive.

    Args:
        release: The attacked release.
        disease: How the score takes the disease to spread.
        sampler: The secret stream.
        victims: How many victims are attacked, for the statistics.
        colluders: How many contacts of a victim work together.
        days: How many days of scores they collect.
        delta: The δ of the claim.
        confidence: The confidence of the bound.

    Returns:
        How often they are right, and the ε that this proves.

    >>> from sfumato.randomness import SecretStream
    >>> release = Release(method="dpfn", noise_multiplier=5.0)
    >>> 0 <= attack(release, disease=Disease(), sampler=SecretStream(), victims=50).accuracy <= 1
    True
    """
    victims = 4 * max(1, _validate.integer("victims", victims, least=4) // 4)
    _validate.integer("colluders", colluders, least=1)
    _validate.integer("days", days, least=1)
    seen = watch(release, disease=disease, sampler=sampler, victims=victims, colluders=colluders, days=days)
    positive, negative = seen[: victims // 2], seen[victims // 2 :]
    # One half of the victims shows where to put the threshold, the other half is judged by it.
    threshold = _best_threshold(positive[::2], negative[::2])
    hits, alarms = positive[1::2] > threshold, negative[1::2] > threshold
    bound = lower_bound(hits.sum(), alarms.sum(), hits.size, delta=delta, confidence=confidence)
    true_rate, false_rate = float(hits.mean()), float(alarms.mean())
    return AttackResult(
        accuracy=(true_rate + 1 - false_rate) / 2,
        true_positive_rate=true_rate,
        false_positive_rate=false_rate,
        epsilon_lower_bound=bound,
        confidence=confidence,
    )


def watch(
    release: Release, *, disease: Disease, sampler: Sampler, victims: int, colluders: int, days: int
) -> Floats:
    """Return the sum of the colluders' scores by victim; the first half of the victims tested positive."""
    population = Population(victims * (1 + colluders), disease, TestKit())
    everyone = np.arange(victims)
    attackers = np.arange(victims, victims * (1 + colluders))
    population.begin_day((attackers, np.tile(everyone, colluders)))
    release_scores(population, release, sampler)
    for _ in range(_POSITIVE_TESTS):
        population.record_tests(everyone, everyone < victims // 2)
    seen = np.zeros(victims)
    nobody = np.zeros(0, dtype=np.int64)
    for _ in range(days):
        population.begin_day((nobody, nobody))
        scores = release_scores(population, release, sampler)
        seen += scores[attackers].reshape(colluders, victims).sum(axis=0)
    return seen


def _best_threshold(positive: Floats, negative: Floats) -> float:
    """The threshold of the greatest true minus false positive rate."""
    values = np.sort(np.concatenate([positive, negative]))
    hits = 1 - np.searchsorted(np.sort(positive), values, side="right") / positive.size
    alarms = 1 - np.searchsorted(np.sort(negative), values, side="right") / negative.size
    return float(values[np.argmax(hits - alarms)])


def lower_bound(hits: int, alarms: int, trials: int, *, delta: float, confidence: float) -> float:
    """The ε below which so good an attack is impossible: ln((TPR − δ) / FPR), or the same for the complements.

    Both rates by Clopper & Pearson 1934, each in both directions at a quarter of the allowed error.

    >>> round(lower_bound(500, 0, 500, delta=0, confidence=0.99), 4)
    4.4183
    """
    risk = (1 - confidence) / 4  # two rates, two directions
    candidates = [0.0]
    for right, wrong in ((hits, alarms), (trials - alarms, trials - hits)):
        least = float(stats.beta.ppf(risk, right, trials - right + 1)) if right else 0.0
        most = float(stats.beta.ppf(1 - risk, wrong + 1, trials - wrong)) if wrong < trials else 1.0
        if least > delta:
            candidates.append(math.log((least - delta) / most))
    return max(candidates)


def messages(span: Span = "release", *, release: Release | None = None) -> Verdict:
    """The scores of someone who met the victim once: on the day after the test, or over a message's life."""
    disease = Disease()
    release = release or Release.calibrated(
        method="dpfn", epsilon=1.0, delta=_DELTA, disease=disease, span=span
    )
    days = 1 if span == "release" else disease.window
    seen = watch(release, disease=disease, sampler=SecretStream(), victims=_VICTIMS, colluders=1, days=days)
    positive, negative = seen[: _VICTIMS // 2], seen[_VICTIMS // 2 :]
    bound = _bound
    # Scores of one town rise and fall together with its rate of news, so its own scores set the threshold.
    threshold = best_threshold(positive[::2], negative[::2], bound, alpha=DISPLAY_ALPHA)
    errors = Errors.at(threshold, positive[1::2], negative[1::2])
    return Verdict.of(partial(bound, errors), claimed_epsilon=1.0, delta=_DELTA)


def _bound(errors: Errors, alpha: float) -> float:
    return gdp_epsilon(balanced_mu_bound(errors, alpha=alpha), _DELTA)


RELEASES: Mapping[str, Callable[[], Verdict]] = {
    "tracing: a day": messages,
    "tracing: a message's life": partial(messages, "lifetime"),
}
"""Attacks of `sfumato audit releases`."""
