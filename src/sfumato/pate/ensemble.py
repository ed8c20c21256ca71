"""Many models of one kind trained at once: their parameters are stacked, and one batched pass serves them all.

Model k learns from the rows of shard k and from nothing else: batches are cut by public positions in the
shards, shapes are public, and no sum runs over models. The outcome for one model is the same, bit for bit,
whatever the other shards hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional as F

from sfumato import _validate, randomness
from sfumato.pate.shards import NO_ROW, Integers

Parameters = dict[str, Tensor]  # each (models, …)
_CHUNK = 1 << 24  # activations held at a time while voting
MakeModel = Callable[[int], nn.Module]


@dataclass(frozen=True, kw_only=True)
class EnsembleFit:
    """How every model is trained: gradient steps on batches of its own shard."""

    epochs: int = 40
    batch: int = 32
    learning_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 0.0  # towards the first weights
    seed: int = 0  # of the order of the positions, which is public

    def __post_init__(self) -> None:
        for name in ("epochs", "batch"):
            _validate.integer(name, getattr(self, name), least=1)
        _validate.positive("learning_rate", self.learning_rate)
        _validate.non_negative("momentum", self.momentum)
        _validate.non_negative("weight_decay", self.weight_decay)
        _validate.integer("seed", self.seed)


@dataclass(frozen=True, kw_only=True)
class Ensemble:
    """Stacked models."""

    template: nn.Module
    parameters: Parameters

    def logits(self, inputs: Tensor) -> Tensor:
        """(models, rows, classes)."""
        return _forward_all(self.template, self.parameters, inputs)

    def votes(self, inputs: Tensor) -> Tensor:
        """The class each model names for each row: (models, rows)."""
        models = len(next(iter(self.parameters.values())))
        rows = max(1, _CHUNK // (models * max(1, inputs[0].numel())))
        with torch.no_grad():
            return torch.cat([self.logits(part).argmax(2) for part in torch.split(inputs, rows)], dim=1)


def stack(models: Sequence[nn.Module]) -> Ensemble:
    """Models of one kind, without buffers, as one."""
    parameters, _ = stack_module_state(list(models))
    return Ensemble(template=models[0], parameters={name: value.detach() for name, value in parameters.items()})


def fit(ensemble: Ensemble, inputs: Tensor, targets: Tensor, table: Integers, how: EnsembleFit) -> Ensemble:
    """Train model k on the rows table[k]; momentum, and decay towards the first weights."""
    rows = torch.from_numpy(table)  # (models, capacity)
    start = ensemble.parameters
    parameters = {name: value.clone() for name, value in start.items()}
    velocity = {name: torch.zeros_like(value) for name, value in start.items()}
    slopes_of = vmap(grad(_loss(ensemble.template)))
    source = randomness.public_torch_generator(how.seed)
    for _ in range(how.epochs):
        for places in torch.split(torch.randperm(rows.shape[1], generator=source), how.batch):
            batch = rows[:, places]
            present, at = batch != NO_ROW, batch.clamp(min=0)
            own = inputs[at]
            own[~present] = 0.0  # another shard's row stands there: times 0 it would still hand on a NaN
            slopes = slopes_of(parameters, own, targets[at], present.float())
            for name, value in parameters.items():
                slope = slopes[name]
                if how.weight_decay:
                    slope = slope + how.weight_decay * (value - start[name])
                velocity[name].mul_(how.momentum).add_(slope)
                value.sub_(velocity[name], alpha=how.learning_rate)
    return Ensemble(template=ensemble.template, parameters=parameters)


def _loss(template: nn.Module) -> Callable[[Parameters, Tensor, Tensor, Tensor], Tensor]:
    def loss(parameters: Parameters, inputs: Tensor, targets: Tensor, present: Tensor) -> Tensor:
        logits: Tensor = functional_call(template, parameters, (inputs,))
        each = F.cross_entropy(logits, targets, reduction="none")
        return (each * present).sum() / present.sum().clamp(min=1.0)

    return loss


def _forward_all(template: nn.Module, parameters: Parameters, inputs: Tensor) -> Tensor:
    def forward(own: Parameters) -> Tensor:
        logits: Tensor = functional_call(template, own, (inputs,))
        return logits

    result: Tensor = vmap(forward)(parameters)
    return result
