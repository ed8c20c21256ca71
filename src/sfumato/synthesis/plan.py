"""The counts and choices for a synthetic table: fixed, priced and charged before the first count."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato import _validate, accounting
from sfumato.errors import InvalidInput, Refused
from sfumato.mechanisms import NoisyMax
from sfumato.randomness import Sampler
from sfumato.synthesis.cells import Buckets, merge_table
from sfumato.synthesis.counting import Clique, CountNoise, Marginals

SINGLE_SHARE, CHOICE_SHARE = 0.15, 0.1
"""Of the budget, in ρ of zero-concentrated DP: for single columns, and for choosing further marginals."""

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
        # Calibration works with coarse prices, which err upward: the rest is used up here.
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
        """Read the output of `to_json`; other fields are not the plan's."""
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
    """A spanning tree over the columns, and two smaller rounds of the marginals that it misses most.

    With as many fixed marginals as a tree would have, these take the place of the first of the smaller rounds.
    """
    tree, more = columns - 1, min((columns - 1) // 2, MOST_LATER_PICKS)
    picks: list[int] = []
    for wanted in (tree, more) if fixed else (tree, more, more):
        picks.append(min(wanted, candidates - sum(picks)))
    return tuple(pick for pick in picks if pick)


# The only way from exact counts to a synthesizer: each use is one that the plan has paid for

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
_FARTHEST = 2.0**40  # counts that are expected of a fit


class PaidTable:
    """A private table behind the mechanisms of one plan, whose event must have been charged.

    *Guarantees*: outputs are noised as the plan says, and no more often than the plan says. Exact counts
    are whole numbers, and so are the scores of a choice, so that one person moves each of them by at most
    `plan.rows`, to the last bit. Secret: the counts. Public, or noisy already: everything that is handed in.
    """

    def __init__(self, plan: SynthesisPlan, table: Marginals, sampler: Sampler) -> None:
        if plan.rows != table.rows:
            raise InvalidInput(
                f"expected a plan for rows={table.rows}, got rows={plan.rows}; count what was charged"
            )
        self.plan = plan
        self._table, self._sampler = table, sampler
        self._left = Counter({"single": plan.columns, "choice": plan.chosen, "joint": plan.measured})
        self._counts: dict[Clique, Integers] = {}

    def single(self, name: str) -> Floats:
        """The noisy counts of one column's cells."""
        return self._released("single", self.plan.single_noise, self._table.marginal((name,)))

    def choose(
        self, expected: Mapping[Clique, Floats], buckets: Mapping[str, Buckets], penalty: float
    ) -> Clique:
        """One marginal whose counts are far from the expected ones, by the exponential mechanism.

        The score of a marginal is how many rows are in the wrong place, less `penalty` for each of its cells.
        """
        self._use("choice")
        cliques = list(expected)
        scores = [self._score(clique, expected[clique], buckets, penalty) for clique in cliques]
        mechanism = self.plan.choice(len(cliques))
        return cliques[mechanism.release(np.array(scores, dtype=np.int64), self._sampler)]

    def joint(self, clique: Clique, buckets: Mapping[str, Buckets]) -> Floats:
        """The noisy counts of combinations of buckets."""
        return self._released("joint", self.plan.joint_noise, self._exact(clique, buckets))

    def exact_shares(self) -> dict[Clique, Floats]:
        """Return the exact shares of counted marginals: PRIVATE, for the holder's own report."""
        return {clique: counts / max(1, counts.sum()) for clique, counts in self._counts.items()}

    def _score(self, clique: Clique, expected: Floats, buckets: Mapping[str, Buckets], penalty: float) -> int:
        known = np.clip(np.nan_to_num(expected), -_FARTHEST, _FARTHEST)  # so that no sum of them wraps around
        wrong = np.abs(self._exact(clique, buckets) - np.rint(known).astype(np.int64)).sum()
        return int(wrong) - round(penalty * expected.size)

    def _exact(self, clique: Clique, buckets: Mapping[str, Buckets]) -> Integers:
        """Counted once on the engine, however many rounds look at it."""
        if clique not in self._counts:
            counts = self._table.marginal(tuple(buckets[name].column for name in clique))
            self._counts[clique] = merge_table(counts, [buckets[name] for name in clique])
        return self._counts[clique]

    def _released(self, kind: str, noise: CountNoise, counts: Integers) -> Floats:
        self._use(kind)
        return noise.release(counts, self._sampler).astype(np.float64)

    def _use(self, kind: str) -> None:
        if self._left[kind] < 1:
            raise Refused(
                f"expected no more than the plan paid for, got one {kind} more; plan and charge it first"
            )
        self._left[kind] -= 1
