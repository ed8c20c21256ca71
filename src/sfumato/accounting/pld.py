"""The exact price of a plan fixed in advance, by privacy loss distributions (Koskela 2020, Doroshenko 2022)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import singledispatch

import numpy as np
import numpy.typing as npt

from sfumato import _validate
from sfumato.accounting.events import (
    ApproximateEvent,
    DiscreteLaplaceEvent,
    DpEvent,
    ExponentialMechanismEvent,
    GaussianEvent,
    GaussianSharesEvent,
    LaplaceEvent,
    MixtureOfGaussiansEvent,
    PoissonSampledEvent,
    RandomizedResponseEvent,
    Relation,
    check_replaced,
    gives_everything,
    merged,
    repeat,
)
from sfumato.accounting.gaussian import epsilon_of, log_delta
from sfumato.accounting.rdp import rdp, rdp_delta, rdp_epsilon
from sfumato.errors import InvalidInput, NotPrivate

Floats = npt.NDArray[np.float64]

SMALLEST_DELTA = 1e-10
"""Below this the tails lost to truncation and Fourier rounding are no longer negligible."""

LARGEST_LOSS, MOST_RELEASES = 1e5, 10**6
"""Beyond either no loss distribution is made: the Rényi bound stands in for the exact ε. So it does for shares
of noise, whose loss has no distribution that is known."""

_GRID, _SMALL_GRID = 2**20, 2**17  # points of a distribution, so that memory and time are bounded
_NEGLIGIBLE = 1e-22  # probability at which dp-accounting cuts off the tails of a Gaussian
_LOST_MASS = (
    1e-13  # generous bound on those tails: δ is asked for that much lower, so that ε is never too small
)


def epsilon(
    event: DpEvent, delta: float, *, relation: Relation = Relation.ADD_REMOVE, precision: float = 1e-5
) -> float:
    """Return the smallest ε at which `event`, fixed in advance, is (ε, δ)-DP or infinity; never too small.

    A sequence of Gaussians is priced in closed form (Balle & Wang 2018); everything else by PLD.

    Args:
        precision: By how much, relatively, the numerical composition may err upward.

    Raises:
        InvalidInput: If δ is too small for a numerical composition.

    >>> round(epsilon(GaussianEvent(noise_multiplier=1.0), 1e-5), 4)
    4.3772
    """
    delta = _validate.delta("delta", delta)
    parts = merged(event)
    if not parts:
        return 0.0
    if any(gives_everything(part) for part in parts):
        return math.inf
    added_up = math.fsum(count * pure_epsilon(part, relation) for part, count in parts.items())
    if delta == 0:
        return added_up
    gaussian = _as_one_gaussian(parts)
    if gaussian is not None:
        return epsilon_of(gaussian, delta)
    if delta < SMALLEST_DELTA:
        raise InvalidInput(
            f"expected delta >= {SMALLEST_DELTA} or delta = 0, got delta={delta}; "
            "numerical composition cannot be trusted below that"
        )
    bound = rdp_epsilon(event, delta, relation=relation)
    if _beyond_a_grid(parts, relation):
        return min(added_up, bound)
    from sfumato.accounting import losses

    interval = _interval(parts, bound, precision, relation)
    composed = losses.composed(parts, relation, interval).get_epsilon_for_delta(delta - _LOST_MASS)
    return min(added_up, float(composed))


def delta(event: DpEvent, epsilon: float, *, relation: Relation = Relation.ADD_REMOVE) -> float:
    """Return the smallest δ at which `event`, fixed in advance, is (ε, δ)-DP; never too small.

    >>> round(delta(GaussianEvent(noise_multiplier=10), 0.1), 9)
    0.008751768
    """
    epsilon = _validate.non_negative("epsilon", epsilon)
    parts = merged(event)
    if not parts:
        return 0.0
    if any(gives_everything(part) for part in parts):
        return 1.0
    gaussian = _as_one_gaussian(parts)
    if gaussian is not None:
        return float(np.exp(log_delta(gaussian, epsilon)))
    if math.fsum(count * pure_epsilon(part, relation) for part, count in parts.items()) <= epsilon:
        return 0.0
    return float(deltas(event, [epsilon], relation=relation)[0])


def deltas(event: DpEvent, epsilons: Sequence[float], *, relation: Relation = Relation.ADD_REMOVE) -> Floats:
    """δ at each of several ε, from one loss distribution."""
    parts = merged(event)
    if _beyond_a_grid(parts, relation):
        return np.array([rdp_delta(event, epsilon, relation=relation) for epsilon in epsilons])
    from sfumato.accounting import losses

    composed = losses.composed(parts, relation, _interval(parts, max(epsilons), 1e-4, relation))
    return np.minimum(1.0, np.asarray(composed.get_delta_for_epsilon(list(epsilons))) + _LOST_MASS)


def _as_one_gaussian(parts: dict[DpEvent, int]) -> float | None:
    """Return the noise multiplier of the one Gaussian that `parts` amount to, if all are Gaussians."""
    precision = 0.0
    for part, count in parts.items():
        if not isinstance(part, GaussianEvent):
            return None
        precision += count / part.noise_multiplier**2
    return precision**-0.5


def _interval(parts: dict[DpEvent, int], epsilon: float, precision: float, relation: Relation) -> float:
    """How finely losses are told apart. A coarser grid only errs upward.

    For a large ε the error grows as releases × interval²; for a small one it is relative, a tenth of
    (interval / standard deviation of one loss)². There are always at most `_GRID` points. Rounded
    down to 1, 2 or 5 times a power of ten, so that near-by questions share their distributions.
    """
    releases = sum(count for part, count in parts.items() if not isinstance(part, GaussianEvent)) or 1
    ideal = math.sqrt(2 * precision * epsilon / releases) if 0 < epsilon < math.inf else 1e-4
    # A mixture's loss has no closed inverse and takes long on a fine grid.
    finest = 5e-4 if any(isinstance(part, MixtureOfGaussiansEvent) for part in parts) else 2e-5
    ideal = min(1e-3, max(finest, ideal))
    reach, deviation = _reach(parts, relation), _deviation(parts, relation) / math.sqrt(releases)
    if 0 < deviation < math.inf and finest < 5e-4:
        small = deviation * math.sqrt(10 * max(precision, 1e-4))
        ideal = min(ideal, max(small, 2 * reach / _SMALL_GRID))
    return max(_round_down(ideal), 2 * reach / _GRID)


def _round_down(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return power * max(step for step in (1, 2, 5) if step * power <= value * (1 + 1e-9))


def _deviation(parts: dict[DpEvent, int], relation: Relation) -> float:
    """About the standard deviation σ of the whole loss, if that is small: a divergence is then ασ²/2."""
    try:
        squared = sum(count * rdp(part, [2.0], relation=relation)[0] for part, count in parts.items())
        return math.sqrt(max(0.0, squared))  # a tiny divergence may round below 0
    except NotPrivate:
        return math.inf


def _beyond_a_grid(parts: dict[DpEvent, int], relation: Relation) -> bool:
    if any(_only_rdp(part) for part in parts):
        return True
    releases = sum(count for part, count in parts.items() if not isinstance(part, GaussianEvent))
    return releases > MOST_RELEASES or not _reach(parts, relation) <= LARGEST_LOSS


def _only_rdp(part: DpEvent) -> bool:
    inner = part.event if isinstance(part, PoissonSampledEvent) else part
    return isinstance(inner, GaussianSharesEvent)


def _reach(parts: dict[DpEvent, int], relation: Relation) -> float:
    """Return a loss that is exceeded with negligible probability."""
    return math.fsum(_part_reach(part, count, relation) for part, count in parts.items())


def _part_reach(part: DpEvent, count: int, relation: Relation) -> float:
    if isinstance(part, ApproximateEvent):
        return count * part.epsilon
    try:
        bound = rdp_epsilon(repeat(part, count), _NEGLIGIBLE, relation=relation)
    except NotPrivate:
        bound = math.inf
    return min(bound, count * pure_epsilon(part, relation))


@singledispatch
def pure_epsilon(event: DpEvent, relation: Relation) -> float:
    """Return the ε at δ = 0 of one release: infinite for Gaussian tails."""
    return math.inf


@pure_epsilon.register
def _(event: LaplaceEvent, relation: Relation) -> float:
    return 1 / float(event.noise_multiplier)


@pure_epsilon.register
def _(event: DiscreteLaplaceEvent, relation: Relation) -> float:
    return float(event.noise_parameter * event.sensitivity)


@pure_epsilon.register
def _(event: ExponentialMechanismEvent, relation: Relation) -> float:
    return event.epsilon


@pure_epsilon.register
def _(event: ApproximateEvent, relation: Relation) -> float:
    return math.inf if event.delta else event.epsilon


@pure_epsilon.register
def _(event: RandomizedResponseEvent, relation: Relation) -> float:
    check_replaced(relation)
    spread = event.noise_parameter / event.num_buckets
    keep = 1 - event.noise_parameter + spread
    if relation is Relation.REPLACE_ONE:
        return math.log(keep / spread)
    return max(math.log(keep * event.num_buckets), -math.log(event.noise_parameter))


@pure_epsilon.register
def _(event: PoissonSampledEvent, relation: Relation) -> float:
    inner = pure_epsilon(event.event, relation)
    if relation is Relation.REPLACE_ONE or inner > 700:  # e^ε would overflow
        return inner
    # Amplification by sampling (Balle et al. 2018, Thm 8).
    return math.log1p(event.sampling_probability * math.expm1(inner))
