"""Plan of a private training run: all that affects privacy, fixed and priced before it starts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from itertools import groupby
from typing import Any

from sfumato import _validate, accounting
from sfumato.accounting import Budget, DpEvent, GaussianEvent, Relation
from sfumato.errors import InvalidInput
from sfumato.mechanisms import GaussianShares
from sfumato.mechanisms.factorisation import (
    INDEPENDENT,
    Independent,
    Noise,
    chosen_noise,
    noise_from_json,
    pass_norms,
)
from sfumato.mechanisms.shares import MARGIN
from sfumato.training.clip import Automatic, Clipping, Flat, PerLayer

RECORD = "record"  # the unit of which every row is one
SAMPLING = ("poisson", "shuffle", "cyclic")
MOST_CORRELATED_STEPS = 10**6
_PRICED_APART = 48  # passes; those after them, each a little dearer than the last, are priced as the last
CLIPPING: Mapping[str, Callable[..., Clipping]] = {"flat": Flat, "per-layer": PerLayer, "automatic": Automatic}


@dataclass(frozen=True, kw_only=True)
class AdaptiveClipping:
    """Let the clipping norm follow a quantile of the gradient norms (Andrew et al. 2021, algorithm 1).

    Each step also releases how many units stayed below the norm, with Gaussian noise of standard deviation
    `count_noise`; the norm is then multiplied by exp(−rate·(noisy fraction − quantile)). The count is shifted
    by ½, so that one unit moves it by ½ and not by 1.

    Args:
        quantile: The share of units that shall stay below the norm.
        rate: How fast the norm follows.
        count_noise: The standard deviation of the noise on the count, in units.

    >>> AdaptiveClipping(quantile=0.7).rate
    0.2
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
    """The noise of a step comes from several parties: so many of their shares count, for so many parameters.

    Args:
        count: How many shares the best informed adversary does not know, at least 1.
        dimension: How many parameters are trained.
        holders_per_unit: m, with how many holders one unit may be at most. Each clips and samples it by itself,
            and the price is that of m releases under an m-th of the noise's variance each.
        margin: The share of C by which rounding may lengthen a unit's gradient, the same at all parties.

    >>> shares = NoiseShares(count=5, dimension=1000)
    >>> plan = TrainingPlan(
    ...     sample_rate=0.01, expected_batch=600, steps=100, noise_multiplier=1.0, shares=shares
    ... )
    >>> plan.mechanism_of_shares().shares
    5
    """

    count: int
    dimension: int
    holders_per_unit: int = 1
    margin: float = MARGIN

    def __post_init__(self) -> None:
        _validate.positive("margin", self.margin)
        _validate.integer("count", self.count, least=1)
        _validate.integer("dimension", self.dimension, least=1)
        _validate.integer("holders_per_unit", self.holders_per_unit, least=1)


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """A DP-SGD run. No field is derived from private data.

    Args:
        sample_rate: q. Each unit enters each step's batch independently with this probability, in (0, 1].
        expected_batch: The divisor of the noisy sum: q · declared number of units, never the realised size.
        steps: How many steps are taken.
        noise_multiplier: σ. The noise has standard deviation σ · sensitivity.
        clip_norm: C, the bound of one unit's gradient.
        clipping: "flat" over all parameters, "per-layer" or "automatic".
        adaptive: Let the clipping norm follow a quantile of the gradient norms, at a price.
        noise_phases: Pairs (share of the steps, factor of σ), priced exactly.
        sampling: "poisson", or "shuffle": go through the data in a random order, as most code does. That
            has no amplification, and none is claimed; `relation` must be zero-out or replace-one, under
            which the number of units is public. "cyclic" deals the units into 1/q blocks once and for all,
            in public, and step t works on block t mod 1/q: at the same price.
        noise: "independent", or noise that is correlated with that of earlier steps, for "cyclic" sampling:
            "banded" or "lambda-cgd" (the best bands and shares then follow from the public figures of the
            plan), or `Banded(bands=...)`, `LambdaCGD(cancelled=...)`. σ is then that of the independent draws
            behind it.
        relation: Which data sets are neighbours.
        unit: The unit of privacy, such as "record" or "person".
        rows_per_unit: How many rows of one unit count, where units have several.
        average_decay: The weights released are an average of all steps with this decay; 0 releases the
            last.
        shares: For sums over several holders who each add a share of the noise: σ is then that of the shares
            that count together.

    Terms:
        delta: The δ of a price.
        step: The number of a step, from 0.
        norm: A clipping norm.
        factor: The factor of σ in a phase.
        data: An object that `to_json` wrote.

    Raises:
        InvalidInput: If a field is outside its range.

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
    noise: Noise = INDEPENDENT
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
        _validate.text("unit", self.unit)
        if self.rows_per_unit is not None:
            _validate.integer("rows_per_unit", self.rows_per_unit, least=1)
        object.__setattr__(self, "relation", Relation(self.relation))
        if not 0 <= _validate.real("average_decay", self.average_decay) < 1:
            raise InvalidInput(f"expected average_decay in [0, 1), got average_decay={self.average_decay}")
        self._check_phases()
        self._check_sampling()
        if isinstance(self.noise, str):
            chosen = chosen_noise(self.noise, steps=self.steps, steps_a_pass=self.steps_an_epoch)
            object.__setattr__(self, "noise", chosen)
        self._check_noise()
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
        """Make the plan with the least noise that is (epsilon, delta)-DP.

        Args:
            epsilon: The ε of the whole run.
            delta: Its δ.
            public_size: The *declared* number of units, from which the sample rate follows.
            expected_batch: How many units a step uses on average.
            steps: How many steps are taken. Give these or `epochs`.
            epochs: How often each unit is used, on average.
            choices: Further fields of the plan, by name.

        Returns:
            The plan; its ε is at most `epsilon`, and at least 99% of it. A warning, `LittleProtection`, tells
            of an (ε, δ) that protects next to no one, such as a δ of one in `public_size` or more.

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
        accounting.warn_of_little_protection(
            "this training", epsilon, delta, people=size
        )  # calibrating is dear
        if choices.get("sampling", "poisson") != "poisson":  # a pass is a whole number of batches of one size
            batches = max(1, round(1 / rate))
            rate, expected_batch = 1 / batches, size / batches
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

    @property
    def declared_units(self) -> float:
        """The number of units that the sample rate was declared for."""
        return self.expected_batch / self.sample_rate

    def event(self, steps: int | None = None) -> DpEvent:
        """Return the event of the first `steps`, or of all, for the accountants."""
        taken = self.steps if steps is None else min(_validate.integer("steps", steps), self.steps)
        if self.sampling != "poisson":
            return self._event_of_passes(math.ceil(taken / self.steps_an_epoch))
        phases = []
        for first, last, factor in self.phases():
            done = max(0, min(taken, last) - first)
            phases.append(accounting.repeat(self._step_event(factor), done))
        return accounting.compose(*phases)

    def epsilon(self, delta: float, steps: int | None = None) -> float:
        """Return ε at δ of the first `steps`, or of all, under the plan's relation."""
        return accounting.epsilon(self.event(steps), delta, relation=self.relation)

    def phases(self) -> list[tuple[int, int, float]]:
        """Return (first step, step after the last, factor of σ) of each phase of noise."""
        ends = [0]
        share = 0.0
        for part, _factor in self.noise_phases:
            share += part
            ends.append(round(share * self.steps))
        ends[-1] = self.steps
        return [(ends[i], ends[i + 1], factor) for i, (_, factor) in enumerate(self.noise_phases)]

    def noise_at(self, step: int) -> float:
        """Return the noise multiplier of step number `step`, from 0: σ times the factor of its phase."""
        for first, last, factor in self.phases():
            if first <= step < last:
                return self.noise_multiplier * factor
        raise InvalidInput(f"expected step below steps={self.steps}, got step={step}; the plan is used up")

    def clipping_at(self, norm: float) -> Clipping:
        """Return the clipping rule at a clipping norm: the plan's own, unless it adapts."""
        return CLIPPING[self.clipping](norm=norm)

    def mechanism_of_shares(self, factor: float = 1.0) -> GaussianShares:
        """Return the mechanism of one holder's share of the noise, whose σ a phase multiplies by `factor`."""
        if self.shares is None:
            raise InvalidInput("expected a plan with shares of noise, got one of a single holder")
        return GaussianShares(
            clip_norm=self.clipping_at(self.clip_norm).sensitivity,
            dimension=self.shares.dimension,
            noise_multiplier=self.noise_multiplier * factor,
            shares=self.shares.count,
            margin=self.shares.margin,
        )

    @property
    def steps_an_epoch(self) -> int:
        return max(1, round(1 / self.sample_rate))

    def epochs_at(self, step: int) -> int:
        """Return how many epochs have ended after so many steps; the last one ends with the last step.

        Epoch k ends with the step that is nearest to k / sample_rate, as epochs need not be whole numbers of
        steps. Of `epochs=60` the last is the 60th.
        """
        nearest = round(step * self.sample_rate)
        ended = nearest if round(nearest / self.sample_rate) <= step else nearest - 1
        cut_off = 0 < step == self.steps and round(ended / self.sample_rate) < step
        return ended + cut_off

    def to_json(self) -> dict[str, Any]:
        """Return the plan as a dictionary for `json.dumps`."""
        plain = {**asdict(self), "relation": str(self.relation), "noise": self.noise.to_json()}
        if isinstance(self.noise, Independent):
            del plain["noise"]  # as plans were written before there was any other
        if self.shares is None:
            del plain["shares"]
        return plain

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TrainingPlan:
        """Return the plan of an object that `to_json` wrote."""
        values = dict(data)
        if values.get("adaptive") is not None:
            values["adaptive"] = AdaptiveClipping(**values["adaptive"])
        if values.get("shares") is not None:
            values["shares"] = NoiseShares(**values["shares"])
        values["noise_phases"] = tuple((share, factor) for share, factor in values["noise_phases"])
        if "noise" in values:
            values["noise"] = noise_from_json(values["noise"])
        return cls(**values)

    def _step_event(self, factor: float) -> DpEvent:
        if self.shares is not None:
            return self._shares_event(self.mechanism_of_shares(factor), self.shares.holders_per_unit)
        sigma = self.noise_multiplier * factor
        if self.adaptive is not None:
            # The gradient and the count are one Gaussian release (Andrew et al. 2021, theorem 1).
            sigma = (sigma**-2 + (2 * self.adaptive.count_noise) ** -2) ** -0.5
        if self.relation is Relation.REPLACE_ONE:
            sigma /= 2  # the old gradient leaves and the new one enters: 2C
        if self.sampling != "poisson":
            return GaussianEvent(sigma)
        replaced = (
            self.relation is Relation.REPLACE_ONE
        )  # then the price rests on the bound, C, of each gradient
        noise = accounting.ClippedGaussianEvent(sigma) if replaced else GaussianEvent(sigma)
        return accounting.poisson_sampled(self.sample_rate, noise)

    def _shares_event(self, noise: GaussianShares, holders_per_unit: int) -> DpEvent:
        """One step, of which a unit's parts are with at most m holders, who sample them independently.

        *Proof.* Split the noise into m independent parts of an m-th of its variance each. The sum is then made
        of m sums, one for each holder of the unit, and of the rest: post-processing of m Poisson-sampled
        releases, of which the unit moves each by C at most. Whole-number noise is not split exactly, but within
        the distance of `GaussianSharesEvent`: from k shares to one discrete Gaussian, and from that to m, are
        at most twice the km − 1 additions that an event of km shares counts, and m ≥ 2 such events are charged.
        """
        if holders_per_unit == 1:
            return accounting.poisson_sampled(self.sample_rate, noise.event())
        narrower = math.sqrt(holders_per_unit)
        part = accounting.GaussianSharesEvent(
            noise.noise_multiplier / narrower,
            noise.share_sigma / narrower,
            noise.shares * holders_per_unit,
            noise.dimension,
        )
        return accounting.repeat(accounting.poisson_sampled(self.sample_rate, part), holders_per_unit)

    def _event_of_passes(self, passes: int) -> DpEvent:
        """Return the event of passes: each is one Gaussian release, in which a unit takes part once."""
        if isinstance(self.noise, Independent):
            return accounting.repeat(self._step_event(1.0), passes)
        norms = pass_norms(self.noise, steps=self.steps, steps_a_pass=self.steps_an_epoch)
        norms = (*norms[:_PRICED_APART], *norms[-1:] * (len(norms) - _PRICED_APART))
        equal = [(norm, len(list(group))) for norm, group in groupby(norms[:passes])]
        return accounting.compose(
            *(accounting.repeat(self._step_event(1 / norm), count) for norm, count in equal)
        )

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
        if self.sampling == "poisson":
            return
        if self.relation is Relation.ADD_REMOVE:
            raise InvalidInput(
                f"expected relation 'zero-out' or 'replace-one' with sampling={self.sampling!r}, got "
                "'add-remove'; a removed record shifts all later batches, so nothing bounds what changes"
            )
        if len(self.noise_phases) > 1:
            raise InvalidInput(
                f"expected one noise phase with sampling={self.sampling!r}; use sampling='poisson'"
            )

    def _check_noise(self) -> None:
        if isinstance(self.noise, Independent):
            return
        if not isinstance(self.noise, Noise):
            raise InvalidInput(
                f"expected noise to be a kind of noise or its name, got {type(self.noise).__name__}"
            )
        if self.sampling != "cyclic":
            raise InvalidInput(
                f"expected sampling='cyclic' with noise={self.noise.kind!r}, got sampling={self.sampling!r}; "
                "what correlated noise costs depends on the steps a unit takes part in, which must be fixed"
            )
        if self.adaptive is not None:
            raise InvalidInput(
                f"expected no adaptive clipping with noise={self.noise.kind!r}; steps that share noise share "
                "the clipping norm"
            )
        if self.steps > MOST_CORRELATED_STEPS:
            raise InvalidInput(
                f"expected at most {MOST_CORRELATED_STEPS} steps with noise={self.noise.kind!r}, got "
                f"steps={self.steps}"
            )
