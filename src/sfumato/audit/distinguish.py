"""Two inputs, many outputs of each: the ε that a likelihood-ratio attacker proves.

For what can be run often: local randomisers, votes, counts. The most powerful attacker ranks outputs by their
likelihood ratio (Neyman & Pearson 1933), known or estimated from other outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato import _validate
from sfumato.audit.bounds import Bound, Errors, Floats, best_threshold

Draws = Callable[[int], npt.NDArray[Any]]
"""So many independent outputs on one input."""
Score = Callable[[npt.NDArray[Any]], Floats]


def distinguishing_bound(
    on_one: Draws,
    on_other: Draws,
    bound: Bound,
    *,
    trials: int,
    alpha: float,
    score: Score | None = None,
) -> float:
    """A lower bound from `trials` outputs on each input to choose the attack by, and as many to count.

    `score` is the log-likelihood ratio where it is known; otherwise outputs must be whole numbers (labels,
    winners, counts), and their frequencies on the first outputs take its place.
    """
    _validate.integer("trials", trials, least=1)
    one, other = on_one(trials), on_other(trials)
    score = frequency_score(one, other) if score is None else score
    threshold = best_threshold(score(one), score(other), bound, alpha=alpha)
    return bound(Errors.at(threshold, score(on_one(trials)), score(on_other(trials))), alpha)


def frequency_score(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> Score:
    """ln of the ratio of how often each output was seen on both inputs, half a time more than it was."""
    outputs = np.unique(np.concatenate([one.reshape(-1), other.reshape(-1)]))
    ratios = np.log((_counts(one, outputs) + 0.5) / (_counts(other, outputs) + 0.5))

    def score(seen: npt.NDArray[Any]) -> Floats:
        flat = seen.reshape(-1)
        place = np.minimum(np.searchsorted(outputs, flat), outputs.size - 1)
        # What was never seen before says nothing.
        return np.where(outputs[place] == flat, ratios[place], 0.0)

    return score


def channel_score(channel: Floats, one: int, other: int) -> Score:
    """The exact log-likelihood ratio of a randomiser given by its table P(report | answer)."""
    with np.errstate(divide="ignore"):
        ratios = np.log(channel[one]) - np.log(channel[other])
    return lambda reports: ratios[np.asarray(reports).reshape(-1)]


def gaussian_score(one: npt.ArrayLike, other: npt.ArrayLike) -> Score:
    """⟨output, x₁ − x₂⟩ ranks outputs of spherical noise around x₁ or x₂ as their likelihood ratio does."""
    direction = np.asarray(one, dtype=np.float64) - np.asarray(other, dtype=np.float64)
    return lambda outputs: np.asarray(outputs, dtype=np.float64) @ direction


def _counts(seen: npt.NDArray[Any], outputs: npt.NDArray[Any]) -> Floats:
    found, counts = np.unique(seen.reshape(-1), return_counts=True)
    result = np.zeros(outputs.size)
    result[np.searchsorted(outputs, found)] = counts
    return result
