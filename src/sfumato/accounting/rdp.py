"""Rényi prices: the cross-check of the exact ones, and the unit of the privacy filter (Mironov 2017)."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, singledispatch
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sfumato import _validate
from sfumato.accounting.events import (
    ApproximateEvent,
    ClippedGaussianEvent,
    DiscreteGaussianEvent,
    DiscreteLaplaceEvent,
    DpEvent,
    ExponentialMechanismEvent,
    GaussianEvent,
    GaussianSharesEvent,
    MixtureOfGaussiansEvent,
    PoissonSampledEvent,
    RandomizedResponseEvent,
    Relation,
    RepeatAndSelectEvent,
    check_norm_bound,
    gives_everything,
    merged,
    replacing,
)
from sfumato.errors import NotPrivate

if TYPE_CHECKING:
    from dp_accounting.privacy_accountant import NeighboringRelation

Divergences = npt.NDArray[np.float64]

ORDERS: tuple[float, ...] = (
    *(1 + tenths / 10 for tenths in range(1, 100)),
    *range(11, 64),
    *(128, 256, 512, 1024),
)
"""dp-accounting's."""
_CLOSE = 1e-3  # to 1, where the logarithm of a moment would lose digits


def rdp(
    event: DpEvent, orders: Sequence[float] = ORDERS, *, relation: Relation = Relation.ADD_REMOVE
) -> Divergences:
    """Return the Rényi divergence of `event` at each order.

    >>> rdp(GaussianEvent(noise_multiplier=2.0), [2, 8]).tolist()  # α / 2σ²
    [0.25, 1.0]
    """
    total = np.zeros(len(orders))
    for part, count in merged(event).items():
        total += count * _cached_divergences(part, tuple(orders), relation)
    return total


def rdp_epsilon(event: DpEvent, delta: float, *, relation: Relation = Relation.ADD_REMOVE) -> float:
    """Return the ε of `event` at δ by the best order of a grid: an upper bound, for a plan fixed in advance.

    >>> round(rdp_epsilon(GaussianEvent(noise_multiplier=4.530877), 1e-6), 3)
    1.0
    """
    delta = _validate.delta("delta", delta)
    divergences = rdp(event, relation=relation)
    if not divergences.any():
        return 0.0
    if delta == 0 or not np.isfinite(divergences).any():
        return math.inf
    finite = np.isfinite(divergences)
    return max(0.0, float(np.min(to_epsilon(np.array(ORDERS)[finite], divergences[finite], delta))))


def rdp_delta(event: DpEvent, epsilon: float, *, relation: Relation = Relation.ADD_REMOVE) -> float:
    """Return the δ of `event` at ε by the best order of a grid: the inverse of `rdp_epsilon`.

    Raises:
        NotPrivate: If no Rényi price is known for the event.

    >>> round(rdp_delta(GaussianEvent(noise_multiplier=4.530877), 1.0) / 1e-6, 2)
    1.0
    """
    orders, divergences = np.array(ORDERS), rdp(event, relation=relation)
    with np.errstate(over="ignore"):
        logs = (orders - 1) * (divergences - epsilon + np.log1p(-1 / orders)) - np.log(orders)
    return float(np.exp(min(0.0, np.min(logs))))


def to_epsilon(orders: Divergences, divergences: Divergences, delta: float | Divergences) -> Divergences:
    """ε = ρ + ln(1−1/α) − ln(δα)/(α−1) at each order (Canonne, Kamath, Steinke 2020, Prop. 12)."""
    return divergences + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)


@lru_cache(maxsize=1024)
def _cached_divergences(event: DpEvent, orders: tuple[float, ...], relation: Relation) -> Divergences:
    if gives_everything(event):
        return np.full(len(orders), np.inf)
    return _divergences(event, np.array(orders, dtype=float), relation)


