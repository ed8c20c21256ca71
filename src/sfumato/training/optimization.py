"""Optimizer, learning rate and schedule, as a value; the default rate follows from public figures."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from sfumato import _validate
from sfumato.errors import InvalidInput, TooMuchNoise
from sfumato.mechanisms import Independent
from sfumato.training.plan import TrainingPlan
from sfumato.training.trainer import trainable_parameters

OPTIMIZERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
LARGEST_RATES: Mapping[str, float] = {"sgd": 0.5, "adam": 0.01, "adamw": 0.01}
"""The learning rates of plans whose noise allows them."""
DISTANCE = 30.0
"""How far the noise may carry the weights where no learning rate is given."""
_TOO_FAR = 10 * DISTANCE  # of a rate that was given
RATE_SCHEDULES: Mapping[str, Callable[[float], float]] = {
    "constant": lambda share: 1.0,
    "linear": lambda share: 1.0 - share,
    "cosine": lambda share: 0.5 * (1 + math.cos(math.pi * share)),
}


@dataclass(frozen=True, kw_only=True)
class Optimization:
    """How the noisy gradient moves the weights: post-processing, so none of it is priced.

    Args:
        optimizer: "sgd", "adam" or "adamw".
        learning_rate: The step size at its highest. By default 0.5 for "sgd" and 0.01 for the others, or less
            where the noise of the plan would carry the weights too far: it follows from the plan and the number
            of weights.
        momentum: The share of the last step that is taken again, of "sgd" only. The noise is repeated with the
            rest: steps are in effect 1 / (1 − momentum) times as long.
        weight_decay: As torch's optimizers have it.
        schedule: "constant", or "linear" or "cosine" down to 0.
        warmup_share: The share of the steps over which the rate rises from 0.

    >>> Optimization(learning_rate=1.0, schedule="linear").rate_at(0.25)
    0.75
    """

    optimizer: str = "sgd"
    learning_rate: float | None = None
    momentum: float = 0.9  # of sgd only
    weight_decay: float = 0.0
    schedule: str = "constant"
    warmup_share: float = 0.0

    def __post_init__(self) -> None:
        _validate.one_of("optimizer", self.optimizer, OPTIMIZERS)
        _validate.one_of("schedule", self.schedule, RATE_SCHEDULES)
        if self.learning_rate is not None:
            _validate.positive("learning_rate", self.learning_rate)
        if not 0 <= _validate.real("momentum", self.momentum) < 1:
            raise InvalidInput(
                f"expected momentum in [0, 1), got momentum={self.momentum}; at 1 a step never ends"
            )
        _validate.non_negative("weight_decay", self.weight_decay)
        _validate.non_negative("warmup_share", self.warmup_share)

    @property
    def highest_rate(self) -> float:
        """The learning rate that was given, or the largest default."""
        return LARGEST_RATES[self.optimizer] if self.learning_rate is None else self.learning_rate

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        trainable = list(trainable_parameters(model).values())
        more = {"momentum": self.momentum} if self.optimizer == "sgd" else {}
        make = OPTIMIZERS[self.optimizer]
        return make(trainable, lr=self.highest_rate, weight_decay=self.weight_decay, **more)

    def rate_at(self, share: float) -> float:
        """Return the learning rate after `share` of the steps."""
        return self.highest_rate * self.factor_at(share)

    def factor_at(self, share: float) -> float:
        """Return the part of the highest rate that schedule and warm-up leave after `share` of the steps."""
        warm = min(1.0, share / self.warmup_share) if self.warmup_share else 1.0
        return warm * RATE_SCHEDULES[self.schedule](share)


# How long steps may be


def settled(optimization: Optimization, plan: TrainingPlan, model: nn.Module) -> Optimization:
    """Return it with a learning rate: the given one, with a warning where it is too high, or the longest."""
    learned = trainable_parameters(model).values()
    weights = sum(parameter.numel() for parameter in learned)
    if optimization.learning_rate is None:
        return longest(optimization, plan, weights)
    far = carried(optimization, plan, weights)
    layers = sum(parameter.dim() > 1 for parameter in learned)  # a single one finds back from anywhere
    if far > _TOO_FAR and layers > 1:
        rate = longest(replace(optimization, learning_rate=None), plan, weights).learning_rate
        warnings.warn(
            f"at learning_rate={optimization.learning_rate:g} the noise of this plan is {far / DISTANCE:.0f} "
            "times what the default rate lets in, and will most likely drown what is learned; leave the rate "
            f"out (it is then {rate:.1g}), or take a larger batch or fewer epochs",
            TooMuchNoise,
            stacklevel=3,
        )
    return optimization


def longest(
    optimization: Optimization, plan: TrainingPlan, weights: int, *, distance: float = DISTANCE
) -> Optimization:
    """Return it with the highest learning rate at which the noise carries the weights no farther.

    >>> plan = TrainingPlan(sample_rate=0.1, expected_batch=128, steps=600, noise_multiplier=9.0)
    >>> longest(Optimization(), plan, 26_010).learning_rate < 0.02
    True
    """
    rate = optimization.highest_rate
    far = carried(optimization, plan, weights)
    return replace(optimization, learning_rate=rate * min(1.0, distance / far) if far else rate)


def carried(optimization: Optimization, plan: TrainingPlan, weights: int) -> float:
    """Return how far the noise alone is expected to carry so many weights in all steps of the plan.

    A step moves each of d weights by noise of standard deviation rate·σC/B, B the expected batch; with momentum
    m that goes on to 1/(1 − m) times as much. Steps are independent, so that T of them carry the weights by
    about rate/(1 − m) · σC/B · √(T·d). Adam divides a gradient by its own size, which is that of the noise:
    rate·√(T·d). Plan and number of weights are public. The weights of a small network begin with a length of 5
    to 7; carried by many times that they keep nothing of the data (`python bench/learning_rate.py`).
    """
    squares = [optimization.factor_at(share) ** 2 for share in np.linspace(0, 1, 100, endpoint=False)]
    steps = optimization.highest_rate * math.sqrt(np.mean(squares))
    if optimization.optimizer != "sgd":
        return steps * math.sqrt(plan.steps * weights)
    noise = plan.noise_multiplier * plan.clipping_at(plan.clip_norm).sensitivity / plan.expected_batch
    return steps / (1 - optimization.momentum) * noise * _walk(plan) * math.sqrt(weights)


def _walk(plan: TrainingPlan) -> float:
    """Return the noise of all steps over that of one: √T; less where later steps take some back."""
    if isinstance(plan.noise, Independent):
        return math.sqrt(sum(share * factor**2 for share, factor in plan.noise_phases) * plan.steps)
    drawn = np.zeros(plan.steps)
    inverse = plan.noise.inverse(plan.steps)
    drawn[: inverse.size] = inverse
    return float(np.linalg.norm(np.cumsum(drawn)))
