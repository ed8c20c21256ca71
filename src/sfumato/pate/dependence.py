"""Rényi costs of one answer given these very votes: often far below the price that holds for all votes.

Each is a bound on D_α(M(votes) ‖ M(votes′)) for every votes′ in which one teacher votes otherwise. It depends
on the votes and is as private as they are.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy import special

from sfumato.accounting import rdp
from sfumato.pate.plan import VotePlan

Floats = npt.NDArray[np.float64]
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
