"""Lower bounds of ε from an attacker's hits and misses: each holds with probability at least 1 − α.

A bound above the claim refutes the claim; a bound below it proves nothing but that this attack was no better.
Bounds that fail a build are taken at α = 1e-6, bounds that are shown at α = .05.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from sfumato import _validate, accounting, randomness
from sfumato.errors import InvalidInput

Floats = npt.NDArray[np.float64]

DISPLAY_ALPHA = 0.05
VERDICT_ALPHA = 1e-6


class Interval(NamedTuple):
    """A two-sided confidence interval.

    Attributes:
        lower: The lower end.
        upper: The upper end.
    """

    lower: float
    upper: float


def clopper_pearson(hits: int, trials: int, *, alpha: float) -> Interval:
    """Limits of a binomial probability, each missed with probability at most α/2 (Clopper & Pearson 1934).

    Args:
        hits: How often it happened.
        trials: How often it could have.
        alpha: 1 − the confidence.

    Returns:
        The interval.

    >>> clopper_pearson(0, 500, alpha=0.01).upper == 1 - 0.005 ** (1 / 500)
    True
    """
    trials = _validate.integer("trials", trials, least=1, remedy="an audit needs trials on both sides")
    hits = _validate.integer("hits", hits)
    if hits > trials:
        raise InvalidInput(f"expected hits <= trials={trials}, got hits={hits}")
    tail = _level(alpha) / 2
    lower = 0.0 if hits == 0 else float(stats.beta.ppf(tail, hits, trials - hits + 1))
    # The closed form of the corner case is exact where the inverse of the beta function is not.
    upper = 1.0 if hits == trials else float(stats.beta.isf(tail, hits + 1, trials - hits))
    return Interval(lower, 1 - tail ** (1 / trials) if hits == 0 else upper)


@dataclass(frozen=True, kw_only=True)
class Errors:
    """The false positives and false negatives of an attacker.

    Args:
        false_positives: How many absent ones were named.
        negatives: How many were absent.
        false_negatives: How many present ones were missed.
        positives: How many were present.

    >>> Errors.at(0.5, present=[0.9, 0.2], absent=[0.1, 0.3]).false_negatives
    1
    """

    false_positives: int
    negatives: int  # trials without the record
    false_negatives: int
    positives: int  # trials with the record

    def __post_init__(self) -> None:
        for name in ("negatives", "positives"):
            _validate.integer(name, getattr(self, name), least=1, remedy="an audit needs trials on both sides")

    @classmethod
    def at(cls, threshold: float, present: npt.ArrayLike, absent: npt.ArrayLike) -> Errors:
        """Of the attacker who says "present" where the score is at least `threshold`."""
        present, absent = _scores("present", present), _scores("absent", absent)
        return cls(
            false_positives=int((absent >= threshold).sum()),
            negatives=absent.size,
            false_negatives=int((present < threshold).sum()),
            positives=present.size,
        )

    def upper(self, alpha: float) -> tuple[float, float]:
        """Upper limits of both error rates, which hold together with probability 1 − α."""
        return (
            clopper_pearson(self.false_positives, self.negatives, alpha=alpha).upper,
            clopper_pearson(self.false_negatives, self.positives, alpha=alpha).upper,
        )


def epsilon_bound(errors: Errors, *, delta: float, alpha: float) -> float:
    """ε ≥ max(ln((1 − δ − FNR)/FPR), ln((1 − δ − FPR)/FNR)) at the upper limits of both rates.

    Any (ε, δ)-DP release keeps FPR·e^ε + FNR ≥ 1 − δ and the same with the rates exchanged (Kairouz, Oh &
    Viswanath 2015, theorem 2.1), so this holds for every mechanism.

    Args:
        errors: The errors of the attacker.
        delta: The δ of the claim.
        alpha: 1 − the confidence.

    Returns:
        A lower bound of ε.

    >>> perfect = Errors(false_positives=0, negatives=500, false_negatives=0, positives=500)
    >>> round(epsilon_bound(perfect, delta=0, alpha=0.01), 4)
    4.5419
    """
    delta = _validate.delta("delta", delta)
    fpr, fnr = errors.upper(alpha)
    ratios = ((1 - delta - fnr) / fpr, (1 - delta - fpr) / fnr)
    return max(0.0, *(math.log(ratio) for ratio in ratios if ratio > 0), 0.0)


def mu_bound(errors: Errors, *, alpha: float) -> float:
    """μ ≥ Φ⁻¹(1 − FPR) − Φ⁻¹(FNR) at the upper limits of both rates (Nasr et al. 2023, section 4).

    Any μ-GDP release obeys it; it is tight for Gaussian noise without sampling, where few trials reach far.

    Args:
        errors: The errors of the attacker.
        alpha: 1 − the confidence.

    Returns:
        A lower bound of μ.

    >>> mu_bound(Errors(false_positives=50, negatives=100, false_negatives=50, positives=100), alpha=0.05)
    0.0
    """
    fpr, fnr = errors.upper(alpha)
    return max(0.0, float(-special.ndtri(fpr) - special.ndtri(fnr)))


def balanced_mu_bound(errors: Errors, *, alpha: float) -> float:
    """μ ≥ 2·Φ⁻¹(p) for p the lower limit of how often the attacker is right: one limit instead of two.

    An attacker who faces a μ-GDP release with and without the record equally often is right with chance at most
    Φ(μ/2): 1 − (FPR + FNR)/2, and FPR + FNR ≥ min over a of a + Φ(Φ⁻¹(1 − a) − μ) = 2Φ(−μ/2) (Dong, Roth &
    Su 2022, section 2). Right guesses are then binomial if a fair coin chose each side. If both sides are
    equally many by design they are a sum of two binomials, whose tail above the mean is no heavier (Hoeffding
    1956, theorem 4). Both rates apart need the upper limit of each, which takes almost three times as many
    trials.

    Args:
        errors: The errors of the attacker, on sides chosen by fair coins, or equally many by design.
        alpha: 1 − the confidence.

    Returns:
        A lower bound of μ.

    >>> seen = Errors(false_positives=16, negatives=100, false_negatives=16, positives=100)
    >>> mu_bound(seen, alpha=0.05) < balanced_mu_bound(seen, alpha=0.05) < 2.0
    True
    """
    trials = errors.positives + errors.negatives
    right = trials - errors.false_positives - errors.false_negatives
    return max(0.0, 2 * float(special.ndtri(clopper_pearson(right, trials, alpha=2 * alpha).lower)))


def gdp_epsilon(mu: float, delta: float) -> float:
    """ε at δ of a μ-GDP release: that of a Gaussian mechanism of noise multiplier 1/μ.

    Args:
        mu: μ, the sensitivity divided by σ.
        delta: The δ.

    Returns:
        ε.

    >>> round(gdp_epsilon(0.5, 1e-5), 4), round(gdp_epsilon(1.0, 1e-5), 4)
    (1.9931, 4.3772)
    """
    if _validate.non_negative("mu", mu) == 0:
        return 0.0
    return accounting.epsilon(accounting.GaussianEvent(1 / mu), delta)


def gdp_epsilon_bound(errors: Errors, *, delta: float, alpha: float) -> float:
    """Give `mu_bound` as an ε at δ: for a release whose every trade-off is a Gaussian's.

    Args:
        errors: The errors of the attacker.
        delta: The δ of the claim.
        alpha: 1 − the confidence.

    Returns:
        A lower bound of ε.

    >>> perfect = Errors(false_positives=0, negatives=500, false_negatives=0, positives=500)
    >>> gdp_epsilon_bound(perfect, delta=1e-5, alpha=0.01) > epsilon_bound(perfect, delta=1e-5, alpha=0.01)
    True
    """
    return gdp_epsilon(mu_bound(errors, alpha=alpha), delta)


Bound = Callable[[Errors, float], float]
"""From errors and α to a lower bound."""


def bound_on_held_out(
    present: npt.ArrayLike, absent: npt.ArrayLike, bound: Bound, *, alpha: float, seed: int = 0
) -> float:
    """Choose the threshold on a random half of the scores, and count on the other half.

    Args:
        present: Scores of members.
        absent: Scores of others.
        bound: `bound(errors, alpha)` gives a lower bound of ε.
        alpha: 1 − the confidence.
        seed: Fixes the halves.

    Returns:
        The bound.

    ```python
    bound_on_held_out(present, absent, bound, alpha=0.05)
    ```
    """
    halves = randomness.public_generator(seed)
    chosen, counted = zip(
        *(
            np.array_split(halves.permutation(_scores(name, scores)), 2)
            for name, scores in (("present", present), ("absent", absent))
        ),
        strict=True,
    )
    threshold = best_threshold(chosen[0], chosen[1], bound, alpha=alpha)
    return bound(Errors.at(threshold, counted[0], counted[1]), alpha)


def bound_corrected(
    present: npt.ArrayLike, absent: npt.ArrayLike, bound: Bound, thresholds: Sequence[float], *, alpha: float
) -> float:
    """Take the best bound over thresholds fixed in advance, each at α / their number (Bonferroni).

    Args:
        present: Scores of members.
        absent: Scores of others.
        bound: `bound(errors, alpha)` gives a lower bound of ε.
        thresholds: The thresholds, chosen without looking at the scores.
        alpha: 1 − the confidence of the whole.

    Returns:
        The bound.

    ```python
    bound_corrected(present, absent, bound, thresholds=[0.0, 1.0], alpha=0.05)
    ```
    """
    share = _level(alpha) / _validate.integer("number of thresholds", len(thresholds), least=1)
    return max(bound(Errors.at(threshold, present, absent), share) for threshold in thresholds)


def best_threshold(present: Floats, absent: Floats, bound: Bound, *, alpha: float, most: int = 64) -> float:
    """Find the threshold with the largest bound on these scores, to be counted on others; or the most accurate.

    Args:
        present: Scores of members.
        absent: Scores of others.
        bound: `bound(errors, alpha)` gives a lower bound of ε.
        alpha: 1 − the confidence.
        most: How many thresholds are tried.

    Returns:
        The threshold.

    ```python
    threshold = best_threshold(present, absent, bound, alpha=0.05)
    ```
    """
    pooled = np.unique(np.concatenate([present, absent]))
    candidates = pooled[np.linspace(0, pooled.size - 1, min(most, pooled.size)).astype(np.int64)]

    def merit(threshold: float) -> tuple[float, float]:
        errors = Errors.at(threshold, present, absent)
        missed = errors.false_positives / errors.negatives + errors.false_negatives / errors.positives
        return bound(errors, alpha), -missed

    return float(max(candidates.tolist(), key=merit))


def _level(alpha: float) -> float:
    value = _validate.real("alpha", alpha)
    if not 0 < value < 1:
        raise InvalidInput(f"expected alpha in (0, 1), got alpha={alpha}; it is the chance of a false alarm")
    return value


def _scores(name: str, values: npt.ArrayLike) -> Floats:
    array = np.asarray(values, dtype=np.float64).reshape(-1)
    if not array.size or np.isnan(array).any():
        raise InvalidInput(f"expected {name} to hold scores without NaN, got {array.size} values")
    return array
