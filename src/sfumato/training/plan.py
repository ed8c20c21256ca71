"""What a private training run will do: everything that affects privacy, fixed and priced before it starts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from sfumato import _validate, accounting
from sfumato.accounting import Budget, DpEvent, GaussianEvent, Relation
from sfumato.errors import InvalidInput
from sfumato.mechanisms import GaussianShares
from sfumato.training.clipping import Automatic, Clipping, Flat, PerLayer

SAMPLING = ("poisson", "shuffle")
CLIPPING: Mapping[str, Callable[..., Clipping]] = {"flat": Flat, "per-layer": PerLayer, "automatic": Automatic}


@dataclass(frozen=True, kw_only=True)
class AdaptiveClipping:
    """Let the clipping norm follow a quantile of the gradient norms (Andrew et al. 2021, algorithm 1).

    Each step also releases how many units stayed below the norm, with Gaussian noise of standard deviation
    `count_noise`; the norm is then multiplied by exp(−rate·(noisy fraction − quantile)). The count is shifted
    by ½, so that one unit moves it by ½ and not by 1.
    """

    quantile: float = 0.5
    rate: float = 0.2
    count_noise: float = 10.0

    def __post_init__(self) -> None:
        _validate.probability("quantile", self.quantile)
        _validate.positive("rate", self.rate)
        _validate.positive("count_noise", self.count_noise)


@dataclass(frozen=True, kw_only=True)
class NoiseShares:
    """The noise of a step comes from several parties: so many of their shares count, for so many parameters."""

    count: int
    dimension: int

    def __post_init__(self) -> None:
        _validate.integer("count", self.count, least=1)
        _validate.integer("dimension", self.dimension, least=1)


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """A DP-SGD run. No field is derived from private data.

    `sample_rate` q: each unit enters each step's batch independently with this probability. `expected_batch`:
    what the noisy sum is divided by; q · declared number of units, never the realised size. `noise_multiplier`
    σ: the noise has standard deviation σ · sensitivity. `clip_norm` C: the bound of one unit's gradient.

    `noise_phases` are (share of the steps, factor of σ) pairs, priced exactly. `sampling="shuffle"` goes
    through the data in a random order instead, as most code does: it has no amplification, and none is
    claimed (`relation` must then be zero-out or replace-one, under which the number of units is public).
    `rows_per_unit` bounds how many rows of one unit count, where units have several. `shares` is for sums over
    several holders who each add a share of the noise: σ is then that of the shares that count together.

    >>> plan = TrainingPlan(
    ...     sample_rate=256 / 60000, expected_batch=256, steps=14062, noise_multiplier=1.1, clip_norm=1.0
    ... )
    >>> round(plan.epsilon(1e-5), 3)
    2.382
    """

    sample_rate: float
    expected_batch: float
    steps: int
    noise_multiplier: float
    clip_norm: float = 1.0
    clipping: str = "flat"
    adaptive: AdaptiveClipping | None = None
    noise_phases: tuple[tuple[float, float], ...] = ((1.0, 1.0),)
    sampling: str = "poisson"
    relation: Relation = Relation.ADD_REMOVE
    unit: str = "record"
    rows_per_unit: int | None = None
    average_decay: float = 0.0
    shares: NoiseShares | None = None

    def __post_init__(self) -> None:
        _validate.probability(
            "sample_rate", self.sample_rate, remedy="a rate is expected_batch / declared number of units"
        )
        _validate.positive("expected_batch", self.expected_batch)
        _validate.integer("steps", self.steps)
        _validate.positive(
            "noise_multiplier", self.noise_multiplier, remedy="without noise there is no privacy; train plainly"
        )
        _validate.positive("clip_norm", self.clip_norm)
        _validate.one_of("clipping", self.clipping, CLIPPING)
        _validate.one_of("sampling", self.sampling, SAMPLING)
        if self.rows_per_unit is not None:
            _validate.integer("rows_per_unit", self.rows_per_unit, least=1)
        object.__setattr__(self, "relation", Relation(self.relation))
        if not 0 <= _validate.real("average_decay", self.average_decay) < 1:
            raise InvalidInput(f"expected average_decay in [0, 1), got average_decay={self.average_decay}")
        self._check_phases()
        self._check_sampling()
        self._check_shares()

    @classmethod
    def calibrated(
        cls,
        *,
        epsilon: float,
        delta: float,
        public_size: int,
        expected_batch: float,
        steps: int | None = None,
        epochs: float | None = None,
        **choices: Any,
    ) -> TrainingPlan:
        """The plan with the least noise that is (epsilon, delta)-DP.

        `public_size` is the *declared* number of units, from which the rate follows; say how long to train in
        `steps` or in `epochs`. Further fields of the plan may be given by name.

        >>> plan = TrainingPlan.calibrated(
        ...     epsilon=1, delta=1e-5, public_size=60000, expected_batch=600, epochs=5
        ... )
        >>> plan.steps, 0.99 <= plan.epsilon(1e-5) <= 1
        (500, True)
        """
        if not _validate.delta("delta", delta):
            raise InvalidInput(
                f"expected delta > 0, got delta={delta}; Gaussian noise has no finite ε at delta=0: choose a δ "
                "well below 1 / number of people"
            )
        size = _validate.integer("public_size", public_size, least=1)
        rate = _validate.probability(
            "sample_rate", expected_batch / size, remedy="expected_batch may not exceed public_size"
        )
        if (steps is None) == (epochs is None):
            raise InvalidInput(f"expected either steps or epochs, got steps={steps}, epochs={epochs}")
        if steps is None:
            steps = max(1, round(_validate.positive("epochs", epochs or 0) / rate))
        known = {field.name for field in fields(cls)} - {"noise_multiplier"}
        for name in choices:
            _validate.one_of("option", name, sorted(known))
        plan = cls(
            sample_rate=rate, expected_batch=expected_batch, steps=steps, noise_multiplier=1.0, **choices
        )
        budget = Budget(epsilon=epsilon, delta=delta, relation=plan.relation)
        sigma = accounting.calibrate(lambda value: replace(plan, noise_multiplier=value).event(), budget)
        return replace(plan, noise_multiplier=sigma)

    def event(self, steps: int | None = None) -> DpEvent:
        """What the first `steps` steps (all by default) release."""
        taken = self.steps if steps is None else min(_validate.integer("steps", steps), self.steps)
        phases = []
        for first, last, factor in self.phases():
            done = max(0, min(taken, last) - first)
            phases.append(accounting.repeat(self._step_event(factor), self._participations(done)))
        return accounting.compose(*phases)

    def epsilon(self, delta: float, steps: int | None = None) -> float:
        """The ε at δ of the first `steps` steps (all by default), under the plan's relation."""
        return accounting.epsilon(self.event(steps), delta, relation=self.relation)

    def phases(self) -> list[tuple[int, int, float]]:
        """(first step, step after the last, factor of σ) of each phase."""
        ends = [0]
        share = 0.0
        for part, _factor in self.noise_phases:
            share += part
            ends.append(round(share * self.steps))
        ends[-1] = self.steps
        return [(ends[i], ends[i + 1], factor) for i, (_, factor) in enumerate(self.noise_phases)]

    def noise_at(self, step: int) -> float:
        """The noise multiplier of one step."""
        for first, last, factor in self.phases():
            if first <= step < last:
                return self.noise_multiplier * factor
        raise InvalidInput(f"expected step below steps={self.steps}, got step={step}; the plan is used up")

    def clipping_at(self, norm: float) -> Clipping:
        """The clipping rule at a clipping norm (the plan's own, unless it adapts)."""
        return CLIPPING[self.clipping](norm=norm)

    def mechanism_of_shares(self, factor: float = 1.0) -> GaussianShares:
        """How each of several holders makes its share of the noise."""
        if self.shares is None:
            raise InvalidInput("expected a plan with shares of noise, got one of a single holder")
        return GaussianShares(
            clip_norm=self.clipping_at(self.clip_norm).sensitivity,
            dimension=self.shares.dimension,
            noise_multiplier=self.noise_multiplier * factor,
            shares=self.shares.count,
        )

    @property
    def steps_an_epoch(self) -> int:
        return max(1, round(1 / self.sample_rate))

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "relation": str(self.relation)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TrainingPlan:
        values = dict(data)
        if values.get("adaptive") is not None:
            values["adaptive"] = AdaptiveClipping(**values["adaptive"])
        if values.get("shares") is not None:
            values["shares"] = NoiseShares(**values["shares"])
        values["noise_phases"] = tuple((share, factor) for share, factor in values["noise_phases"])
        return cls(**values)

    def _step_event(self, factor: float) -> DpEvent:
        if self.shares is not None:
            return accounting.poisson_sampled(self.sample_rate, self.mechanism_of_shares(factor).event())
        sigma = self.noise_multiplier * factor
        if self.adaptive is not None:
            # The gradient and the count are one Gaussian release (Andrew et al. 2021, theorem 1).
            sigma = (sigma**-2 + (2 * self.adaptive.count_noise) ** -2) ** -0.5
        if self.relation is Relation.REPLACE_ONE:
            sigma /= 2  # the old gradient leaves and the new one enters: 2C
        if self.sampling == "shuffle":
            return GaussianEvent(sigma)
        return accounting.poisson_sampled(self.sample_rate, GaussianEvent(sigma))

    def _participations(self, steps: int) -> int:
        """How many releases a unit takes part in: every sampled step, but one in each pass when shuffled."""
        return steps if self.sampling == "poisson" else math.ceil(steps / self.steps_an_epoch)

    def _check_phases(self) -> None:
        for share, factor in self.noise_phases:
            _validate.probability("share of a noise phase", share)
            _validate.positive("factor of a noise phase", factor)
        if not math.isclose(sum(share for share, _ in self.noise_phases), 1):
            raise InvalidInput(f"expected noise_phases whose shares add up to 1, got {self.noise_phases}")

    def _check_shares(self) -> None:
        if self.shares is None:
            return
        if self.relation is Relation.REPLACE_ONE or self.sampling != "poisson" or self.adaptive is not None:
            raise InvalidInput(
                "expected Poisson sampling, a fixed clipping norm and relation 'add-remove' or 'zero-out' with "
                "shares of noise, got others; nothing else has a proven price"
            )

    def _check_sampling(self) -> None:
        if self.sampling != "shuffle":
            return
        if self.relation is Relation.ADD_REMOVE:
            raise InvalidInput(
                "expected relation 'zero-out' or 'replace-one' with sampling='shuffle', got 'add-remove'; a "
                "record that is removed shifts all later batches, so nothing bounds what changes"
            )
        if len(self.noise_phases) > 1:
            raise InvalidInput("expected one noise phase with sampling='shuffle'; use sampling='poisson'")
