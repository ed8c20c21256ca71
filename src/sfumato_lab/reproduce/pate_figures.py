"""Figures of the PATE recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from sfumato.pate import PateResult, VotePlan, count_votes
from sfumato.pate.votes import Integers
from sfumato.randomness import SecretStream
from sfumato.storage import write_figure

if TYPE_CHECKING:
    from sfumato_lab.reproduce.pate import PateRow

Kept = Mapping[int, PateResult]  # by number of teachers


def draw(
    folder: Path,
    rows: Sequence[PateRow],
    published: Sequence[tuple[str, float, str, float]],
    kept: Kept,
    agreement: Mapping[int, float],
    delta: float,
) -> None:
    """Vote histograms, ε against answers, accuracy against ε, agreement against teachers."""
    shown = kept[max(kept)]
    _save(folder / "histograms.png", _histograms(shown.votes, shown.answers.plan))
    _save(folder / "epsilon.png", _epsilon_curves([result.answers.plan for result in kept.values()], delta))
    _save(folder / "accuracy.png", _accuracy(rows, published))
    _save(folder / "agreement.png", _agreement(agreement))


def _save(path: Path, figure: Figure) -> None:
    write_figure(path, figure, readable=True, dpi=120)


def _histograms(votes: Integers, plan: VotePlan) -> Figure:
    """The clearest, the median and the closest query, before and after noise."""
    counts = count_votes(votes, classes=plan.classes)
    ordered = np.sort(counts, axis=1)
    ranks = np.argsort(ordered[:, -1] - (ordered[:, -2] if plan.classes > 1 else 0))
    chosen = [("closest", ranks[0]), ("median", ranks[len(ranks) // 2]), ("clearest", ranks[-1])]
    noise = SecretStream().normal(3 * plan.classes).reshape(3, -1) * (plan.sigma or 0.0)
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    places = np.arange(plan.classes)
    for axes, (name, row), drawn in zip(figure.subplots(1, 3, sharey=True), chosen, noise, strict=True):
        axes.bar(places - 0.2, counts[row], 0.4, label="votes")
        axes.bar(places + 0.2, counts[row] + drawn, 0.4, label="with noise")
        axes.axhline(0, color="black", linewidth=0.6)
        axes.set(title=f"{name} of {len(counts)} queries", xlabel="class", xticks=places)
    figure.axes[0].set_ylabel(f"votes of {plan.teachers} teachers")
    figure.axes[0].legend(fontsize=8)
    return figure


def _epsilon_curves(plans: Sequence[VotePlan], delta: float) -> Figure:
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    for plan in plans:
        answers = np.unique(np.geomspace(1, plan.queries, 12).astype(int))
        costs = [_part(plan, int(count)).epsilon(delta) for count in answers]
        axes.plot(
            answers, costs, marker="o", markersize=3, label=f"{plan.teachers} teachers, σ = {plan.sigma:.0f}"
        )
    axes.set(
        xscale="log",
        xlabel="queries answered",
        ylabel=f"data-independent ε at δ = {delta:g}",
        title="What answers cost",
    )
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure


def _part(plan: VotePlan, queries: int) -> VotePlan:
    return VotePlan(
        mechanism="gnmax", teachers=plan.teachers, queries=queries, classes=plan.classes, sigma=plan.sigma
    )


def _accuracy(rows: Sequence[PateRow], published: Sequence[tuple[str, float, str, float]]) -> Figure:
    figure = Figure(figsize=(8, 6), layout="constrained")
    axes = figure.subplots()
    points = [(0.0, rows[0].start_accuracy, 0.0)]
    points += [(row.epsilon, row.student_accuracy, row.deviation) for row in sorted(rows, key=_by_epsilon)]
    places, values, spreads = (np.array(column) for column in zip(*points, strict=True))
    axes.errorbar(places, 100 * values, 100 * spreads, marker="o", capsize=3, label="ours, data-independent ε")
    for number, (name, epsilon, kind, accuracy) in enumerate(published):
        label = f"{name}, ε = {epsilon:g} ({kind})"
        axes.plot(epsilon, 100 * accuracy, marker="sD^vP*"[number % 6], linestyle="", label=label)
    axes.set(xlabel="ε (δ = 1e-5); 0 is without private labels", ylabel="student accuracy on MNIST, %")
    axes.set_title("Student accuracy against ε")
    axes.grid(alpha=0.3)
    figure.legend(fontsize=8, loc="outside lower center")
    return figure


def _by_epsilon(row: PateRow) -> float:
    return row.epsilon


def _agreement(agreement: Mapping[int, float]) -> Figure:
    figure = Figure(figsize=(6, 3.8), layout="constrained")
    axes: Any = figure.subplots()
    axes.plot(list(agreement), [100 * share for share in agreement.values()], marker="o")
    axes.set(
        xlabel="teachers (their shards shrink as they grow in number)",
        ylabel="share of the leading class, %",
        title="How far teachers agree on the images asked about",
        ylim=(0, 100),
    )
    axes.grid(alpha=0.3)
    return figure
