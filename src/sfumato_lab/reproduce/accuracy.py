"""The price of privacy in accuracy: the default recipe over ε, beside the best that was published.

Each run is the last step of a plan that was fixed before; no run is left out. Repeated private runs differ in
their secret noise and sampling; those from random weights and plain ones in their seed too.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn
from torch.nn import functional

from sfumato import datasets, models
from sfumato.caveats import Code
from sfumato.cli import show
from sfumato.datasets import NETS, TOGETHER
from sfumato.fitting import evaluate
from sfumato.learn import CLOTHES, DESIGNED, DIGITS, SCENES, Classifier, Recipe, plain
from sfumato.training import Optimization, TrainingPlan, moved_by_a_pixel, train
from sfumato_lab.reproduce.networks import standardized
from sfumato_lab.reproduce.tables import (
    DELTA,
    Only,
    canvas,
    chosen,
    conclude,
    deviation,
    kept,
    mean_and_spread,
    print_table,
)

_WHOLE = Optimization(learning_rate=0.5, momentum=0.9)
_TRAMER = "98.7 (Tramèr & Boneh 2021)"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One line of the table."""

    title: str
    epsilon: float | None  # 0: the prior without training; None: without privacy
    data: str = "mnist"
    runs: int = 5
    published: str = "–"  # best credible accuracy in print, %, and its authors
    recipe: Recipe | None = DIGITS  # None: the whole network, end to end
    moved: bool = False  # whether it learns from images moved by a pixel too


CELLS: dict[str, Cell] = {
    "prior": Cell(title="MNIST, prior only", epsilon=0.0, runs=1),
    "mnist-0.5": Cell(title="MNIST", epsilon=0.5),
    "mnist-1": Cell(title="MNIST", epsilon=1.0, published="97.9"),
    "mnist-3": Cell(title="MNIST", epsilon=3.0, published=_TRAMER),
    "designed-3": Cell(
        title="MNIST, no prior: scattering", epsilon=3.0, runs=3, published=_TRAMER, recipe=DESIGNED
    ),
    "whole-3": Cell(
        title="MNIST, no prior: CNN end to end", epsilon=3.0, runs=3, recipe=None,
        published="98.1 (Tramèr & Boneh 2021)",
    ),
    "moved-3": Cell(
        title="MNIST, no prior: CNN end to end, moved", epsilon=3.0, runs=3, recipe=None, moved=True,
        published=_TRAMER,
    ),
    "fashion-1": Cell(title="Fashion-MNIST", data="fashion-mnist", epsilon=1.0, recipe=CLOTHES),
    "fashion-3": Cell(
        title="Fashion-MNIST", data="fashion-mnist", epsilon=3.0, recipe=CLOTHES,
        published="89.7 (Tramèr & Boneh 2021)",
    ),
    "cifar-1": Cell(
        title="CIFAR-10", data="cifar10", epsilon=1.0, recipe=SCENES, published="72.3 (Tang et al. 2023)"
    ),
    "cifar-3": Cell(
        title="CIFAR-10", data="cifar10", epsilon=3.0, recipe=SCENES, published="69.3 (Tramèr & Boneh 2021)"
    ),
    "plain": Cell(title="MNIST, plain, same net", epsilon=None, runs=3),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Line:
    """The runs of one cell."""

    name: str
    cell: Cell
    accuracies: tuple[float, ...]
    epsilon: float | None  # of the dearest run
    seconds: float  # of a run, on average

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.cell.title,
            "asked_epsilon": self.cell.epsilon,
            "epsilon": self.epsilon,
            "delta": DELTA,
            "mean": statistics.fmean(self.accuracies),
            "deviation": deviation(self.accuracies),
            "accuracies": list(self.accuracies),
            "published": self.cell.published,
            "seconds": self.seconds,
        }


def run(
    out: Path,
    *,
    only: Sequence[str] = (),
    most: int | None = None,
    on_run: Callable[[str, int], None] = lambda name, number: None,
) -> tuple[Line, ...]:
    """Measure all cells, or those named, at most so many runs of each."""
    lines = []
    prepared: dict[Any, Classifier] = {}  # features are made once
    for name in chosen(only, CELLS):
        cell, found = CELLS[name], []
        for number in range(1, runs_of(name, most) + 1):
            about = {"cell": asdict(cell), "number": number}
            place = out / name / f"run-{number}"

            def measure(cell: Cell = cell, number: int = number, place: Path = place) -> dict[str, Any]:
                started = time.perf_counter()
                accuracy, spent = _once(cell, place, number, prepared)
                took = time.perf_counter() - started
                return {"epsilon": spent, "test_accuracy": accuracy, "seconds": took}

            found.append(kept(place, "measured", about, measure))
            on_run(name, number)
        spent = [each["epsilon"] for each in found]
        lines.append(
            Line(
                name=name,
                cell=cell,
                accuracies=tuple(each["test_accuracy"] for each in found),
                epsilon=None if None in spent else max(spent),
                seconds=statistics.fmean(each["seconds"] for each in found),
            )
        )
    findings = {"lines": [line.to_json() for line in lines]}
    conclude(out, "accuracy", findings, {"accuracy": _figure(lines)})
    return tuple(lines)


def runs_of(name: str, most: int | None = None) -> int:
    return CELLS[name].runs if most is None else min(CELLS[name].runs, most)


