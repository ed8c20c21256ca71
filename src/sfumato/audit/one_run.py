"""Lower bounds of ε from a single run with m canaries, each in or out by a coin of its own.

The attacker sees the release and guesses, for r of the canaries, which side of the coin they are on; v guesses
are right. How many guesses are made, and by which scores, is fixed before the run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from sfumato import _validate
from sfumato.audit.bounds import clopper_pearson, gdp_epsilon
from sfumato.audit.trade_off import InverseBlowUp, gaussian_inverse
from sfumato.errors import InvalidInput
from sfumato.randomness import Sampler

_LARGEST = 60.0  # ε or μ that is looked for


@dataclass(frozen=True, kw_only=True)
class Guesses:
    """The result of a one-run attacker: `right` of `made` guesses about `canaries` coins.

    Args:
        canaries: How many canaries there were, each in or out by a coin.
        made: How many of them were guessed.
        right: How many guesses were right.

    >>> Guesses.of_scores([3.0, -2.0, 0.1], [True, False, False], guesses=2).right
    2
    """

    canaries: int
    made: int
    right: int

    def __post_init__(self) -> None:
        for name in ("canaries", "made", "right"):
            _validate.integer(name, getattr(self, name))
        if not self.right <= self.made <= self.canaries:
            raise InvalidInput(
                f"expected right <= made <= canaries, got right={self.right}, made={self.made}, "
                f"canaries={self.canaries}"
            )

    @classmethod
    def of_scores(cls, scores: npt.ArrayLike, included: npt.ArrayLike, *, guesses: int) -> Guesses:
        """A score above 0 says "in", below 0 "out"; the so many scores farthest from 0 are guessed."""
        values, coins = np.asarray(scores, dtype=np.float64), np.asarray(included, dtype=np.bool_)
        if values.shape != coins.shape or values.ndim != 1:
            raise InvalidInput(f"expected one coin for each score, got {coins.shape} and {values.shape}")
        made = _validate.integer("guesses", guesses, least=1, remedy="fix it before the run")
        if made > values.size:
            raise InvalidInput(f"expected guesses <= {values.size} canaries, got guesses={guesses}")
        surest = np.argsort(-np.abs(values), kind="stable")[:made]
        right = int(((values[surest] > 0) == coins[surest]).sum())
        return cls(canaries=values.size, made=made, right=right)


def toss(canaries: int, sampler: Sampler) -> npt.NDArray[np.bool_]:
    """A fair coin for each canary: in or out."""
    return sampler.bernoulli(0.5, _validate.integer("canaries", canaries, least=2))


def planned_guesses(canaries: int) -> int:
    """How many guesses to register for so many canaries: few and sure ones prove most, too few nothing.

    2.5·√m is near the best number for Gaussian noise at ε of 4 to 8; at ε of 1 several times as many would
    prove more. It depends on nothing that a run shows.
    """
    return max(2, min(canaries, round(2.5 * math.sqrt(canaries))))


def p_value(guesses: Guesses, *, epsilon: float, delta: float) -> float:
    """A bound of the chance that an (ε, δ)-DP release lets anyone guess at least this well.

    β + 2mδ·maxᵢ P[v − i ≤ B < v]/i with B ~ Bin(r, e^ε/(1+e^ε)) and β = P[B ≥ v] (Steinke, Nasr & Jagielski
    2023, "Privacy auditing with one training run", theorem 5.2 and appendix D).

    >>> import math
    >>> round(p_value(Guesses(canaries=100, made=100, right=75), epsilon=math.log(3), delta=0), 5)
    0.55347
    """
    right, made = guesses.right, guesses.made
    chance = special.expit(_validate.non_negative("epsilon", epsilon))
    tail = float(stats.binom.sf(right - 1, made, chance))
    if _validate.delta("delta", delta) == 0 or right == 0:
        return min(1.0, tail)
    below = np.cumsum(stats.binom.pmf(np.arange(right - 1, -1, -1), made, chance))  # P[v−i ≤ B < v], i = 1 … v
    steepest = float((below / np.arange(1, right + 1)).max())
    return min(1.0, tail + 2 * guesses.canaries * delta * steepest)


def epsilon_bound(guesses: Guesses, *, delta: float, alpha: float) -> float:
    """The largest ε up to which every (ε, δ) is refuted at level α.

    >>> round(epsilon_bound(Guesses(canaries=100, made=100, right=75), delta=0, alpha=0.05), 4)
    0.7022
    """
    return _largest_refuted(lambda epsilon: p_value(guesses, epsilon=epsilon, delta=delta) <= alpha)


def refutes(guesses: Guesses, inverse: InverseBlowUp, *, alpha: float) -> bool:
    """Whether guessing this well has chance below α under a trade-off function, given by its inverse blow-up.

    Let pᵢ be the chance of i right guesses, Rᵢ = Σ_{j≥i} j·pⱼ/m and Hᵢ = Σ_{j≥i} (r−j)·pⱼ/m. Flipping one coin
    gives Hᵢ₋₁ ≥ f̄⁻¹(Rᵢ), the definitions Rᵢ₋₁ = Rᵢ + (i−1)/(r−i+1)·(Hᵢ₋₁ − Hᵢ), and all chances add up to
    one: R₀ + H₀ = r/m. If P[at least v right] = α forces more than that, it was smaller than α (Mahloujifar,
    Melis & Chaudhuri 2024, "Auditing f-differential privacy in one run", theorem 9 and algorithm 3).
    """
    made, right = guesses.made, guesses.right
    whole = made / guesses.canaries
    hits, misses = alpha * right / guesses.canaries, alpha * (made - right) / guesses.canaries
    for count in range(right - 1, -1, -1):
        more = inverse(hits)
        if more > misses:
            hits += count / (made - count) * (more - misses)
            misses = more
        if hits + misses > whole:
            return True
    return False


def refutes_apart(guesses: Guesses, *, total_variation: float, alpha: float) -> bool:
    """Whether guessing this well has chance below α where nothing links one canary's release to another's.

    A fair coin is guessed right with chance at most (1 + TV) / 2, TV being the total variation of the release
    with and without the canary: δ at ε = 0 (Neyman & Pearson 1933). Canaries that are sampled and noised apart,
    and scored each by its own coordinate, are then independent trials, at most binomial, and all of them count.
    `refutes` needs no such independence, and proves less.
    """
    least = clopper_pearson(guesses.right, guesses.made, alpha=2 * alpha).lower
    return least > (1 + total_variation) / 2


def mu_bound(guesses: Guesses, *, alpha: float) -> float:
    """The largest μ up to which every μ-GDP is refuted at level α."""
    return _largest_refuted(lambda mu: refutes(guesses, gaussian_inverse(mu), alpha=alpha))


def gdp_epsilon_bound(guesses: Guesses, *, delta: float, alpha: float) -> float:
    """`mu_bound` as an ε at δ: for releases whose trade-off is close to a Gaussian's."""
    return gdp_epsilon(mu_bound(guesses, alpha=alpha), delta)


def _largest_refuted(refuted: Callable[[float], bool]) -> float:
    """Where refutation stops, from below in small steps: nothing beyond a claim that stands counts."""
    if not refuted(0.0):
        return 0.0
    step, good = 0.1, 0.0
    while good + step < _LARGEST and refuted(good + step):
        good += step
    for _ in range(30):
        step /= 2
        if refuted(good + step):
            good += step
    return good
