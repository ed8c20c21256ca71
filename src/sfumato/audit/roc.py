"""How well an attacker tells members from others: ROC, rates at a threshold, area, each with confidence.

Figures have logarithmic axes: an attack is judged by its true positives at very few false positives
(Carlini et al. 2022, section 3).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from sfumato import _validate, accounting, randomness
from sfumato.audit.bounds import DISPLAY_ALPHA, Errors, Floats, Interval, _scores, clopper_pearson
from sfumato.storage import write_figure


class RateEstimate(NamedTuple):
    """A value and its two-sided confidence interval.

    Attributes:
        value: The value.
        interval: Its two-sided confidence interval.
    """

    value: float
    interval: Interval


@dataclass(frozen=True, eq=False)
class Roc:
    """False and true positive rates as the threshold falls, from (0, 0) to (1, 1).

    Args:
        false_positive_rates: From 0 to 1.
        true_positive_rates: From 0 to 1.

    >>> Roc.of(present=[2, 3], absent=[0, 1]).best_accuracy()
    1.0
    """

    false_positive_rates: Floats
    true_positive_rates: Floats

    @classmethod
    def of(cls, present: npt.ArrayLike, absent: npt.ArrayLike) -> Roc:
        """Of the attacker who says "present" where the score is at least the threshold."""
        present, absent = _scores("present", present), _scores("absent", absent)
        falling = np.unique(np.concatenate([present, absent]))[::-1]
        return cls(_share_at_least(absent, falling), _share_at_least(present, falling))

    def best_accuracy(self) -> float:
        """At even odds, over all thresholds: optimistic, as it is chosen on the same scores."""
        return float(((1 + self.true_positive_rates - self.false_positive_rates) / 2).max())


def auc(present: npt.ArrayLike, absent: npt.ArrayLike, *, alpha: float = DISPLAY_ALPHA) -> RateEstimate:
    """The chance that a member scores above another (ties count half), with DeLong's interval (1988).

    Args:
        present: Scores of members.
        absent: Scores of others.
        alpha: 1 − the confidence of the interval.

    Returns:
        The area under the ROC curve.

    >>> auc([2, 3], [0, 1]).value
    1.0
    """
    present, absent = _scores("present", present), _scores("absent", absent)
    above = _placements(present, absent)  # share of the absent that each present score exceeds
    below = 1 - _placements(absent, present)
    value = float(above.mean())
    spread = _variance(above) / above.size + _variance(below) / below.size
    reach = float(stats.norm.isf(alpha / 2)) * math.sqrt(spread)
    return RateEstimate(value, Interval(max(0.0, value - reach), min(1.0, value + reach)))


class OperatingPoint(NamedTuple):
    """An attacker with a threshold that was chosen on scores that are not counted here.

    Attributes:
        threshold: The threshold.
        true_positive_rate: The share of members named.
        false_positive_rate: The share of others named.
        precision: The share of members among those named.
        recall: The same as the true positive rate.
    """

    threshold: float
    true_positive_rate: RateEstimate
    false_positive_rate: RateEstimate
    precision: RateEstimate  # of those called members, the share that are; at the odds of the given scores
    recall: RateEstimate


def operating_point(
    present: npt.ArrayLike, absent: npt.ArrayLike, threshold: float, *, alpha: float = DISPLAY_ALPHA
) -> OperatingPoint:
    """Rate the attacker with one threshold.

    Args:
        present: Scores of members.
        absent: Scores of others.
        threshold: Scores from here on say "present".
        alpha: 1 − the confidence of the intervals.

    Returns:
        The rates, each with its Clopper–Pearson interval.

    >>> operating_point([2, 3], [0, 1], 2).true_positive_rate.value
    1.0
    """
    errors = Errors.at(threshold, present, absent)
    caught = errors.positives - errors.false_negatives
    called = caught + errors.false_positives
    recall = _share(caught, errors.positives, alpha)
    return OperatingPoint(
        threshold=threshold,
        true_positive_rate=recall,
        false_positive_rate=_share(errors.false_positives, errors.negatives, alpha),
        precision=_share(caught, called, alpha),
        recall=recall,
    )


def at_false_positive_rate(
    present: npt.ArrayLike,
    absent: npt.ArrayLike,
    rate: float = 1e-3,
    *,
    alpha: float = DISPLAY_ALPHA,
    seed: int = 0,
) -> OperatingPoint:
    """Rate the attacker who aims at a rate of false positives.

    The threshold comes from one half of the absent; counted are all present and the other half.

    Args:
        present: Scores of members.
        absent: Scores of others.
        rate: The rate of false positives aimed at.
        alpha: 1 − the confidence of the intervals.
        seed: Fixes the halves.

    Returns:
        The rates, with intervals.

    >>> at_false_positive_rate([2.0, 3.0], [0.0, 1.0, 0.5, 0.2], rate=0.5).true_positive_rate.value
    1.0
    """
    absent = _scores("absent", absent)
    chosen, counted = np.array_split(randomness.public_generator(seed).permutation(absent), 2)
    allowed = int(_validate.probability("rate", rate) * chosen.size)
    threshold = np.nextafter(np.sort(chosen)[::-1][allowed], np.inf) if allowed < chosen.size else -np.inf
    return operating_point(present, counted, float(threshold), alpha=alpha)


def draw_roc(
    curves: Mapping[str, Roc],
    path: str | os.PathLike[str],
    *,
    limits: Mapping[str, float] | None = None,
    delta: float = 1e-5,
    title: str = "Membership inference",
) -> Path:
    """Draw ROC curves on log axes.

    Args:
        curves: The curves, by name.
        path: The picture to write.
        limits: The ε of a curve, to draw the limit of every attacker on it.
        delta: The δ of those limits.
        title: The title.

    Returns:
        The picture.

    ```python
    draw_roc({"private": Roc.of(present, absent)}, "roc.png", limits={"private": 1.0})
    ```
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 5.2), layout="constrained")
    axes = figure.subplots()
    floor = max(1e-5, min([1e-3, *(_smallest_step(curve) for curve in curves.values())]))
    line = np.geomspace(floor, 1, 200)
    axes.plot(line, line, color="0.6", lw=1, ls=":", label="guessing")
    for number, (name, curve) in enumerate(curves.items()):
        axes.step(
            curve.false_positive_rates,
            curve.true_positive_rates,
            where="post",
            lw=1.6,
            color=f"C{number}",
            label=f"{name}, AUC {_area(curve):.3f}",
        )
        if limits and name in limits and math.isfinite(limits[name]):
            most = greatest_true_positive_rates(line, limits[name], delta)
            axes.plot(line, most, color=f"C{number}", lw=1, ls="--", label=f"most at ε = {limits[name]:g}")
    axes.set(xscale="log", yscale="log", xlim=(floor, 1), ylim=(floor, 1.05), title=title)
    axes.set(xlabel="false positive rate", ylabel="true positive rate")
    axes.grid(color="0.9")
    axes.legend(loc="lower right", fontsize=8, framealpha=0.9)
    return write_figure(path, figure, readable=True)


