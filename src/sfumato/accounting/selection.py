"""The cost of choosing the best of a random number of trials (Papernot & Steinke 2022).

Running a private training K times and keeping the best leaks more than one run, but not K times as much, if K
is itself random and never told. With K of a truncated negative binomial distribution of shape η and mean m, a
trial of Rényi divergence ρ(λ) gives, at every order λ and for any λ̂ (theorem 2),

    ρ'(λ) ≤ ρ(λ) + ln(m)/(λ − 1) + (1 + η)·((1 − 1/λ̂)·ρ(λ̂) − ln(γ)/λ̂),

γ the distribution's parameter. Of the shapes, η = 0 is the cheapest at a given mean of five trials or more:
the logarithmic distribution, P[K = k] = (1 − γ)ᵏ/(k·ln(1/γ)), k ≥ 1, of mean (1/γ − 1)/ln(1/γ).

*Guarantees* hold if the trials are independent, of one price under all settings, and if of all trials only
the best one's output is told: not how many there were, nor any other's score.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from sfumato import _validate
from sfumato.accounting.events import Budget, DpEvent, RepeatAndSelectEvent
from sfumato.accounting.filter import PrivacyFilter
from sfumato.accounting.rdp import rdp_epsilon
from sfumato.errors import NotPrivate

if TYPE_CHECKING:
    from sfumato.randomness import Sampler

LOGARITHMIC = 0.0


def best_of(trial: DpEvent, mean_trials: float) -> DpEvent:
    """Return the best of a random number of trials, each of them `trial`; the number has this mean.

    Args:
        trial: The release of one trial.

    >>> from sfumato.accounting import GaussianEvent
    >>> best_of(GaussianEvent(4.0), 10.0).mean
    10.0
    """
    return RepeatAndSelectEvent(trial, _mean(mean_trials), LOGARITHMIC)


def selection_epsilon(event: DpEvent, budget: Budget) -> float:
    """Return ε at the budget's δ of a selection, by the larger of the ledger's filter and the Rényi bound."""
    rule = PrivacyFilter(budget)
    return max(rule.epsilon(rule.spending(event)), rdp_epsilon(event, budget.delta, relation=budget.relation))


def trial_parameter(mean_trials: float) -> float:
    """γ of the logarithmic distribution of this mean.

    >>> gamma = trial_parameter(5.0)
    >>> round((1 / gamma - 1) / math.log(1 / gamma), 9)
    5.0
    """
    mean = _mean(mean_trials)
    low, high = -700.0, -1e-12  # of ln γ, in which the mean falls
    for _ in range(200):
        middle = (low + high) / 2
        found = math.expm1(-middle) / -middle
        low, high = (middle, high) if found > mean else (low, middle)
    return math.exp((low + high) / 2)


def draw_trials(mean_trials: float, sampler: Sampler) -> int:
    """Return a secret number of trials, K ≥ 1, by inversion of a uniform draw.

    Args:
        sampler: The secret stream; the number must not be known.

    >>> from sfumato.randomness import SecretStream
    >>> draw_trials(5, SecretStream()) >= 1
    True
    """
    gamma = trial_parameter(mean_trials)
    left = float(sampler.uniform(1)[0]) * math.log(1 / gamma)
    count, chance = 1, 1 - gamma  # chance: (1 − γ)ᵏ/k, times ln(1/γ) once normalised
    while left > chance and chance > 0:
        left -= chance
        count += 1
        chance *= (1 - gamma) * (count - 1) / count
    return count


def calibrate_selection(
    make_trial: Callable[[float], DpEvent], budget: Budget, *, mean_trials: float, guess: float = 1.0
) -> float:
    """Return the least noise at which the best of the trials `make_trial(noise)` fits `budget`.

    Args:
        make_trial: Gives the event of one trial for a noise multiplier.

    >>> from sfumato.accounting import Budget, GaussianEvent
    >>> calibrate_selection(GaussianEvent, Budget(epsilon=3, delta=1e-5), mean_trials=5) > 1
    True
    """

    def fits(value: float) -> bool:
        return selection_epsilon(best_of(make_trial(value), mean_trials), budget) <= budget.epsilon

    inside = _validate.positive("guess", guess)
    while not fits(inside):
        inside *= 2
        if inside > 1e9:
            raise NotPrivate(
                f"no noise gives ε = {budget.epsilon:g} for {mean_trials:g} trials; allow fewer, or more ε"
            )
    outside = inside / 2
    while fits(outside):
        inside, outside = outside, outside / 2
    while inside / outside > 1 + 1e-3:
        middle = math.sqrt(inside * outside)
        inside, outside = (middle, outside) if fits(middle) else (inside, middle)
    return inside


def _mean(mean_trials: float) -> float:
    return _validate.positive("mean_trials - 1", mean_trials - 1, remedy="expect more than one trial") + 1
