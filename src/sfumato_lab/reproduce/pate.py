"""PATE beside its published tables: the PySyft PATE project, PATE 2017 and 2018, private-kNN, and ours.

Private are the first 50,000 rows of MNIST's training set. The last 10,000, declared public, chose every
setting and teach nobody. The test images are public and come without labels; their labels measure, and choose
nothing.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sfumato import datasets, pate
from sfumato.datasets import Dataset
from sfumato.datasets.drawings import TOGETHER
from sfumato.models.rows_apart import rows_apart
from sfumato.pate import Adaptation, PateSettings, PublicSide, VotePlan, queries_for
from sfumato.storage import json_bytes, write_whole
from sfumato_lab.reproduce import pate_figures, pate_source

DELTA = 1e-5
PRIVATE_ROWS = 50_000
PUBLISHED = (  # method, ε, which ε it is, student accuracy
    ("PATE 2017, 250 teachers", 2.04, "data-dependent", 0.980),
    ("PATE 2017, 250 teachers", 8.03, "data-dependent", 0.981),
    ("PATE 2018, Confident-GNMax, 250 teachers", 1.97, "data-dependent", 0.985),
    ("PATE 2018, Confident-GNMax, 250 teachers", 2.54, "data-independent, recomputed", 0.985),
    ("private-kNN 2020", 0.47, "data-dependent", 0.988),
)
TEACHERS = {0.5: 1000, 1.0: 500, 2.0: 500}  # fewer votes are heard through more noise
MOST_QUERIES = 1500  # of the others the features are sure
SEEDS = 5


@dataclass(frozen=True, kw_only=True)
class PateRow:
    """Ours at one ε: mean and deviation over runs with their own shards and noise."""

    epsilon: float
    teachers: int
    queries: int
    student_accuracy: float
    deviation: float
    accuracies: tuple[float, ...]
    label_accuracy: float
    start_accuracy: float  # ε = 0


@dataclass(frozen=True, kw_only=True)
class Report:
    rows: tuple[PateRow, ...]
    source: tuple[pate_source.SourceRow, ...]
    agreement: dict[int, float]  # teachers → mean share of the leading class

    def to_json(self) -> dict[str, Any]:
        return {
            "delta": DELTA,
            "rows": [asdict(row) for row in self.rows],
            "source": [asdict(row) for row in self.source],
            "agreement": self.agreement,
            "published": [list(row) for row in PUBLISHED],
        }


def run(
    out: Path,
    *,
    seeds: int = SEEDS,
    epsilons: Sequence[float] = tuple(TEACHERS),
    prior: str = TOGETHER,
    adapt_steps: int = Adaptation().steps,
    source: bool = True,
    data: tuple[Dataset, Dataset] | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Report:
    """Measure, write `pate.json` and four figures into `out`, and return the rows."""
    out.mkdir(parents=True, exist_ok=True)
    private, public = _mnist() if data is None else data
    adaptation = Adaptation(prior=prior, steps=adapt_steps)
    side = PublicSide.of(
        public.inputs,
        adaptation,
        classes=public.classes or 10,
        progress=lambda what, share: progress(f"{what}: {share:.0%}"),
    )
    progress("features of the private rows")
    images = private.tensors()[0]
    features = rows_apart(side.views[0].features, images), rows_apart(side.views[1].features, images)
    rows: list[PateRow] = []
    kept: dict[int, pate.PateResult] = {}  # by number of teachers
    for epsilon in epsilons:
        teachers = TEACHERS.get(epsilon, 250)
        settings = _settings(epsilon, teachers, adaptation, len(public), public.classes or 10)
        results = []
        for seed in range(seeds):
            progress(f"ε = {epsilon:g}, run {seed + 1} of {seeds}")
            results.append(pate.run(private, public, settings, delta=DELTA, side=side, features=features))
        rows.append(_row(settings.plan, results))
        kept[teachers] = results[0]
    cells = pate_source.run(private, public, progress=progress) if source else []
    report = Report(rows=tuple(rows), source=tuple(cells), agreement=_agreement(kept))
    write_whole(out / "pate.json", json_bytes(report.to_json()), readable=True)
    pate_figures.draw(out, report.rows, PUBLISHED, kept, report.agreement, DELTA)
    return report


def _mnist() -> tuple[Dataset, Dataset]:
    private = datasets.load("mnist", "train").excerpt(PRIVATE_ROWS)
    return private, replace(datasets.load("mnist", "test"), visibility="public")


def _settings(epsilon: float, teachers: int, adaptation: Adaptation, images: int, classes: int) -> PateSettings:
    plan = VotePlan.calibrated(
        epsilon=epsilon,
        delta=DELTA,
        mechanism="gnmax",
        teachers=teachers,
        queries=queries_for(teachers, epsilon=epsilon, delta=DELTA, most=min(images, MOST_QUERIES)),
        classes=classes,
    )
    return PateSettings(plan=plan, adaptation=adaptation)


def _row(plan: VotePlan, results: Sequence[pate.PateResult]) -> PateRow:
    accuracies = tuple(result.student_accuracy for result in results)
    return PateRow(
        epsilon=results[0].epsilon,
        teachers=plan.teachers,
        queries=plan.queries,
        student_accuracy=statistics.mean(accuracies),
        deviation=statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0,
        accuracies=accuracies,
        label_accuracy=statistics.mean(result.label_accuracy or 0.0 for result in results),
        start_accuracy=results[0].start_accuracy,
    )


def _agreement(kept: dict[int, pate.PateResult]) -> dict[int, float]:
    """On the images that all were asked about, which are the hardest ones.

    Figures that show votes are private; here they are of MNIST, which everyone has.
    """
    common = functools.reduce(np.intersect1d, (result.queries for result in kept.values()))
    shares = {}
    for teachers, result in sorted(kept.items()):
        counts = pate.count_votes(result.votes[:, np.isin(result.queries, common)], classes=result.classes)
        shares[teachers] = float(np.mean(counts.max(axis=1) / teachers))
    return shares
