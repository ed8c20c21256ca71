"""Teachers on disjoint shards, trained as one ensemble, on one process or on several.

Parameters of all models are stacked, and one batched pass serves those that are linear layers. Model k learns
from the rows of shard k and from nothing else: batches are cut by public positions in the shards, shapes are
public, and no sum runs over models. The outcome for one model is the same, bit for bit, for any content of the
other shards hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F

from sfumato import _validate, models, randomness
from sfumato.errors import InvalidInput
from sfumato.models import MLP
from sfumato.pate.votes import NO_ROW, Integers

_CACHED = (
    1 << 21
)  # parameters and inputs of models trained together: moving numbers takes longer than arithmetic
_CHUNK = 1 << 24  # activations held at a time while voting
Parameters = dict[str, Tensor]  # each (models, …)
# (values, velocity, momentum, places): velocity ← momentum·velocity + gradient of the rows at these places
Push = Callable[[Parameters, Parameters, float, Tensor], None]


@dataclass(frozen=True, kw_only=True)
class EnsembleFit:
    """How every model is trained: gradient steps on batches of its own shard.

    >>> EnsembleFit(epochs=10).batch
    32
    """

    epochs: int = 40
    batch: int = 32
    learning_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 0.0  # towards the first weights
    seed: int = 0  # of first weights and of the order of positions, which are public

    def __post_init__(self) -> None:
        for name in ("epochs", "batch"):
            _validate.integer(name, getattr(self, name), least=1)
        _validate.positive("learning_rate", self.learning_rate)
        _validate.non_negative("momentum", self.momentum)
        _validate.non_negative("weight_decay", self.weight_decay)
        _validate.integer("seed", self.seed)


FITS = {
    # A head starts from the public one: a few long steps on whole shards, pulled back to where it began.
    "head": EnsembleFit(epochs=40, batch=1 << 16, learning_rate=8.0, weight_decay=1e-4),
    "mlp": EnsembleFit(epochs=40, batch=32, learning_rate=0.05),
    # Longer steps lose many a teacher of 200 images.
    "cnn": EnsembleFit(epochs=40, batch=8, learning_rate=0.005),
}
KINDS = tuple(FITS)


@dataclass(frozen=True, kw_only=True)
class TeacherConfig:
    """The public settings of every teacher.

    Args:
        kind: "head", a linear layer that starts from a public one, for features of a public prior; "mlp",
            one hidden layer of 128, for square images; or "cnn", the small convolutional net of
            `sfumato.models`.
        fit: How it learns.

    >>> TeacherConfig.of("mlp").kind
    'mlp'
    """

    kind: str = "head"
    fit: EnsembleFit = field(default_factory=lambda: FITS["head"])

    def __post_init__(self) -> None:
        _validate.one_of("kind", self.kind, KINDS)

    @classmethod
    def of(cls, kind: str) -> TeacherConfig:
        """Return the kind with settings that suit it."""
        return cls(kind=kind, fit=FITS[_validate.one_of("kind", kind, KINDS)])


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """The processes that share the teachers: teacher k learns and votes on process k modulo `count`.

    >>> Ranks(rank=1, count=2).mine(5).tolist()
    [1, 3]
    """

    rank: int = 0
    count: int = 1

    @classmethod
    def of_world(cls) -> Ranks:
        """Return all ranks of the process group that torchrun set up."""
        if not distributed.is_initialized():
            raise InvalidInput(
                "expected an initialised process group; call torch.distributed.init_process_group('gloo') first"
            )
        return cls(rank=distributed.get_rank(), count=distributed.get_world_size())

    def mine(self, teachers: int) -> Integers:
        return np.arange(self.rank, teachers, self.count)

    def share_key(self, key: bytes) -> bytes:
        """Return the key of rank 0 on every rank: all must agree on whose records are whose."""
        if self.count == 1:
            return key
        values = torch.tensor(list(key), dtype=torch.uint8)
        distributed.broadcast(values, src=0)
        return bytes(values.tolist())

    def gather(self, votes: Tensor, teachers: int) -> Integers:
        """Return all teachers' votes (teachers, queries) on every rank, from those of this rank's own."""
        if self.count == 1:
            return votes.numpy()
        room = torch.full((-(-teachers // self.count), votes.shape[1]), -1, dtype=torch.int64)
        room[: len(votes)] = votes
        parts = [torch.empty_like(room) for _ in range(self.count)]
        distributed.all_gather(parts, room)
        return torch.stack(parts, dim=1).flatten(0, 1)[:teachers].numpy()  # teacher k was row k // count


@dataclass(frozen=True, kw_only=True)
class Ensemble:
    """Many models of one architecture, stacked, so that they learn and answer at once."""

    template: nn.Module  # the architecture
    parameters: Parameters  # each parameter of all models, (models, …)

    def logits(self, inputs: Tensor) -> Tensor:
        """(models, rows, classes)."""

        def forward(own: Parameters) -> Tensor:
            logits: Tensor = functional_call(self.template, own, (inputs,))
            return logits

        result: Tensor = vmap(forward)(self.parameters)
        return result

    def votes(self, inputs: Tensor) -> Tensor:
        """Return the class each model names for each row: (models, rows)."""
        count = len(next(iter(self.parameters.values())))
        rows = max(1, _CHUNK // (count * max(1, inputs.shape[1:].numel())))
        with torch.no_grad():
            return torch.cat([self.logits(part).argmax(2) for part in torch.split(inputs, rows)], dim=1)


def train_teachers(
    inputs: Tensor,
    targets: Tensor,
    table: Integers,
    config: TeacherConfig,
    *,
    classes: int,
    start: nn.Linear | None = None,
) -> Ensemble:
    """Train one teacher for each row of the table of shards, all from the same public first weights.

    Args:
        inputs: (rows, …), private.
        targets: (rows,).
        table: The table of `shard_table`.
        config: The teachers' kind and settings.
        classes: How many classes there are.
        start: The public head to start from, for the kind "head".

    Returns:
        The teachers.

    >>> from sfumato.pate import shard_table
    >>> table = shard_table(np.array([0, 1, 0, 1]), teachers=2, capacity=3)
    >>> config = TeacherConfig(kind="mlp", fit=EnsembleFit(epochs=1))
    >>> teachers = train_teachers(torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 1, 0]), table, config, classes=2)
    >>> teachers.votes(torch.rand(3, 1, 8, 8)).shape
    torch.Size([2, 3])
    """
    if config.kind == "head" and start is None:
        raise InvalidInput("expected start, a public linear head on the features, for kind='head', got none")
    model = start or models.build(
        config.kind,
        classes=classes,
        in_channels=inputs.shape[1],
        side=inputs.shape[-1],
        seed=config.fit.seed,
    )
    return fit(stack([model] * len(table)), inputs, targets, table, config.fit)


def vote(
    inputs: Tensor,
    targets: Tensor,
    table: Integers,
    queries: Tensor,
    config: TeacherConfig,
    *,
    classes: int,
    start: nn.Linear | None = None,
    ranks: Ranks | None = None,
) -> Integers:
    """Train the teachers and let each vote on each query; (teachers, queries) of class numbers.

    With several ranks each trains and asks its own teachers only, and needs only their rows.

    Args:
        inputs: (rows, …), private.
        targets: (rows,).
        table: The table of `shard_table`.
        queries: (queries, …), public.
        config: The teachers' kind and settings.
        classes: How many classes there are.
        start: The public head to start from, for the kind "head".
        ranks: The processes that share the teachers.

    Returns:
        The votes.
    """
    ranks = Ranks() if ranks is None else ranks
    own = table[ranks.mine(len(table))]
    trained = train_teachers(inputs, targets, own, config, classes=classes, start=start)
    return ranks.gather(trained.votes(queries), len(table))


# Training of a stack


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

    def weights(self, places: Tensor) -> Tensor:
        """Return the weight of each row in the mean over those that are there, (models, rows)."""
        present = self.present[:, places]
        return present / present.sum(1, keepdim=True).clamp(min=1.0)

    def errors(self, logits: Tensor, places: Tensor) -> Tensor:
        """Return the gradient of the mean cross-entropy by the logits (models, rows, classes), overwritten."""
        wrong = torch.softmax(logits, 2, out=logits)
        targets = self.targets[:, places, None]
        wrong.scatter_add_(2, targets, wrong.new_full((), -1.0).expand(targets.shape))
        return wrong.mul_(self.weights(places)[..., None])


@dataclass(frozen=True, kw_only=True)
class Method:
    """Steps of one stack; `values` may have a layout of their own, and `finish` gives parameters."""

    values: Parameters
    push: Push
    finish: Callable[[Parameters], Parameters] = lambda values: values


def stack(models: Sequence[nn.Module]) -> Ensemble:
    """Stack models of one kind, without buffers."""
    parameters, _ = stack_module_state(list(models))
    return Ensemble(template=models[0], parameters={name: value.detach() for name, value in parameters.items()})


def fit(ensemble: Ensemble, inputs: Tensor, targets: Tensor, table: Integers, how: EnsembleFit) -> Ensemble:
    """Train model k on the rows table[k]; momentum, and decay towards the first weights."""
    shard = inputs.shape[1:].numel() * table.shape[1]
    each = sum(value[0].numel() for value in ensemble.parameters.values())
    together = max(1, _CACHED // (each + shard))
    layers, parts = dense_layers(ensemble.template), []
    for first in range(0, len(table), together):
        some = slice(first, first + together)
        start = {name: value[some] for name, value in ensemble.parameters.items()}
        shards = Shards.of(inputs, targets, table[some])
        if layers is None:
            method = _one_by_one(ensemble.template, start, shards)
        else:
            method = _dense(layers, start, shards, epochs=how.epochs)
        parts.append(_fit_together(method, table.shape[1], how))
    joined = {name: torch.cat([part[name] for part in parts]) for name in ensemble.parameters}
    return Ensemble(template=ensemble.template, parameters=joined)


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


def _one_by_one(template: nn.Module, start: Parameters, shards: Shards) -> Method:
    """Steps of any model, by automatic differentiation, one model after the other."""

    def push(values: Parameters, velocity: Parameters, momentum: float, places: Tensor) -> None:
        weights = shards.weights(places)
        for model, counted in enumerate(weights):
            own = {name: value[model].detach().requires_grad_() for name, value in values.items()}
            logits = functional_call(template, own, (shards.inputs[model, places],))
            losses = F.cross_entropy(logits, shards.targets[model, places], reduction="none")
            slopes = torch.autograd.grad(losses @ counted, list(own.values()))
            for name, slope in zip(own, slopes, strict=True):
                velocity[name][model].mul_(momentum).add_(slope)

    return Method(values=start, push=push)


# Linear layers with ReLU between them, differentiated by hand: gradients go straight into the momenta


@dataclass(frozen=True, kw_only=True)
class _First:
    """The first layer: from places to outputs, and from their errors to the value kept in place of weights."""

    value: Tensor
    forward: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]  # value, bias, places → outputs, input
    push: Callable[[Tensor, float, Tensor, Tensor], None]  # velocity, momentum, errors, that input
    weights: Callable[[Tensor], Tensor]  # of the value


def dense_layers(template: nn.Module) -> list[tuple[str, str]] | None:
    """Return names of weights and biases of a stack of linear layers and ReLUs; None for other models."""
    if isinstance(template, nn.Linear):
        return [("weight", "bias")] if template.bias is not None else None
    if not isinstance(template, MLP):
        return None
    named = enumerate(template.layers)
    places = [number for number, layer in named if isinstance(layer, nn.Linear)]
    return [(f"layers.{number}.weight", f"layers.{number}.bias") for number in places]


def _dense(layers: list[tuple[str, str]], start: Parameters, shards: Shards, *, epochs: int) -> Method:
    """Steps of these layers, by the way of keeping the first one that multiplies less."""
    weight, first_bias = layers[0]
    width, inputs = start[weight].shape[1:]
    few = coefficients_pay(shards.present.shape[1], inputs, width, epochs)
    first = (_by_coefficients if few else _by_weights)(start[weight], shards.inputs.flatten(2))

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
    """Keep the weights W₀ + DᵀX as coefficients D (rows, width) of the shard's own rows X.

    With XXᵀ at hand a step needs neither W nor its gradient: for shards with fewer rows than there are inputs
    that is less to multiply and less to move, and the same weights but for rounding.
    """
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
