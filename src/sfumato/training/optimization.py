"""Optimizer, learning rate and schedule, as a value."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from sfumato import _validate
from sfumato.errors import InvalidInput
from sfumato.training.trainer import trainable_parameters

OPTIMIZERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
LARGEST_RATES: Mapping[str, float] = {"sgd": 0.5, "adam": 0.01, "adamw": 0.01}
"""The learning rates of plans whose noise allows them."""
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
        """The learning rate that was said, or the largest that there is by default."""
        return LARGEST_RATES[self.optimizer] if self.learning_rate is None else self.learning_rate

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        trainable = list(trainable_parameters(model).values())
        more = {"momentum": self.momentum} if self.optimizer == "sgd" else {}
        make = OPTIMIZERS[self.optimizer]
        return make(trainable, lr=self.highest_rate, weight_decay=self.weight_decay, **more)

    def rate_at(self, share: float) -> float:
        """The learning rate after `share` of the steps."""
        return self.highest_rate * self.factor_at(share)

    def factor_at(self, share: float) -> float:
        """The part of the highest rate that schedule and warm-up leave after `share` of the steps."""
        warm = min(1.0, share / self.warmup_share) if self.warmup_share else 1.0
        return warm * RATE_SCHEDULES[self.schedule](share)
