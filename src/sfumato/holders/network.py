"""A network from random weights that several holders train together, as their study says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import nn

from sfumato import _validate, models
from sfumato.errors import InvalidInput
from sfumato.training import Optimization

_MOST_PARAMETERS = 2**28


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
        if not isinstance(self.model, str):
            raise InvalidInput("expected model to be the name of a network, got another type")
        _validate.one_of("model", self.model, models.MODELS)
        shape = tuple(self.shape) if isinstance(self.shape, list | tuple) else ()
        if len(shape) != 3 or shape[1] != shape[2]:
            raise InvalidInput(f"expected shape = [channels, side, side], got shape={self.shape}")
        for number in shape:
            _validate.integer("shape", number, least=1)
        object.__setattr__(self, "shape", shape)
        _validate.integer("steps", self.steps, least=1)
        for name in ("expected_batch", "clip_norm", "learning_rate"):
            _validate.positive(name, getattr(self, name))
        if not _validate.integer("seed", self.seed) < 2**32:
            raise InvalidInput(f"expected seed below 2**32, got seed={self.seed}")

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

    def parameters(self, classes: int) -> int:
        """How many there are; no memory is taken for them.

        Raises:
            InvalidInput: If there are more than can be sent.
        """
        with torch.device("meta"):
            count = sum(parameter.numel() for parameter in self.build(classes).parameters())
        if count > _MOST_PARAMETERS:
            raise InvalidInput(f"expected a network of at most {_MOST_PARAMETERS} parameters, got {count}")
        return count

    def training(self) -> dict[str, Any]:
        """What the plan of the training takes."""
        return {
            "expected_batch": self.expected_batch,
            "steps": self.steps,
            "clip_norm": self.clip_norm,
        }

    def optimization(self) -> Optimization:
        return Optimization(learning_rate=self.learning_rate)
