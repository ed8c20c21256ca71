"""The exact price of a plan fixed in advance, by privacy loss distributions (Koskela 2020, Doroshenko 2022)."""

from __future__ import annotations

import math
from collections import Counter
from functools import lru_cache, reduce, singledispatch

import attr
import numpy as np
from dp_accounting import gaussian_mechanism
from dp_accounting.pld import privacy_loss_distribution as distributions
from dp_accounting.pld.common import DifferentialPrivacyParameters
from dp_accounting.privacy_accountant import NeighboringRelation

from sfumato import _validate
from sfumato.accounting.events import (
    ApproximateEvent,
    DiscreteGaussianEvent,
    DiscreteLaplaceEvent,
    DpEvent,
    ExponentialMechanismEvent,
    GaussianEvent,
    LaplaceEvent,
    MixtureOfGaussiansEvent,
    NonPrivateEvent,
    PoissonSampledEvent,
    RandomizedResponseEvent,
    Relation,
    atoms,
)
from sfumato.errors import InvalidInput, NotPrivate

LossDistribution = distributions.PrivacyLossDistribution

SMALLEST_DELTA = 1e-10
"""Below this the tails lost to truncation and Fourier rounding are no longer negligible."""

_LOST_MASS = (
    1e-13  # generous bound on those tails: δ is asked for that much lower, so that ε is never too small
)


def epsilon(event: DpEvent, delta: float, *, relation: Relation = Relation.ADD_REMOVE) -> float:
    """The smallest ε at which `event`, fixed in advance, is (ε, δ)-DP; never too small.

    A sequence of Gaussians is priced in closed form (Balle & Wang 2018); everything else by PLD, for which
    δ must be at least 1e-10, or 0 for what is purely ε-DP.

    >>> round(epsilon(GaussianEvent(noise_multiplier=1.0), 1e-5), 4)
    4.3772
    """
    delta = _validate.delta("delta", delta)
    parts = _merged(event)
    if not parts:
        return 0.0
    if any(_gives_everything(part) for part in parts):
        return math.inf
    if delta == 0:
        return math.fsum(count * pure_epsilon(part, relation) for part, count in parts.items())
    gaussian = _as_one_gaussian(parts)
    if gaussian is not None:
        return float(gaussian_mechanism.get_epsilon_gaussian(gaussian, delta))
    if delta < SMALLEST_DELTA:
        raise InvalidInput(
            f"expected delta >= {SMALLEST_DELTA} or delta = 0, got delta={delta}; "
            "numerical composition cannot be trusted below that"
        )
    return float(_distribution(parts, relation).get_epsilon_for_delta(delta - _LOST_MASS))


def delta(event: DpEvent, epsilon: float, *, relation: Relation = Relation.ADD_REMOVE) -> float:
    """The smallest δ at which `event`, fixed in advance, is (ε, δ)-DP; never too small.

    >>> round(delta(GaussianEvent(noise_multiplier=10), 0.1), 9)
    0.008751768
    """
    epsilon = _validate.non_negative("epsilon", epsilon)
    parts = _merged(event)
    if not parts:
        return 0.0
    if any(_gives_everything(part) for part in parts):
        return 1.0
    gaussian = _as_one_gaussian(parts)
    if gaussian is not None:
        return float(np.exp(gaussian_mechanism._get_log_delta(gaussian, epsilon)))
    if math.fsum(count * pure_epsilon(part, relation) for part, count in parts.items()) <= epsilon:
        return 0.0
    return min(1.0, float(_distribution(parts, relation).get_delta_for_epsilon(epsilon)) + _LOST_MASS)


def _merged(event: DpEvent) -> Counter[DpEvent]:
    """Equal releases counted together, in an order that does not depend on how they were nested."""
    parts: Counter[DpEvent] = Counter()
    for part, count in atoms(event):
        parts[_hashable(part)] += count
    return Counter(dict(sorted(parts.items(), key=lambda item: repr(item[0]))))


def _hashable(event: DpEvent) -> DpEvent:
    if isinstance(event, MixtureOfGaussiansEvent):
        return attr.evolve(
            event, sensitivities=tuple(event.sensitivities), sampling_probs=tuple(event.sampling_probs)
        )
    return event


def _as_one_gaussian(parts: Counter[DpEvent]) -> float | None:
    """The noise multiplier of the single Gaussian that all of `parts` amount to, if they are Gaussians."""
    precision = 0.0
    for part, count in parts.items():
        if not isinstance(part, GaussianEvent):
            return None
        precision += count / part.noise_multiplier**2
    return precision**-0.5


def _distribution(parts: Counter[DpEvent], relation: Relation) -> LossDistribution:
    composed = [_composed_atom(part, count, relation) for part, count in parts.items()]
    return reduce(lambda one, other: one.compose(other), composed)


@lru_cache(maxsize=64)
def _composed_atom(part: DpEvent, count: int, relation: Relation) -> LossDistribution:
    if isinstance(part, GaussianEvent):
        return loss_distribution(GaussianEvent(part.noise_multiplier / math.sqrt(count)), relation)
    single = loss_distribution(part, relation)
    return single if count == 1 else single.self_compose(count)


