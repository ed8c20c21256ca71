"""The private-CNN report, reproduced: one small CNN on MNIST, plain and private, at an ε that holds.

The report trained with Opacus: SGD, rate .05, batches of 64, ten epochs, noise multiplier 1.2, clip 1,
δ = 1e-5. It reported 98.8% plain (loss .02) and 93.4% private at a printed ε = .79. That ε was computed for
Poisson sampling, which was switched off; what it really was is computed here. It does not say how pixels were
scaled: they are standardised here, as in the example of the library it used.

Images shown are public test images; what was learned from the private rows is the private networks alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from sfumato import _validate, datasets, models, randomness
from sfumato.accounting import Relation
from sfumato.datasets import Dataset
from sfumato.fitting import FitConfig, evaluate
from sfumato.runs import Reproduction, write_run
from sfumato.storage import RunFolder, write_figure
from sfumato.training import Optimization, TrainingPlan, moved_by_a_pixel, train
from sfumato_lab.drawings.writers import WRITERS
from sfumato_lab.reproduce.kept_runs import DELTA, Repeated, Run, Watch, plain_run, private_run, unwatched
from sfumato_lab.reproduce.pixels import standardized

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PRINTED_EPSILON = 0.79
PUBLISHED = {
    "plain": {"test_accuracy": 0.988, "test_loss": 0.02},
    "private": {"test_accuracy": 0.934, "printed_epsilon": PRINTED_EPSILON},
}
SIZE = 60_000
NOISE, BATCH, EPOCHS, RATE = 1.2, 64, 10, 0.05  # the report's settings
SOURCE = Optimization(learning_rate=RATE, momentum=0.0)
SEEDS = 3
NETWORKS = ("plain", "source", "priced", "ours", "moved", "drawn")
NOISE_LEVELS = (0.0, 0.25, 0.5, 1.0, 2.0)  # standard deviations, where white is 1


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Ours for the same network: the rate chosen on digits drawn by code, see docs/design/reproductions.md."""

    batch: int = 4096
    epochs: int = 15
    clip_norm: float = 1.0
    average_decay: float = 0.95
    learning_rate: float = 1.0

    @property
    def optimization(self) -> Optimization:
        return Optimization(learning_rate=self.learning_rate, momentum=0.9, schedule="cosine")


OURS = Settings()
DRAWN = Settings(learning_rate=0.5)  # of a network that has seen drawings: it has less far to go
DRAWINGS = FitConfig(epochs=4, batch_size=128, optimizer="adamw", learning_rate=2e-3)
DRAWN_BY = "strokes-wide"
TRIAL = Settings(batch=2048, epochs=8)  # about as many steps as ours, at half the work
TRIAL_RATES = (0.25, 0.5, 1.0, 2.0)
TRIAL_SHARE = 4
QUICK_SIZE = 1000


@dataclass(frozen=True, kw_only=True)
class Result:
    real_epsilon: dict[str, float]
    settings: tuple[Repeated, ...]  # those of NETWORKS, or one of them
    figures: tuple[Path, ...]
    quick: bool = False  # a trial of the commands on few rows: its figures say nothing of the published ones

    def to_json(self) -> dict[str, Any]:
        return {
            "recipe": "private-cnn",
            "quick": self.quick,
            "delta": DELTA,
            "published": PUBLISHED,
            "real_epsilon_of_the_source": self.real_epsilon,
            "settings": [setting.to_json() for setting in self.settings],
            "figures": [str(path) for path in self.figures],
        }


def run(
    out: str | Path,
    *,
    quick: bool = False,
    seeds: int | None = None,
    only: str | None = None,
    watch: Watch = unwatched,
) -> Result:
    """Train NETWORKS from each of `seeds` first weights (three, or one if quick); draw the report's figures.

    Runs under `out` are found again later. With `only` one of them, nothing is drawn.
    """
    wanted_networks = NETWORKS if only is None else (_validate.one_of("only", only, NETWORKS),)
    folder = RunFolder.make(out)
    data, test = datasets.load("mnist", "train"), datasets.load("mnist", "test")
    data = data.excerpt(QUICK_SIZE if quick else SIZE)
    rows = standardized(data), standardized(test)
    found, networks = [], []
    wanted = (1 if quick else SEEDS) if seeds is None else _validate.integer("seeds", seeds, least=1)
    for seed in range(wanted):
        networks.append({name: models.build("cnn", seed=seed) for name in wanted_networks})
        place = folder.path / f"seed-{seed}"
        found.append(_once(*rows, networks[-1], place, quick=quick, seed=seed, watch=watch))
    settings = tuple(Repeated(runs=runs) for runs in zip(*found, strict=True))
    figures = _draw(folder, settings, networks[0]["plain"], networks[0]["ours"], test) if only is None else ()
    result = Result(real_epsilon=real_epsilons(), settings=settings, figures=figures, quick=quick)
    write_run(folder, Reproduction(name="private-cnn", findings=result.to_json()), certificate=None)
    return result


