"""Dirac canaries: records that each own one coordinate of a noisy sum.

They test clipping, summing and noise of a given step, and nothing else: not how records are sampled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sfumato import _validate, randomness
from sfumato.audit.bounds import Errors, Floats, balanced_mu_bound
from sfumato.errors import InvalidInput

Step = Callable[[npt.NDArray[np.bool_]], Floats]
"""From who is present to the noised sum, over clip norm, at each canary's coordinate; both (canaries,)."""


@dataclass(frozen=True, eq=False)
class DiracScores:
    """Differences of two releases at each canary's coordinate, by which of the two the canary was in.

    Attributes:
        first: Scores of canaries that were in the first release.
        second: Scores of those in the second.
    """

    first: Floats
    second: Floats

    def errors(self) -> Errors:
        """Of the attacker who says "first" where the difference is at least 0, which needs no choosing."""
        return Errors.at(0.0, self.first, self.second)

    def mu_bound(self, *, alpha: float) -> float:
        """A lower bound of one release's μ: two releases, each moved by one record, are √2·μ-GDP together.

        A fair coin chose the release that each canary is in, so how often the attacker is right decides.
        """
        return balanced_mu_bound(self.errors(), alpha=alpha) / np.sqrt(2).item()


def dirac_scores(
    step: Step,
    *,
    canaries: int,
    pairs: int,
    coins: randomness.Sampler,
    on_pair: Callable[[], object] = bool,
) -> DiracScores:
    """Put each canary into one of two releases by a coin, `pairs` times over.

    The best attacker subtracts one release from the other: N(±C, 2σ²C²) for fresh Gaussian noise, and nothing
    but ±C where noise is repeated.

    Args:
        step: Releases once. It takes who is present, (canaries,), and gives the noised sum, in clipping
            norms, at each canary's coordinate.
        canaries: How many there are.
        pairs: How many pairs of releases are made.
        coins: Decides which canary is in which release.
        on_pair: Called after each pair.

    Returns:
        The scores.

    ```python
    dirac_scores(step, canaries=100, pairs=50, coins=SecretStream()).mu_bound(alpha=0.05)
    ```
    """
    _validate.integer("canaries", canaries, least=1)
    first, second = [], []
    for _ in range(_validate.integer("pairs", pairs, least=1)):
        coin = coins.bernoulli(0.5, canaries)
        difference = _checked(step(coin), canaries) - _checked(step(~coin), canaries)
        first.append(difference[coin])
        second.append(difference[~coin])
        on_pair()
    return DiracScores(np.concatenate(first), np.concatenate(second))


def _checked(released: Floats, canaries: int) -> Floats:
    values = np.asarray(released, dtype=np.float64)
    if values.shape != (canaries,) or not np.isfinite(values).all():
        raise InvalidInput(
            f"expected a finite value for each of {canaries} canaries, got shape {values.shape}; "
            "a step that releases NaN or Inf releases whose record caused it"
        )
    return values
