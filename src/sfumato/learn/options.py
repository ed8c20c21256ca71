"""What a caller may say about a training run, beside its budget."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sfumato import _validate
from sfumato.accounting import DpEvent
from sfumato.learn.features import Recipe
from sfumato.training.hold_out import price, size_without
from sfumato.training.ownership import RECORD


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to change of a recipe, or of a network's defaults; None changes nothing.

    Args:
        epochs: How often each record is used, on average.
        batch: How many records a step uses, on average.
        learning_rate: The step size.
        clip_norm: The bound of one record's gradient.
        seed: Fixes the first weights, which are public. The noise cannot be seeded.
        noise: "banded" or "lambda-cgd": go through the records in a fixed order, with noise that later steps
            take back in part. Neighbours are then those of zero-out.
        moved: Learn from each image moved by a pixel in four directions too, for networks from random weights.

    >>> Settings(epochs=5).seed
    0
    """

    epochs: float | None = None
    batch: int | None = None
    learning_rate: float | None = None
    clip_norm: float | None = None
    seed: int = 0  # of the first weights, which are public
    noise: str | None = None
    moved: bool = False

    def __post_init__(self) -> None:
        for name in ("epochs", "learning_rate", "clip_norm"):
            if getattr(self, name) is not None:
                _validate.positive(name, getattr(self, name))
        if self.batch is not None:
            _validate.integer("batch", self.batch, least=1)
        if self.noise is not None:
            _validate.one_of("noise", self.noise, ("banded", "lambda-cgd"))

    def said(self, *names: str) -> dict[str, Any]:
        """Those of the names of which something was said."""
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def choices(self, unit: str) -> dict[str, Any]:
        """What a plan for one row of each unit says beside the usual."""
        whose = {} if unit == RECORD else {"unit": unit, "rows_per_unit": 1}
        if self.noise is None:
            return whose
        return {**whose, "sampling": "cyclic", "relation": "zero-out", "noise": self.noise}

    def adjusted(self, recipe: Recipe, size: int) -> Recipe:
        rate = recipe.sample_rate
        if self.batch is not None:
            rate = _validate.probability("batch / size", self.batch / size)
        steps = recipe.steps if self.epochs is None else max(1, round(self.epochs / rate))
        return replace(recipe, sample_rate=rate, steps=steps, **self.said("clip_norm"))


@dataclass(frozen=True, kw_only=True)
class HoldOut:
    """Which share of the records is kept out of training, and what measuring on them costs on top.

    Args:
        share: The share of records that is kept out, between 0 and 1.
        epsilon: The ε of the measurement, on top of training.

    >>> HoldOut(share=0.1).epsilon
    0.1
    """

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
    """How many canaries are planted among the rows, to attack the run with, and of which kind.

    Args:
        count: How many.
        kind: "dirac", weights of their own, observed in every step; or "labels", mislabelled rows, seen as a
            black box.

    >>> Canaries(count=500).kind
    'dirac'
    """

    count: int
    kind: str = "dirac"

    def __post_init__(self) -> None:
        _validate.integer("canaries", self.count, least=1)
