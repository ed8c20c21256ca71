"""Two inputs, many outputs of each: the ε that a likelihood-ratio attacker proves.

For what can be run often: local randomisers, votes, counts. The most powerful attacker ranks outputs by their
likelihood ratio (Neyman & Pearson 1933), known or estimated from other outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato import _validate
from sfumato.audit.bounds import DISPLAY_ALPHA, Bound, Errors, Floats, best_threshold

Draws = Callable[[int], npt.NDArray[Any]]
"""So many independent outputs on one input."""
Score = Callable[[npt.NDArray[Any]], Floats]


def distinguish(
    on_one: Draws,
    on_other: Draws,
    bound: Bound,
    *,
    trials: int,
    score: Score | None = None,
) -> Errors:
    """Errors of an attacker who chose by `trials` outputs on each input, counted on as many others.

    He takes the threshold with the largest `bound`. `score` is the log-likelihood ratio where it is known;
    otherwise outputs must be whole numbers (labels, winners, counts), and how often the first outputs were
    which takes its place.
    """
    _validate.integer("trials", trials, least=1)
    one, other = on_one(trials), on_other(trials)
    score = frequency_score(one, other) if score is None else score
    threshold = best_threshold(score(one), score(other), bound, alpha=DISPLAY_ALPHA)
    return Errors.at(threshold, score(on_one(trials)), score(on_other(trials)))


@dataclass(frozen=True)
class PairAttack:
    """What an attacker did on several pairs of inputs that were fixed in advance."""

    errors: tuple[Errors, ...]  # of each pair

    def bound(self, bound: Bound, alpha: float) -> float:
        """The best over all pairs, each at α over their number (Bonferroni)."""
        return max(bound(errors, alpha / len(self.errors)) for errors in self.errors)


def attack_pairs(
    randomise: Callable[[Any, int], npt.NDArray[Any]],
    pairs: Iterable[tuple[Any, Any]],
    bound: Bound,
    *,
    trials: int,
    score: Callable[[Any, Any], Score] | None = None,
) -> PairAttack:
    """`distinguish` on each pair; `randomise(input, n)` gives n independent outputs.

    Say all pairs where the worst is not known: a broken randomiser need not be worst where an intact one is.
    `score(one, other)` gives the likelihood ratio of a pair.
    """
    return PairAttack(
        tuple(
            distinguish(
                partial(randomise, one),
                partial(randomise, other),
                bound,
                trials=trials,
                score=None if score is None else score(one, other),
            )
            for one, other in pairs
        )
    )


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
