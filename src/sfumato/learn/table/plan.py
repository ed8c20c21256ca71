"""The plan of a table model: everything that affects privacy, fixed and priced beforehand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from sfumato import _validate, accounting
from sfumato.accounting import Budget, DpEvent, GaussianEvent, Relation

RELATION = Relation.ADD_REMOVE
MODELS = ("linear", "boosted", "mlp")
_COUNTS, _PAIRS = 0.05, 0.3  # shares of the budget, in 1/σ²
_STEPS = 200
_CLIPPED = 1.4  # norm of a row's gradient, for each √column
_FULL = 30_000.0  # ε · rows at which a step has half its full length
_MANY = 24  # columns beyond which steps get shorter, as all columns together move a score


@dataclass(frozen=True, kw_only=True)
class TablePlan:
    """Noisy counts of every column's cells, `steps` noisy gradients, then `visits` noisy pairs of columns.

    Each is one Gaussian release of an exact sum over all rows, in which a row adds a vector of norm at most
    √columns (counts), `clip_norm` (gradients) or `residual_bound` (pairs). A unit has at most `rows_per_unit`
    rows. There is no sampling: every release is of the whole table, and Gaussians compose as one.

    >>> plan = TablePlan.calibrated(epsilon=1, delta=1e-6, public_size=30_000, columns=12)
    >>> plan.steps, 0.99 <= plan.epsilon(1e-6) <= 1
    (200, True)
    """

    model: str
    public_size: int
    columns: int
    counts_noise: float
    step_noise: float
    pair_noise: float
    learning_rate: float
    steps: int = _STEPS
    visits: int = 0
    clip_norm: float = 5.0
    residual_bound: float = 0.7
    rows_per_unit: int = 1
    unit: str = "record"
    momentum: float = 0.9
    average_decay: float = 0.9

    def __post_init__(self) -> None:
        _validate.one_of("model", self.model, MODELS)
        for name in ("public_size", "columns", "steps", "rows_per_unit"):
            _validate.integer(name, getattr(self, name), least=1)
        _validate.integer("visits", self.visits)
        for name in ("counts_noise", "step_noise", "pair_noise", "learning_rate"):
            _validate.positive(name, getattr(self, name))
        for name in ("clip_norm", "residual_bound"):
            _validate.positive(name, getattr(self, name))

    @classmethod
    def calibrated(
        cls,
        *,
        epsilon: float,
        delta: float,
        public_size: int,
        columns: int,
        model: str = "linear",
        visits: int = 0,
        rows_per_unit: int = 1,
        unit: str = "record",
    ) -> TablePlan:
        """The plan with the least noise that is (epsilon, delta)-DP."""
        start = cls(
            model=model,
            public_size=public_size,
            columns=columns,
            counts_noise=1.0,
            step_noise=1.0,
            pair_noise=1.0,
            learning_rate=_rate(epsilon * public_size / rows_per_unit, columns),
            clip_norm=_CLIPPED * math.sqrt(columns),
            visits=visits,
            rows_per_unit=rows_per_unit,
            unit=unit,
        )
        budget = Budget(epsilon=epsilon, delta=delta, relation=RELATION)
        guess = accounting.gaussian_noise_multiplier(epsilon, delta)
        return start.at(accounting.calibrate(lambda total: start.at(total).event(), budget, guess=guess))

    def at(self, total: float) -> TablePlan:
        """The same plan with noise as if all of it were one release of noise multiplier `total`."""
        pairs = _PAIRS if self.visits else 0.0
        return replace(
            self,
            counts_noise=total / math.sqrt(_COUNTS),
            step_noise=total * math.sqrt(self.steps / (1 - _COUNTS - pairs)),
            pair_noise=total * math.sqrt(self.visits / pairs) if pairs else 1.0,
        )

    def event(self) -> DpEvent:
        """Everything that is released."""
        pairs = [accounting.repeat(GaussianEvent(self.pair_noise), self.visits)] if self.visits else []
        steps = accounting.repeat(GaussianEvent(self.step_noise), self.steps)
        return accounting.compose(GaussianEvent(self.counts_noise), steps, *pairs)

    def epsilon(self, delta: float) -> float:
        return accounting.epsilon(self.event(), delta, relation=RELATION)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "relation": str(RELATION)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TablePlan:
        return cls(**{name: value for name, value in data.items() if name != "relation"})


def _rate(signal: float, columns: int) -> float:
    """Steps as long as the noise allows: they grow as √(ε·rows), up to their full length."""
    return min(1.0, 0.5 * math.sqrt(signal / _FULL)) * min(1.0, _MANY / columns)
