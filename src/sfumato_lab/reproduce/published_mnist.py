"""Published private accuracies on MNIST, trained again with their settings, at the ε that holds (δ = 1e-5).

Their ε came from an early conversion of Rényi divergences that is too high; and where batches were shuffled it
was computed as if they had been Poisson-sampled. Ours are Poisson-sampled and priced by privacy loss
distributions.

Sources: TensorFlow Privacy's MNIST tutorial and Opacus's MNIST example (the CNN of `models.CNN`, one with
pixels in [0, 1], the other standardised); Tramèr & Boneh 2021 (the same with tanh instead of ReLU, after
Papernot et al. 2020; scattering and a linear layer).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from sfumato import _validate, accounting, datasets, models
from sfumato import runs as results
from sfumato.accounting import DpEvent, GaussianEvent, Relation
from sfumato.datasets import Dataset
from sfumato.datasets.dataset import Inputs
from sfumato.models.rows_apart import rows_apart
from sfumato.models.scattering import CHANNELS, STRIDE, Scattering
from sfumato.storage import RunFolder, write_figure
from sfumato.training import Optimization, TrainingPlan
from sfumato_lab.drawings.strokes import draw
from sfumato_lab.reproduce.kept_runs import DELTA, Repeated, Run, Watch, private_run, unwatched
from sfumato_lab.reproduce.pixels import standardized

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZE = 60_000
QUICK_SIZE, QUICK_TEST = 1200, 500
_DRAWN = 2000  # digits drawn for the statistics of scattering channels
_BLOCK = 500


@dataclass(frozen=True, kw_only=True)
class PublishedRow:
    """A published result: what was claimed, and the settings it came from."""

    name: str
    network: str  # a model by name, or "scattering"
    accuracy: float
    claimed_epsilon: float
    batch: int
    epochs: int
    noise_multiplier: float
    clip_norm: float
    optimization: Optimization
    steps: int | None = None  # where an epoch dropped its last, smaller batch
    statistics_noise: tuple[float, ...] = ()  # of private means and variances, which ours takes from drawings
    standardized: bool = False  # pixels

    def plan(self, size: int = SIZE) -> TrainingPlan:
        batch = min(self.batch, size // 4)
        steps = self.steps if self.steps is not None and size == SIZE else round(self.epochs * size / batch)
        return TrainingPlan(
            sample_rate=batch / size,
            expected_batch=batch,
            steps=steps,
            noise_multiplier=self.noise_multiplier,
            clip_norm=self.clip_norm,
        )

    def true_epsilon(self) -> float:
        """Of their settings under Poisson sampling, with all they released."""
        return accounting.epsilon(self._event(self.plan().event()), DELTA)

    def renyi_epsilon(self) -> float:
        """The same by Rényi divergences, with the conversion known today."""
        return accounting.rdp_epsilon(self._event(self.plan().event()), DELTA)

    def shuffled_epsilon(self) -> float:
        """Of their settings if batches were shuffled, each image being used once an epoch: no amplification."""
        plan = replace(self.plan(), sampling="shuffle", relation=Relation.ZERO_OUT)
        return accounting.epsilon(self._event(plan.event()), DELTA, relation=Relation.ZERO_OUT)

    def _event(self, training: DpEvent) -> DpEvent:
        return accounting.compose(*(GaussianEvent(noise) for noise in self.statistics_noise), training)


def _tutorial(
    library: str, batch: int, accuracies: Sequence[float], claims: Sequence[float]
) -> list[PublishedRow]:
    settings = ((15, 1.3, 1.5, 0.25), (60, 1.1, 1.0, 0.15), (45, 0.7, 1.5, 0.25))
    return [
        PublishedRow(
            name=f"{library}, {epochs} epochs",
            network="cnn",
            accuracy=accuracy,
            claimed_epsilon=claim,
            batch=batch,
            epochs=epochs,
            noise_multiplier=noise,
            clip_norm=clip,
            optimization=Optimization(learning_rate=rate, momentum=0.0),
            standardized=library == "Opacus",
        )
        for (epochs, noise, clip, rate), accuracy, claim in zip(settings, accuracies, claims, strict=True)
    ]


ROWS = (
    *_tutorial("TensorFlow Privacy", 256, (0.950, 0.966, 0.970), (1.19, 3.01, 7.10)),
    *_tutorial("Opacus", 240, (0.946, 0.968, 0.971), (1.16, 2.91, 6.86)),
    PublishedRow(
        name="tanh CNN",
        network="tanh-cnn",
        accuracy=0.981,
        claimed_epsilon=3.0,
        batch=512,
        epochs=40,
        steps=40 * (SIZE // 512),
        noise_multiplier=1.23,
        clip_norm=0.1,
        optimization=Optimization(learning_rate=0.5, momentum=0.9),
    ),
    PublishedRow(
        name="scattering + linear",
        network="scattering",
        accuracy=0.987,
        claimed_epsilon=3.0,
        batch=4096,
        epochs=40,
        steps=40 * (SIZE // 4096),
        noise_multiplier=3.04,
        clip_norm=0.1,
        optimization=Optimization(learning_rate=8.0, momentum=0.9),
        statistics_noise=(8.0, 8.0),
    ),
)


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """A published row and our runs of it, one a seed."""

    row: PublishedRow
    ours: Repeated

    @property
    def epsilon(self) -> float:
        return self.ours.epsilon or 0.0

    def to_json(self) -> dict[str, Any]:
        row = self.row
        return {
            "name": row.name,
            "published": {
                "test_accuracy": row.accuracy,
                "claimed_epsilon": row.claimed_epsilon,
                "true_epsilon": row.true_epsilon(),
                "renyi_epsilon": row.renyi_epsilon(),
                "epsilon_if_shuffled": row.shuffled_epsilon(),
            },
            "ours": self.ours.to_json(),
        }


@dataclass(frozen=True, kw_only=True)
class Result:
    reproductions: tuple[Reproduction, ...]
    figures: tuple[Path, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "recipe": "published-mnist",
            "delta": DELTA,
            "rows": [reproduction.to_json() for reproduction in self.reproductions],
            "figures": [str(path) for path in self.figures],
        }


def run(
    out: str | Path,
    *,
    quick: bool = False,
    seeds: int = 1,
    only: Sequence[str] = (),
    watch: Watch = unwatched,
) -> Result:
    """Train every row (or those named) once a seed; folders under `out` are found again later."""
    folder = RunFolder.make(out)
    rows = [row for row in ROWS if not only or row.name in only]
    for name in only:
        _validate.one_of("row", name, [row.name for row in ROWS])
    material = Material(quick=quick, watch=watch)
    found = tuple(
        Reproduction(
            row=row,
            ours=Repeated(runs=tuple(_train(row, seed, material, folder.path) for seed in range(seeds))),
        )
        for row in rows
    )
    figure = folder.figures / "published.png"
    write_figure(figure, _draw(found), readable=True, dpi=120)
    result = Result(reproductions=found, figures=(figure,))
    results.write_run(
        folder, results.Reproduction(name="published-mnist", findings=result.to_json()), certificate=None
    )
    return result


def _train(row: PublishedRow, seed: int, material: Material, out: Path) -> Run:
    if material.quick:
        row = replace(row, epochs=1, steps=None)
    data, test = material.of(row)
    network = linear_head(data) if row.network == "scattering" else models.build(row.network, seed=seed)
    assert data.public_size is not None
    return private_run(
        row.name,
        network,
        data,
        test,
        row.plan(data.public_size),
        row.optimization,
        out=out / row.name.replace(" + ", "-").replace(", ", "-").replace(" ", "-").lower() / f"seed-{seed}",
        watch=material.watch,
    )


def linear_head(data: Dataset) -> nn.Module:
    """One linear layer, from zero."""
    head = models.MLP(in_features=data.shape[0], classes=data.classes or 10, hidden=())
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.zero_()
    return head


class Material:
    """The rows each network wants, made when first asked for."""

    def __init__(self, *, quick: bool, watch: Watch = unwatched) -> None:
        self.quick, self.watch = quick, watch

    def of(self, row: PublishedRow) -> tuple[Dataset, Dataset]:
        if row.network == "scattering":
            return self.scattered
        return self.standardized if row.standardized else self.pixels

    @cached_property
    def pixels(self) -> tuple[Dataset, Dataset]:
        data, test = datasets.load("mnist", "train"), datasets.load("mnist", "test")
        return (data.excerpt(QUICK_SIZE), test.take(QUICK_TEST)) if self.quick else (data, test)

    @cached_property
    def standardized(self) -> tuple[Dataset, Dataset]:
        data, test = (standardized(part) for part in self.pixels)
        return data, test

    @cached_property
    def scattered(self) -> tuple[Dataset, Dataset]:
        """Scattering features, each channel standardised by its mean and deviation on drawn digits."""
        transform = Scattering()
        drawn = torch.from_numpy(draw(_DRAWN // (10 if self.quick else 1), seed=0)[0]).unsqueeze(1) / 255
        found = transform(drawn)
        mean, deviation = found.mean((0, 2, 3)), found.std((0, 2, 3))

        def features(part: Dataset) -> Dataset:
            made = _blocks(transform, part, mean, deviation, self.watch)
            return replace(part, inputs=made, name=f"{part.name}, scattered")

        data, test = (features(part) for part in self.pixels)
        return data, test


def _blocks(
    transform: Scattering, part: Dataset, mean: torch.Tensor, deviation: torch.Tensor, watch: Watch
) -> Inputs:
    """(images, 3969), filled block by block: there are a gigabyte of them."""
    images, _ = part.tensors()
    made = np.empty((len(part), CHANNELS * (images.shape[-1] // STRIDE) ** 2), dtype=np.float32)
    for start in range(0, len(made), _BLOCK):
        block = slice(start, start + _BLOCK)
        maps = (rows_apart(transform, images[block]) - mean[:, None, None]) / deviation[:, None, None]
        made[block] = maps.flatten(1).numpy()
        watch(f"scattering {part.name}", min(1.0, (start + _BLOCK) / len(made)))
    return made


def _draw(found: Iterable[Reproduction]) -> Figure:
    """Accuracy against ε: theirs as claimed and as it truly is, and ours."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 4.6), layout="constrained")
    axes = figure.subplots()
    for number, item in enumerate(found):
        color, row = f"C{number}", item.row
        theirs = 100 * row.accuracy
        axes.plot([row.claimed_epsilon, row.true_epsilon()], [theirs, theirs], color=color, lw=1, ls=":")
        axes.plot(row.claimed_epsilon, theirs, marker="o", mfc="white", color=color, ls="")
        axes.plot(item.epsilon, 100 * item.ours.test_accuracy, marker="s", color=color, ls="", label=row.name)
    axes.plot([], [], marker="o", mfc="white", color="0.4", ls="", label="theirs, at the ε claimed")
    axes.plot([], [], color="0.4", ls=":", label="… down to its true ε")
    axes.plot([], [], marker="s", color="0.4", ls="", label="ours, at true ε")
    axes.set(
        xscale="log",
        xlabel="ε (δ = 1e-5)",
        ylabel="MNIST test accuracy, %",
        title="Published settings, run again",
    )
    axes.set_xticks([0.8, 1, 2, 3, 5, 7], labels=["0.8", "1", "2", "3", "5", "7"], minor=False)
    axes.minorticks_off()
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 94.0), max(high, 99.0))  # a row alone would fill the axis with hundredths
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize=8)
    return figure
