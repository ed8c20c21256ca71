"""Many models of one kind trained at once: their parameters are stacked, and one batched pass serves them all.

Model k learns from the rows of shard k and from nothing else: batches are cut by public positions in the
shards, shapes are public, and no sum runs over models. The outcome for one model is the same, bit for bit,
whatever the other shards hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from sfumato import _validate, randomness
from sfumato.pate.shards import Integers
from sfumato.pate.stacked import Method, Parameters, Shards, any_method
from sfumato.pate.stacked_cnn import cnn_method, is_stackable
from sfumato.pate.stacked_dense import dense_layers, dense_method

_CACHED = 1 << 21  # parameters and inputs of models trained together
_CACHED_ROWS = 32  # images of convolutional models trained together, in one step
_CHUNK = 1 << 24  # activations held at a time while voting


@dataclass(frozen=True, kw_only=True)
class EnsembleFit:
    """How every model is trained: gradient steps on batches of its own shard.

    Args:
        epochs: How often each row is used.
        batch: Rows in a step.
        learning_rate: The step size.
        momentum: The momentum of SGD.
        weight_decay: The weight decay.
        seed: Fixes first weights and order.

    >>> EnsembleFit(epochs=10).batch
    32
    """

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
    """Many models of one architecture, stacked, so that they learn and answer at once.

    Attributes:
        template: The architecture.
        parameters: Each parameter of all models, (models, …).
    """

    template: nn.Module
    parameters: Parameters

    def logits(self, inputs: Tensor) -> Tensor:
        """(models, rows, classes)."""
        return _forward_all(self.template, self.parameters, inputs)

    def votes(self, inputs: Tensor) -> Tensor:
        """The class each model names for each row: (models, rows)."""
        models = len(next(iter(self.parameters.values())))
        rows = max(1, _CHUNK // (models * max(1, inputs.shape[1:].numel())))
        with torch.no_grad():
            return torch.cat([self.logits(part).argmax(2) for part in torch.split(inputs, rows)], dim=1)


def stack(models: Sequence[nn.Module]) -> Ensemble:
    """Models of one kind, without buffers, as one."""
    parameters, _ = stack_module_state(list(models))
    return Ensemble(template=models[0], parameters={name: value.detach() for name, value in parameters.items()})


def fit(ensemble: Ensemble, inputs: Tensor, targets: Tensor, table: Integers, how: EnsembleFit) -> Ensemble:
    """Train model k on the rows table[k]; momentum, and decay towards the first weights."""
    together = _models_together(ensemble, inputs.shape[1:].numel() * table.shape[1], how)
    parts = []
    for first in range(0, len(table), together):
        some = slice(first, first + together)
        start = {name: value[some] for name, value in ensemble.parameters.items()}
        shards = Shards.of(inputs, targets, table[some])
        parts.append(_fit_together(_method(ensemble.template, start, shards, how), table.shape[1], how))
    joined = {name: torch.cat([part[name] for part in parts]) for name in ensemble.parameters}
    return Ensemble(template=ensemble.template, parameters=joined)


def _models_together(ensemble: Ensemble, shard: int, how: EnsembleFit) -> int:
    """As many as stay near the core in its caches: moving numbers takes longer than arithmetic on them.

    `shard` is how many numbers one model learns from.
    """
    if is_stackable(ensemble.template):
        return max(1, _CACHED_ROWS // how.batch)
    each = sum(value[0].numel() for value in ensemble.parameters.values())
    return max(1, _CACHED // (each + shard))


def _method(template: nn.Module, start: Parameters, shards: Shards, how: EnsembleFit) -> Method:
    layers = dense_layers(template)
    if layers is not None:
        return dense_method(layers, start, shards, epochs=how.epochs)
    return cnn_method(start, shards) if is_stackable(template) else any_method(template, start, shards)


def _fit_together(method: Method, capacity: int, how: EnsembleFit) -> Parameters:
    start, values = method.values, {name: value.clone() for name, value in method.values.items()}
    velocity = {name: torch.zeros_like(value) for name, value in values.items()}
    source = randomness.public_torch_generator(how.seed)
    for _ in range(how.epochs):
        for places in torch.split(torch.randperm(capacity, generator=source), how.batch):
            method.push(values, velocity, how.momentum, places)
            for name, value in values.items():
                if how.weight_decay:
                    velocity[name].add_(value - start[name], alpha=how.weight_decay)
                value.sub_(velocity[name], alpha=how.learning_rate)
    return method.finish(values)


def _forward_all(template: nn.Module, parameters: Parameters, inputs: Tensor) -> Tensor:
    def forward(own: Parameters) -> Tensor:
        logits: Tensor = functional_call(template, own, (inputs,))
        return logits

    result: Tensor = vmap(forward)(parameters)
    return result
