"""Clustering of raw images from several first weights: people's, or drawings, on which settings are chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato import _validate, datasets
from sfumato.datasets.drawings import TOGETHER
from sfumato_lab.reproduce.clustering import ClusteringPlan, cluster
from sfumato_lab.reproduce.local_noise import Images, kept, pictures_of, unit_images

DATA = ("mnist", "drawings")
_TEST = 10_000


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Accuracy of each run, of the assignment that it takes without looking at labels."""

    data: str
    plan: ClusteringPlan
    accuracies: tuple[float, ...]
    cpu_seconds: tuple[float, ...]

    @property
    def mean(self) -> float:
        return fmean(self.accuracies)

    @property
    def spread(self) -> float:
        return stdev(self.accuracies) if len(self.accuracies) > 1 else 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"mean_accuracy": self.mean, "spread": self.spread}


def run(
    out: str | Path,
    plan: ClusteringPlan,
    *,
    data: str = "mnist",
    people: int = 60_000,
    seeds: int = 5,
    progress: Callable[[str], None] = lambda text: None,
) -> Runs:
    """Cluster `seeds` times; runs under `out` with the same settings are found again."""
    _validate.one_of("data", data, DATA)
    images: tuple[Images, Images, npt.NDArray[np.int64]] | None = None
    found: list[Mapping[str, Any]] = []
    for seed in range(_validate.integer("seeds", seeds, least=1)):
        own = replace(plan, seed=seed)

        def once(own: ClusteringPlan = own) -> dict[str, float]:
            nonlocal images
            images = images or _images(data, people)
            said = cluster(*images, own, progress=lambda step: progress(f"seed {own.seed}, step {step}"))
            return {"accuracy": said.accuracy, "cpu_seconds": said.cpu_seconds}

        about = {"data": data, "people": people, "plan": asdict(own)}
        found.append(kept(Path(out) / f"{data}-{seed}.json", about, once))
    return Runs(
        data=data,
        plan=plan,
        accuracies=tuple(one["accuracy"] for one in found),
        cpu_seconds=tuple(one["cpu_seconds"] for one in found),
    )


def _images(data: str, people: int) -> tuple[Images, Images, npt.NDArray[np.int64]]:
    """Images to cluster, other ones to name and count the clusters on, and those ones' digits."""
    if data == "mnist":
        train, test = datasets.load("mnist", "train").excerpt(people), datasets.load("mnist", "test")
        pair, labels = (train.inputs[:, 0], test.inputs[:, 0]), test.targets
    else:
        drawn, _ = datasets.draw(TOGETHER, people, seed=1)
        other, labels = datasets.draw(TOGETHER, min(people, _TEST), seed=2)
        pair = drawn, other
    first, second = (pictures_of(unit_images(part)) for part in pair)
    return first, second, labels
