"""How long steps may be: the noise alone must not carry the weights away from where learning put them.

A step moves each of d weights by noise of standard deviation rate·σC/B, B the expected batch; with momentum m
that goes on to 1/(1 − m) times as much. Steps are independent, so that T of them carry the weights by about

    rate/(1 − m) · σC/B · √(T·d).

Adam divides a gradient by its own size, which is that of the noise: rate·√(T·d). Nothing of it is read off
data: plan and number of weights are public. The weights of a small network begin with a length of 5 to 7;
carried by many times that they have forgotten what was learned, and the loss grows instead of falling.
`python bench/learning_rate.py` measures at which distance that begins.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from torch import nn

from sfumato.errors import TooMuchNoise
from sfumato.mechanisms import Independent
from sfumato.training.optimization import Optimization
from sfumato.training.plan import TrainingPlan
from sfumato.training.trainer import trainable_parameters

DISTANCE = 30.0
"""How far the noise may carry the weights where no learning rate is given."""
_TOO_FAR = 10 * DISTANCE  # of a rate that was given
_SHARES = np.linspace(0, 1, 100, endpoint=False)


def settled(optimization: Optimization, plan: TrainingPlan, model: nn.Module) -> Optimization:
    """With a learning rate: the one that was given, after a warning where it is too high, or the longest."""
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
    """The same with the highest learning rate at which the noise carries the weights no farther.

    >>> plan = TrainingPlan(sample_rate=0.1, expected_batch=128, steps=600, noise_multiplier=9.0)
    >>> longest(Optimization(), plan, 26_010).learning_rate < 0.02
    True
    """
    rate = optimization.highest_rate
    far = carried(optimization, plan, weights)
    return replace(optimization, learning_rate=rate * min(1.0, distance / far) if far else rate)


def carried(optimization: Optimization, plan: TrainingPlan, weights: int) -> float:
    """How far noise alone carries so many weights in all steps of the plan, as it is expected."""
    steps = optimization.highest_rate * _root_mean_square(map(optimization.factor_at, _SHARES))
    if optimization.optimizer != "sgd":
        return steps * math.sqrt(plan.steps * weights)
    noise = plan.noise_multiplier * plan.clipping_at(plan.clip_norm).sensitivity / plan.expected_batch
    return steps / (1 - optimization.momentum) * noise * _walk(plan) * math.sqrt(weights)


def _walk(plan: TrainingPlan) -> float:
    """How much more the noise of all steps is than that of one: √T; less where later steps take some back."""
    phases = math.sqrt(sum(share * factor**2 for share, factor in plan.noise_phases))
    if isinstance(plan.noise, Independent):
        return phases * math.sqrt(plan.steps)
    drawn = np.zeros(plan.steps)
    inverse = plan.noise.inverse(plan.steps)
    drawn[: inverse.size] = inverse
    return float(np.linalg.norm(np.cumsum(drawn)))


def _root_mean_square(values: Iterable[float]) -> float:
    return float(np.sqrt(np.mean(np.square(list(values)))))
