"""How a unit's gradient is bounded before it is summed: values, not subclasses.

Each variant turns norms (an upper bound for every unit and layer) into coefficients, and states the
sensitivity: by how much, in L2 norm, one unit can change the sum of coefficient · gradient.

>>> import torch
>>> Flat(norm=1.0).coefficients(torch.tensor([[0.5], [4.0]])).flatten().tolist()
[1.0, 0.24999994039535522]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from sfumato import _validate
from sfumato.errors import InvalidInput

SMALLEST_NORM = 1e-10  # far above what float32 loses by underflow in a gradient's squares
_SHRINK = 1.0 - 2.0**-22  # covers the rounding of a division and a multiplication in float32


def _clip_norm(value: float) -> float:
    """A bound ≥ 1e-10, or ∞ for no bound."""
    if isinstance(value, float) and math.isinf(value) and value > 0:
        return value
    number = _validate.positive("norm", value, remedy="the clipping norm bounds each unit's gradient")
    if number < SMALLEST_NORM:
        raise InvalidInput(f"expected norm >= {SMALLEST_NORM}, got norm={value!r}; rescale the loss instead")
    return number


def _bounded(norms: Tensor, bounds: Tensor) -> Tensor:
    """min(1, bound / norm), rounded so that coefficient · norm ≤ bound."""
    return (bounds / norms * _SHRINK).clamp(max=1.0)


def modules_of(names: Sequence[str]) -> list[list[str]]:
    """Parameter names grouped by the module that owns them: weight and bias are one layer.

    >>> modules_of(["conv.weight", "conv.bias", "head.weight"])
    [['conv.weight', 'conv.bias'], ['head.weight']]
    """
    layers: dict[str, list[str]] = {}
    for name in names:
        layers.setdefault(name.rpartition(".")[0], []).append(name)
    return list(layers.values())


@dataclass(frozen=True, kw_only=True)
class Flat:
    """g · min(1, C/‖g‖) over all parameters together (Abadi et al. 2016, algorithm 1).

    *Guarantees*: norm ≤ C for every unit; `norm=inf` leaves the gradient as it is.

    Args:
        norm: C; ∞ for plain sums.

    >>> import torch
    >>> kept = Flat(norm=1.0).coefficients(torch.tensor([[4.0], [0.5]]))
    >>> [round(value, 4) for value in kept.flatten().tolist()]
    [0.25, 1.0]
    """

    norm: float

    def __post_init__(self) -> None:
        _clip_norm(self.norm)

    @property
    def sensitivity(self) -> float:
        return self.norm

    def layers(self, names: Sequence[str]) -> list[list[str]]:
        return [list(names)]

    def floors(self, layers: int) -> list[float]:
        return [self.norm]

    def coefficients(self, norms: Tensor) -> Tensor:
        return _bounded(norms, norms.new_tensor(self.norm))


@dataclass(frozen=True, kw_only=True)
class PerLayer:
    """Each layer's part clipped on its own: g_l · min(1, C_l/‖g_l‖) (McMahan et al. 2018, section 4).

    *Guarantees*: ‖whole gradient‖ ≤ √Σ C_l².

    Args:
        norm: The total bound C, split equally: C_l = C/√L.
        norms: The C_l themselves, in the order of the layers.

    >>> PerLayer(norms=(1.0, 2.0)).norms
    (1.0, 2.0)
    """

    norm: float | None = None
    norms: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if (self.norm is None) == (not self.norms):
            raise InvalidInput(
                f"expected either norm or norms, got norm={self.norm!r}, norms={self.norms!r}; "
                "norm is a total to be split equally, norms has one bound for each layer"
            )
        for norm in self.norms or (self.norm,):
            _clip_norm(norm)  # type: ignore[arg-type]

    @property
    def sensitivity(self) -> float:
        return self.norm if self.norm is not None else math.hypot(*self.norms)

    def layers(self, names: Sequence[str]) -> list[list[str]]:
        return modules_of(names)

    def floors(self, layers: int) -> list[float]:
        if self.norm is not None:
            return [self.norm / math.sqrt(layers)] * layers
        if len(self.norms) != layers:
            raise InvalidInput(
                f"expected norms to have one bound for each of the {layers} layers, got norms={self.norms!r}"
            )
        return list(self.norms)

    def coefficients(self, norms: Tensor) -> Tensor:
        return _bounded(norms, norms.new_tensor(self.floors(norms.shape[1])))


@dataclass(frozen=True, kw_only=True)
class Automatic:
    """g · C/(‖g‖ + γ): every unit weighs about the same (Bu et al. 2023, AUTO-S).

    *Guarantees*: norm ≤ C for every unit.

    Args:
        norm: C.
        gamma: γ, which keeps units of tiny gradients from being scaled up without end.

    >>> import torch
    >>> round(Automatic(norm=1.0).coefficients(torch.tensor([[0.99]])).item(), 4)
    1.0
    """

    norm: float
    gamma: float = 0.01

    def __post_init__(self) -> None:
        if not math.isfinite(_clip_norm(self.norm)):
            raise InvalidInput(
                f"expected norm to be finite, got norm={self.norm!r}; use Flat to leave gradients"
            )
        _validate.positive("gamma", self.gamma, remedy="gamma keeps small gradients from being blown up")
        if self.gamma < SMALLEST_NORM:
            raise InvalidInput(f"expected gamma >= {SMALLEST_NORM}, got gamma={self.gamma!r}; 0.01 is usual")

    @property
    def sensitivity(self) -> float:
        return self.norm

    def layers(self, names: Sequence[str]) -> list[list[str]]:
        return [list(names)]

    def floors(self, layers: int) -> list[float]:
        return [self.gamma]

    def coefficients(self, norms: Tensor) -> Tensor:
        return self.norm / (norms + self.gamma) * _SHRINK


Clipping: TypeAlias = Flat | PerLayer | Automatic
