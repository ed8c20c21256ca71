"""The same net without privacy: the measure of the private recipe.

It starts from the same weights, learned from drawings, and everything in it is trained on the rows. The
result is as private as the rows.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from sfumato import models, randomness
from sfumato.datasets import Dataset
from sfumato.fitting import Evaluation, FitConfig, evaluate, fit
from sfumato.learn.classifier import RECIPE, Settings
from sfumato.learn.features import SHAPE, declared, fitted, recipe_for
from sfumato.models import PriorNet, load_prior
from sfumato.released import ModelCard, Predictor, Released, class_names
from sfumato.runs.folders import MODEL, RESULT
from sfumato.runs.results import PlainTraining
from sfumato.storage import RunFolder

EPOCHS = 4.0
_BATCH = 128
_RATE = 2e-3
_DECAY = 1e-4
_AVERAGING = 0.995  # of the weights, over the last steps
_DROPOUT = 0.3


@dataclass(frozen=True, kw_only=True)
class PlainlyTrained:
    """A network that may know its rows by heart, and how good it is on public images."""

    released: Released
    test: Evaluation | None
    seconds: float

    @property
    def predictor(self) -> Predictor:
        return Predictor.of(self.released)


def train(
    rows: Dataset,
    test: Dataset | None = None,
    *,
    model: str = RECIPE,
    settings: Settings | None = None,
    out: str | os.PathLike[str] | None = None,
) -> PlainlyTrained:
    """Train without privacy; the model goes to the private half of the folder."""
    started, told = time.perf_counter(), settings or Settings()
    if model == RECIPE:
        net = run(rows, seed=told.seed, **told.said("epochs", "batch", "learning_rate"))
        card = ModelCard(
            architecture=PriorNet.architecture,
            classes=class_names(rows),
            shape=SHAPE,
            settings={"answers": "head"},
        )
        released, test = Released(module=net, card=card), seen(test)
    else:
        released = _from_random_weights(model, rows, told)
    measured = None if test is None else evaluate(released.module, test)
    if out is not None:
        _write(RunFolder.make(out), released, measured)
    return PlainlyTrained(released=released, test=measured, seconds=time.perf_counter() - started)


def _from_random_weights(model: str, rows: Dataset, settings: Settings) -> Released:
    network = models.build(
        model,
        classes=rows.classes or 2,
        in_channels=rows.shape[0],
        side=rows.shape[-1],
        seed=settings.seed,
    )
    said = settings.said("learning_rate")
    if settings.epochs is not None:
        said["epochs"] = max(1, round(settings.epochs))
    if settings.batch is not None:
        said["batch_size"] = settings.batch
    fit(network, rows, FitConfig(seed=settings.seed, **said))
    return Released(module=network, card=ModelCard.of(rows, architecture=model))


def _write(folder: RunFolder, released: Released, measured: Evaluation | None) -> None:
    result = PlainTraining(
        test_accuracy=None if measured is None else measured.accuracy,
        test_loss=None if measured is None else measured.loss,
    )
    folder.write(MODEL, released.to_bytes(), private=True)
    folder.write_json(RESULT, result.to_json(), private=True)


def seen(test: Dataset | None) -> Dataset | None:
    """Test images as the net looks at them."""
    return None if test is None else fitted(test)


def run(
    rows: Dataset, *, epochs: float = EPOCHS, batch: int = _BATCH, learning_rate: float = _RATE, seed: int = 0
) -> PriorNet:
    """Train the whole net on shifted views of the rows, with one cycle of the rate and averaged weights."""
    net = _start(rows, seed)
    images, targets = fitted(rows).tensors()
    batch = min(batch, len(images))
    steps = max(1, round(epochs * len(images) / batch))
    optimizer = torch.optim.AdamW(net.parameters(), lr=learning_rate, weight_decay=_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, total_steps=steps)
    average = torch.optim.swa_utils.AveragedModel(net, avg_fn=_averaged)
    net.train()
    with randomness.public_torch_seed(seed):  # of the dropout
        for inputs, labels in _batches(images, targets, batch, steps, seed):
            body = functional.dropout(net.body(inputs), _DROPOUT)
            optimizer.zero_grad()
            functional.cross_entropy(net.head(body), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            average.update_parameters(net)
    net.load_state_dict(average.module.state_dict())
    return net.eval()


def _averaged(average: Tensor, value: Tensor, updates: Tensor | int) -> Tensor:
    """The mean at first, then the last few hundred steps."""
    return average.lerp(value, max(1 - _AVERAGING, 1 / (int(updates) + 1)))


def _start(rows: Dataset, seed: int) -> PriorNet:
    """The prior's body, and a fresh head for the declared classes."""
    prior = load_prior(next(iter(recipe_for(rows.name).priors), "shapes"))
    with randomness.public_torch_seed(seed):
        net = PriorNet(classes=declared(rows)[1])
    net.body.load_state_dict(prior.body.state_dict())
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack it
    return net


def _batches(
    images: Tensor, targets: Tensor, batch: int, steps: int, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Shuffled batches, each image moved by up to a pixel either way."""
    generator = randomness.public_torch_generator(seed)
    padded = functional.pad(images, (1, 1, 1, 1))
    side = images.shape[-1]
    order = torch.randperm(len(images), generator=generator)
    for step in range(steps):
        start = step * batch % len(images)
        if start < batch and step:
            order = torch.randperm(len(images), generator=generator)
        chosen = order[start : start + batch]
        moves = torch.randint(3, (2, 3), generator=generator)
        third = torch.arange(len(chosen)) % 3  # three moves a batch are variety enough
        inputs = torch.empty(len(chosen), 1, side, side)
        for part in range(3):
            down, right = int(moves[0, part]), int(moves[1, part])
            own = third == part
            inputs[own] = padded[chosen[own], :, down : down + side, right : right + side]
        yield inputs.contiguous(memory_format=torch.channels_last), targets[chosen]