def _gives_everything(event: DpEvent) -> bool:
    """Whether the release has no noise at all, so that no ε holds."""
    inner = event.event if isinstance(event, PoissonSampledEvent) else event
    if isinstance(inner, NonPrivateEvent):
        return True
    if isinstance(inner, GaussianEvent | LaplaceEvent):
        return bool(inner.noise_multiplier == 0)
    if isinstance(inner, DiscreteGaussianEvent):
        return inner.sigma == 0 and inner.sensitivity > 0
    if isinstance(inner, RandomizedResponseEvent):
        return bool(inner.noise_parameter == 0 and inner.num_buckets > 1)
    return isinstance(inner, MixtureOfGaussiansEvent) and inner.standard_deviation == 0


@singledispatch
def loss_distribution(event: DpEvent, relation: Relation) -> LossDistribution:
    """The privacy loss distribution of one release."""
    raise NotPrivate(f"no privacy loss distribution is known for {type(event).__name__}; ask for its RDP")


@loss_distribution.register
def _(event: GaussianEvent, relation: Relation) -> LossDistribution:
    return distributions.from_gaussian_mechanism(event.noise_multiplier)


@loss_distribution.register
def _(event: LaplaceEvent, relation: Relation) -> LossDistribution:
    return distributions.from_laplace_mechanism(event.noise_multiplier)


@loss_distribution.register
def _(event: DiscreteLaplaceEvent, relation: Relation) -> LossDistribution:
    if event.sensitivity == 0:
        return distributions.identity()
    return distributions.from_discrete_laplace_mechanism(event.noise_parameter, event.sensitivity)


@loss_distribution.register
def _(event: DiscreteGaussianEvent, relation: Relation) -> LossDistribution:
    if event.sensitivity == 0:
        return distributions.identity()
    return distributions.from_discrete_gaussian_mechanism(event.sigma, event.sensitivity)


@loss_distribution.register
def _(event: ApproximateEvent, relation: Relation) -> LossDistribution:
    return distributions.from_privacy_parameters(DifferentialPrivacyParameters(event.epsilon, event.delta))


@loss_distribution.register
def _(event: ExponentialMechanismEvent, relation: Relation) -> LossDistribution:
    return distributions.from_privacy_parameters(DifferentialPrivacyParameters(event.epsilon, 0.0))


@loss_distribution.register
def _(event: RandomizedResponseEvent, relation: Relation) -> LossDistribution:
    if event.num_buckets == 1:
        return distributions.identity()
    return distributions.from_randomized_response(
        event.noise_parameter, event.num_buckets, neighboring_relation=_replacing(relation)
    )


def _replacing(relation: Relation) -> NeighboringRelation:
    if relation is Relation.ADD_REMOVE:
        raise InvalidInput(
            "expected relation 'replace-one' or 'zero-out' for randomized response, got relation='add-remove'; "
            "a person who is not there gives no report, so the number of reports is public"
        )
    if relation is Relation.REPLACE_ONE:
        return NeighboringRelation.REPLACE_ONE
    return NeighboringRelation.REPLACE_SPECIAL


@loss_distribution.register
def _(event: MixtureOfGaussiansEvent, relation: Relation) -> LossDistribution:
    if relation is Relation.REPLACE_ONE:
        raise NotPrivate("no price is known for a mixture of Gaussians under replace-one; use add-remove")
    return distributions.from_mixture_gaussian_mechanism(
        event.standard_deviation, event.sensitivities, event.sampling_probs
    )


@loss_distribution.register
def _(event: PoissonSampledEvent, relation: Relation) -> LossDistribution:
    inner, rate = event.event, event.sampling_probability
    if isinstance(inner, GaussianEvent) and relation is Relation.REPLACE_ONE:
        # The old and the new record each shift the sum by half the replace-one sensitivity, in opposite ways
        # (Lebeda et al. 2024, Prop. 5); dp-accounting doubles what it is handed.
        return distributions.from_gaussian_mechanism(
            inner.noise_multiplier,
            sensitivity=0.5,
            sampling_prob=rate,
            neighboring_relation=NeighboringRelation.REPLACE_ONE,
        )
    if relation is Relation.REPLACE_ONE:
        raise NotPrivate(
            f"no price is known for a Poisson-sampled {type(inner).__name__} under replace-one; use add-remove"
        )
    if isinstance(inner, GaussianEvent):
        return distributions.from_gaussian_mechanism(inner.noise_multiplier, sampling_prob=rate)
    if isinstance(inner, LaplaceEvent):
        return distributions.from_laplace_mechanism(inner.noise_multiplier, sampling_prob=rate)
    raise NotPrivate(
        f"no price is known for a Poisson-sampled {type(inner).__name__}; sample a Gaussian or Laplace"
    )


@singledispatch
def pure_epsilon(event: DpEvent, relation: Relation) -> float:
    """The ε at δ = 0 of one release: infinite for what has Gaussian tails."""
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
    spread = event.noise_parameter / event.num_buckets
    keep = 1 - event.noise_parameter + spread
    if _replacing(relation) is NeighboringRelation.REPLACE_ONE:
        return math.log(keep / spread)
    return max(math.log(keep * event.num_buckets), -math.log(event.noise_parameter))


@pure_epsilon.register
def _(event: PoissonSampledEvent, relation: Relation) -> float:
    inner = pure_epsilon(event.event, relation)
    if relation is Relation.REPLACE_ONE or inner > 700:  # e^ε would overflow
        return inner
    # Amplification by sampling (Balle et al. 2018, Thm 8).
    return math.log1p(event.sampling_probability * math.expm1(inner))