def _once(
    data: Dataset,
    test: Dataset,
    networks: dict[str, nn.Module],
    out: Path,
    *,
    quick: bool,
    seed: int,
    watch: Watch,
) -> list[Run]:
    assert data.public_size is not None  # declared, not counted
    size, epochs = data.public_size, 1 if quick else EPOCHS
    config = FitConfig(epochs=epochs, batch_size=BATCH, learning_rate=RATE, momentum=0.0, seed=seed)
    runs = []
    if "plain" in networks:
        name = "plain, published settings"
        runs.append(plain_run(name, networks["plain"], data, test, config, out=out / "plain", watch=watch))
    ours, drawn = (Settings(batch=200, epochs=2),) * 2 if quick else (OURS, DRAWN)
    plans = {
        "source": ("private, published settings", source_plan(size, epochs), SOURCE),
        "priced": (f"the same at ε = {PRINTED_EPSILON}", _priced(size, epochs), SOURCE),
        "ours": (f"ours at ε = {PRINTED_EPSILON}", our_plan(ours, size), ours.optimization),
        "moved": (
            f"ours at ε = {PRINTED_EPSILON}, moved by a pixel",
            our_plan(ours, size),
            ours.optimization,
        ),
        "drawn": (
            f"ours at ε = {PRINTED_EPSILON}, drawings first",
            our_plan(drawn, size),
            drawn.optimization,
        ),
    }
    for key, (name, plan, optimization) in plans.items():
        if key not in networks:
            continue
        caveats: tuple[str, ...] = ()
        if key == "drawn":
            _learn_drawings(networks[key], out / "drawings", seed=seed, quick=quick, watch=watch)
            caveats = (f"first weights learned from {DRAWN_BY}, digits drawn by code, which are nobody's data",)
        runs.append(
            private_run(
                name,
                networks[key],
                data,
                test,
                plan,
                optimization,
                out=out / key,
                caveats=caveats,
                views=moved_by_a_pixel if key == "moved" else None,
                watch=watch,
            )
        )
    return runs


