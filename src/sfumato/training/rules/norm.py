"""y = γ x̂ + β, where x̂ is the row normalised by its own moments."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.training.rules.registry import register
from sfumato.training.rules.terms import Contribution, Rows


def _both(shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    return {"weight": shape, "bias": shape}


@register(nn.GroupNorm, shapes=lambda module: _both((module.num_channels,)))
def group_norm(module: nn.GroupNorm, inputs: Tensor, gradient: Tensor) -> dict[str, Contribution]:
    return _per_channel(F.group_norm(inputs, module.num_groups, eps=module.eps), gradient)


@register(
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
    shapes=lambda module: _both((module.num_features,)),
)
def instance_norm(module: nn.InstanceNorm2d, inputs: Tensor, gradient: Tensor) -> dict[str, Contribution]:
    return _per_channel(F.instance_norm(inputs, eps=module.eps), gradient)


@register(nn.LayerNorm, shapes=lambda module: _both(tuple(module.normalized_shape)))
def layer_norm(module: nn.LayerNorm, inputs: Tensor, gradient: Tensor) -> dict[str, Contribution]:
    return _per_element(F.layer_norm(inputs, module.normalized_shape, eps=module.eps), gradient, module)


@register(nn.RMSNorm, shapes=lambda module: {"weight": tuple(module.normalized_shape)})  # it adds no bias
def rms_norm(module: nn.RMSNorm, inputs: Tensor, gradient: Tensor) -> dict[str, Contribution]:
    return _per_element(F.rms_norm(inputs, module.normalized_shape, eps=module.eps), gradient, module)


def _per_channel(normalised: Tensor, gradient: Tensor) -> dict[str, Contribution]:
    """∂γ and ∂β summed over space: (rows, channels, …) → (rows, channels)."""
    space = tuple(range(2, gradient.dim()))
    scale = normalised.mul_(gradient)
    return {
        "weight": Rows(scale.sum(space) if space else scale),
        "bias": Rows(gradient.sum(space) if space else gradient),
    }


def _per_element(
    normalised: Tensor, gradient: Tensor, module: nn.LayerNorm | nn.RMSNorm
) -> dict[str, Contribution]:
    """∂γ and ∂β summed over positions: (rows, …, *shape) → (rows, *shape)."""
    rows, shape = gradient.shape[0], tuple(module.normalized_shape)
    positions = (rows, gradient.numel() // max(1, rows * math.prod(shape)), *shape)
    return {
        "weight": Rows(normalised.mul_(gradient).reshape(positions).sum(1)),
        "bias": Rows(gradient.reshape(positions).sum(1)),
    }
