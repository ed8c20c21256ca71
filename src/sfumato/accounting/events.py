"""Releases as frozen values: dp-accounting's events, and five that it lacks; neighbouring relations, budgets.

Every noise multiplier is noise / sensitivity *under the relation in force*: under replace-one the sensitivity
of a sum of vectors of norm ≤ C is 2C, and the maker of the event divides by that. A sum that is sampled needs
more than its sensitivity to be priced under replace-one: see `ClippedGaussianEvent`.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import math
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import singledispatch
from importlib import _bootstrap
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import attr
import numpy as np

from sfumato import _validate
from sfumato.errors import InvalidInput, NotPrivate


def _load_alone(name: str) -> ModuleType:
    """Return the module `package.module`, without running its package: dp-accounting's takes a second.

    It is registered under its own name: a later import of the package gets this module and its classes. The
    lock is the one that imports take, so that another thread gets it whole, and never a second one.

    >>> _load_alone("dp_accounting.dp_event") is _load_alone("dp_accounting.dp_event")
    True
    """
    with _bootstrap._ModuleLockManager(name):  # type: ignore[attr-defined]
        if name in sys.modules:
            return sys.modules[name]
        package = importlib.util.find_spec(name.rpartition(".")[0])
        places = None if package is None else package.submodule_search_locations
        spec = importlib.machinery.PathFinder.find_spec(name, places) if places else None
        if spec is None or spec.loader is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module


if TYPE_CHECKING:
    from dp_accounting import dp_event
    from dp_accounting.privacy_accountant import NeighboringRelation
else:
    dp_event = _load_alone("dp_accounting.dp_event")

DpEvent: TypeAlias = dp_event.DpEvent
NoEvent = dp_event.NoOpDpEvent
NonPrivateEvent = dp_event.NonPrivateDpEvent
GaussianEvent = dp_event.GaussianDpEvent
LaplaceEvent = dp_event.LaplaceDpEvent
DiscreteLaplaceEvent = dp_event.DiscreteLaplaceDpEvent
RandomizedResponseEvent = dp_event.RandomizedResponseDpEvent
MixtureOfGaussiansEvent = dp_event.MixtureOfGaussiansDpEvent
PoissonSampledEvent = dp_event.PoissonSampledDpEvent
ComposedEvent = dp_event.ComposedDpEvent
RepeatedEvent = dp_event.SelfComposedDpEvent
RepeatAndSelectEvent = dp_event.RepeatAndSelectDpEvent


class Relation(StrEnum):
    """The pairs of data sets whose difference privacy hides.

    ADD_REMOVE: one unit is in one data set and not in the other. REPLACE_ONE: one unit has other values; the
    number of units is public. ZERO_OUT: one unit's values are blanked; the number of units is public.

    >>> Relation("add-remove") is Relation.ADD_REMOVE
    True
    """

    ADD_REMOVE = "add-remove"
    REPLACE_ONE = "replace-one"
    ZERO_OUT = "zero-out"


@dataclass(frozen=True, kw_only=True)
class Budget:
    """(ε, δ) for one data set, one privacy unit and one neighbouring relation.

    Args:
        epsilon: The most ε that all releases together may cost, above 0.
        delta: The δ at which ε is counted: 0 for pure ε, otherwise far below 1 / number of units.
        unit: Who is protected, in one word such as "record" or "person".
        relation: Which data sets are neighbours; add-remove unless another is named.

    Raises:
        InvalidInput: If ε or δ is outside its range, or the unit holds characters that are not seen.

    >>> Budget(epsilon=3, delta=1e-5)
    Budget(epsilon=3.0, delta=1e-05, unit='record', relation=<Relation.ADD_REMOVE: 'add-remove'>)
    """

    epsilon: float
    delta: float = 0.0
    unit: str = "record"
    relation: Relation = Relation.ADD_REMOVE

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", _validate.positive("epsilon", self.epsilon))
        object.__setattr__(self, "delta", _validate.delta("delta", self.delta))
        _validate.one_of("relation", str(self.relation), [str(relation) for relation in Relation])
        object.__setattr__(self, "relation", Relation(self.relation))
        _validate.text("unit", self.unit)


@attr.s(frozen=True, slots=True, auto_attribs=True)
class ApproximateEvent(DpEvent):
    """Anything that is (ε, δ)-differentially private, and nothing more is known of it.

    Attributes:
        epsilon: The ε of the release, 0 or more.
        delta: Its δ, from 0 to 1.

    >>> ApproximateEvent(0.5, 1e-6)
    ApproximateEvent(epsilon=0.5, delta=1e-06)
    """

    epsilon: float
    delta: float = 0.0

    def __attrs_post_init__(self) -> None:
        _validate.non_negative("epsilon", self.epsilon)
        _validate.delta("delta", self.delta)


@attr.s(frozen=True, slots=True, auto_attribs=True)
class DiscreteGaussianEvent(DpEvent):
    """Whole-number noise with P[x] ∝ exp(−x²/2σ²) on a whole-number query (Canonne et al. 2020).

    Attributes:
        sigma: The σ of the formula, in the unit of the query.
        sensitivity: By how much one unit moves the query, a whole number.

    >>> from sfumato.accounting import epsilon
    >>> epsilon(DiscreteGaussianEvent(sigma=10.0), 1e-5) < 0.5
    True
    """

    sigma: float
    sensitivity: int = 1

    def __attrs_post_init__(self) -> None:
        _validate.non_negative("sigma", self.sigma)
        _validate.integer("sensitivity", self.sensitivity)


@attr.s(frozen=True, slots=True, auto_attribs=True)
class GaussianSharesEvent(DpEvent):
    """Whole-number vectors plus the sum of `shares` discrete Gaussian vectors, each of `share_sigma` steps.

    `noise_multiplier` is √shares · share_sigma / L2 sensitivity in steps. The sum of shares is not a discrete
    Gaussian, which `distance` bounds: the log of the ratio of the two probabilities of one number is at most
    `distance` in size (Kairouz, Liu, Steinke 2021, "The distributed discrete Gaussian mechanism", theorem 11).

    *Proof.* Let X and Y be discrete Gaussians of variances a, b ≥ 1/4 and 1/s² = 1/a + 1/b. Completing the
    square, P[X+Y = z] ∝ e^{−z²/2(a+b)} · Σₓ e^{−(x−az/(a+b))²/2s²}. By Poisson summation the sum over x is
    √2π·s·(1 + 2Σₖ e^{−2π²s²k²} cos(…)), which varies with z by factors between 1 ± 2θ, θ = Σₖ e^{−2π²s²k²} ≤
    1.1·e^{−2π²s²}. Both laws add up to 1, so that the log of their ratio is between ln((1−2θ)/(1+2θ)) and its
    opposite, and |…| ≤ 4.2θ ≤ 5·e^{−2π²s²} for θ ≤ 0.1. Add one share after another: 1/s² = (1 + 1/k)/σ²; a
    convolution with the same share keeps a bounded log ratio, so the bounds add up.

    Attributes:
        noise_multiplier: Of all the shares together: √shares · share_sigma / L2 sensitivity in grid steps.
        share_sigma: The σ of one share on each coordinate, in grid steps, at least 0.5.
        shares: How many shares the adversary does not know, at least 1.
        dimension: How many coordinates the vectors have.

    >>> GaussianSharesEvent(noise_multiplier=4.0, share_sigma=2.0, shares=5, dimension=100).distance < 1e-15
    True
    """

    noise_multiplier: float
    share_sigma: float
    shares: int
    dimension: int

    def __attrs_post_init__(self) -> None:
        _validate.non_negative("noise_multiplier", self.noise_multiplier)
        _validate.integer("shares", self.shares, least=1)
        _validate.integer("dimension", self.dimension, least=1)
        if not _validate.positive("share_sigma", self.share_sigma) >= 0.5:
            raise InvalidInput(
                f"expected share_sigma >= 0.5 grid steps, got share_sigma={self.share_sigma}; take a finer grid"
            )

    @property
    def distance(self) -> float:
        """Σₖ 5·exp(−2π²σ²·k/(k+1)) over k = 1 … shares − 1; beyond k = 64 each term as that one."""
        first = min(self.shares - 1, 64)
        terms = (
            5 * math.exp(-2 * (math.pi * self.share_sigma) ** 2 * k / (k + 1)) for k in range(1, first + 1)
        )
        rest = (self.shares - 1 - first) * 5 * math.exp(-2 * (math.pi * self.share_sigma) ** 2 * 64 / 65)
        return math.fsum(terms) + rest


@attr.s(frozen=True, slots=True, auto_attribs=True)
class ClippedGaussianEvent(GaussianEvent):
    """Gaussian noise on a sum of vectors, one for each unit, of which none is longer than C.

    Under add-remove and zero-out C is the sensitivity, under replace-one 2C is; `noise_multiplier` is the
    noise divided by that, as for any Gaussian, and unsampled it costs the same. Sampled under replace-one it
    has a price, which a sum of which only the sensitivity Δ is known has not. There the old and the new vector
    may both be long and Δ apart: that the unit was sampled at all shows, and then so does all of Δ.

    *The worst pair* for vectors of norm ≤ C is (1−q)N(0, σ²) + qN(±C, σ²). *Proof.* Given the other units'
    draws, the laws are P = (1−q)N(0) + qN(u) and Q = (1−q)N(0) + qN(v), ‖u‖, ‖v‖ ≤ C. At a level α ≥ 1 their
    hockey-stick divergence is q·max (N(u) − αN(v) − βN(0))(S) over sets, β = (α−1)(1−q)/q; the best S is where
    α·e^{⟨x, v−u⟩/σ² + a} + β·e^{−⟨x, u⟩/σ² + b} ≤ 1: a point of S plus a w with ⟨w, u⟩ ≥ 0 and
    ⟨w, v−u⟩ ≤ 0 stays in S, so that N(v − tw)(S) falls as t grows. The part w of u that is orthogonal to v is
    such: turning v away from u, at its length, never lowers the divergence, until v = −κu. (Where u = 0 or v
    lies along u there is nothing to turn: move it a little first, in a further dimension if need be, as the
    divergence is continuous.) On that line S is a ray, x ≥ t along u; more of v against u, and more of u, each
    raise the divergence up to C. For α < 1 exchange P and Q, as the pair is symmetric. Such pairs compose,
    however adaptively the releases are chosen (Zhu, Dong, Wang 2022, theorem 10). The pair is that of Lebeda,
    Regehr, Kamath, Steinke 2024 ("Avoiding pitfalls for privacy accounting of subsampled mechanisms under
    composition"); the effect of sampling on δ is in Balle, Barthe, Gaboardi 2018.

    Attributes:
        noise_multiplier: Noise / C; under replace-one noise / 2C.

    >>> from sfumato.accounting import epsilon
    >>> step = poisson_sampled(0.01, ClippedGaussianEvent(noise_multiplier=0.5))  # noise = C
    >>> epsilon(step, 1e-5, relation=Relation.REPLACE_ONE) > epsilon(
    ...     poisson_sampled(0.01, GaussianEvent(noise_multiplier=1.0)), 1e-5
    ... )
    True
    """

    noise_multiplier: float


@attr.s(frozen=True, slots=True, auto_attribs=True)
class ExponentialMechanismEvent(DpEvent):
    """A choice with P[r] ∝ exp(ε·score(r)/2Δ): ε-DP and of bounded range ε (Durfee & Rogers 2019).

    Attributes:
        epsilon: The ε of one choice.

    >>> from sfumato.accounting import epsilon
    >>> round(epsilon(ExponentialMechanismEvent(0.5), 0), 4)
    0.5
    """

    epsilon: float

    def __attrs_post_init__(self) -> None:
        _validate.non_negative("epsilon", self.epsilon)


def pure(epsilon: float) -> DpEvent:
    """Return an ε-DP release of which nothing more is known.

    >>> from sfumato.accounting import epsilon
    >>> round(epsilon(pure(0.3), 0), 4)
    0.3
    """
    return ApproximateEvent(epsilon=epsilon)


def repeat(event: DpEvent, count: int) -> DpEvent:
    """Return the same thing done `count` times.

    Args:
        count: How often, 0 or more.

    >>> repeat(GaussianEvent(2.0), 0)
    NoOpDpEvent()
    """
    count = _validate.integer("count", count)
    if count == 0:
        return NoEvent()
    return event if count == 1 else RepeatedEvent(event, count)


def compose(*events: DpEvent) -> DpEvent:
    """Return one event for several releases from the same data.

    Args:
        events: The releases, in any order.

    >>> from sfumato.accounting import epsilon
    >>> round(epsilon(compose(LaplaceEvent(2.0), LaplaceEvent(2.0)), 0), 4)
    1.0
    """
    real = [event for event in events if not isinstance(event, NoEvent)]
    if not real:
        return NoEvent()
    return real[0] if len(real) == 1 else ComposedEvent(real)


def poisson_sampled(sample_rate: float, event: DpEvent) -> DpEvent:
    """`event` on a random subset that every unit enters independently with probability `sample_rate`.

    Args:
        sample_rate: The probability, in (0, 1].

    Returns:
        The event with its amplification by sampling.

    >>> from sfumato.accounting import epsilon
    >>> epsilon(poisson_sampled(0.01, GaussianEvent(1.0)), 1e-5) < epsilon(GaussianEvent(1.0), 1e-5)
    True
    """
    rate = _validate.probability(
        "sample_rate", sample_rate, remedy="a rate is expected_batch / declared data set size"
    )
    return event if rate == 1 else PoissonSampledEvent(rate, event)


def atoms(event: DpEvent, count: int = 1) -> Iterable[tuple[DpEvent, int]]:
    """Return the releases inside `event`, each with how often it happens; parameters are checked on the way."""
    if isinstance(event, RepeatedEvent):
        yield from atoms(event.event, count * _validate.integer("count", event.count))
    elif isinstance(event, ComposedEvent):
        for part in event.events:
            yield from atoms(part, count)
    elif not isinstance(event, NoEvent) and count:
        check(event)
        yield event, count


def merged(event: DpEvent) -> dict[DpEvent, int]:
    """Equal releases counted together, in an order that does not depend on how they were nested."""
    parts: Counter[DpEvent] = Counter()
    for part, count in atoms(event):
        parts[hashable(part)] += count
    return dict(sorted(parts.items(), key=lambda item: repr(item[0])))


def hashable(event: DpEvent) -> DpEvent:
    """Return the same event with tuples for lists, at every depth, so that it can be a key."""
    changed: dict[str, Any] = {}
    for field in attr.fields(type(event)):
        value = getattr(event, field.name)
        if isinstance(value, DpEvent):
            changed[field.name] = hashable(value)
        elif isinstance(value, list | tuple | np.ndarray):
            changed[field.name] = tuple(hashable(part) if isinstance(part, DpEvent) else part for part in value)
    return attr.evolve(event, **changed) if changed else event


def check_norm_bound(event: DpEvent, relation: Relation) -> None:
    """Raise where a sampled Gaussian sum is to be priced under replace-one and no norm bound is stated."""
    if relation is Relation.REPLACE_ONE and with_norm_bound(event) != hashable(event):
        raise NotPrivate(
            "expected a bound of what one unit adds to a Poisson-sampled sum under replace-one, got a "
            "GaussianEvent, which states the sensitivity only; if no unit adds more than C, sample a "
            "ClippedGaussianEvent(noise / 2C); if not, price the GaussianEvent without sampling"
        )


def with_norm_bound(event: DpEvent) -> DpEvent:
    """Bound each sampled Gaussian sum by half its replace-one sensitivity, as in training."""
    event = hashable(event)
    if isinstance(event, PoissonSampledEvent) and type(event.event) is GaussianEvent:
        return attr.evolve(event, event=ClippedGaussianEvent(event.event.noise_multiplier))
    changed: dict[str, Any] = {}
    for field in attr.fields(type(event)):
        value = getattr(event, field.name)
        if isinstance(value, DpEvent):
            changed[field.name] = with_norm_bound(value)
        elif isinstance(value, tuple):
            changed[field.name] = tuple(
                with_norm_bound(part) if isinstance(part, DpEvent) else part for part in value
            )
    return attr.evolve(event, **changed) if changed else event


def gives_everything(event: DpEvent) -> bool:
    """Return whether the release has no noise at all, so that no ε holds."""
    inner = event.event if isinstance(event, PoissonSampledEvent) else event
    if isinstance(inner, NonPrivateEvent):
        return True
    if isinstance(inner, GaussianEvent | LaplaceEvent | GaussianSharesEvent):
        return bool(inner.noise_multiplier == 0)
    if isinstance(inner, DiscreteGaussianEvent):
        return inner.sigma == 0 and inner.sensitivity > 0
    if isinstance(inner, RandomizedResponseEvent):
        return bool(inner.noise_parameter == 0 and inner.num_buckets > 1)
    return isinstance(inner, MixtureOfGaussiansEvent) and inner.standard_deviation == 0


def check_replaced(relation: Relation) -> None:
    """Raise unless a person's report changes under the relation but does not vanish."""
    if relation is Relation.ADD_REMOVE:
        raise InvalidInput(
            "expected relation 'replace-one' or 'zero-out' for randomized response, got 'add-remove'; "
            "a person who is not there gives no report, so the number of reports is public"
        )


def replacing(relation: Relation) -> NeighboringRelation:
    """dp-accounting's name of a relation under which a person's report changes but does not vanish."""
    from dp_accounting.privacy_accountant import NeighboringRelation

    check_replaced(relation)
    if relation is Relation.REPLACE_ONE:
        return NeighboringRelation.REPLACE_ONE
    return NeighboringRelation.REPLACE_SPECIAL


@singledispatch
def check(event: DpEvent) -> None:
    """Raise unless the parameters of this one release make sense."""
    raise NotPrivate(f"no price is known for {type(event).__name__}; use one of: {', '.join(_known())}")


@check.register
def _(event: NonPrivateEvent) -> None:
    pass


@check.register
def _(
    event: ApproximateEvent | DiscreteGaussianEvent | ExponentialMechanismEvent | GaussianSharesEvent,
) -> None:
    event.__attrs_post_init__()


@check.register
def _(event: GaussianEvent | LaplaceEvent) -> None:
    _validate.non_negative("noise_multiplier", event.noise_multiplier)


@check.register
def _(event: DiscreteLaplaceEvent) -> None:
    _validate.positive("noise_parameter", event.noise_parameter)
    _validate.integer("sensitivity", event.sensitivity)


@check.register
def _(event: RandomizedResponseEvent) -> None:
    if _validate.real("noise_parameter", event.noise_parameter) != 0:
        _validate.probability("noise_parameter", event.noise_parameter)
    _validate.integer("num_buckets", event.num_buckets, least=1)


@check.register
def _(event: PoissonSampledEvent) -> None:
    _validate.probability("sample_rate", event.sampling_probability)
    check(event.event)


@check.register
def _(event: MixtureOfGaussiansEvent) -> None:
    _validate.non_negative("standard_deviation", event.standard_deviation)
    shifts = [_validate.non_negative("sensitivities", value) for value in event.sensitivities]
    chances = [_validate.probability("sampling_probs", value) for value in event.sampling_probs]
    if len(shifts) != len(chances) or not any(shifts) or not math.isclose(math.fsum(chances), 1):
        raise InvalidInput(
            "expected a mixture of as many sensitivities as sampling_probs, one of them > 0, whose chances add "
            f"up to 1, got {len(shifts)} and {len(chances)} that add up to {math.fsum(chances):g}"
        )


@check.register
def _(event: RepeatAndSelectEvent) -> None:
    if not _validate.real("mean", event.mean) > 1:
        raise InvalidInput(f"expected mean > 1, got mean={event.mean}; expect more than one trial")
    if event.shape != math.inf:
        _validate.non_negative("shape", event.shape)
    for part, _count in atoms(event.event):
        check(part)


def _known() -> list[str]:
    return sorted(kind.__name__ for kind in check.registry if kind not in (object, NonPrivateEvent))


def for_group(event: DpEvent, size: int) -> DpEvent:
    """Return the event as a group of `size` people together experiences it.

    Gaussian, Laplace: `size` times the sensitivity. Poisson-sampled Gaussian: each member is in the batch on
    their own, so the shift is binomial (Ganesh 2024, Thm 3.1). Randomised response: one report each.

    Args:
        size: How many people the group has.

    Raises:
        InvalidInput: If there is no bound for groups of such an event.

    >>> for_group(GaussianEvent(6.0), 3)
    GaussianDpEvent(noise_multiplier=2.0)
    """
    size = _validate.integer("size", size, least=1)
    return compose(*(repeat(_group_atom(atom, size), count) for atom, count in atoms(event)))


@singledispatch
def _group_atom(event: DpEvent, size: int) -> DpEvent:
    raise NotPrivate(f"no group price is known for {type(event).__name__}")


@_group_atom.register
def _(event: NonPrivateEvent, size: int) -> DpEvent:
    return event


@_group_atom.register
def _(event: GaussianEvent | LaplaceEvent | GaussianSharesEvent, size: int) -> DpEvent:
    return attr.evolve(event, noise_multiplier=event.noise_multiplier / size)


@_group_atom.register
def _(event: DiscreteLaplaceEvent | DiscreteGaussianEvent, size: int) -> DpEvent:
    return attr.evolve(event, sensitivity=event.sensitivity * size)


@_group_atom.register
def _(event: ExponentialMechanismEvent, size: int) -> DpEvent:
    return ExponentialMechanismEvent(event.epsilon * size)


@_group_atom.register
def _(event: ApproximateEvent, size: int) -> DpEvent:
    # Chain the definition `size` times: δ(1 + e^ε + … + e^{(size−1)ε}).
    factor = float(np.sum(np.exp(event.epsilon * np.arange(size))))
    if event.delta * factor >= 1:
        return NonPrivateEvent()
    return ApproximateEvent(event.epsilon * size, event.delta * factor)


@_group_atom.register
def _(event: RandomizedResponseEvent, size: int) -> DpEvent:
    return repeat(event, size)


@_group_atom.register
def _(event: PoissonSampledEvent, size: int) -> DpEvent:
    if not isinstance(event.event, GaussianEvent):
        raise NotPrivate(f"no group price is known for a Poisson-sampled {type(event.event).__name__}")
    from scipy import stats

    members = np.arange(size + 1)
    chances = stats.binom.pmf(members, size, event.sampling_probability)
    return MixtureOfGaussiansEvent(event.event.noise_multiplier, members.tolist(), chances.tolist())
