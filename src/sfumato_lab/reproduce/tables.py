"""The runner that all reproductions share: kept measurements, repeated runs, figures, a printed table.

A measurement is found again if its settings are the same: their digest is part of its name. So an interrupted
table goes on where it stopped. Data sets are public here, and so is everything that is measured on them.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from sfumato.cli import show
from sfumato.errors import InvalidInput
from sfumato.storage import RunFolder, json_bytes, write_figure, write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import nn

    from sfumato.datasets import Dataset
    from sfumato.fitting import FitConfig
    from sfumato.training import Optimization, TrainingPlan, Views

DELTA = 1e-5
Quick = Annotated[
    bool, typer.Option("--quick", help="Run everything at a small size. The numbers are not comparable.")
]
Seeds = Annotated[
    int | None,
    typer.Option(min=1, help="Number of initial weights to train from. The noise cannot be seeded."),
]
Only = Annotated[list[str] | None, typer.Option(help="Run only this line of the table. May be repeated.")]
Watch = Callable[[str, float], None]
"""Called with the name of the current run and the share of it that is done."""


def unwatched(name: str, share: float) -> None:
    """Show nothing."""


@contextmanager
def watching() -> Iterator[Watch]:
    """Show a bar for the current run."""
    with show.progress() as bar:
        task = bar.add_task("getting data", total=100, note="")
        current = ""

        def watch(name: str, share: float) -> None:
            nonlocal current
            if name != current:
                bar.reset(task)
                current = name
            bar.update(task, description=name, completed=100 * share)

        yield watch


def kept(folder: Path, name: str, settings: Mapping[str, Any], make: Callable[[], Any]) -> Any:
    """Return a measurement made before with these settings, or make it now and keep it in the folder."""
    place = folder / f"{name}-{digest(settings)}.json"
    if not place.is_file():
        found = make()
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(place, json_bytes({"settings": _plain(settings), "found": found}), readable=True)
    return json.loads(place.read_text())["found"]


def digest(settings: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(_plain(settings), sort_keys=True).encode()).hexdigest()[:12]


def _plain(settings: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(settings, default=str))


def chosen(only: Iterable[str], names: Iterable[str]) -> list[str]:
    """Return the lines that are named, or all, in the table's order."""
    known, wanted = list(names), list(only)
    for name in wanted:
        if name not in known:
            raise InvalidInput(f"expected a line to be one of {', '.join(known)}, got {name!r}")
    return [name for name in known if not wanted or name in wanted]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One trained network: accuracy and loss on the public test images after each epoch, and its price."""

    name: str
    epsilon: float | None  # at DELTA; None without privacy
    noise_multiplier: float | None
    accuracy: tuple[float, ...]
    loss: tuple[float, ...]
    seconds: float
    folder: str


@dataclass(frozen=True, kw_only=True)
class Repeated:
    """The same settings from several initial weights."""

    runs: tuple[Run, ...]

    @property
    def name(self) -> str:
        return self.runs[0].name

    @property
    def epsilon(self) -> float | None:
        return max((run.epsilon for run in self.runs if run.epsilon is not None), default=None)

    @property
    def test_accuracy(self) -> float:
        return statistics.fmean(run.accuracy[-1] for run in self.runs)

    @property
    def test_loss(self) -> float:
        return statistics.fmean(run.loss[-1] for run in self.runs)

    @property
    def seconds(self) -> float:
        return statistics.fmean(run.seconds for run in self.runs)

    def in_words(self) -> str:
        return mean_and_spread([run.accuracy[-1] for run in self.runs])

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "epsilon": self.epsilon,
            "test_accuracy": self.test_accuracy,
            "standard_deviation": deviation([run.accuracy[-1] for run in self.runs]),
            "test_loss": self.test_loss,
            "runs": [asdict(run) for run in self.runs],
        }


def trained(
    name: str,
    model: nn.Module,
    data: Dataset,
    test: Dataset,
    how: TrainingPlan | FitConfig,
    *,
    out: Path,
    seed: int,
    optimization: Optimization | None = None,
    caveats: tuple[str, ...] = (),
    views: Views | None = None,
    watch: Watch = unwatched,
) -> Run:
    """Train under a plan, or fit without privacy, or find the run that was made with these settings before."""
    from sfumato.fitting import FitConfig

    settings = {
        "data": data.name, "size": data.public_size, "model": str(model), "seed": seed,
        "how": asdict(how), "optimization": optimization and asdict(optimization), "caveats": caveats,
    }  # fmt: skip
    place = out / f"{_slug(name)}-{digest(settings)}"
    train_it = _fitted if isinstance(how, FitConfig) else _privately

    def make() -> dict[str, Any]:
        started = time.perf_counter()
        found = train_it(name, model, data, test, how, place, optimization, caveats, views, watch)
        return {"name": name, **found, "seconds": time.perf_counter() - started, "folder": str(place)}

    found = kept(place, "measured", settings, make)
    return Run(**found | {curve: tuple(found[curve]) for curve in ("accuracy", "loss")})


def _slug(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name.lower()).strip("-")


def _fitted(
    name: str, model: nn.Module, data: Dataset, test: Dataset, how: Any, out: Path, *rest: Any
) -> dict[str, Any]:
    from sfumato.fitting import fit

    watch: Watch = rest[-1]
    history = fit(
        model,
        data,
        how,
        evaluate_on=test,
        on_epoch=lambda epoch: watch(name, epoch.number / how.epochs),
        progress=False,
    )
    found = [epoch.evaluation for epoch in history if epoch.evaluation is not None]
    accuracy, loss = [one.accuracy for one in found], [one.loss for one in found]
    return {"epsilon": None, "noise_multiplier": None, "accuracy": accuracy, "loss": loss}


def _privately(
    name: str,
    model: nn.Module,
    data: Dataset,
    test: Dataset,
    how: Any,
    out: Path,
    optimization: Optimization | None,
    caveats: tuple[str, ...],
    views: Views | None,
    watch: Watch,
) -> dict[str, Any]:
    from sfumato.training import train

    result = train(
        model,
        data,
        how,
        delta=DELTA,
        optimization=optimization,
        test=test,
        out=RunFolder.make(out).discard().path,
        caveats=caveats,
        views=views,
        purpose=name,
        on_step=lambda trainer: watch(name, trainer.steps_done / how.steps),
    )
    return {
        "epsilon": result.epsilon,
        "noise_multiplier": how.noise_multiplier,
        "accuracy": [report.test_accuracy for report in result.history],
        "loss": [report.test_loss for report in result.history],
    }


def deviation(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) if len(values) > 1 else None


def mean_and_spread(values: Sequence[float], digits: int = 2) -> str:
    """Return a mean of shares in percent, and their standard deviation.

    >>> mean_and_spread([0.97, 0.98])
    '97.50% ± 0.71'
    """
    spread = deviation(values)
    told = f"{statistics.fmean(values):.{digits}%}"
    return told if spread is None else f"{told} ± {100 * spread:.{digits}f}"


def conclude(out: str | Path, name: str, findings: Mapping[str, Any], figures: Mapping[str, Figure]) -> Any:
    """Write findings and figures as a run folder that `sfumato report` shows; return the findings."""
    from sfumato.runs import Reproduction, write_run

    folder = RunFolder.make(out)
    paths = {title: folder.figures / f"{title}.png" for title in figures}
    for title, figure in figures.items():
        write_figure(paths[title], figure, readable=True, dpi=120)
    answer = {"recipe": name, **findings, "figures": [str(path) for path in paths.values()]}
    write_run(folder, Reproduction(name=name, findings=answer), certificate=None)
    return answer


def canvas(title: str, *, width: float = 7.0, height: float = 4.4, **labels: Any) -> tuple[Figure, Axes]:
    """Return a figure with one plot."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.set(title=title, **labels)
    axes.grid(alpha=0.3)
    return figure, axes


