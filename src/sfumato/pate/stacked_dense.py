"""Stacked linear layers with ReLU between them, differentiated by hand: gradients go straight into the momenta.

The first layer is the widest, and there are two ways to keep it. Its gradients are sums of the shard's own
rows, so its weights are W₀ + DᵀX for coefficients D (rows, width): with the rows' inner products XXᵀ at hand, a
step needs neither W nor its gradient. For shards with fewer rows than there are inputs that is less to
multiply and less to move, and the same weights but for rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sfumato.models import MLP
from sfumato.pate.stacked import Method, Parameters, Shards

Layers = list[tuple[str, str]]  # names of weights and biases, in order


@dataclass(frozen=True, kw_only=True)
class _First:
    """The first layer: from places to outputs, and from their errors to what is kept in place of weights."""

    value: Tensor
    forward: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]  # value, bias, places → outputs, input
    push: Callable[[Tensor, float, Tensor, Tensor], None]  # velocity, momentum, errors, that input
    weights: Callable[[Tensor], Tensor]  # of the value


def dense_layers(template: nn.Module) -> Layers | None:
    """Of a plain stack of linear layers and ReLUs; None for other models."""
    if isinstance(template, nn.Linear):
        return [("weight", "bias")] if template.bias is not None else None
    if not isinstance(template, MLP):
        return None
    named = enumerate(template.layers)
    places = [number for number, layer in named if isinstance(layer, nn.Linear)]
    return [(f"layers.{number}.weight", f"layers.{number}.bias") for number in places]


def dense_method(layers: Layers, start: Parameters, shards: Shards, *, epochs: int) -> Method:
    """Steps of these layers, by whichever way of keeping the first one multiplies less."""
    weight, first_bias = layers[0]
    width, inputs = start[weight].shape[1:]
    choose = (
        _by_coefficients if coefficients_pay(shards.present.shape[1], inputs, width, epochs) else _by_weights
    )
    first = choose(start[weight], shards.inputs.flatten(2))

    def push(values: Parameters, velocity: Parameters, momentum: float, places: Tensor) -> None:
        out, below = first.forward(values[weight], values[first_bias], places)
        kept = []
        for later, bias in layers[1:]:
            kept.append(out.relu_())
            out = torch.baddbmm(values[bias][:, None], out, values[later].mT)
        back = shards.errors(out, places)
        for (later, bias), hidden in zip(reversed(layers[1:]), reversed(kept), strict=True):
            velocity[later].baddbmm_(back.mT, hidden, beta=momentum)
            velocity[bias].mul_(momentum).add_(back.sum(1))
            back = torch.bmm(back, values[later]).mul_(hidden > 0)
        first.push(velocity[weight], momentum, back, below)
        velocity[first_bias].mul_(momentum).add_(back.sum(1))

    def finish(values: Parameters) -> Parameters:
        return {**values, weight: first.weights(values[weight])}

    return Method(values={**start, weight: first.value}, push=push, finish=finish)


def coefficients_pay(rows: int, inputs: int, width: int, epochs: int) -> bool:
    """Whether coefficients multiply less than weights: for a row of a shard, over all epochs.

    >>> coefficients_pay(240, 784, 128, 40), coefficients_pay(240, 784, 128, 1)
    (True, False)
    >>> coefficients_pay(240, 128, 10, 40)
    False
    """
    by_weights = epochs * 2 * inputs * width  # outputs and gradient
    by_coefficients = epochs * rows * width + rows * inputs + 2 * inputs * width  # XXᵀ, XW₀ and DᵀX are once
    return by_coefficients < by_weights


def _by_weights(start: Tensor, rows: Tensor) -> _First:
    def forward(value: Tensor, bias: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        below = rows[:, places]
        return torch.baddbmm(bias[:, None], below, value.mT), below

    def push(velocity: Tensor, momentum: float, back: Tensor, below: Tensor) -> None:
        velocity.baddbmm_(back.mT, below, beta=momentum)

    return _First(value=start, forward=forward, push=push, weights=lambda value: value)


def _by_coefficients(start: Tensor, rows: Tensor) -> _First:
    products = torch.bmm(rows, rows.mT)  # (models, rows, rows)
    first = torch.bmm(rows, start.mT)  # (models, rows, width)

    def forward(value: Tensor, bias: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        out = first[:, places].add_(bias[:, None])
        return out.baddbmm_(products[:, places], value), places

    def push(velocity: Tensor, momentum: float, back: Tensor, places: Tensor) -> None:
        velocity.mul_(momentum).index_add_(1, places, back)

    def weights(value: Tensor) -> Tensor:
        return torch.baddbmm(start, value.mT, rows)

    return _First(value=torch.zeros_like(first), forward=forward, push=push, weights=weights)
