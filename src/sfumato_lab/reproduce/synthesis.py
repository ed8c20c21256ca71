"""Compare synthetic images with the best published: likeness, and accuracy of a network trained on them alone.

The data sets are public, so that everything here may be shown. Settings are fixed before; no run is left out,
and nothing is chosen on the test images: the epoch is that which is best on held-out synthetic images.
"""

from __future__ import annotations

import hashlib
import inspect
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from sfumato import datasets
from sfumato.array_files import read_archive
from sfumato.cli import show
from sfumato.datasets import Dataset
from sfumato.learn.kept_fit import kept_fit
from sfumato.ledger import Unrecorded
from sfumato.models import load_prior
from sfumato.randomness import SecretStream
from sfumato_lab.images import ImageRequest, StyleSettings, release_images
from sfumato_lab.images import measures as measure
from sfumato_lab.images.plan import HEAD_SHARE
from sfumato_lab.images.styles import DRAW, Images, Integers, to_inputs
from sfumato_lab.reproduce.tables import (
    DELTA,
    Only,
    chosen,
    conclude,
    kept,
    mean_and_spread,
    print_table,
)

_IMAGES = "images.npz"
_SEEN = 10_000  # images that distances are measured on
_DRAWN = 12  # seed of drawings to compare with, which no sampler starts from
_EPOCHS, _WIDTH = 12, 16  # of the network that learns from synthetic images alone
_COPIES, _STYLES = 1000, 2000  # images whose neighbours are looked for, and whose styles are compared


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One line of the table."""

    title: str
    data: str
    epsilon: float
    published: str
    head_share: float = HEAD_SHARE
    runs: int = 5


_MNIST, _FASHION = "95.6 (DP-FETA)", "81.7 (DP-FETA)"
CELLS: dict[str, Cell] = {
    "mnist-1": Cell(title="MNIST", data="mnist", epsilon=1.0, published=_MNIST),
    "mnist-10": Cell(title="MNIST", data="mnist", epsilon=10.0, published="98.1 (DP-FETA)"),
    "mnist-1-labels": Cell(
        title="MNIST, drawings as they are, labelled by the head",
        data="mnist",
        epsilon=1.0,
        published=_MNIST,
        head_share=1.0,
    ),
    "mnist-1-statistics": Cell(
        title="MNIST, all in the statistics, no head",
        data="mnist",
        epsilon=1.0,
        published=_MNIST,
        head_share=0.0,
    ),
    "fashion-1": Cell(title="Fashion-MNIST", data="fashion-mnist", epsilon=1.0, published=_FASHION),
    "fashion-10": Cell(title="Fashion-MNIST", data="fashion-mnist", epsilon=10.0, published="87.3 (DP-FETA)"),
}


@dataclass(frozen=True, kw_only=True)
class Line:
    """The measurements of a cell, one record for each run."""

    name: str
    cell: Cell
    records: tuple[dict[str, Any], ...]

    def mean(self, measured: str) -> float:
        return statistics.fmean(record[measured] for record in self.records)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.cell.title,
            "asked_epsilon": self.cell.epsilon,
            "published": self.cell.published,
            "records": list(self.records),
        }


def run(
    out: Path,
    *,
    only: Sequence[str] = (),
    runs: int | None = None,
    images: int = 60_000,
    on_run: Callable[[str, int], None] = lambda name, number: None,
) -> tuple[Line, ...]:
    """Make and measure the images of all cells, or of those named."""
    lines = []
    for name in chosen(only, CELLS):
        cell, records = CELLS[name], []
        for number in range(1, (runs or cell.runs) + 1):
            place = out / name / f"run-{number}"
            about = {"cell": asdict(cell), "images": images, "number": number}
            cost = kept(place, "cost", about, partial(_release, cell, place, images))
            found = kept(place, "measured", about, partial(_judged, cell, place, number))
            records.append({**cost, **found})
            on_run(name, number)
        lines.append(Line(name=name, cell=cell, records=tuple(records)))
    headline = {
        f"{line.cell.title}, ε = {line.cell.epsilon:g}: accuracy": round(line.mean("test_accuracy"), 4)
        for line in lines
    }
    conclude(out, "synthesis", {"lines": [line.to_json() for line in lines], **headline}, {})
    return tuple(lines)


def _release(cell: Cell, folder: Path, images: int) -> dict[str, float]:
    """Make the images of one run; return their cost."""
    rows = datasets.load(cell.data, "train")
    started, computed = time.perf_counter(), time.process_time()
    request = ImageRequest.of(
        rows, images=images, epsilon=cell.epsilon, delta=DELTA, head_share=cell.head_share
    )
    for left in folder.glob("images*"):  # of a run that was interrupted
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    made = release_images(
        request, rows, ledger=Unrecorded(delta=DELTA), out=folder / _IMAGES, sampler=SecretStream()
    )
    took = {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - computed}
    return {"epsilon": made.epsilon, **took}


def _judged(cell: Cell, folder: Path, number: int) -> dict[str, float]:
    drawn = read_archive(folder / _IMAGES)
    rows, test = datasets.load(cell.data, "train"), datasets.load(cell.data, "test")
    return measured(drawn["images"], drawn["labels"], rows, test, seed=number)


def measured(images: Images, labels: Integers, rows: Dataset, test: Dataset, *, seed: int) -> dict[str, float]:
    """Accuracy, likeness, labels, copies and styles; `rows` must be of a public data set."""
    inputs, targets = test.tensors()
    learned = measure.learn(images, labels, classes=_classes(rows), epochs=_EPOCHS, width=_WIDTH, seed=seed)
    prior = StyleSettings.for_data(rows.name).net
    reader = _reader(rows.name)
    some = to_inputs(images[:_SEEN])
    found = {
        "test_accuracy": measure.accuracy(learned.net, inputs, targets),
        "epoch": learned.epoch,
        "read_as_labelled": measure.accuracy(reader, some, measure.to_targets(labels[:_SEEN])),
    }
    drawings, kinds = DRAW[prior](_SEEN, seed=_DRAWN)
    plain = to_inputs(drawings[kinds < _classes(rows)])
    for name, features in (("prior", load_prior(prior).features), ("reader", reader.features)):
        real = measure.features_of(inputs, features)
        synthetic = measure.features_of(some, features)
        found[f"frechet_{name}"] = measure.frechet(synthetic, real)
        found[f"frechet_{name}_drawings"] = measure.frechet(measure.features_of(plain, features), real)
        if name == "reader":
            found["coverage"] = measure.coverage(synthetic[:_STYLES], real[:_STYLES])
    private = np.rint(255 * rows.inputs[:, 0]).astype(np.uint8)
    apart = measure.nearest_distances(images[:_COPIES], private)
    return {**found, "nearest_median": float(np.median(apart)), "nearest_least": float(apart.min())}


def _classes(rows: Dataset) -> int:
    assert rows.classes is not None
    return rows.classes


@cache
def _reader(data: str) -> measure.Reader:
    """A network that learned from the real training images, which are public, to judge the synthetic ones."""
    rows = datasets.load(data, "train")
    net = measure.Reader(_classes(rows))
    source = f"{inspect.getsource(measure)} {hashlib.sha256(rows.inputs.tobytes()).hexdigest()}"
    net.load_state_dict(kept_fit(f"reader of {data} {source}", lambda: _learned_from(rows).state_dict()))
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack it
    return net.eval()


def _learned_from(rows: Dataset) -> measure.Reader:
    levels = np.rint(255 * rows.inputs[:, 0]).astype(np.uint8)
    return measure.learn(levels, rows.targets, classes=_classes(rows)).net


def synthesis(
    out: show.Out = Path("out/synthesis"),
    only: Only = None,
    runs: Annotated[int | None, typer.Option(min=1, help="Runs of each line. Default: 5.")] = None,
    images: Annotated[int, typer.Option(min=100, help="Images of each run.")] = 60_000,
    json: show.Json = False,
) -> None:
    """Draw synthetic images at several ε, and measure them. An interrupted table is resumed.

    Example: sfumato reproduce synthesis --only mnist-1 --runs 1
    """
    with show.progress() as bar:
        total = sum(runs or CELLS[name].runs for name in chosen(only or (), CELLS))
        task = bar.add_task("drawing", total=total, note="")
        lines = run(
            out,
            only=only or (),
            runs=runs,
            images=images,
            on_run=lambda name, number: bar.update(task, advance=1, note=f"{name} {number}"),
        )
    if json:
        show.emit_json({"lines": [line.to_json() for line in lines], "out": str(out)})
        return
    rows = []
    for line in lines:
        apart = f"{line.mean('frechet_prior'):.3f} ({line.mean('frechet_prior_drawings'):.3f})"
        ours = mean_and_spread([record["test_accuracy"] for record in line.records])
        rows.append(
            (
                line.cell.title, f"{line.cell.epsilon:g}", line.cell.published, ours, apart,
                f"{line.mean('read_as_labelled'):.1%}", f"{line.mean('coverage'):.0%}",
                f"{line.mean('nearest_median'):.3f}", f"{line.mean('cpu_seconds'):.0f}",
            )
        )  # fmt: skip
    title = "A network trained on synthetic images alone, % of public test images right, δ = 1e-5"
    columns = (
        "data", "ε", "published best", "ours", "Fréchet (drawings)", "as labelled", "coverage", "nearest",
        "CPU s",
    )  # fmt: skip
    print_table(title, columns, rows)
    show.console.print(f"Images, sheets and numbers: {out}")
