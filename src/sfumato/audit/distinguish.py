"""Two inputs, many outputs of each: the ε that a likelihood-ratio attacker proves.

For mechanisms that can be run often: local randomisers, votes, counts. The most powerful attacker ranks
outputs by their likelihood ratio (Neyman & Pearson 1933), known or estimated from other outputs.
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
    """Count the errors of an attacker who chose a threshold by some outputs, on as many others.

    He takes the threshold with the largest `bound`. `score` is the log-likelihood ratio where it is known;
    otherwise outputs must be whole numbers (labels, winners, counts), and how often the first outputs were
    which takes its place.

    Args:
        on_one: `on_one(n)` gives n outputs on one input.
        on_other: The same on the other input.
        bound: The bound that the threshold is chosen by.
        trials: Outputs on each input to choose by, and as many to count.
        score: The log-likelihood ratio where it is known. Otherwise outputs must be whole numbers, and how
            often each was seen takes its place.

    Returns:
        The errors.

    ```python
    errors = distinguish(on_one, on_other, bound, trials=10_000)
    epsilon_bound(errors, delta=0, alpha=0.05)
    ```
    """
    _validate.integer("trials", trials, least=1)
    one, other = on_one(trials), on_other(trials)
    score = frequency_score(one, other) if score is None else score
    threshold = best_threshold(score(one), score(other), bound, alpha=DISPLAY_ALPHA)
    return Errors.at(threshold, score(on_one(trials)), score(on_other(trials)))


@dataclass(frozen=True)
class PairAttack:
    """The errors of an attacker on several pairs of inputs that were fixed in advance.

    Attributes:
        errors: The attacker's errors on each pair.
    """

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
    """Attack several pairs of inputs that were fixed in advance.

    Name all pairs where the worst is not known: a broken randomiser need not be worst where an intact one is.

    Args:
        randomise: `randomise(input, n)` gives n independent outputs.
        pairs: Pairs of neighbouring inputs.
        bound: The bound that thresholds are chosen by.
        trials: Outputs on each input to choose by, and as many to count.
        score: `score(one, other)` gives the log-likelihood ratio of a pair, where it is known.

    Returns:
        The errors on each pair.

    ```python
    attack = attack_pairs(randomise, [(0, 1)], bound, trials=10_000)
    attack.bound(bound, alpha=0.05)
    ```
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
    """Score outputs by how often each was seen on both inputs, counting each half a time more.

    Args:
        one: Outputs on one input, whole numbers.
        other: Outputs on the other.

    Returns:
        The score of an output.

    >>> score = frequency_score(np.array([0, 0, 1]), np.array([1, 1, 0]))
    >>> bool(score(np.array([0]))[0] > 0)
    True
    """
    outputs = np.unique(np.concatenate([one.reshape(-1), other.reshape(-1)]))
    ratios = np.log((_counts(one, outputs) + 0.5) / (_counts(other, outputs) + 0.5))

    def score(seen: npt.NDArray[Any]) -> Floats:
        flat = seen.reshape(-1)
        place = np.minimum(np.searchsorted(outputs, flat), outputs.size - 1)
        # An output never seen before is no evidence.
        return np.where(outputs[place] == flat, ratios[place], 0.0)

    return score


def channel_score(channel: Floats, one: int, other: int) -> Score:
    """Score reports by the exact log-likelihood ratio of a randomiser.

    Args:
        channel: P(report | answer), a row for each answer.
        one: One answer.
        other: The other answer.

    Returns:
        The score of a report.

    >>> score = channel_score(np.array([[0.75, 0.25], [0.25, 0.75]]), 0, 1)
    >>> bool(score(np.array([0]))[0] > score(np.array([1]))[0])
    True
    """
    with np.errstate(divide="ignore"):
        ratios = np.log(channel[one]) - np.log(channel[other])
    return lambda reports: ratios[np.asarray(reports).reshape(-1)]


def gaussian_score(one: npt.ArrayLike, other: npt.ArrayLike) -> Score:
    """Rank outputs of spherical noise around x₁ or x₂ as their likelihood ratio does: ⟨output, x₁ − x₂⟩.

    Args:
        one: x₁.
        other: x₂.

    Returns:
        The score of an output.

    >>> gaussian_score([1.0, 0.0], [0.0, 0.0])(np.array([[2.0, 5.0]])).tolist()
    [2.0]
    """
    direction = np.asarray(one, dtype=np.float64) - np.asarray(other, dtype=np.float64)
    return lambda outputs: np.asarray(outputs, dtype=np.float64) @ direction


def _counts(seen: npt.NDArray[Any], outputs: npt.NDArray[Any]) -> Floats:
    found, counts = np.unique(seen.reshape(-1), return_counts=True)
    result = np.zeros(outputs.size)
    result[np.searchsorted(outputs, found)] = counts
    return result


Counts = npt.NDArray[np.int64]
Vote = Callable[[Counts], npt.NDArray[np.int64]]
"""From votes (rounds, candidates) to the winner of each round."""


def worst_votes(candidates: int, *, replaced: bool, level: int = 20) -> tuple[tuple[Counts, Counts], ...]:
    """Neighbouring counts: one voter more, or, with `replaced`, one who votes for another candidate.

    Args:
        candidates: How many candidates there are.
        replaced: True if a neighbour has one voter replaced, False if one more.
        level: About how many votes each candidate has.

    Returns:
        Pairs of counts.

    >>> [(one.tolist(), other.tolist()) for one, other in worst_votes(3, replaced=True, level=5)][0]
    ([6, 5, 5], [5, 5, 6])
    """
    last = _validate.integer("candidates", candidates, least=2) - 1
    ballots = np.eye(candidates, dtype=np.int64)
    level_all = np.full(candidates, level, dtype=np.int64)
    two_lead = level * (ballots[0] + ballots[last])
    return tuple(
        (base + ballots[ahead], base + ballots[behind] if replaced else base)
        for base in (level_all, two_lead)
        for ahead, behind in ((0, last), (last, 0))
    )


def vote_attack(vote: Vote, *, candidates: int, replaced: bool, bound: Bound, trials: int) -> PairAttack:
    """Attack a vote through the winners of all `worst_votes`.

    Args:
        vote: Gives the winner of each round, from votes (rounds, candidates).
        candidates: How many candidates there are.
        replaced: True if a neighbour has one voter replaced, False if one more.
        bound: The bound that thresholds are chosen by.
        trials: Half of how often each vote is played on both sides.

    Returns:
        The errors on each pair of counts.

    ```python
    vote_attack(vote, candidates=3, replaced=False, bound=bound, trials=10_000).bound(bound, 0.05)
    ```
    """
    return attack_pairs(
        lambda counts, rounds: vote(np.tile(counts, (rounds, 1))),
        worst_votes(candidates, replaced=replaced),
        bound,
        trials=trials,
    )
