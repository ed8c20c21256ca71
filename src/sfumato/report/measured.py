"""Our own accuracies against ε, gathered from the runs: means, and how far repetitions lie apart."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from sfumato.report.context import Context, data_name
from sfumato.runs import Run, Sweep, SweepRun, Training, Tuning

_CALIBRATION = 0.1  # a run's ε lies within this share of the one that was asked for


@dataclass(frozen=True, kw_only=True)
class Point:
    """Repetitions at one ε: mean, least and greatest accuracy."""

    epsilon: float
    mean: float
    low: float
    high: float
    repetitions: int
    name: str = ""  # of a single run


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One method's points; `connected` if only ε differs between them."""

    name: str
    points: tuple[Point, ...]
    delta: float | None = None
    connected: bool = True

    @classmethod
    def of(cls, name: str, runs: Iterable[SweepRun], *, delta: float | None = None) -> Curve:
        groups: dict[float, list[SweepRun]] = defaultdict(list)
        for run in runs:
            groups[run.target_epsilon].append(run)
        return cls(name=name, points=tuple(_point(groups[target]) for target in sorted(groups)), delta=delta)

    def at(self, epsilon: float | None) -> float | None:
        """Accuracy at an ε, between the measured ones on a log scale; beyond the last, as at the last."""
        if not self.points or (epsilon is not None and epsilon < self.points[0].epsilon * (1 - _CALIBRATION)):
            return None
        if epsilon is None or epsilon >= self.points[-1].epsilon:
            return self.points[-1].mean
        if epsilon <= self.points[0].epsilon:
            return self.points[0].mean
        upper = next(number for number, point in enumerate(self.points) if point.epsilon >= epsilon)
        left, right = self.points[upper - 1], self.points[upper]
        if not left.epsilon:
            return left.mean
        share = math.log(epsilon / left.epsilon) / math.log(right.epsilon / left.epsilon)
        return left.mean + share * (right.mean - left.mean)

    def reaches(self, epsilon: float | None) -> bool:
        """Return whether an ε lies in the measured range, within the calibration tolerance."""
        if epsilon is None or not self.points:
            return False
        low, high = self.points[0].epsilon, self.points[-1].epsilon
        return low * (1 - _CALIBRATION) <= epsilon <= high * (1 + _CALIBRATION)


def _point(group: list[SweepRun]) -> Point:
    accuracies = [run.test_accuracy for run in group]
    return Point(
        epsilon=statistics.fmean(run.epsilon for run in group),
        mean=statistics.fmean(accuracies),
        low=min(accuracies),
        high=max(accuracies),
        repetitions=len(group),
    )


def curves(context: Context) -> list[Curve]:
    """One for each sweep, the recipe's first; then one for the single runs on each data set."""
    sweeps = sorted(context.of(Sweep), key=lambda sweep: sweep.method != "recipe")
    found = [Curve.of(_sweep_name(sweep), sweep.runs, delta=sweep.delta) for sweep in sweeps]
    return [curve for curve in (*found, *_single_runs(context)) if curve.points]


def _sweep_name(sweep: Sweep) -> str:
    """With its epochs, where they are told: a sweep may learn for fewer than the network of the table."""
    return f"Sfumato, {sweep.name}" + (f", {sweep.epochs} epochs" if sweep.epochs else "")


def _single_runs(context: Context) -> list[Curve]:
    groups: dict[tuple[str | None, float], list[Point]] = defaultdict(list)
    singles: list[tuple[Run, Training | Tuning]] = [*context.runs_of(Training), *context.runs_of(Tuning)]
    for run, result in singles:
        right = result.test_accuracy
        if right is not None:
            name = run.folder.name
            point = Point(epsilon=result.epsilon, mean=right, low=right, high=right, repetitions=1, name=name)
            groups[result.data, result.delta].append(point)
    return [
        Curve(name=_runs_on(data), points=tuple(points), delta=delta, connected=False)
        for (data, delta), points in groups.items()
    ]


def _runs_on(data: str | None) -> str:
    return "these runs" if data is None else f"these runs on {data_name(data)}"


def holder_curve(context: Context) -> Curve | None:
    """Return the curve of the best method measured at more than one ε: the data holder's choice."""
    return next((curve for curve in curves(context) if curve.connected and len(curve.points) > 1), None)
