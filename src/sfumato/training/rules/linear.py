"""y = x Wᵀ + b, on vectors or on sequences of them."""

from __future__ import annotations

from torch import Tensor, nn

from sfumato.training.rules.registry import register
from sfumato.training.rules.terms import Contribution, Factors, Fold, Rows


def _shapes(module: nn.Linear) -> dict[str, tuple[int, ...]]:
    return {"weight": (module.out_features, module.in_features), "bias": (module.out_features,)}


@register(nn.Linear, shapes=_shapes)
def linear(module: nn.Linear, inputs: Tensor, gradient: Tensor) -> dict[str, Contribution]:
    """∂W = Σₚ gₚ xₚᵀ, ∂b = Σₚ gₚ over the positions p between the first and the last dimension."""
    rows = inputs.shape[0]
    gradients = gradient.reshape(rows, 1, -1, module.out_features)  # (rows, 1, positions, outputs)
    factors = inputs.reshape(rows, 1, -1, module.in_features)
    weight = Factors(factors, gradients, Fold(tuple(module.weight.shape)))
    return {"weight": weight, "bias": Rows(gradients.sum((1, 2)))}
