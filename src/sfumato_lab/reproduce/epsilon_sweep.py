"""The dataset anonymizer, reproduced: ResNet-18 on 10,000 MNIST digits, five epochs, several ε and none.

The project (PyTorch and Opacus, group normalisation) found that accuracy rises with ε and is highest without
privacy; its figures are lost. The same two are drawn: accuracy against ε, and against the epoch for each ε.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sfumato import _validate, datasets, models
from sfumato.datasets import Dataset
from sfumato.datasets.dataset import EXCERPT
from sfumato.fitting import FitConfig
from sfumato.runs import Reproduction, write_run
from sfumato.storage import RunFolder, write_figure
from sfumato.training import Optimization, TrainingPlan
from sfumato_lab.reproduce.kept_runs import DELTA, Repeated, Run, Watch, plain_run, private_run, unwatched

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPSILONS = (1.0, 5.0, 10.0)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The project's data, network and epochs; batch, rate and clip are ours, not tuned.

    The plain run's rate was chosen on training rows 10,000 to 12,000: at 0.05 the network learns nothing.
    """

    rows: int = 10_000
    test_rows: int = 2_000
    epochs: int = 5
    batch: int = 512
    clip_norm: float = 1.0
    average_decay: float = 0.9
    learning_rate: float = 0.25
    plain_batch: int = 128
    plain_learning_rate: float = 0.01

    @property
    def optimization(self) -> Optimization:
        return Optimization(learning_rate=self.learning_rate, momentum=0.9, schedule="cosine")


FULL = Settings()
QUICK = Settings(rows=120, test_rows=100, epochs=2, batch=60)


@dataclass(frozen=True, kw_only=True)
class Result:
    settings: tuple[Repeated, ...]  # by growing ε, the plain one last
    figures: tuple[Path, ...]

    @property
    def seconds(self) -> float:
        """Of the whole sweep, once."""
        return sum(setting.seconds for setting in self.settings)

    def to_json(self) -> dict[str, Any]:
        return {
            "recipe": "epsilon-sweep",
            "delta": DELTA,
            "published": "accuracy rises with ε and is highest without privacy (figures lost)",
            "settings": [setting.to_json() for setting in self.settings],
            "seconds": self.seconds,
            "figures": [str(path) for path in self.figures],
        }


def run(out: str | Path, *, quick: bool = False, seeds: int | None = None, watch: Watch = unwatched) -> Result:
    """Train once for each ε and once without, from each of `seeds` first weights (one by default).

    Runs under `out` are found again later.
    """
    folder = RunFolder.make(out)
    settings = QUICK if quick else FULL
    data = datasets.load("mnist", "train").excerpt(settings.rows)
    test = datasets.load("mnist", "test").take(settings.test_rows)
    found = [
        _once(data, test, settings, folder.path / f"seed-{seed}", seed=seed, watch=watch)
        for seed in range(1 if seeds is None else _validate.integer("seeds", seeds, least=1))
    ]
    repeated = tuple(Repeated(runs=runs) for runs in zip(*found, strict=True))
    result = Result(settings=repeated, figures=_draw(folder, repeated))
    write_run(folder, Reproduction(name="epsilon-sweep", findings=result.to_json()), certificate=None)
    return result


def _once(data: Dataset, test: Dataset, settings: Settings, out: Path, *, seed: int, watch: Watch) -> list[Run]:
    runs = [
        private_run(
            f"ε = {epsilon:g}",
            models.build("resnet18", seed=seed),
            data,
            test,
            plan(settings, epsilon),
            settings.optimization,
            out=out / f"epsilon-{epsilon:g}",
            caveats=(EXCERPT,),
            watch=watch,
        )
        for epsilon in EPSILONS
    ]
    config = FitConfig(
        epochs=settings.epochs,
        batch_size=settings.plain_batch,
        learning_rate=settings.plain_learning_rate,
        seed=seed,
    )
    network = models.build("resnet18", seed=seed)
    return [*runs, plain_run("no privacy", network, data, test, config, out=out / "plain", watch=watch)]


def plan(settings: Settings, epsilon: float) -> TrainingPlan:
    return TrainingPlan.calibrated(
        epsilon=epsilon,
        delta=DELTA,
        public_size=settings.rows,
        expected_batch=settings.batch,
        epochs=settings.epochs,
        clip_norm=settings.clip_norm,
        average_decay=settings.average_decay,
    )


def _draw(folder: RunFolder, settings: Sequence[Repeated]) -> tuple[Path, ...]:
    drawn = {"accuracy-epsilon": _draw_epsilons(settings), "accuracy-epoch": _draw_epochs(settings)}
    paths = {name: folder.figures / f"{name}.png" for name in drawn}
    for name, figure in drawn.items():
        write_figure(paths[name], figure, readable=True, dpi=120)
    return tuple(paths.values())


def _draw_epsilons(settings: Sequence[Repeated]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    private = [(each.epsilon, 100 * each.test_accuracy) for each in settings if each.epsilon is not None]
    epsilons, accuracies = zip(*private, strict=True)
    spread = [100 * (each.deviation or 0.0) for each in settings if each.epsilon is not None]
    axes.errorbar(epsilons, accuracies, yerr=spread, marker="o", capsize=3, label="private")
    for epsilon, accuracy in private:
        axes.annotate(f"{accuracy:.1f}", (epsilon, accuracy), (0, -14), textcoords="offset points", ha="center")
    best = 100 * settings[-1].test_accuracy
    axes.axhline(best, color="C1", ls="--", label=f"no privacy: {best:.1f}")
    axes.set(xlabel="ε (δ = 1e-5)", ylabel="test accuracy, %", title="ResNet-18: accuracy against ε")
    axes.margins(y=0.15)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    return figure


def _draw_epochs(settings: Sequence[Repeated]) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for setting in settings:
        values = 100 * np.array([run.accuracy for run in setting.runs])  # (runs, epochs)
        axes.plot(range(1, values.shape[1] + 1), values.mean(0), marker="o", label=setting.name)
    axes.set(xlabel="epoch", ylabel="test accuracy, %", title="Accuracy after each epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    return figure
