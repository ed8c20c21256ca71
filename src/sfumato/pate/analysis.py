"""The cost of a set of votes: for all votes, for these votes, and by earlier analyses."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import ndimage, optimize, special

from sfumato import _validate
from sfumato.accounting import rdp
from sfumato.accounting.rdp import ORDERS, to_epsilon
from sfumato.errors import InvalidInput
from sfumato.pate.plan import VotePlan
from sfumato.pate.votes import Integers, check_counts
from sfumato.randomness import Sampler, SecretStream

Floats = npt.NDArray[np.float64]
ANALYZED = ("laplace", "gnmax", "confident")
STATEMENT = (
    "data_dependent_epsilon is a statement about these votes, as private as they are, and no (ε, δ) guarantee; "
    "the published one has noise of its smooth sensitivity and its own cost in it; each showing costs again. "
    "Ledgers and certificates carry data_independent_epsilon"
)


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """The cost of votes, by several analyses at the same δ."""

    data_independent_epsilon: float  # exact, for all votes: the charge
    data_dependent_epsilon: float  # of these votes: not for publication
    data_dependent_epsilon_published: float  # noised; its own cost is in it
    source_moments_epsilon: float | None  # Laplace only
    source_moments_data_dependent_epsilon: float | None  # not for publication
    delta: float
    queries: int
    plan: VotePlan
    smooth: SmoothRelease

    def to_json(self) -> dict[str, Any]:
        plain = {name: value for name, value in asdict(self).items() if name not in ("plan", "smooth")}
        smooth = {**asdict(self.smooth), "own_cost": self.smooth.own_cost}
        return {**plain, "plan": self.plan.to_json(), "smooth": smooth, "statement": STATEMENT}


def analyze(
    counts: Integers,
    plan: VotePlan,
    *,
    delta: float,
    smooth: SmoothRelease | None = None,
    sampler: Sampler | None = None,
) -> Analysis:
    """Compute the cost of asking these counts under the plan, by several analyses; answers are not needed.

    The data-dependent figure is never above the data-independent one, which holds for these votes too.

    >>> plan = VotePlan(mechanism="gnmax", teachers=100, queries=2, sigma=20)
    >>> counts = np.array([[90] + [0] * 8 + [10], [100] + [0] * 9])
    >>> found = analyze(counts, plan, delta=1e-5)
    >>> found.data_dependent_epsilon <= found.data_independent_epsilon
    True
    """
    _validate.one_of("mechanism", plan.mechanism, ANALYZED, remedy="VotePlan.epsilon prices every mechanism")
    delta = _validate.probability("delta", delta, remedy="an analysis of votes needs delta > 0")
    counts = check_counts(counts, teachers=plan.teachers, classes=plan.classes)
    if not 1 <= len(counts) <= plan.queries:
        raise InvalidInput(f"expected 1 to {plan.queries} queries under this plan, got {len(counts)}")
    independent = plan.epsilon(delta)
    orders = np.array(ORDERS)
    dependent = _least_epsilon(orders, dependent_divergences(counts, plan, orders).sum(axis=0), delta)
    smooth = SmoothRelease.chosen_for(plan, delta) if smooth is None else smooth
    shown = smooth.show(counts, plan, SecretStream() if sampler is None else sampler)
    published = _least_epsilon(np.array([smooth.order]), np.array([max(shown, 0.0)]), delta)
    return Analysis(
        data_independent_epsilon=independent,
        data_dependent_epsilon=min(dependent, independent),
        data_dependent_epsilon_published=min(published, independent),
        source_moments_epsilon=_source(plan, delta),
        source_moments_data_dependent_epsilon=None
        if plan.gamma is None
        else moments_epsilon_of(counts, gamma=plan.gamma, delta=delta),
        delta=delta,
        queries=len(counts),
        plan=plan,
        smooth=smooth,
    )


def dependent_divergences(counts: Integers, plan: VotePlan, orders: Floats) -> Floats:
    """Rényi cost of each query given its counts: (queries, orders)."""
    ordered, places = np.unique(-np.sort(-counts, axis=1), axis=0, return_inverse=True)
    gaps = (ordered[:, :1] - ordered[:, 1:]).astype(np.float64)
    costs = answer_divergences(log_error_chance(gaps, plan), plan, orders)
    if plan.silent:
        costs = tested_divergences(ordered[:, 0], costs, plan, orders)
    return costs[places.reshape(-1)]


def _least_epsilon(orders: Floats, divergences: Floats, delta: float) -> float:
    return max(0.0, float(np.min(to_epsilon(orders, divergences, delta))))


def _source(plan: VotePlan, delta: float) -> float | None:
    if plan.gamma is None:
        return None
    return moments_epsilon(gamma=plan.gamma, queries=plan.queries, delta=delta)


# Rényi costs of one answer given these very votes, often far below the price that holds for all votes: each is
# a bound on D_α(M(votes) ‖ M(votes′)) for every votes′ in which one teacher votes otherwise, as private as the
# votes

_LEAST_LOG = -1e6
_TRIED_ORDERS = 24  # of the two orders that the bound may choose; all are valid, the least counts


def log_error_chance(gaps: Floats, plan: VotePlan) -> Floats:
    """ln of a bound on the chance that another class than the leading one wins.

    `gaps` (…, others) are the leading count less each other count. Laplace: Σⱼ (2 + γΔⱼ) / (4·e^{γΔⱼ})
    (Papernot et al. 2017, lemma 4). Gaussian: Σⱼ ½·erfc(Δⱼ / 2σ) (2018, proposition 7). Never above 1 −
    1/classes: the leading class is the likeliest.
    """
    if gaps.shape[-1] == 0:
        return np.full(gaps.shape[:-1], -np.inf)
    if plan.gamma is not None:
        terms = np.log(2 + plan.gamma * gaps) - math.log(4) - plan.gamma * gaps
    else:
        assert plan.sigma is not None
        terms = special.log_ndtr(-gaps / (plan.sigma * math.sqrt(2)))
    return np.minimum(special.logsumexp(terms, axis=-1), math.log1p(-1 / plan.classes))


def answer_divergences(log_chances: Floats, plan: VotePlan, orders: Floats) -> Floats:
    """Cost of an answer at each order, given ln of its chance of error: (queries, orders)."""
    everywhere = rdp(plan.answer_event(), orders.tolist())
    here = _laplace if plan.gamma is not None else _gaussian
    return np.minimum(here(np.asarray(log_chances)[:, None], plan, orders), everywhere)


def _laplace(log_q: Floats, plan: VotePlan, orders: Floats) -> Floats:
    """ln[(1−q)·((1−q)/(1−e^{2γ}q))^l + q·e^{2γl}] / l at l = α−1, if q < 1/(1+e^{2γ}) (2017, theorem 3)."""
    assert plan.gamma is not None
    cost, moments = 2 * plan.gamma, orders - 1
    usable = log_q < -np.logaddexp(0, cost)
    log_q = np.where(usable, log_q, -math.inf)
    right = np.log1p(-np.exp(log_q))
    kept = right + moments * (right - np.log1p(-np.exp(log_q + cost)))
    return np.where(usable, np.logaddexp(kept, log_q + cost * moments) / moments, np.inf)


def _gaussian(log_q: Floats, plan: VotePlan, orders: Floats) -> Floats:
    """The least of theorem 6 of Papernot et al. 2018 over a grid of its two orders.

    D_α ≤ ln((1−q)·A^{α−1} + q·B^{α−1}) / (α−1), A = (1−q) / (1 − (q·e^{ε₂})^{(μ₂−1)/μ₂}), B = e^{ε₁} /
    q^{1/(μ₁−1)}, where the mechanism costs ε₁ and ε₂ at orders μ₁ ≥ α and μ₂ > 1, and q ≤ e^{(μ₂−1)ε₂} /
    (μ₁/(μ₁−1) · μ₂/(μ₂−1))^{μ₂}. Proposition 10 takes μ₂ = σ√(ln 1/q) and μ₁ = μ₂ + 1; multiples of these are
    tried.
    """
    assert plan.sigma is not None
    log_q = np.maximum(log_q, _LEAST_LOG)  # a larger chance of error is a weaker bound, and still one
    best = np.full(np.broadcast_shapes(log_q.shape, orders.shape), np.inf)
    middle = plan.sigma * np.sqrt(np.maximum(-log_q, 1e-12))
    for factor in np.geomspace(0.25, 4.0, _TRIED_ORDERS):
        second = np.maximum(factor * middle, 1 + 1e-6)
        first = np.maximum(second + 1, orders)
        best = np.minimum(best, _two_orders(log_q, first, second, plan.sigma, orders))
    return best


def _two_orders(log_q: Floats, first: Floats, second: Floats, sigma: float, orders: Floats) -> Floats:
    cost_first, cost_second = first / sigma**2, second / sigma**2
    odds = np.log(first / (first - 1)) + np.log(second / (second - 1))
    power = (log_q + cost_second) * (second - 1) / second
    usable = (log_q <= (second - 1) * cost_second - second * odds) & (power < 0)
    right = np.log1p(-np.exp(log_q))
    kept = right + (orders - 1) * (right - np.log(-np.expm1(np.where(usable, power, -1.0))))
    lost = log_q + (orders - 1) * (cost_first - log_q / (first - 1))
    return np.where(usable, np.maximum(np.logaddexp(kept, lost) / (orders - 1), 0), np.inf)


def tested_divergences(
    largest: npt.NDArray[np.int64], answers: Floats, plan: VotePlan, orders: Floats
) -> Floats:
    """Cost of the threshold test and, if it is passed, of the answer: (queries, orders).

    The test tells one of two things; with p and p′ the chances to pass for maxima m and m′ ∈ {m−1, m, m+1},
    Σ p^α p′^{1−α} is summed as it is, the passing term times e^{(α−1)·cost of the answer}.
    """
    assert plan.threshold is not None
    assert plan.sigma_threshold is not None
    worst = np.zeros_like(answers)
    maxima = largest.astype(np.float64)
    here = (maxima - plan.threshold) / plan.sigma_threshold
    for change in (-1, 0, 1):
        there = (maxima + change - plan.threshold) / plan.sigma_threshold
        passed = _log_term(here, there, orders) + (orders - 1) * answers
        total = np.logaddexp(passed, _log_term(-here, -there, orders)) / (orders - 1)
        worst = np.maximum(worst, total)
    return np.minimum(worst, answers + rdp(plan.test_event(), orders.tolist()))


def _log_term(here: Floats, there: Floats, orders: Floats) -> Floats:
    """α·ln Φ(here) + (1−α)·ln Φ(there): (queries, orders)."""
    one, other = special.log_ndtr(here)[:, None], special.log_ndtr(there)[:, None]
    return orders * one + (1 - orders) * other


# A data-dependent cost that may be shown. The cost of a query depends on its histogram through the largest
# count m and the gap g to the next one only. One vote moves m by at most 1 and g by at most 2, so a table over
# (m, g) gives the exact local sensitivity at every distance (Nissim, Raskhodnikova & Smith 2007)

_HOPED_GAP = 0.9  # share of the teachers; chooses the order in public, before the votes are looked at
_OWN_SHARE = 0.05  # of the cost of converting to ε, spent on showing it
_STEP = (3, 5)  # a vote moves (m, g) by at most (1, 2), either way


@dataclass(frozen=True, kw_only=True)
class SmoothRelease:
    """How a data-dependent Rényi cost is shown: cost + S·noise·N(0, 1), S its β-smooth sensitivity.

    *Guarantees*: S bounds how far one vote moves the cost, and itself moves by at most e^{±β}: showing costs
    `own_cost` at `order`. All fields are public and chosen without looking at votes.

    >>> plan = VotePlan(mechanism="gnmax", teachers=100, queries=200, sigma=20)
    >>> SmoothRelease.chosen_for(plan, 1e-5).order > 1
    True
    """

    order: float
    beta: float
    noise: float

    def __post_init__(self) -> None:
        if _validate.real("order", self.order) <= 1:
            raise InvalidInput(f"expected order > 1, got order={self.order}")
        _validate.positive("beta", self.beta)
        _validate.positive("noise", self.noise)
        if not math.isfinite(self.own_cost):
            raise InvalidInput(
                f"expected beta < about 1/(2·order)={0.5 / self.order:g}, got beta={self.beta}; "
                "the noise would change its width too quickly"
            )

    @classmethod
    def chosen_for(cls, plan: VotePlan, delta: float) -> SmoothRelease:
        """An order that suits votes as clear as one hopes for, and noise that costs little beside it."""
        orders = np.array(ORDERS)
        gap = np.array([round(_HOPED_GAP * plan.teachers)])
        costs = plan.queries * _costs(np.minimum(gap, plan.teachers), gap, plan, orders)[0]
        order = float(orders[np.argmin(to_epsilon(orders, costs, delta))])
        allowed = _OWN_SHARE * -math.log(delta) / (order - 1)
        beta = 0.1 / order
        return cls(order=order, beta=beta, noise=_noise_for(order, beta, allowed))

    @property
    def own_cost(self) -> float:
        """The Rényi divergence of showing the figure."""
        return gaussian_cost(self.order, self.beta, self.noise)

    def show(self, counts: Integers, plan: VotePlan, sampler: Sampler) -> float:
        """The noised cost of these votes plus the cost of showing it; may be published."""
        table = cost_table(plan, self.order)
        places = places_of(counts, plan)
        cost = float(table[places].sum())
        spread = smooth_sensitivity(table, places, self.beta)
        return cost + spread * self.noise * float(sampler.normal(1)[0]) + self.own_cost


def gaussian_cost(order: float, beta: float, noise: float) -> float:
    """max over neighbours of D_α(N(f, s²z²) ‖ N(f′, s′²z²)), |f−f′| ≤ min(s, s′), s′/s ∈ [e^{−β}, e^{β}].

    With t = s′/s and v = αt² + 1 − α it is α·min(1, t)² / (2z²v) + ln(√v / t^α) / (1−α) (van Erven & Harremoës
    2014, equation 10), largest at an end of the range; infinite if v ≤ 0.
    """
    worst = 0.0
    for ratio in (math.exp(-beta), math.exp(beta)):
        width = order * ratio**2 + 1 - order
        if width <= 0:
            return math.inf
        moved = order * min(1.0, ratio) ** 2 / (2 * noise**2 * width)
        worst = max(worst, moved + (0.5 * math.log(width) - order * math.log(ratio)) / (1 - order))
    return worst


def _noise_for(order: float, beta: float, allowed: float) -> float:
    """The least noise at which showing costs no more than allowed, or hardly more than β alone does."""
    limit = max(allowed, 2 * gaussian_cost(order, beta, 1e9))
    return float(math.exp(optimize.brentq(lambda x: gaussian_cost(order, beta, math.exp(x)) - limit, -20, 20)))


def cost_table(plan: VotePlan, order: float) -> Floats:
    """The cost at one order for every (largest count, gap), or (0, gap) where there is no threshold test."""
    gaps = np.arange(plan.teachers + 1)
    if not plan.silent:
        return _costs(gaps, gaps, plan, np.array([order]))[:, 0][None]
    largest, gap = np.meshgrid(gaps, gaps, indexing="ij")
    costs = _costs(largest.ravel(), gap.ravel(), plan, np.array([order]))[:, 0]
    # No votes have a gap above the largest count.
    return np.where(gap <= largest, costs.reshape(gap.shape), np.nan)


def _costs(largest: Integers, gap: Integers, plan: VotePlan, orders: Floats) -> Floats:
    others = np.repeat(gap[:, None].astype(np.float64), plan.classes - 1, axis=1)  # each at most the gap behind
    answers = answer_divergences(log_error_chance(others, plan), plan, orders)
    return tested_divergences(largest, answers, plan, orders) if plan.silent else answers


def places_of(counts: Integers, plan: VotePlan) -> tuple[Integers, Integers]:
    """Where each query stands in the table."""
    ordered = np.sort(counts, axis=1)
    gap = ordered[:, -1] - ordered[:, -2] if plan.classes > 1 else ordered[:, -1]
    return (ordered[:, -1] if plan.silent else np.zeros_like(gap)), gap


def smooth_sensitivity(table: Floats, places: tuple[Integers, Integers], beta: float) -> float:
    """max_d e^{−βd} · Σ_queries (the most one vote can move the cost within d votes of these)."""
    local = _one_step(table)
    ceiling, best = len(places[0]) * float(local.max()), 0.0
    for distance in range(table.shape[1]):
        if math.exp(-beta * distance) * ceiling <= best:
            break
        best = max(best, math.exp(-beta * distance) * float(local[places].sum()))
        local = ndimage.maximum_filter(local, size=_STEP, mode="nearest")
    return best


def _one_step(table: Floats) -> Floats:
    possible = ~np.isnan(table)
    above = ndimage.maximum_filter(np.where(possible, table, -np.inf), size=_STEP, mode="nearest")
    below = ndimage.minimum_filter(np.where(possible, table, np.inf), size=_STEP, mode="nearest")
    return np.where(possible, np.maximum(above - table, table - below), 0.0)


# The moments bounds that early PATE analyses print (Papernot et al. 2017), kept for comparison, not charged:
# moments l = 1…8, for each query the least of ½(2γ)²l(l+1), 2γl and, given the votes, the data-dependent moment

MOMENTS = np.arange(1, 9, dtype=np.float64)


def moments_epsilon(*, gamma: float, queries: int, delta: float) -> float:
    """Compute ε by the moments accountant of Papernot et al. 2017, for all votes.

    >>> round(moments_epsilon(gamma=0.1, queries=9000, delta=1e-5), 4)  # printed as 371.5 by its users
    371.5129
    """
    gamma = _validate.positive("gamma", gamma)
    total = _validate.integer("queries", queries, least=1) * _everywhere(gamma)
    return _to_epsilon(total, delta)


def moments_epsilon_of(counts: npt.NDArray[np.int64], *, gamma: float, delta: float) -> float:
    """Compute ε for given counts by the moments accountant of Papernot et al. 2017, as its authors wrote it.

    It asks for q < ½ only. That condition is too weak (q < 1/(1+e^{2γ}) is needed), and kept as it was.

    >>> clear = np.array([[100, 0, 0]] * 10)
    >>> moments_epsilon_of(clear, gamma=0.1, delta=1e-5) <= moments_epsilon(gamma=0.1, queries=10, delta=1e-5)
    True
    """
    gamma = _validate.positive("gamma", gamma)
    q = _error_chances(counts, gamma)[:, None]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = (1 - q) / (1 - np.exp(2 * gamma) * q)
        given = np.log((1 - q) * ratio**MOMENTS + q * np.exp(2 * gamma * MOMENTS))
    given = np.where((q < 0.5) & np.isfinite(given), given, np.inf)
    return _to_epsilon(np.minimum(given, _everywhere(gamma)).sum(axis=0), delta)


def _everywhere(gamma: float) -> Floats:
    return np.minimum(0.5 * (2 * gamma) ** 2 * MOMENTS * (MOMENTS + 1), 2 * gamma * MOMENTS)


def _error_chances(counts: npt.NDArray[np.int64], gamma: float) -> Floats:
    ordered = -np.sort(-counts, axis=1)
    gaps = gamma * (ordered[:, :1] - ordered[:, 1:])
    return np.minimum(((2 + gaps) / (4 * np.exp(gaps))).sum(axis=1), 1 - 1 / counts.shape[1])


def _to_epsilon(total: Floats, delta: float) -> float:
    delta = _validate.probability("delta", delta, remedy="a moments bound needs delta > 0")
    return float(np.min((total - math.log(delta)) / MOMENTS))
