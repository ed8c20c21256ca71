"""Many small networks trained at once, each on its own share of the same rows, plainly or privately.

One hidden layer; the gradients are written out, so that K networks cost one batched product each way. The
private step clips each row's gradient exactly (a linear layer's is an outer product, whose norm is a product of
norms), and is the twin of `training`'s step for such networks: a test holds the two against each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from sfumato import randomness
from sfumato.randomness import Sampler


class Weights(NamedTuple):
    """Stacked weights of K networks."""

    first: Tensor  # (networks, inputs, hidden)
    first_bias: Tensor  # (networks, 1, hidden)
    second: Tensor  # (networks, hidden, classes)
    second_bias: Tensor  # (networks, 1, classes)

    @classmethod
    def drawn(cls, networks: int, inputs: int, hidden: int, classes: int, *, seed: int) -> Weights:
        """Initial weights, public, another draw for each network."""
        source = randomness.public_torch_generator(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=source) * (2 / shape[1]) ** 0.5

        return cls(
            normal(networks, inputs, hidden),
            torch.zeros(networks, 1, hidden),
            normal(networks, hidden, classes),
            torch.zeros(networks, 1, classes),
        )

    def copies(self, networks: int) -> Weights:
        """The first network, so many times."""
        return Weights(*(part[:1].repeat(networks, 1, 1) for part in self))


@dataclass(frozen=True, kw_only=True)
class PrivateStep:
    """Clip each row at C, add noise of σC to the sum, divide by the declared batch."""

    clip_norm: float
    noise_multiplier: float
    expected_batch: float


def logits(weights: Weights, inputs: Tensor) -> Tensor:
    """(networks, rows, classes)."""
    return torch.relu(inputs @ weights.first + weights.first_bias) @ weights.second + weights.second_bias


def losses(weights: Weights, inputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of each row under each network, (networks, rows)."""
    return -F.log_softmax(logits(weights, inputs), -1).gather(
        2, targets.expand(len(weights.first), -1)[..., None]
    )[..., 0]


def gradients(
    weights: Weights, inputs: Tensor, targets: Tensor, members: Tensor, clip_norm: float | None = None
) -> Weights:
    """Σ over each network's members (networks, rows) of the gradients of their losses, clipped if so asked."""
    hidden = torch.relu(inputs @ weights.first + weights.first_bias)
    out = F.softmax(hidden @ weights.second + weights.second_bias, -1)
    out.scatter_add_(2, targets.expand(len(hidden), -1)[..., None], torch.full((*out.shape[:2], 1), -1.0))
    back = (out @ weights.second.mT) * (hidden > 0)
    share = members
    if clip_norm is not None:
        squares = _squares(out) * (_squares(hidden) + 1) + _squares(back) * (_squares(inputs) + 1)
        share = members * (clip_norm / squares.sqrt().clamp(min=1e-12)).clamp(max=1.0)
    out, back = out * share[..., None], back * share[..., None]
    return Weights(inputs.mT @ back, back.sum(1, keepdim=True), hidden.mT @ out, out.sum(1, keepdim=True))


def fit(
    weights: Weights,
    inputs: Tensor,
    targets: Tensor,
    members: Tensor,
    *,
    steps: int,
    learning_rate: float,
    batch: int,
    momentum: float = 0.9,
    seed: int = 0,
) -> Weights:
    """Plain training; all networks meet the rows in one order and skip those that are not theirs."""
    source = randomness.public_torch_generator(seed)
    velocity = Weights(*(torch.zeros_like(part) for part in weights))
    for _ in range(steps):
        rows = torch.randint(len(inputs), (batch,), generator=source)
        chosen = members[:, rows]
        slopes = gradients(weights, inputs[rows], targets[rows], chosen)
        count = chosen.sum(1).clamp(min=1.0)[:, None, None]
        velocity = Weights(*(momentum * v + g / count for v, g in zip(velocity, slopes, strict=True)))
        weights = Weights(*(w - learning_rate * v for w, v in zip(weights, velocity, strict=True)))
    return weights


def fit_privately(
    weights: Weights,
    inputs: Tensor,
    targets: Tensor,
    members: Tensor,
    step: PrivateStep,
    sampler: Sampler,
    *,
    steps: int,
    learning_rate: float,
    sample_rate: float = 1.0,
) -> Weights:
    """DP-SGD; each network draws its own Poisson sample and its own noise."""
    for _ in range(steps):
        chosen = members if sample_rate == 1 else members * _coins(members, sample_rate, sampler)
        slopes = gradients(weights, inputs, targets, chosen, step.clip_norm)
        moves = (_noised(slope, step, sampler) for slope in slopes)
        weights = Weights(*(w - learning_rate * move for w, move in zip(weights, moves, strict=True)))
    return weights


def _noised(slope: Tensor, step: PrivateStep, sampler: Sampler) -> Tensor:
    noise = torch.from_numpy(sampler.normal(slope.numel()).astype(np.float32)).view(slope.shape)
    return (slope + step.clip_norm * step.noise_multiplier * noise) / step.expected_batch


def _coins(members: Tensor, rate: float, sampler: Sampler) -> Tensor:
    return torch.from_numpy(sampler.bernoulli(rate, members.numel()).astype(np.float32)).view(members.shape)


def _squares(values: Tensor) -> Tensor:
    return values.square().sum(-1)
