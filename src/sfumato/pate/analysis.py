"""What a set of votes costs: for all votes, for these votes, and as earlier analyses printed it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato import _validate
from sfumato.accounting.rdp import ORDERS, to_epsilon
from sfumato.errors import InvalidInput
from sfumato.pate.dependence import answer_divergences, log_error_chance, tested_divergences
from sfumato.pate.moments import moments_epsilon, moments_epsilon_of
from sfumato.pate.plan import VotePlan
from sfumato.pate.smooth import SmoothRelease
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
    """What the votes cost, by several analyses at the same δ.

    Attributes:
        data_independent_epsilon: Holds whatever the votes; may be published.
        data_dependent_epsilon: Holds for these votes only, and is itself private.
        data_dependent_epsilon_published: The same with noise, and with the cost of showing it; may be
            published.
        source_moments_epsilon: The moments accountant of Papernot et al. 2017, whatever the votes.
        source_moments_data_dependent_epsilon: The same for these votes, as its authors wrote it.
        delta: The δ.
        queries: How many queries were asked.
        plan: How labels were made of votes.
        smooth: How the published figure was noised.
    """

    data_independent_epsilon: float  # exact, whatever the votes: what is charged
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
    """Say what asking these counts costs under the plan, by several analyses; answers are not needed.

    The data-dependent figure is never above the data-independent one, which holds for these votes too.

    Args:
        counts: (queries, classes), the votes for each class.
        plan: How labels are made of votes.
        delta: The δ of every figure.
        smooth: How the data-dependent figure is noised; chosen for the plan by default.
        sampler: The secret stream.

    Returns:
        The figures.

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
