"""What will be counted and chosen for a synthetic table: fixed, priced and charged before the first count."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from sfumato import _validate, accounting
from sfumato.errors import InvalidInput
from sfumato.mechanisms import NoisyMax
from sfumato.synthesis.noise import CountNoise

SINGLE_SHARE, CHOICE_SHARE = 0.15, 0.1
"""Of the budget, in ρ of zero-concentrated DP: for single columns, and for choosing what else to measure."""

MOST_LATER_PICKS = 16
"""In one round after the first."""

RELATION = accounting.Relation.ADD_REMOVE


@dataclass(frozen=True, kw_only=True)
class SynthesisPlan:
    """Every choice and every measurement of one synthetic table.

    First each of `columns` is measured by itself, and so many marginals as `fixed` says, which are named in
    advance. Then, in each round, so many as `picks` says are chosen, one after another, by the exponential
    mechanism on how far the model so far is from the table, and measured; then the model is fitted again.

    *Guarantees*: with `rows` the most rows of one person that count, one person moves a marginal by at most
    `rows` in L1 and L2, and each score by at most `rows`. A run may make fewer choices than it paid for, never
    more. Public: all fields.

    McKenna, Miklau & Sheldon 2021, "Winning the NIST contest", for the spanning tree; McKenna, Mullins, Sheldon
    & Miklau 2022, "AIM", for the rounds.

    Args:
        columns: How many columns are measured by themselves.
        picks: How many marginals are chosen in each round.
        single_sigma: The noise on a single column's counts.
        joint_sigma: The noise on the counts of several columns.
        choice_scale: The scale of the noise in a choice.
        rows: How many rows of one person count.
        fixed: How many marginals are named in advance.
        target: The column whose relation to others matters most.

    >>> plan = SynthesisPlan.calibrated(epsilon=1.0, delta=1e-6, columns=3, picks=(2,))
    >>> plan.epsilon(1e-6) <= 1
    True
    """

    columns: int
    picks: tuple[int, ...]
    single_sigma: float
    joint_sigma: float
    choice_scale: float
    rows: int = 1
    fixed: int = 0
    target: str | None = None

    def __post_init__(self) -> None:
        _validate.integer("columns", self.columns, least=1)
        _validate.integer("rows", self.rows, least=1)
        _validate.integer("fixed", self.fixed)
        for picks in self.picks:
            _validate.integer("picks", picks, least=1)
        for name in ("single_sigma", "joint_sigma", "choice_scale"):
            _validate.positive(name, getattr(self, name))

    @classmethod
    def calibrated(
        cls,
        *,
        epsilon: float,
        delta: float,
        columns: int,
        picks: tuple[int, ...],
        rows: int = 1,
        fixed: int = 0,
        target: str | None = None,
    ) -> SynthesisPlan:
        """The least noise that costs at most (ε, δ) in all."""
        _validate.positive("epsilon", epsilon)
        if not _validate.delta("delta", delta):
            raise InvalidInput(
                "expected delta > 0 for a synthetic table, got delta=0; its noise is Gaussian: set delta in "
                "[budget], well below 1 / number of people"
            )

        unit = cls(
            columns=columns,
            picks=picks,
            rows=rows,
            fixed=fixed,
            target=target,
            single_sigma=1.0,
            joint_sigma=1.0,
            choice_scale=1.0,
        )

        def plan(multiplier: float) -> SynthesisPlan:
            return unit._with_noise(multiplier)

        budget = accounting.Budget(epsilon=epsilon, delta=delta)
        guess = accounting.gaussian_noise_multiplier(epsilon, delta)
        value = accounting.calibrate(lambda value: plan(value).event(), budget, guess=guess)
        # Calibration works with coarse prices, which err upward: what they leave is used up here.
        for _ in range(4):
            closer = value * (plan(value).epsilon(delta) / epsilon) ** 0.9
            if plan(closer).epsilon(delta) > epsilon:
                break
            value = closer
        return plan(value)

    def _with_noise(self, multiplier: float) -> SynthesisPlan:
        """The same plan with ρ = 1 / 2·multiplier², shared as above."""
        joint = self.measured
        choice = CHOICE_SHARE if self.chosen else 0.0
        single = SINGLE_SHARE if joint else 1.0
        scale = self.rows * multiplier
        return replace(
            self,
            single_sigma=scale * math.sqrt(self.columns / single),
            joint_sigma=scale * math.sqrt(joint / (1 - single - choice)) if joint else scale,
            # an ε-DP choice counts as ρ = ε²/2, with ε = 2·rows/scale
            choice_scale=2 * scale * math.sqrt(self.chosen / choice) if choice else scale,
        )

    @property
    def chosen(self) -> int:
        """How many choices are made, at most."""
        return sum(self.picks)

    @property
    def measured(self) -> int:
        """How many marginals of several columns are measured, at most."""
        return self.fixed + self.chosen

    @property
    def single_noise(self) -> CountNoise:
        return CountNoise(sensitivity=self.rows, sigma=self.single_sigma)

    @property
    def joint_noise(self) -> CountNoise:
        return CountNoise(sensitivity=self.rows, sigma=self.joint_sigma)

    def choice(self, candidates: int) -> NoisyMax:
        """One choice among so many candidates; its price does not depend on how many."""
        return NoisyMax(
            noise="gumbel", candidates=candidates, sensitivity=float(self.rows), scale=self.choice_scale
        )

    def event(self) -> accounting.DpEvent:
        """Everything that is drawn, in one event."""
        return accounting.compose(
            accounting.repeat(self.single_noise.event(), self.columns),
            accounting.repeat(self.joint_noise.event(), self.measured),
            accounting.repeat(self.choice(1).event(), self.chosen),
        )

    def epsilon(self, delta: float) -> float:
        return accounting.epsilon(self.event(), delta, relation=RELATION)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SynthesisPlan:
        """As `to_json` wrote it; whatever else stands there is not the plan's."""
        own = {field.name: data[field.name] for field in fields(cls)}
        return cls(**{**own, "picks": tuple(own["picks"])})

    def to_json(self) -> dict[str, Any]:
        return {
            "columns": self.columns,
            "picks": list(self.picks),
            "single_sigma": self.single_sigma,
            "joint_sigma": self.joint_sigma,
            "choice_scale": self.choice_scale,
            "rows": self.rows,
            "fixed": self.fixed,
            "target": self.target,
        }


def default_picks(columns: int, candidates: int, fixed: int = 0) -> tuple[int, ...]:
    """A spanning tree over the columns, and two smaller rounds of what it misses most.

    With as many fixed marginals as a tree would have, these take the place of the first of the smaller rounds.
    """
    tree, more = columns - 1, min((columns - 1) // 2, MOST_LATER_PICKS)
    picks: list[int] = []
    for wanted in (tree, more) if fixed else (tree, more, more):
        picks.append(min(wanted, candidates - sum(picks)))
    return tuple(pick for pick in picks if pick)
