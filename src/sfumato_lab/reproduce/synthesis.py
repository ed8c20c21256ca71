"""Synthetic images beside the best published: what a network learns from them alone, and how like they are.

The data sets are public, so that everything here may be shown. Settings are fixed before; no run is left out,
and nothing is chosen on the test images: the epoch is that which is best on held-out synthetic images. Each
run leaves its folder, so that an interrupted table goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sfumato import _validate, datasets
from sfumato import runs as results
from sfumato.array_files import read_archive
from sfumato.datasets import Dataset
from sfumato.learn.kept_fit import kept_fit
from sfumato.ledger import Unrecorded
from sfumato.models import load_prior
from sfumato.randomness import SecretStream
from sfumato.storage import RunFolder, read_json, write_whole
from sfumato_lab.images import ImageRequest, StyleSettings, release_images
from sfumato_lab.images import measures as measure
from sfumato_lab.images.plan import HEAD_SHARE
from sfumato_lab.images.styles import DRAW, Images, Integers, to_inputs

DELTA = 1e-5
_RECORD, _COST, _IMAGES = "measured.json", "cost.json", "images.npz"
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
    """What the runs of a cell reached, one record each."""

    name: str
    cell: Cell
    records: tuple[dict[str, Any], ...]

    def mean(self, measured: str) -> float:
        """Not a number where runs of an earlier version did not measure it."""
        return statistics.fmean(record.get(measured, math.nan) for record in self.records)

    def deviation(self, measured: str) -> float:
        return statistics.stdev(record[measured] for record in self.records) if len(self.records) > 1 else 0.0

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
    """All cells, or those named; runs that are in `out` already are taken from there."""
    for name in only:
        _validate.one_of("cell", name, CELLS)
    lines = []
    for name, cell in CELLS.items():
        if only and name not in only:
            continue
        records = []
        for number in range(1, (runs or cell.runs) + 1):
            records.append(_record(cell, out / name / f"run-{number}", number, images))
            on_run(name, number)
        lines.append(Line(name=name, cell=cell, records=tuple(records)))
    folder = RunFolder.make(out)
    findings = {"lines": [line.to_json() for line in lines], **_headline(lines), "figures": _sheets(out, lines)}
    results.write_run(folder, results.Reproduction(name="synthesis", findings=findings), certificate=None)
    return tuple(lines)


def total_runs(only: Sequence[str] = (), runs: int | None = None) -> int:
    return sum(runs or cell.runs for name, cell in CELLS.items() if not only or name in only)


def _headline(lines: Sequence[Line]) -> dict[str, float]:
    """What the report states first, of networks that learned from synthetic images alone."""
    return {
        f"{line.cell.title}, ε = {line.cell.epsilon:g}: accuracy": round(line.mean("test_accuracy"), 4)
        for line in lines
    }


def _sheets(out: Path, lines: Sequence[Line]) -> list[str]:
    """The sheet of each line's first run, copied to where the report finds it."""
    for line in lines:
        sheet = out / line.name / "run-1" / "release" / "images.png"
        write_whole(RunFolder(out).figures / f"{line.name}.png", sheet.read_bytes(), readable=True)
    return [f"{line.name}.png" for line in lines]


def _record(cell: Cell, folder: Path, number: int, images: int) -> dict[str, Any]:
    """What was measured of a run. Images that an interrupted run left are measured, not made again."""
    kept = RunFolder(folder)
    if not (kept.release / _RECORD).exists():
        if not (kept.release / _COST).exists():
            kept.discard()  # left half-done; no ledger paid for it
            kept = RunFolder.make(folder)
            kept.write_json(_COST, _release(cell, kept, images))
        drawn = read_archive(kept.release / _IMAGES)
        rows, test = datasets.load(cell.data, "train"), datasets.load(cell.data, "test")
        found = measured(drawn["images"], drawn["labels"], rows, test, seed=number)
        kept.write_json(_RECORD, {**read_json(kept.release / _COST), **found})
    record: dict[str, Any] = read_json(kept.release / _RECORD)
    return record


def _release(cell: Cell, folder: RunFolder, images: int) -> dict[str, float]:
    """Make the images of one run; what they cost."""
    rows = datasets.load(cell.data, "train")
    started, computed = time.perf_counter(), time.process_time()
    request = ImageRequest.of(
        rows, images=images, epsilon=cell.epsilon, delta=DELTA, head_share=cell.head_share
    )
    made = release_images(
        request,
        rows,
        ledger=Unrecorded(delta=DELTA),
        out=folder.release / _IMAGES,
        sampler=SecretStream(),
    )
    took = {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - computed}
    return {"epsilon": made.epsilon, **took}


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
    return _validate.integer("classes", rows.classes or 0, least=2)


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