def curves(title: str, settings: Iterable[Repeated]) -> Figure:
    """Draw the test accuracy after each epoch: the mean of the runs, shaded from the least to the best."""
    figure, axes = canvas(title, xlabel="epoch", ylabel="test accuracy, %")
    for setting in settings:
        values = [[100 * value for value in run.accuracy] for run in setting.runs]
        epochs = range(1, len(values[0]) + 1)
        at_epoch = list(zip(*values, strict=True))
        label = setting.name if setting.epsilon is None else f"{setting.name} (ε = {setting.epsilon:.2f})"
        (line,) = axes.plot(epochs, [statistics.fmean(each) for each in at_epoch], marker="o", label=label)
        low, high = [min(each) for each in at_epoch], [max(each) for each in at_epoch]
        axes.fill_between(epochs, low, high, color=line.get_color(), alpha=0.2, lw=0)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8)
    return figure


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table whose first column is text and whose others are numbers."""
    table = Table(title=title, title_justify="left")
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place else "left")
    for row in rows:
        table.add_row(*row)
    show.console.print(table)


def number(value: float | None, form: str = ".3f") -> str:
    """Return a number in words; no number is an ε without privacy.

    >>> number(None), number(0.5)
    ('∞', '0.500')
    """
    return "∞" if value is None or value == float("inf") else f"{value:{form}}"
