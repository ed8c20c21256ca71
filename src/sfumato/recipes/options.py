"""What a caller may say about a training run, beside its budget."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sfumato import _validate
from sfumato.accounting import DpEvent
from sfumato.recipes.features import Recipe
from sfumato.training.hold_out import price, size_without


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the caller wants otherwise than the recipe, or the network's defaults, have it; None: nothing."""

    epochs: float | None = None
    batch: int | None = None
    learning_rate: float | None = None
    clip_norm: float | None = None
    seed: int = 0  # of the first weights, which are public

    def __post_init__(self) -> None:
        for name in ("epochs", "learning_rate", "clip_norm"):
            if getattr(self, name) is not None:
                _validate.positive(name, getattr(self, name))
        if self.batch is not None:
            _validate.integer("batch", self.batch, least=1)

    def said(self, *names: str) -> dict[str, Any]:
        """Those of the names of which something was said."""
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def adjusted(self, recipe: Recipe, size: int) -> Recipe:
        rate = recipe.sample_rate
        if self.batch is not None:
            rate = _validate.probability("batch / size", self.batch / size)
        steps = recipe.steps if self.epochs is None else max(1, round(self.epochs / rate))
        return replace(recipe, sample_rate=rate, steps=steps, **self.said("clip_norm"))


@dataclass(frozen=True, kw_only=True)
class HoldOut:
    """Which share of the records is kept out of training, and what measuring on them costs on top."""

    share: float
    epsilon: float = 0.1

    def __post_init__(self) -> None:
        size_without(self.share, 1)
        _validate.positive("hold_out_epsilon", self.epsilon)

    @property
    def event(self) -> DpEvent:
        return price(self.epsilon)


@dataclass(frozen=True, kw_only=True)
class Canaries:
    """How many canaries are planted among the rows, to attack the run with, and of which kind."""

    count: int
    kind: str = "dirac"

    def __post_init__(self) -> None:
        _validate.integer("canaries", self.count, least=1)