@singledispatch
def _divergences(event: DpEvent, orders: Divergences, relation: Relation) -> Divergences:
    """dp-accounting's own price, for the events it knows."""
    from dp_accounting.rdp.rdp_privacy_accountant import RdpAccountant

    accountant = RdpAccountant(orders.tolist(), _dp_accounting_relation(event, relation))
    problem = accountant._maybe_compose(event, 1, False)
    if problem is not None:
        raise NotPrivate(f"no Rényi price is known for {type(event).__name__}: {problem.error_message}")
    with _without_warnings():
        accountant.compose(event)
    return np.asarray(accountant.rdp)


@contextmanager
def _without_warnings() -> Iterator[None]:
    # It warns of single orders that do not converge, and leaves them out: one order less, no wrong figure.
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _dp_accounting_relation(event: DpEvent, relation: Relation) -> NeighboringRelation:
    from dp_accounting.privacy_accountant import NeighboringRelation

    # Noise multipliers are already stated for the relation, so only randomized response asks which it is.
    if isinstance(event, RandomizedResponseEvent):
        return replacing(relation)
    return NeighboringRelation.ADD_OR_REMOVE_ONE


@_divergences.register
def _(event: DiscreteGaussianEvent, orders: Divergences, relation: Relation) -> Divergences:
    # αΔ²/2σ², as for the continuous Gaussian (Canonne, Kamath, Steinke 2020, Prop. 5).
    return orders * (event.sensitivity / event.sigma) ** 2 / 2 if event.sensitivity else np.zeros(len(orders))


@_divergences.register
def _(event: GaussianSharesEvent, orders: Divergences, relation: Relation) -> Divergences:
    # Of the discrete Gaussian, in every direction (Canonne, Kamath, Steinke 2020, Prop. 5), and the distance.
    return orders / (2 * event.noise_multiplier**2) + _of_shares(event, orders)


def _of_shares(event: GaussianSharesEvent, orders: Divergences) -> Divergences:
    """Return the part by which a sum of shares is no discrete Gaussian, alone or in a mixture with its shift.

    In d coordinates both laws P, Q of a pair of neighbours are within factors e^{±cd} of the ideal ones, c the
    distance: P^α Q^{1−α} is larger by e^{cd(2α−1)} at most, so the divergence by cd·(2α−1)/(α−1).
    """
    return event.dimension * event.distance * (2 * orders - 1) / (orders - 1)


def _sampled_shares(rate: float, shares: GaussianSharesEvent, orders: Divergences) -> Divergences:
    """Poisson-sampled shares of noise: the continuous formula at whole orders; others cost as the next one.

    At a whole order, E_Q[((1−q) + q·P/Q)^α] is a sum of moments E_Q[(P/Q)^k], k = 0 … α, and for whole-number
    noise and shift these are e^{k(k−1)Δ²/2σ²}, as for the continuous Gaussian: Σₓ e^{−(x−kΔ)²/2σ²} does not
    depend on k. The other direction is no larger (Mironov, Talwar, Zhang 2019, theorem 5): z → Δ − z swaps P
    and Q. Divergences grow with their order, so an order between two whole ones costs at most the upper one.
    """
    whole = np.maximum(2.0, np.ceil(orders))
    ideal = _divergences(
        PoissonSampledEvent(rate, GaussianEvent(shares.noise_multiplier)), whole, Relation.ADD_REMOVE
    )
    return np.add(ideal, _of_shares(shares, orders))


def _sampled_gaussian(rate: float, sigma: float, orders: Divergences) -> Divergences:
    """ln A/(α−1), with A = E_Q[(P/Q)^α], P = (1−q)N(0, σ²) + qN(1, σ²) and Q = N(0, σ²).

    The other direction is no larger (Mironov, Talwar, Zhang 2019, theorem 5). dp-accounting has the same by a
    series for each order, in twenty times the time, and well above the truth at orders near 1.
    """
    whole = orders == np.floor(orders)
    logs = np.empty(len(orders))
    logs[whole] = [_log_moment(rate, sigma, int(order)) for order in orders[whole]]
    logs[~whole] = _log_moments(rate, sigma, orders[~whole])
    return logs / (orders - 1)


