"""The ordinary, non-private training loop, and evaluation.

Nothing here protects anyone: a model fitted to private rows, its history and its figures are as private as the
rows.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato import _validate, randomness
from sfumato.datasets import Dataset
from sfumato.errors import InvalidInput

OPTIMIZERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
_EVALUATION_BATCH = 1024


@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """How to fit: plain stochastic gradients on shuffled batches."""

    epochs: int = 10
    batch_size: int = 64
    optimizer: str = "sgd"
    learning_rate: float = 0.05
    momentum: float = 0.9  # of sgd only; adam and adamw keep their own
    weight_decay: float = 0.0
    seed: int = 0  # of the shuffling, which is public

    def __post_init__(self) -> None:
        _validate.integer("epochs", self.epochs)
        _validate.integer("batch_size", self.batch_size, least=1)
        _validate.one_of("optimizer", self.optimizer, OPTIMIZERS)
        _validate.positive("learning_rate", self.learning_rate)
        _validate.non_negative("momentum", self.momentum)
        _validate.non_negative("weight_decay", self.weight_decay)
        _validate.integer("seed", self.seed)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Share of right answers, and mean cross-entropy in nats."""

    accuracy: float
    loss: float


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """The figures of one pass over the rows."""

    number: int  # from 1
    loss: float  # mean over the rows as they were met, while the model changed
    seconds: float  # of the pass, without evaluation
    evaluation: Evaluation | None  # afterwards, if there were rows to evaluate on


def fit(
    model: nn.Module,
    dataset: Dataset,
    config: FitConfig | None = None,
    *,
    evaluate_on: Dataset | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    progress: bool = True,
) -> tuple[Epoch, ...]:
    """Fits the model in place, with cross-entropy, and returns each epoch's figures.

    The weights are laid out channels-last, in which convolutions and pools are fastest on a CPU. `progress`
    shows a bar with the time left on standard error, if that is a terminal.
    """
    config = config or FitConfig()
    _require_rows(dataset)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack it
    momentum = {"momentum": config.momentum} if config.optimizer == "sgd" else {}
    optimizer = OPTIMIZERS[config.optimizer](
        model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, **momentum
    )
    generator = randomness.public_torch_generator(config.seed)
    history: list[Epoch] = []
    with _bar(progress) as bar:
        task = bar.add_task("fitting", total=config.epochs * len(dataset))
        for number in range(1, config.epochs + 1):
            started = time.perf_counter()
            model.train()
            batches = _shuffled(dataset, config.batch_size, generator)
            loss = _one_pass(model, optimizer, batches, bar, task) / len(dataset)
            seconds = time.perf_counter() - started
            evaluation = evaluate(model, evaluate_on) if evaluate_on is not None else None
            history.append(Epoch(number=number, loss=loss, seconds=seconds, evaluation=evaluation))
            bar.update(task, description=f"epoch {number}/{config.epochs}")
            if on_epoch is not None:
                on_epoch(history[-1])
    return tuple(history)


def evaluate(model: nn.Module, dataset: Dataset, *, batch_size: int = _EVALUATION_BATCH) -> Evaluation:
    """Accuracy and loss over all rows, in batches; the model's mode is put back as it was."""
    _require_rows(dataset)
    was_training = model.training
    model.eval()
    right, loss = 0, 0.0
    try:
        with torch.inference_mode():
            for inputs, targets in _in_order(dataset, _validate.integer("batch_size", batch_size, least=1)):
                outputs, targets = _forward(model, inputs, targets)
                right += int((outputs.argmax(dim=1) == targets).sum())
                loss += float(F.cross_entropy(outputs, targets, reduction="sum"))
    finally:
        model.train(was_training)
    return Evaluation(accuracy=right / len(dataset), loss=loss / len(dataset))


def _one_pass(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterator[tuple[Tensor, Tensor]],
    bar: Progress,
    task: TaskID,
) -> float:
    """The sum of the losses of all rows."""
    total = 0.0
    for inputs, targets in batches:
        outputs, targets = _forward(model, inputs, targets)
        loss = F.cross_entropy(outputs, targets)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        total += loss.item() * len(targets)
        bar.advance(task, len(targets))
    return total


def _forward(model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    parameter = next(model.parameters(), None)
    device = parameter.device if parameter is not None else inputs.device
    if inputs.dim() == 4:  # (examples, channels, height, width)
        inputs = inputs.to(memory_format=torch.channels_last)
    return model(inputs.to(device)), targets.to(device)


def _shuffled(dataset: Dataset, batch_size: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    inputs, targets = dataset.tensors()
    for rows in torch.split(torch.randperm(len(dataset), generator=generator), batch_size):
        yield inputs[rows], targets[rows]


def _in_order(dataset: Dataset, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    inputs, targets = dataset.tensors()
    return zip(torch.split(inputs, batch_size), torch.split(targets, batch_size), strict=True)


def _require_rows(dataset: Dataset) -> None:
    if len(dataset) == 0:
        raise InvalidInput(
            f"expected {dataset.name} to have rows, got none; there is nothing to learn or count"
        )


def _bar(progress: bool) -> Progress:
    shown = progress and sys.stderr.isatty()
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=not shown)