def _learn_drawings(network: nn.Module, out: Path, *, seed: int, quick: bool, watch: Watch) -> None:
    """Give the network first weights that know drawn digits, which cost nothing."""
    count = QUICK_SIZE if quick else SIZE
    drawn, other = drawn_digits(count, seed=2 * seed), drawn_digits(count // 10, seed=2 * seed + 1)
    plain_run("drawings", network, drawn, other, replace(DRAWINGS, seed=seed), out=out, watch=watch)


def drawn_digits(count: int, *, seed: int, by: str = DRAWN_BY) -> Dataset:
    """Digits drawn by writers who differ more than people do, pixels standardised."""
    images, digits = WRITERS[by].draw(count, seed=seed)
    rows = Dataset(
        name=by, inputs=images[:, None], targets=digits, visibility="public", classes=10, public_size=count
    )
    return standardized(rows)


def source_plan(size: int = SIZE, epochs: int = EPOCHS, **choices: Any) -> TrainingPlan:
    """The report's settings, with the Poisson sampling that it switched off."""
    return TrainingPlan(
        sample_rate=BATCH / size,
        expected_batch=BATCH,
        steps=round(epochs * size / BATCH),
        noise_multiplier=NOISE,
        clip_norm=1.0,
        **choices,
    )


def real_epsilons() -> dict[str, float]:
    """The ε that the report's training really had, for each reading of it."""
    plans = {
        "shuffled, zero-out": source_plan(sampling="shuffle", relation=Relation.ZERO_OUT),
        "shuffled, replace-one": source_plan(sampling="shuffle", relation=Relation.REPLACE_ONE),
        "had it sampled": source_plan(),
    }
    return {name: plan.epsilon(DELTA) for name, plan in plans.items()}


def our_plan(settings: Settings, size: int = SIZE, *, epsilon: float = PRINTED_EPSILON) -> TrainingPlan:
    return TrainingPlan.calibrated(
        epsilon=epsilon,
        delta=DELTA,
        public_size=size,
        expected_batch=settings.batch,
        epochs=settings.epochs,
        clip_norm=settings.clip_norm,
        average_decay=settings.average_decay,
    )


def _priced(size: int, epochs: int) -> TrainingPlan:
    """The report's settings with the noise that makes its printed ε true."""
    return TrainingPlan.calibrated(
        epsilon=PRINTED_EPSILON, delta=DELTA, public_size=size, expected_batch=BATCH, epochs=epochs
    )


def tune(*, rates: Sequence[float] = TRIAL_RATES, watch: Watch = unwatched) -> dict[float, float]:
    """Accuracy by learning rate on digits drawn by code, which cost nothing.

    A quarter of the rows in batches of a quarter, with a quarter of the noise: the noise of the mean gradient,
    the number of steps and the sampling rate are those of the full size.
    """
    data = standardized(datasets.load("strokes", "train").take(SIZE // TRIAL_SHARE))
    test = standardized(datasets.load("strokes", "test").take(4000))
    full = our_plan(TRIAL)
    plan = replace(
        full,
        expected_batch=full.expected_batch / TRIAL_SHARE,
        noise_multiplier=full.noise_multiplier / TRIAL_SHARE,
    )
    found = {}
    for number, rate in enumerate(rates, start=1):
        optimization = replace(TRIAL, learning_rate=rate).optimization
        trained = train(models.build("cnn"), data, plan, delta=DELTA, optimization=optimization).model
        found[rate] = evaluate(trained, test).accuracy
        watch("learning rates on drawn digits", number / len(rates))
    return found


# Figures


def _draw(
    folder: RunFolder, settings: Sequence[Repeated], plain: nn.Module, private: nn.Module, test: Dataset
) -> tuple[Path, ...]:
    images, labels = test.tensors()
    firsts = [int((labels == digit).nonzero()[0]) for digit in range(10)]
    seen = standardized(test).tensors()[0][firsts[2]][None]
    drawn = {
        "curves": _draw_curves(settings),
        "noised-digits": _draw_noised(images[firsts]),
        "feature-maps-conv1": _draw_maps(plain, private, seen, "conv1"),
        "feature-maps-conv2": _draw_maps(plain, private, seen, "conv2"),
    }
    paths = {name: folder.figures / f"{name}.png" for name in drawn}
    for name, figure in drawn.items():
        write_figure(paths[name], figure, readable=True, dpi=120)
    return tuple(paths.values())


def _draw_curves(settings: Sequence[Repeated]) -> Figure:
    """Accuracy and loss of all, side by side: means, shaded from the least run to the best."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for setting in settings:
        told = setting.epsilon is None or "ε" in setting.name
        label = setting.name if told else f"{setting.name} (ε = {setting.epsilon:.2f})"
        _draw_runs(left, [[100 * value for value in run.accuracy] for run in setting.runs], label)
        _draw_runs(right, [run.loss for run in setting.runs], label)
    left.axhline(100 * PUBLISHED["plain"]["test_accuracy"], color="0.6", ls=":", lw=1)
    left.axhline(100 * PUBLISHED["private"]["test_accuracy"], color="0.6", ls=":", lw=1)
    left.set(xlabel="epoch", ylabel="test accuracy, %", title="Accuracy (dotted: published figures)")
    right.set(xlabel="epoch", ylabel="test loss, nats", title="Loss", ylim=(0, None))
    for axes in (left, right):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)
    return figure


def _draw_runs(axes: Any, runs: Sequence[Sequence[float]], label: str) -> None:
    values = np.array(runs)  # (runs, epochs)
    epochs = range(1, values.shape[1] + 1)
    (line,) = axes.plot(epochs, values.mean(0), marker="o", markersize=3, label=label)
    axes.fill_between(epochs, values.min(0), values.max(0), color=line.get_color(), alpha=0.2, lw=0)


def _draw_noised(images: Tensor) -> Figure:
    """Ten public digits, each row under more Gaussian noise."""
    from matplotlib.figure import Figure

    generator = randomness.public_torch_generator(0)
    figure = Figure(figsize=(8, 0.85 * len(NOISE_LEVELS) + 0.4), layout="constrained")
    grid = figure.subplots(len(NOISE_LEVELS), len(images))
    for row, level in zip(grid, NOISE_LEVELS, strict=True):
        noised = images + level * torch.randn(images.shape, generator=generator)
        for axes, image in zip(row, noised, strict=True):
            axes.imshow(image[0].numpy(), cmap="gray", vmin=0, vmax=1)
            axes.set(xticks=[], yticks=[])
        row[0].set_ylabel(f"σ = {level:g}", rotation=0, ha="right", va="center")
    figure.suptitle("Test digits under growing Gaussian noise", fontsize=11)
    return figure


def _draw_maps(plain: nn.Module, private: nn.Module, image: Tensor, layer: str) -> Figure:
    """What a convolution answers to one public digit, in the plain and in the private network."""
    from matplotlib.figure import Figure

    maps = [_maps(network, image, layer) for network in (plain, private)]  # (channels, height, width)
    columns = 8 if len(maps[0]) > 16 else 4
    rows = len(maps[0]) // columns
    figure = Figure(figsize=(1.1 * columns + 1.2, 0.55 * rows + 0.6), layout="constrained")
    halves: Any = figure.subfigures(1, 2, wspace=0.06)
    for half, name, found in zip(halves, ("plain", f"private, ε = {PRINTED_EPSILON}"), maps, strict=True):
        grid = half.subplots(rows, columns)
        for axes, values in zip(grid.flat, found, strict=True):
            axes.imshow(values.numpy(), cmap="viridis")
            axes.set_axis_off()
        half.suptitle(f"{layer}, {name}", fontsize=10)
    return figure


@torch.no_grad()
def _maps(network: nn.Module, image: Tensor, layer: str) -> Tensor:
    found: list[Tensor] = []
    handle = network.get_submodule(layer).register_forward_hook(lambda _, __, output: found.append(output))
    network(image)
    handle.remove()
    return found[0][0]