def _log_moment(rate: float, sigma: float, order: int) -> float:
    """ln A at a whole order: E_Q[(P/Q)^k] = e^{k(k−1)/2σ²}, by the chance that k of `order` are sampled.

    Of each term the same without a shift is taken off, which adds up to 1: all that is left is positive, and
    nothing is lost where A is close to 1.
    """
    count = np.arange(2.0, order + 1)
    chances = _log_binomial(order, count) + count * math.log(rate) + (order - count) * math.log1p(-rate)
    growth = count * (count - 1) / (2 * sigma**2)
    return float(np.logaddexp(0.0, np.logaddexp.reduce(chances + growth + np.log(-np.expm1(-growth)))))


def _log_moments(rate: float, sigma: float, orders: Divergences) -> Divergences:
    """ln A at any orders, by the trapezoid rule with steps of σ/8, which is exact to double precision.

    The integrand peaks at most α beyond the centres, and is nowhere narrower than σ. As E_Q[P/Q] = 1, (P/Q)^α
    may have 1 + α(P/Q − 1) taken off, after which nothing is lost where A is close to 1.
    """
    points = np.arange(-12 * sigma, np.max(orders, initial=1.0) + 12 * sigma, sigma / 8)
    weights = -0.5 * (points / sigma) ** 2 - math.log(8 * math.sqrt(2 * math.pi))
    ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * points - 1) / (2 * sigma**2))
    found = np.array([np.logaddexp.reduce(weights + order * ratio) for order in orders])
    for place in np.flatnonzero(found < _CLOSE):
        order = orders[place]
        with np.errstate(over="ignore"):  # where it does, the other way is taken
            near = np.exp(weights) * (np.expm1(order * ratio) - order * np.expm1(ratio))
        far = np.exp(weights + order * ratio) - order * np.exp(weights + ratio) + (order - 1) * np.exp(weights)
        found[place] = np.log1p(np.where(ratio < 1, near, far).sum())
    return found


def _log_binomial(order: int, count: Divergences) -> Divergences:
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1.0, order + 1)))])  # ln k!
    kept = count.astype(int)
    return logs[order] - logs[kept] - logs[order - kept]


@_divergences.register
def _(event: ApproximateEvent, orders: Divergences, relation: Relation) -> Divergences:
    if event.delta:
        return np.full(len(orders), np.inf)
    return pure_divergences(event.epsilon, orders)


@_divergences.register
def _(event: ExponentialMechanismEvent, orders: Divergences, relation: Relation) -> Divergences:
    # Bounded range ε is ε²/8-zCDP (Cesar & Rogers 2021, Lemma 3.4).
    return np.minimum(pure_divergences(event.epsilon, orders), orders * event.epsilon**2 / 8)


def pure_divergences(epsilon: float, orders: Divergences) -> Divergences:
    """ln[(e^{αε} + e^{ε(1−α)}·e^{…})/(e^ε+1)]/(α−1): the divergence of binary randomized response, which
    dominates every ε-DP release (Kairouz, Oh, Viswanath 2015)."""
    keep = -math.log1p(math.exp(-epsilon))  # ln of the chance to answer truthfully, e^ε/(1+e^ε)
    lie = keep - epsilon
    terms = np.logaddexp(orders * keep + (1 - orders) * lie, orders * lie + (1 - orders) * keep)
    return np.maximum(terms, 0) / (orders - 1)


@_divergences.register
def _(event: DiscreteLaplaceEvent, orders: Divergences, relation: Relation) -> Divergences:
    """Sum P^α Q^{1−α} over the three pieces of the line: below both centres, between them, above both."""
    scale, shift = event.noise_parameter, event.sensitivity
    if shift == 0:
        return np.zeros(len(orders))
    step = scale * (2 * orders - 1)  # between the centres the terms fall by e^step from one to the next
    with np.errstate(divide="ignore"):  # no point lies between neighbouring centres
        between = (orders - 1) * scale * shift - step + np.log(np.expm1(-step * (shift - 1)) / np.expm1(-step))
    tail = -math.log(-math.expm1(-scale))  # ln Σ_{x≥0} e^{−ax}
    below = tail + (orders - 1) * scale * shift
    above = tail - orders * scale * shift
    pieces = np.stack([between, below, above], axis=1)
    log_sum = np.logaddexp.reduce(pieces, axis=1) + math.log(math.tanh(scale / 2))
    return np.maximum(log_sum, 0) / (orders - 1)


