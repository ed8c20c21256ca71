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
from sfumato.models import MLP
from sfumato.pate.shards import NO_ROW, Integers

Parameters = dict[str, Tensor]  # each (models, …)
_CACHED = 1 << 20  # parameters of models trained together
_CHUNK = 1 << 24  # activations held at a time while voting
Push = Callable[[Parameters, Parameters, float, Tensor, Tensor, Tensor], None]


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
    """Train model k on the rows table[k]; momentum, and decay towards the first weights.

    As many models at a time as stay in a core's cache with their gradients and momenta: for larger stacks
    moving parameters would take longer than the arithmetic.
    """
    rows = torch.from_numpy(table)  # (models, capacity)
    each = sum(value[0].numel() for value in ensemble.parameters.values())
    models = max(1, _CACHED // each)
    parts = [
        _fit_together(ensemble.template, _some(ensemble.parameters, part), inputs, targets, rows[part], how)
        for part in torch.split(torch.arange(len(rows)), models)
    ]
    joined = {name: torch.cat([part[name] for part in parts]) for name in ensemble.parameters}
    return Ensemble(template=ensemble.template, parameters=joined)


def _some(parameters: Parameters, models: Tensor) -> Parameters:
    return {name: value[models] for name, value in parameters.items()}


def _fit_together(
    template: nn.Module, start: Parameters, inputs: Tensor, targets: Tensor, rows: Tensor, how: EnsembleFit
) -> Parameters:
    parameters = {name: value.clone() for name, value in start.items()}
    velocity = {name: torch.zeros_like(value) for name, value in start.items()}
    push = _dense_push(template) or _any_push(template)
    source = randomness.public_torch_generator(how.seed)
    for _ in range(how.epochs):
        for places in torch.split(torch.randperm(rows.shape[1], generator=source), how.batch):
            batch = rows[:, places]
            present, at = batch != NO_ROW, batch.clamp(min=0)
            own = inputs[at]
            own[~present] = 0.0  # another shard's row stands there: times 0 it would still hand on a NaN
            push(parameters, velocity, how.momentum, own, targets[at], present.float())
            for name, value in parameters.items():
                if how.weight_decay:
                    velocity[name].add_(value - start[name], alpha=how.weight_decay)
                value.sub_(velocity[name], alpha=how.learning_rate)
    return parameters


def _any_push(template: nn.Module) -> Push:
    """velocity ← momentum·velocity + gradient, by automatic differentiation."""
    slopes_of = vmap(grad(_loss(template)))

    def push(
        parameters: Parameters,
        velocity: Parameters,
        momentum: float,
        inputs: Tensor,
        targets: Tensor,
        present: Tensor,
    ) -> None:
        slopes = slopes_of(parameters, inputs, targets, present)
        for name, slope in slopes.items():
            velocity[name].mul_(momentum).add_(slope)

    return push


def _dense_push(template: nn.Module) -> Push | None:
    """The same for linear layers with ReLU between them: a gradient goes into its momentum as it is made."""
    layers = dense_layers(template)
    if layers is None:
        return None

    def push(
        parameters: Parameters,
        velocity: Parameters,
        momentum: float,
        inputs: Tensor,
        targets: Tensor,
        present: Tensor,
    ) -> None:
        values, last = [inputs.flatten(2)], len(layers) - 1  # (models, rows, features)
        for number, (weight, bias) in enumerate(layers):
            out = torch.baddbmm(parameters[bias][:, None], values[-1], parameters[weight].mT)
            values.append(out.relu_() if number < last else torch.softmax(out, 2))
        back = values.pop()
        back.scatter_add_(2, targets[..., None], torch.full((*targets.shape, 1), -1.0))
        back *= (present / present.sum(1, keepdim=True).clamp(min=1.0))[..., None]
        for number in range(last, -1, -1):
            weight, bias = layers[number]
            below = values[number]
            velocity[weight].baddbmm_(back.mT, below, beta=momentum)
            velocity[bias].mul_(momentum).add_(back.sum(1))
            if number:
                back = torch.bmm(back, parameters[weight]) * (below > 0)

    return push


def dense_layers(template: nn.Module) -> list[tuple[str, str]] | None:
    """Names of weights and biases of a plain stack of linear layers and ReLUs, in order; None for others."""
    if isinstance(template, nn.Linear):
        return [("weight", "bias")] if template.bias is not None else None
    if not isinstance(template, MLP):
        return None
    named = enumerate(template.layers)
    places = [number for number, layer in named if isinstance(layer, nn.Linear)]
    return [(f"layers.{number}.weight", f"layers.{number}.bias") for number in places]


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
