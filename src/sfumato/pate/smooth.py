"""A data-dependent cost that may be shown: its smooth sensitivity, and what showing it costs.

The cost of a query, as bounded here, depends on its histogram through the largest count m and the gap g to the
next one only. One vote moves m by at most 1 and g by at most 2, so a table over (m, g) gives the exact local
sensitivity at every distance, with no case left to argue (Nissim, Raskhodnikova & Smith 2007; Papernot et al.
2018 bound it by a function of the chance of error instead).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import ndimage, optimize

from sfumato import _validate
from sfumato.accounting.rdp import ORDERS, to_epsilon
from sfumato.errors import InvalidInput
from sfumato.pate.dependence import answer_divergences, log_error_chance, tested_divergences
from sfumato.pate.plan import VotePlan
from sfumato.randomness import Sampler

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
_HOPED_GAP = 0.9  # share of the teachers; chooses the order in public, before the votes are looked at
_OWN_SHARE = 0.05  # of the cost of converting to ε, spent on showing it
_STEP = (3, 5)  # a vote moves (m, g) by at most (1, 2), either way


@dataclass(frozen=True, kw_only=True)
class SmoothRelease:
    """How a data-dependent Rényi cost is shown: cost + S·noise·N(0, 1), S its β-smooth sensitivity.

    *Guarantees*: S bounds how far one vote moves the cost, and itself moves by at most e^{±β}: showing costs
    `own_cost` at `order`. All fields are public and chosen without looking at votes.

    Args:
        order: The Rényi order at which the cost is shown.
        beta: β of the smooth sensitivity.
        noise: The standard deviation of the noise, in smooth sensitivities.

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
