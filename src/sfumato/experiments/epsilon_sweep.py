"""System D, reproduced: ResNet-18 on 10,000 MNIST digits for five epochs, at several ε and without privacy.

The source (PyTorch and Opacus, group normalisation) found that accuracy rises with ε and is highest without
privacy; its figures are lost. The same two are drawn: accuracy against ε, and against the epoch for each ε.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato import datasets, models
from sfumato.experiments.kept_runs import DELTA, Run, Watch, plain_run, private_run, unwatched
from sfumato.fitting import FitConfig
from sfumato.run_folder import RunFolder
from sfumato.training import Optimization, TrainingPlan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPSILONS = (1.0, 5.0, 10.0)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The source's data, network and epochs; batch, rate and clip are ours, not tuned.

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
    runs: tuple[Run, ...]  # by growing ε, the plain one last
    figures: tuple[Path, ...]

    @property
    def seconds(self) -> float:
        return sum(run.seconds for run in self.runs)

    def to_json(self) -> dict[str, Any]:
        return {
            "recipe": "epsilon-sweep",
            "delta": DELTA,
            "published": "accuracy rises with ε and is highest without privacy (figures lost)",
            "runs": [{**asdict(run), "test_accuracy": run.test_accuracy} for run in self.runs],
            "seconds": self.seconds,
            "figures": [str(path) for path in self.figures],
        }


def run(out: str | Path, *, quick: bool = False, seed: int = 0, watch: Watch = unwatched) -> Result:
    """Train once for each ε and once without; folders under `out` are found again later."""
    folder = RunFolder.make(out)
    settings = QUICK if quick else FULL
    data = datasets.load("mnist", "train").take(settings.rows)
    test = datasets.load("mnist", "test").take(settings.test_rows)
    runs = [
        private_run(
            f"ε = {epsilon:g}",
            models.build("resnet18", seed=seed),
            data,
            test,
            plan(settings, epsilon),
            settings.optimization,
            out=folder.path / f"epsilon-{epsilon:g}",
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
    runs.append(plain_run("no privacy", network, data, test, config, out=folder.path / "plain", watch=watch))
    result = Result(runs=tuple(runs), figures=_draw(folder, runs))
    folder.write_json("result.json", result.to_json())
    return result


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


def _draw(folder: RunFolder, runs: Sequence[Run]) -> tuple[Path, ...]:
    drawn = {"accuracy-epsilon": _draw_epsilons(runs), "accuracy-epoch": _draw_epochs(runs)}
    paths = {name: folder.figures / f"{name}.png" for name in drawn}
    for name, figure in drawn.items():
        figure.savefig(paths[name], dpi=120)
    return tuple(paths.values())


def _draw_epsilons(runs: Sequence[Run]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    private = [(run.epsilon, 100 * run.test_accuracy) for run in runs if run.epsilon is not None]
    axes.plot(*zip(*private, strict=True), marker="o", label="private")
    for epsilon, accuracy in private:
        axes.annotate(f"{accuracy:.1f}", (epsilon, accuracy), (0, -14), textcoords="offset points", ha="center")
    best = 100 * runs[-1].test_accuracy
    axes.axhline(best, color="C1", ls="--", label=f"no privacy: {best:.1f}")
    axes.set(xlabel="ε (δ = 1e-5)", ylabel="test accuracy, %", title="ResNet-18: accuracy against ε")
    axes.margins(y=0.15)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    return figure


def _draw_epochs(runs: Sequence[Run]) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for run in runs:
        epochs = range(1, len(run.accuracy) + 1)
        axes.plot(epochs, [100 * value for value in run.accuracy], marker="o", label=run.name)
    axes.set(xlabel="epoch", ylabel="test accuracy, %", title="Accuracy after each epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    return figure
