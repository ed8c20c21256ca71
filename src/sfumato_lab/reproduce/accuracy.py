"""How much accuracy privacy costs: the default recipe over ε, beside the best that was published.

Every run is the last step of a plan fixed before; no run is left out. Each run leaves its folder,
so that an interrupted table goes on where it stopped. Repetitions of private runs differ in their secret noise
and sampling; those from random weights and plain ones in their seed too.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sfumato import _validate, datasets
from sfumato.datasets.drawings import NETS, TOGETHER
from sfumato.errors import InvalidInput
from sfumato.fitting import evaluate
from sfumato.learn import CLOTHES, DESIGNED, DIGITS, SCENES, Classifier, Recipe
from sfumato.learn import plain as plain_recipe
from sfumato.models import load_prior
from sfumato.storage import RunFolder, finite, read_json, write_figure, write_whole
from sfumato.training import moved_by_a_pixel
from sfumato_lab.reproduce import end_to_end
from sfumato_lab.reproduce.pixels import standardized

DELTA = 1e-5


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One line of the table."""

    title: str
    data: str
    epsilon: float  # 0: the prior as it is; ∞: without privacy
    runs: int
    published: str  # best credible accuracy in print, %, and by whom
    recipe: Recipe | None = DIGITS  # None: the whole net, end to end
    moved: bool = False  # whether it learns from images moved by a pixel too


_RECORD = "measured.json"  # of a run that came to its end; an ε of null is infinite
_INFINITE = float("inf")
CELLS: dict[str, Cell] = {
    "prior": Cell(title="MNIST, prior only", data="mnist", epsilon=0.0, runs=1, published="–"),
    "mnist-0.5": Cell(title="MNIST", data="mnist", epsilon=0.5, runs=5, published="–"),
    "mnist-1": Cell(title="MNIST", data="mnist", epsilon=1.0, runs=5, published="97.9"),
    "mnist-3": Cell(title="MNIST", data="mnist", epsilon=3.0, runs=5, published="98.7 (Tramèr & Boneh 2021)"),
    "designed-3": Cell(
        title="MNIST, no prior: scattering",
        data="mnist",
        epsilon=3.0,
        runs=3,
        published="98.7 (Tramèr & Boneh 2021)",
        recipe=DESIGNED,
    ),
    "whole-3": Cell(
        title="MNIST, no prior: CNN end to end",
        data="mnist",
        epsilon=3.0,
        runs=3,
        published="98.1 (Tramèr & Boneh 2021)",
        recipe=None,
    ),
    "moved-3": Cell(
        title="MNIST, no prior: CNN end to end, moved",
        data="mnist",
        epsilon=3.0,
        runs=3,
        published="98.7 (Tramèr & Boneh 2021)",
        recipe=None,
        moved=True,
    ),
    "fashion-1": Cell(
        title="Fashion-MNIST", data="fashion-mnist", epsilon=1.0, runs=5, published="–", recipe=CLOTHES
    ),
    "fashion-3": Cell(
        title="Fashion-MNIST",
        data="fashion-mnist",
        epsilon=3.0,
        runs=5,
        published="89.7 (Tramèr & Boneh 2021)",
        recipe=CLOTHES,
    ),
    "cifar-1": Cell(
        title="CIFAR-10",
        data="cifar10",
        epsilon=1.0,
        runs=5,
        published="72.3 (Tang et al. 2023)",
        recipe=SCENES,
    ),
    "cifar-3": Cell(
        title="CIFAR-10",
        data="cifar10",
        epsilon=3.0,
        runs=5,
        published="69.3 (Tramèr & Boneh 2021)",
        recipe=SCENES,
    ),
    "plain": Cell(title="MNIST, plain, same net", data="mnist", epsilon=_INFINITE, runs=3, published="–"),
}


@dataclass(frozen=True, kw_only=True)
class Line:
    """What the runs of a cell reached: shares of right answers, and the dearest run's ε."""

    name: str
    cell: Cell
    accuracies: tuple[float, ...]
    epsilon: float
    seconds: float  # of a run, on average

    @property
    def mean(self) -> float:
        return statistics.fmean(self.accuracies)

    @property
    def deviation(self) -> float:
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.cell.title,
            "asked_epsilon": self.cell.epsilon,
            "epsilon": self.epsilon,
            "delta": DELTA,
            "mean": self.mean,
            "deviation": self.deviation,
            "accuracies": list(self.accuracies),
            "published": self.cell.published,
            "seconds": self.seconds,
        }


