"""What will be counted and chosen for a synthetic table: fixed, priced and charged before the first count."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from sfumato import _validate, accounting
from sfumato.errors import InvalidInput
from sfumato.mechanisms import DiscreteGaussian, NoisyMax

SINGLE_SHARE, CHOICE_SHARE = 0.15, 0.1
"""Of the budget, in ρ of zero-concentrated DP: for single columns, and for choosing what else to measure."""

RELATION = accounting.Relation.ADD_REMOVE


@dataclass(frozen=True, kw_only=True)
class SynthesisPlan:
    """Every choice and every measurement of one synthetic table.

    First each of `columns` is measured by itself. Then, in each round, so many marginals as `picks` says are
    chosen, one after another, by the exponential mechanism on how far the model so far is from the table, and
    measured; then the model is fitted again.

    *Guarantees*: with `rows` the most rows of one person that count, one person moves a marginal by at most
    `rows` in L1 and L2, and each score by at most `rows`. A run may make fewer choices than it paid for, never
    more. Public: all fields.

    McKenna, Miklau & Sheldon 2021, "Winning the NIST contest", for the spanning tree; McKenna, Mullins, Sheldon
    & Miklau 2022, "AIM", for the rounds; Canonne, Kamath & Steinke 2020 for the noise.
    """

    columns: int
    picks: tuple[int, ...]
    single_sigma: float
    joint_sigma: float
    choice_scale: float
    rows: int = 1
    target: str | None = None

    def __post_init__(self) -> None:
        _validate.integer("columns", self.columns, least=1)
        _validate.integer("rows", self.rows, least=1)
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
        target: str | None = None,
    ) -> SynthesisPlan:
        """The least noise that costs at most (ε, δ) in all."""
        _validate.positive("epsilon", epsilon)
        if not _validate.delta("delta", delta):
            raise InvalidInput(
                "expected delta > 0 for a synthetic table, got delta=0; its noise is Gaussian: set delta in "
                "[budget], well below 1 / number of people"
            )

        def plan(multiplier: float) -> SynthesisPlan:
            return cls._shared(multiplier, columns=columns, picks=picks, rows=rows, target=target)

        budget = accounting.Budget(epsilon=epsilon, delta=delta)
        guess = accounting.gaussian_noise_multiplier(epsilon, delta)
        return plan(accounting.calibrate(lambda value: plan(value).event(), budget, guess=guess))

    @classmethod
    def _shared(
        cls, multiplier: float, *, columns: int, picks: tuple[int, ...], rows: int, target: str | None
    ) -> SynthesisPlan:
        """The plan whose shares of ρ = 1 / 2·multiplier² are those above."""
        chosen = sum(picks)
        single, choice = (SINGLE_SHARE, CHOICE_SHARE) if chosen else (1.0, CHOICE_SHARE)
        joint = 1 - single - choice
        return cls(
            columns=columns,
            picks=picks,
            rows=rows,
            target=target,
            single_sigma=rows * multiplier * math.sqrt(columns / single),
            joint_sigma=rows * multiplier * math.sqrt(chosen / joint) if chosen else rows * multiplier,
            # an ε-DP choice counts as ρ = ε²/2, with ε = 2·rows/scale
            choice_scale=2 * rows * multiplier * math.sqrt(max(1, chosen) / choice),
        )

    @property
    def single_noise(self) -> DiscreteGaussian:
        return DiscreteGaussian(sensitivity=self.rows, sigma=self.single_sigma)

    @property
    def joint_noise(self) -> DiscreteGaussian:
        return DiscreteGaussian(sensitivity=self.rows, sigma=self.joint_sigma)

    def choice(self, candidates: int) -> NoisyMax:
        """One choice among so many candidates; its price does not depend on how many."""
        return NoisyMax(
            noise="gumbel", candidates=candidates, sensitivity=float(self.rows), scale=self.choice_scale
        )

    def event(self) -> accounting.DpEvent:
        """Everything that is drawn, in one event."""
        chosen = sum(self.picks)
        return accounting.compose(
            accounting.repeat(self.single_noise.event(), self.columns),
            accounting.repeat(self.joint_noise.event(), chosen),
            accounting.repeat(self.choice(1).event(), chosen),
        )

    def epsilon(self, delta: float) -> float:
        return accounting.epsilon(self.event(), delta, relation=RELATION)

    def to_json(self) -> dict[str, Any]:
        return {
            "columns": self.columns,
            "picks": list(self.picks),
            "single_sigma": self.single_sigma,
            "joint_sigma": self.joint_sigma,
            "choice_scale": self.choice_scale,
            "rows": self.rows,
            "target": self.target,
        }


def default_picks(columns: int, target: str | None) -> tuple[int, ...]:
    """A spanning tree over the columns, and two smaller rounds of what it misses most."""
    tree = columns - 1 if target is None else columns - 2
    if tree < 1:
        return (1,) if columns > 1 else ()
    more = max(0, min(tree // 2, columns * (columns - 1) // 2 - tree))
    return (tree, more, more) if more else (tree,)