def _once(cell: Cell, folder: Path, number: int, prepared: dict[Any, Classifier]) -> tuple[float, float | None]:
    """Return the accuracy on the public test images, and the ε."""
    if cell.epsilon == 0:
        return evaluate(_Together(NETS[TOGETHER]), datasets.load(cell.data, "test")).accuracy, 0.0
    rows, test = datasets.load(cell.data, "train"), datasets.load(cell.data, "test")
    if cell.epsilon is None:
        return evaluate(plain.run(rows, seed=number), test).accuracy, None
    if cell.recipe is None:
        return _whole(rows, test, cell, folder, number)
    key = cell.data, cell.recipe
    if key not in prepared:
        prepared[key] = Classifier.prepare(rows, test, epsilon=cell.epsilon, delta=DELTA, recipe=cell.recipe)
    trained = prepared[key].at(cell.epsilon).train(out=folder)
    assert trained.test_accuracy is not None
    return trained.test_accuracy, trained.epsilon


def whole_plan(epsilon: float, public_size: int) -> TrainingPlan:
    """Return the settings that Tramèr & Boneh (2021) publish for the tanh CNN, with the noise of a true ε.

    Weights are averaged over the last hundred steps, which costs nothing.
    """
    return TrainingPlan.calibrated(
        epsilon=epsilon,
        delta=DELTA,
        public_size=public_size,
        expected_batch=min(512, public_size // 4),
        epochs=40,
        clip_norm=0.1,
        average_decay=0.99,
    )


def _whole(
    rows: datasets.Dataset, test: datasets.Dataset, cell: Cell, folder: Path, seed: int
) -> tuple[float, float]:
    assert cell.epsilon is not None
    assert rows.public_size is not None
    result = train(
        models.build("tanh-cnn", seed=seed),
        standardized(rows),
        whole_plan(cell.epsilon, rows.public_size),
        delta=DELTA,
        optimization=_WHOLE,
        test=standardized(test),
        views=moved_by_a_pixel if cell.moved else None,
        out=folder,
        caveats=(Code.SETTINGS_PUBLISHED(),),
        purpose="a CNN from random weights",
    )
    assert result.test_accuracy is not None
    return result.test_accuracy, result.epsilon


class _Together(nn.Module):
    """Priors that answer together: the mean of the log-probabilities of both heads of each."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.nets = [models.load_prior(name) for name in names]

    def forward(self, images: Tensor) -> Tensor:
        bodies = [(net, net.body(images.contiguous(memory_format=torch.channels_last))) for net in self.nets]
        answers = [net.head(body) for net, body in bodies]
        answers += [net.linear(functional.normalize(body, dim=1)) for net, body in bodies]
        return torch.stack([answer.log_softmax(1) for answer in answers]).mean(0)


PUBLISHED: tuple[tuple[float, float, str], ...] = (
    (0.922, 94.6, "Opacus"),
    (0.954, 95.0, "TF-Privacy"),
    (1.0, 97.9, "best found at ε = 1"),
    (1.97, 98.5, "PATE 2018, data-dependent ε"),
    (2.0, 95.0, "Abadi 2016"),
    (2.59, 98.7, "Tramèr & Boneh 2021"),
    (2.93, 98.1, "tempered sigmoids"),
)
"""On MNIST: ε as recomputed, accuracy in %, and authors; all without public photographs."""


def _figure(lines: Sequence[Line]) -> Any:
    figure, axes = canvas(
        "Accuracy on public test images", xlabel="ε at δ = 1e-5", ylabel="accuracy, %", xlim=(0, 3.8)
    )
    for title in dict.fromkeys(line.cell.title for line in lines if line.epsilon is not None):
        mine = [line for line in lines if line.cell.title == title]
        means = [100 * statistics.fmean(line.accuracies) for line in mine]
        axes.plot([line.epsilon or 0.0 for line in mine], means, "o-", label=title)
    for epsilon, value, authors in PUBLISHED:
        axes.plot(epsilon, value, "s", color="tab:gray", ms=5)
        axes.annotate(authors, (epsilon, value), xytext=(6, 0), textcoords="offset points", fontsize=7)
    figure.legend(loc="outside lower center", ncols=2, fontsize=7)
    return figure


def accuracy(
    out: show.Out = Path("out/accuracy"),
    only: Only = None,
    runs: Annotated[int | None, typer.Option(min=1, help="Stop at this many runs of each line.")] = None,
    json: show.Json = False,
) -> None:
    """Measure the default recipe at several ε. An interrupted table is resumed.

    Example: sfumato reproduce accuracy --only mnist-1 --only mnist-3
    """
    with show.progress() as bar:
        total = sum(runs_of(name, runs) for name in chosen(only or (), CELLS))
        task = bar.add_task("training", total=total, note="")
        lines = run(
            out,
            only=only or (),
            most=runs,
            on_run=lambda name, number: bar.update(task, advance=1, note=f"{name} {number}"),
        )
    if json:
        show.emit_json({"lines": [line.to_json() for line in lines], "out": str(out)})
        return
    columns = ("data", "ε", "published best", "ours", "runs", "seconds a run")
    rows = [
        (
            line.cell.title, "∞" if line.epsilon is None else f"{line.epsilon:.3g}", line.cell.published,
            mean_and_spread(line.accuracies), str(len(line.accuracies)), f"{line.seconds:.0f}",
        )
        for line in lines
    ]  # fmt: skip
    print_table("Accuracy on public test images, %, δ = 1e-5", columns, rows)
    show.console.print(f"Figure and numbers: {out}")