@_divergences.register
def _(event: RepeatAndSelectEvent, orders: Divergences, relation: Relation) -> Divergences:
    from dp_accounting.rdp import rdp_privacy_accountant

    single = rdp(event.event, orders.tolist(), relation=relation)  # under the relation in force
    select = rdp_privacy_accountant._compute_rdp_repeat_and_select
    return np.asarray(select(orders, single, event.mean, event.shape), dtype=np.float64)  # type: ignore[arg-type]


@_divergences.register
def _(event: PoissonSampledEvent, orders: Divergences, relation: Relation) -> Divergences:
    if relation is not Relation.REPLACE_ONE:
        if isinstance(event.event, GaussianSharesEvent):
            return _sampled_shares(event.sampling_probability, event.event, orders)
        if isinstance(event.event, GaussianEvent) and 0 < event.sampling_probability < 1:
            return _sampled_gaussian(event.sampling_probability, event.event.noise_multiplier, orders)
        return _divergences.dispatch(object)(event, orders, relation)
    check_norm_bound(event, relation)
    if not isinstance(event.event, ClippedGaussianEvent):
        raise NotPrivate(
            f"no Rényi price is known for a Poisson-sampled {type(event.event).__name__} under replace-one"
        )
    rate, sigma = event.sampling_probability, event.event.noise_multiplier
    one = ([1 - rate, rate], [0.0, 0.5])
    other = ([1 - rate, rate], [0.0, -0.5])
    return _mixture_divergences(one, other, sigma, orders)


@_divergences.register
def _(event: MixtureOfGaussiansEvent, orders: Divergences, relation: Relation) -> Divergences:
    if relation is Relation.REPLACE_ONE:
        raise NotPrivate("no price is known for a mixture of Gaussians under replace-one; use add-remove")
    mixed = (list(event.sampling_probs), list(event.sensitivities))
    alone = ([1.0], [0.0])
    sigma = event.standard_deviation
    return np.maximum(
        _mixture_divergences(mixed, alone, sigma, orders), _mixture_divergences(alone, mixed, sigma, orders)
    )


Mixture = tuple[list[float], list[float]]  # weights, centres


def _mixture_divergences(p: Mixture, q: Mixture, sigma: float, orders: Divergences) -> Divergences:
    """Rényi divergences of two mixtures of Gaussians of one width, by quadrature.

    The integrand p^α q^{1−α} of order α peaks at most α·(spread of the centres) beyond them, so the line
    reaches that far and twelve σ more. It is nowhere narrower than σ, so the trapezoid rule with steps of σ/8
    is exact to double precision.
    """
    centres = p[1] + q[1]
    reach = float(np.max(orders)) * (max(centres) - min(centres)) + 12 * sigma
    points = np.arange(min(centres) - reach, max(centres) + reach, sigma / 8)
    log_p, log_q = _log_mixture(points, p, sigma), _log_mixture(points, q, sigma)
    step = math.log(sigma / 8)
    integrals = np.array([np.logaddexp.reduce(order * log_p + (1 - order) * log_q) + step for order in orders])
    return np.maximum(integrals, 0) / (orders - 1)


def _log_mixture(points: Divergences, mixture: Mixture, sigma: float) -> Divergences:
    parts = [
        math.log(weight) - 0.5 * ((points - centre) / sigma) ** 2
        for weight, centre in zip(*mixture, strict=True)
        if weight > 0
    ]
    return np.logaddexp.reduce(parts, axis=0) - math.log(sigma * math.sqrt(2 * math.pi))