def run(
    out: Path,
    *,
    only: Sequence[str] = (),
    most: int | None = None,
    nets: Sequence[Path] = (),
    on_run: Callable[[str, int], None] = lambda name, number: None,
) -> tuple[Line, ...]:
    """All cells, or those named, at `most` so many runs of each; runs in `out` are taken from there.

    With folders of `nets`, each run of a cell stands on the networks of one of them, and on nothing that ships.
    """
    names = chosen(only)
    if nets:
        return _over_nets(names, nets, out, on_run)
    lines = []
    for key in dict.fromkeys(
        (CELLS[name].data, CELLS[name].recipe) for name in names
    ):  # features are made once
        ready: list[Classifier] = []
        for name in names:
            if (CELLS[name].data, CELLS[name].recipe) == key:
                lines.append(_line(name, _runs(name, most), out, ready, on_run))
    lines.sort(key=lambda line: names.index(line.name))
    write_table(out, lines)
    return tuple(lines)


def chosen(only: Sequence[str] = ()) -> list[str]:
    for name in only:
        _validate.one_of("cell", name, CELLS)
    return [name for name in CELLS if not only or name in only]


def total_runs(only: Sequence[str] = (), most: int | None = None, nets: int = 0) -> int:
    return sum(nets or _runs(name, most) for name in chosen(only))


def _over_nets(
    names: Sequence[str], nets: Sequence[Path], out: Path, on_run: Callable[[str, int], None]
) -> tuple[Line, ...]:
    """One run of each cell on the networks of each folder: lines differ in networks and in noise."""
    for name in names:
        recipe, epsilon = CELLS[name].recipe, CELLS[name].epsilon
        if recipe is None or not recipe.priors or not 0 < epsilon < _INFINITE:
            raise InvalidInput(
                f"expected lines with a private head on networks, got {name}; name others with --only"
            )
    for number, folder in enumerate(nets, start=1):
        ready: dict[Any, list[Classifier]] = {}  # features are made once for each folder
        for name in names:
            key = CELLS[name].data, CELLS[name].recipe
            _ensure(name, number, out, ready.setdefault(key, []), folder)
            on_run(name, number)
    lines = tuple(_read(name, len(nets), out) for name in names)
    write_table(out, lines)
    return lines


def _runs(name: str, most: int | None) -> int:
    return CELLS[name].runs if most is None else min(CELLS[name].runs, most)


def _line(name: str, runs: int, out: Path, ready: list[Classifier], on_run: Callable[[str, int], None]) -> Line:
    for number in range(1, runs + 1):
        _ensure(name, number, out, ready)
        on_run(name, number)
    return _read(name, runs, out)


def _ensure(name: str, number: int, out: Path, ready: list[Classifier], nets: Path | None = None) -> None:
    """Do this run if it is not there."""
    if not _record(out, name, number).exists():
        _once(CELLS[name], out / name / f"run-{number}", number, ready, nets)


def _record(out: Path, name: str, number: int) -> Path:
    return out / name / f"run-{number}" / "release" / _RECORD


def _read(name: str, runs: int, out: Path) -> Line:
    results = [read_json(_record(out, name, number)) for number in range(1, runs + 1)]
    return Line(
        name=name,
        cell=CELLS[name],
        accuracies=tuple(result["test_accuracy"] for result in results),
        epsilon=max(_INFINITE if result["epsilon"] is None else result["epsilon"] for result in results),
        seconds=statistics.fmean(result["seconds"] for result in results),
    )


def _once(cell: Cell, folder: Path, number: int, ready: list[Classifier], nets: Path | None = None) -> None:
    started = time.perf_counter()
    RunFolder(folder).discard()  # left half-done; no ledger paid for it
    if cell.epsilon == 0:
        accuracy, spent = evaluate(_Together(NETS[TOGETHER]), datasets.load(cell.data, "test")).accuracy, 0.0
    elif cell.epsilon == _INFINITE:
        net = plain_recipe.run(datasets.load(cell.data, "train"), seed=number)
        accuracy, spent = evaluate(net, datasets.load(cell.data, "test")).accuracy, _INFINITE
    elif cell.recipe is None:
        accuracy, spent = _whole(cell, folder, number)
    else:
        accuracy, spent = _private(cell, cell.recipe, folder, ready, nets)
    # Data and settings are public here, and so is the time they took.
    record = {"epsilon": spent, "test_accuracy": accuracy, "seconds": time.perf_counter() - started}
    RunFolder.make(folder).write_json(_RECORD, record)


