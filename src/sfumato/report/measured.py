"""Our own accuracies against ε, gathered from the runs: means, and how far repetitions lie apart."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sfumato.report.story import Story


@dataclass(frozen=True, kw_only=True)
class Spot:
    """Repetitions at one ε: mean, least and greatest."""

    epsilon: float
    mean: float
    low: float
    high: float
    repetitions: int


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One method's curve."""

    name: str
    spots: tuple[Spot, ...]

    @classmethod
    def of(cls, name: str, runs: Iterable[Mapping[str, Any]]) -> Measured:
        groups: dict[float, list[tuple[float, float]]] = defaultdict(list)
        for run in runs:
            target = float(run.get("target_epsilon") or run["epsilon"])
            groups[target].append((float(run["epsilon"]), float(run["test_accuracy"])))
        return cls(name=name, spots=tuple(_spot(groups[target]) for target in sorted(groups)))

    def at(self, epsilon: float | None) -> float | None:
        """Accuracy at an ε, between the measured ones on a log scale; beyond the last, as at the last."""
        if not self.spots or (epsilon is not None and epsilon < self.spots[0].epsilon * 0.9):
            return None
        if epsilon is None or epsilon >= self.spots[-1].epsilon:
            return self.spots[-1].mean
        if epsilon <= self.spots[0].epsilon:
            return self.spots[0].mean
        upper = next(number for number, spot in enumerate(self.spots) if spot.epsilon >= epsilon)
        left, right = self.spots[upper - 1], self.spots[upper]
        share = math.log(epsilon / left.epsilon) / math.log(right.epsilon / left.epsilon)
        return left.mean + share * (right.mean - left.mean)

    def reaches(self, epsilon: float | None) -> bool:
        """Whether an ε lies within what was measured, give or take its calibration."""
        if epsilon is None or not self.spots:
            return False
        return self.spots[0].epsilon * 0.9 <= epsilon <= self.spots[-1].epsilon * 1.1


def _spot(group: list[tuple[float, float]]) -> Spot:
    accuracies = [accuracy for _, accuracy in group]
    return Spot(
        epsilon=statistics.mean(epsilon for epsilon, _ in group),
        mean=statistics.mean(accuracies),
        low=min(accuracies),
        high=max(accuracies),
        repetitions=len(group),
    )


def curves(story: Story) -> list[Measured]:
    """Ours, the best first."""
    found = [
        Measured.of(name, [one for run in story.of(kind) for one in run.result["runs"]])
        for kind, name in (("best-recipe", "Sfumato, best recipe"), ("sweep", _sweep_name(story)))
    ]
    if not any(curve.spots for curve in found):
        trained = [run.result for run in story.of("training") if run.result.get("test_accuracy")]
        found.append(Measured.of("these runs", trained))
    return [curve for curve in found if curve.spots]


def _sweep_name(story: Story) -> str:
    """With its epochs, where they are told: the sweep learns for fewer than the network of the table."""
    run = story.first("sweep")
    epochs = None if run is None else run.result.get("settings", {}).get("sweep_epochs")
    return "Sfumato, CNN from scratch" + (f", {epochs} epochs" if epochs else "")


def keepers_curve(story: Story) -> Measured | None:
    """The curve of the best method that was measured at more than one ε."""
    return next((curve for curve in curves(story) if len(curve.spots) > 1), None)
