"""How stacked models take gradient steps, each on its own shard: what all kinds of models share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from sfumato.pate.shards import NO_ROW, Integers

Parameters = dict[str, Tensor]  # each (models, …)
# (values, velocity, momentum, places): velocity ← momentum·velocity + gradient of the rows at these places
Push = Callable[[Parameters, Parameters, float, Tensor], None]


@dataclass(frozen=True, kw_only=True)
class Shards:
    """The rows of each model, gathered: another model's are nowhere in its slice."""

    inputs: Tensor  # (models, capacity, …), 0 where there is no row
    targets: Tensor  # (models, capacity)
    present: Tensor  # (models, capacity) 1, or 0 where there is no row

    @classmethod
    def of(cls, inputs: Tensor, targets: Tensor, table: Integers) -> Shards:
        rows = torch.from_numpy(table)
        missing, at = rows == NO_ROW, rows.clamp(min=0)
        own = inputs[at]
        own[missing] = 0.0  # another shard's row stands there: times 0 it would still hand on a NaN
        return cls(inputs=own, targets=targets[at], present=(~missing).float())

    def errors(self, logits: Tensor, places: Tensor) -> Tensor:
        """Gradient of the mean cross-entropy by the logits (models, rows, classes), which it overwrites."""
        wrong = torch.softmax(logits, 2, out=logits)
        targets = self.targets[:, places, None]
        wrong.scatter_add_(2, targets, wrong.new_full((), -1.0).expand(targets.shape))
        return wrong.mul_(self.weights(places)[..., None])

    def weights(self, places: Tensor) -> Tensor:
        """What each row counts in the mean over those that are there. (models, rows)"""
        present = self.present[:, places]
        return present / present.sum(1, keepdim=True).clamp(min=1.0)


@dataclass(frozen=True, kw_only=True)
class Method:
    """Steps of one stack; `values` may have a layout of their own, and `finish` gives parameters."""

    values: Parameters
    push: Push
    finish: Callable[[Parameters], Parameters] = lambda values: values


def any_method(template: nn.Module, start: Parameters, shards: Shards) -> Method:
    """Whatever the model, by automatic differentiation."""

    def loss(values: Parameters, inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        logits: Tensor = functional_call(template, values, (inputs,))
        return F.cross_entropy(logits, targets, reduction="none") @ weights

    slopes_of = vmap(grad(loss))

    def push(values: Parameters, velocity: Parameters, momentum: float, places: Tensor) -> None:
        rows = shards.inputs[:, places], shards.targets[:, places], shards.weights(places)
        for name, slope in slopes_of(values, *rows).items():
            velocity[name].mul_(momentum).add_(slope)

    return Method(values=start, push=push)