class _Together(nn.Module):
    """Priors that answer together: the mean of the log-probabilities of both heads of each."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.nets = [load_prior(name) for name in names]

    def forward(self, images: Tensor) -> Tensor:
        bodies = [(net, net.body(images.contiguous(memory_format=torch.channels_last))) for net in self.nets]
        answers = [net.head(body) for net, body in bodies]
        answers += [net.linear(functional.normalize(body, dim=1)) for net, body in bodies]
        return torch.stack([answer.log_softmax(1) for answer in answers]).mean(0)


def _whole(cell: Cell, folder: Path, number: int) -> tuple[float, float]:
    rows, test = (standardized(datasets.load(cell.data, split)) for split in ("train", "test"))
    views = moved_by_a_pixel if cell.moved else None
    result = end_to_end.run(rows, test, epsilon=cell.epsilon, delta=DELTA, seed=number, views=views, out=folder)
    assert result.test_accuracy is not None
    return result.test_accuracy, result.epsilon


def _private(
    cell: Cell, recipe: Recipe, folder: Path, ready: list[Classifier], nets: Path | None
) -> tuple[float, float]:
    if not ready:
        rows, test = datasets.load(cell.data, "train"), datasets.load(cell.data, "test")
        ready.append(
            Classifier.prepare(rows, test, epsilon=cell.epsilon, delta=DELTA, recipe=recipe, nets=nets)
        )
    # A model on networks that do not ship could not be loaded again, so that none is written.
    trained = ready[0].at(cell.epsilon).train(out=folder if nets is None else None)
    assert trained.test_accuracy is not None
    return trained.test_accuracy, trained.epsilon


def write_table(out: Path, lines: Sequence[Line]) -> None:
    """accuracy.json and the figure, of the cells at hand."""
    out.mkdir(parents=True, exist_ok=True)
    table = json.dumps(finite([line.to_json() for line in lines]), indent=2, ensure_ascii=False)
    write_whole(out / "accuracy.json", f"{table}\n".encode(), readable=True)
    if lines:
        draw(lines, out / "accuracy.png")


PUBLISHED: dict[str, tuple[tuple[float, float, str, str], ...]] = {
    "mnist": (
        (0.922, 94.6, "Opacus", "right"),
        (0.954, 95.0, "TF-Privacy", "right"),
        (1.0, 97.9, "best found at ε = 1", "right"),
        (1.97, 98.5, "PATE 2018, data-dependent ε", "left"),
        (2.0, 95.0, "Abadi 2016", "right"),
        (2.5, 96.8, "Opacus", "left"),
        (2.59, 98.7, "Tramèr & Boneh 2021", "right"),
        (2.6, 96.6, "TF-Privacy", "right"),
        (2.93, 98.1, "tempered sigmoids", "left"),
    ),
    "fashion-mnist": ((2.59, 89.7, "Tramèr & Boneh 2021", "left"),),
    "cifar10": ((1.0, 72.3, "Tang et al. 2023", "left"), (3.0, 69.3, "Tramèr & Boneh 2021", "left")),
}
"""ε as recomputed, accuracy in %, whose, and on which side the name stands; all without public photographs."""
_TITLES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
_OURS = {"mnist": DIGITS, "fashion-mnist": CLOTHES, "cifar10": SCENES}


def draw(lines: Sequence[Line], path: Path) -> None:
    """Accuracy against ε for each data set, ours and every published point."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    shown = [data for data in _TITLES if any(line.cell.data == data for line in lines)]
    figure, panels = plt.subplots(
        1, len(shown), figsize=(4.8 * len(shown), 5.0), layout="constrained", squeeze=False
    )
    for axes, data in zip(panels[0], shown, strict=True):
        _panel(axes, data, [line for line in lines if line.cell.data == data])
    panels[0][0].set_ylabel("accuracy on the public test set, %")
    write_figure(path, figure, readable=True, dpi=120)
    plt.close(figure)


def _panel(axes: Any, data: str, lines: Sequence[Line]) -> None:
    ours = [line for line in lines if line.cell.recipe == _OURS[data] and 0 < line.epsilon < _INFINITE]
    axes.errorbar(
        [line.epsilon for line in ours],
        [100 * line.mean for line in ours],
        yerr=[100 * line.deviation for line in ours],
        marker="o",
        capsize=3,
        label="Sfumato, public drawings",
    )
    others = [line for line in lines if line.cell.recipe != _OURS[data]]
    for line, marker in zip(others, "v^D", strict=False):
        axes.plot(
            line.epsilon, 100 * line.mean, marker, color="tab:blue", label=f"Sfumato,{line.cell.title[6:]}"
        )
    for epsilon, value, whose, side in PUBLISHED[data]:
        axes.plot(epsilon, value, "s", color="tab:gray", ms=5)
        place, towards = ((6, 0), "left") if side == "right" else ((-6, 0), "right")
        axes.annotate(
            whose,
            (epsilon, value),
            xytext=place,
            textcoords="offset points",
            fontsize=7,
            ha=towards,
            va="center",
        )
    for line in lines:
        if line.epsilon == _INFINITE:
            axes.axhline(100 * line.mean, color="tab:green", ls="--", label="the net trained whole, no privacy")
        elif line.epsilon == 0:
            axes.axhline(100 * line.mean, color="tab:orange", ls=":", label="the priors alone, ε = 0")
    axes.set(xlabel="ε at δ = 1e-5", title=_TITLES[data], xlim=(0, 3.8))
    axes.margins(y=0.12)
    axes.grid(alpha=0.3)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), fontsize=7)