def greatest_true_positive_rates(rates: Floats, epsilon: float, delta: float) -> Floats:
    """min(e^ε·FPR + δ, 1 − e^(−ε)(1 − δ − FPR)): the limit of every attacker under (ε, δ)-DP."""
    grown = rates * math.exp(min(epsilon, 700.0)) + delta
    return np.clip(np.minimum(grown, 1 - math.exp(-epsilon) * (1 - delta - rates)), 0, 1)


def gaussian_true_positive_rates(rates: Floats, event: accounting.GaussianEvent) -> Floats:
    """Φ(Φ⁻¹(FPR) + 1/σ): the exact most for one Gaussian release."""
    most: Floats = special.ndtr(special.ndtri(rates) + 1 / event.noise_multiplier)
    return most


def _share_at_least(scores: Floats, falling: Floats) -> Floats:
    counts = scores.size - np.searchsorted(np.sort(scores), falling, side="left")
    return np.concatenate([[0.0], counts / scores.size])


def _placements(scores: Floats, among: Floats) -> Floats:
    ordered = np.sort(among)
    left, right = (np.searchsorted(ordered, scores, side=side) for side in ("left", "right"))
    placed: Floats = (left + right) / (2 * among.size)
    return placed


def _variance(values: Floats) -> float:
    return float(values.var(ddof=1)) if values.size > 1 else 0.0


def _share(hits: int, trials: int, alpha: float) -> RateEstimate:
    if trials == 0:
        return RateEstimate(math.nan, Interval(0.0, 1.0))
    return RateEstimate(hits / trials, clopper_pearson(hits, trials, alpha=alpha))


def _area(curve: Roc) -> float:
    return float(np.trapezoid(curve.true_positive_rates, curve.false_positive_rates))


def _smallest_step(curve: Roc) -> float:
    return float(curve.false_positive_rates[curve.false_positive_rates > 0].min())
