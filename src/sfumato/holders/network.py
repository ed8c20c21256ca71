"""A network from random weights that several holders train together, as their study says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from torch import nn

from sfumato import _validate, models
from sfumato.errors import InvalidInput
from sfumato.training import Optimization


@dataclass(frozen=True, kw_only=True)
class NetworkTerms:
    """Which network, and how it is trained: the section `network` of a study.

    Args:
        model: A name of `sfumato.models.MODELS`.
        shape: Channels, height and width of an image.
        steps: How many steps are taken.
        expected_batch: How many units all holders' batches have together, on average.
        clip_norm: The bound of one unit's gradient.
        learning_rate: The step size of SGD.
        seed: Fixes the first weights, which are public and the same at every holder.

    Raises:
        InvalidInput: If a field is outside its range.

    >>> network = NetworkTerms(
    ...     model="mlp", shape=(1, 8, 8), steps=100, expected_batch=256, clip_norm=1.0, learning_rate=0.5
    ... )
    >>> type(network.build(10)).__name__
    'MLP'
    """

    model: str
    shape: tuple[int, int, int]
    steps: int
    expected_batch: float
    clip_norm: float
    learning_rate: float
    seed: int = 0

    def __post_init__(self) -> None:
        _validate.one_of("model", self.model, models.MODELS)
        shape = tuple(self.shape)
        if len(shape) != 3 or shape[1] != shape[2]:
            raise InvalidInput(f"expected shape = [channels, side, side], got shape={list(shape)}")
        for number in shape:
            _validate.integer("shape", number, least=1)
        object.__setattr__(self, "shape", shape)
        _validate.integer("steps", self.steps, least=1)
        for name in ("expected_batch", "clip_norm", "learning_rate"):
            _validate.positive(name, getattr(self, name))

    @classmethod
    def from_dict(cls, data: Any) -> NetworkTerms:
        names = {field.name for field in fields(cls)}
        if not isinstance(data, Mapping) or set(data) | {"seed"} != names:
            raise InvalidInput(f"expected in section network exactly {', '.join(sorted(names - {'seed'}))}")
        return cls(**data)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "shape": list(self.shape)}

    def build(self, classes: int) -> nn.Module:
        return models.build(
            self.model, classes=classes, in_channels=self.shape[0], side=self.shape[1], seed=self.seed
        )

    def training(self) -> dict[str, Any]:
        """What the plan of the training takes."""
        return {
            "expected_batch": self.expected_batch,
            "steps": self.steps,
            "clip_norm": self.clip_norm,
        }

    def optimization(self) -> Optimization:
        return Optimization(learning_rate=self.learning_rate)
