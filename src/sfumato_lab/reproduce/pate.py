"""PATE beside its published tables: the PySyft PATE project, PATE 2017 and 2018, private-kNN, and ours.

Private are the first 50,000 rows of MNIST's training set. The last 10,000, declared public, chose every setting
and teach nothing. The test images are public and come without labels; their labels measure, and choose nothing.

*The project*: 100 teachers of 600 images each, 40 epochs, γ = .1, 9,000 queries, student 92.3%, printed ε
371.5 (data-independent) and 11.21 (its analysis was handed ten queries instead of 9,000: it means nothing).
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from sfumato import datasets, models
from sfumato import pate as votes_of
from sfumato.cli import show
from sfumato.datasets import TOGETHER, Dataset
from sfumato.fitting import FitConfig, evaluate, fit
from sfumato.models import rows_apart
from sfumato.pate import (
    Adaptation,
    PateSettings,
    PublicSide,
    TeacherConfig,
    VotePlan,
    aggregate,
    analyze,
    assign,
    capacity_for,
    count_votes,
    draw_key,
    queries_for,
    shard_table,
    vote,
)
from sfumato.randomness import SecretStream
from sfumato_lab.reproduce.tables import DELTA, canvas, conclude, mean_and_spread, print_table

PRIVATE_ROWS = 50_000
PUBLISHED = (  # method, ε, which ε it is, student accuracy
    ("PATE 2017, 250 teachers", 2.04, "data-dependent", 0.980),
    ("PATE 2017, 250 teachers", 8.03, "data-dependent", 0.981),
    ("PATE 2018, Confident-GNMax, 250 teachers", 1.97, "data-dependent", 0.985),
    ("PATE 2018, Confident-GNMax, 250 teachers", 2.54, "data-independent, recomputed", 0.985),
    ("private-kNN 2020", 0.47, "data-dependent", 0.988),
)
PROJECT = {"teachers": 100, "epochs": 40, "gamma": 0.1, "student": 0.923, "epsilon": 371.5}
TEACHERS = {0.5: 1000, 1.0: 500, 2.0: 500}  # fewer votes are heard through more noise
MOST_QUERIES = 1500  # of the others the features are sure
Tell = Callable[[str], None]


def run(
    out: Path,
    *,
    seeds: int = 5,
    epsilons: Sequence[float] = tuple(TEACHERS),
    prior: str = TOGETHER,
    adapt_steps: int = Adaptation().steps,
    source: bool = True,
    data: tuple[Dataset, Dataset] | None = None,
    tell: Tell = lambda text: None,
) -> Any:
    """Measure ours at each ε, and the project's table; write findings and figures."""
    if data is None:
        test = replace(datasets.load("mnist", "test"), visibility="public")
        data = datasets.load("mnist", "train").excerpt(PRIVATE_ROWS), test
    private, public = data
    adaptation = Adaptation(prior=prior, steps=adapt_steps)
    side = PublicSide.of(
        public.inputs,
        adaptation,
        classes=public.classes or 10,
        progress=lambda stage, share: tell(f"{stage}: {share:.0%}"),
    )
    tell("features of the private rows")
    images = private.tensors()[0]
    features = rows_apart(side.views[0].features, images), rows_apart(side.views[1].features, images)
    rows, first = [], {}
    for epsilon in epsilons:
        settings = _settings(epsilon, adaptation, len(public), public.classes or 10)
        results = []
        for seed in range(seeds):
            tell(f"ε = {epsilon:g}, run {seed + 1} of {seeds}")
            results.append(votes_of.run(private, public, settings, delta=DELTA, side=side, features=features))
        first[settings.plan.teachers] = results[0]
        rows.append(
            {
                "epsilon": results[0].epsilon,
                "teachers": settings.plan.teachers,
                "queries": settings.plan.queries,
                "accuracies": [result.student_accuracy for result in results],
                "label_accuracy": statistics.fmean(result.label_accuracy or 0.0 for result in results),
                "start_accuracy": results[0].start_accuracy,
            }
        )
    findings = {
        "delta": DELTA,
        "rows": rows,
        "source": project_table(private, public, tell=tell) if source else [],
        "agreement": _agreement(first),
        "published": [list(row) for row in PUBLISHED],
    }
    shown = first[max(first)]
    figures = {
        "histograms": _histograms(shown.votes, shown.answers.plan),
        "accuracy": _accuracies(rows),
    }
    return conclude(out, "pate", findings, figures)


def _settings(epsilon: float, adaptation: Adaptation, images: int, classes: int) -> PateSettings:
    teachers = TEACHERS.get(epsilon, 250)
    queries = queries_for(teachers, epsilon=epsilon, delta=DELTA, most=min(images, MOST_QUERIES))
    plan = VotePlan.calibrated(
        epsilon=epsilon, delta=DELTA, mechanism="gnmax", teachers=teachers, queries=queries, classes=classes
    )
    return PateSettings(plan=plan, adaptation=adaptation)


def _agreement(first: dict[int, votes_of.PateResult]) -> dict[str, float]:
    """Return the mean share of the leading class on the images that all ensembles were asked about.

    Figures that show votes are private; here they are of MNIST, which is public.
    """
    common = functools.reduce(np.intersect1d, (result.queries for result in first.values()))
    shares = {}
    for teachers, result in sorted(first.items()):
        counts = count_votes(result.votes[:, np.isin(result.queries, common)], classes=result.classes)
        shares[str(teachers)] = float(np.mean(counts.max(axis=1) / teachers))
    return shares


def project_table(
    private: Dataset,
    public: Dataset,
    *,
    teachers: Sequence[int] = (50, 100, 250),
    epochs: Sequence[int] = (5, 40),
    gammas: Sequence[float] = (0.05, 0.1),
    tell: Tell = lambda text: None,
) -> list[dict[str, Any]]:
    """Train each ensemble of MLPs once, and answer with each γ; students are tested on the last tenth."""
    rows = []
    for count in teachers:
        for passes in epochs:
            tell(f"{count} teachers, {passes} epochs")
            votes = _votes(private, public, count, passes)
            for gamma in gammas:
                found = _answered(votes, public, count, gamma)
                rows.append({"teachers": count, "epochs": passes, "gamma": gamma, **found})
    return rows


def _votes(private: Dataset, public: Dataset, teachers: int, epochs: int) -> npt.NDArray[np.int64]:
    assert private.public_size is not None
    config = TeacherConfig.of("mlp")
    config = replace(config, fit=replace(config.fit, epochs=epochs))
    owner = assign(np.arange(len(private)), teachers=teachers, key=draw_key(SecretStream()))
    table = shard_table(owner, teachers=teachers, capacity=capacity_for(private.public_size, teachers))
    inputs, targets = private.tensors()
    return vote(inputs, targets, table, public.tensors()[0], config, classes=public.classes or 10)


def _answered(votes: npt.NDArray[np.int64], public: Dataset, teachers: int, gamma: float) -> dict[str, Any]:
    asked, classes = len(public) * 9 // 10, public.classes or 10
    plan = VotePlan(mechanism="laplace", teachers=teachers, queries=asked, classes=classes, gamma=gamma)
    labels = aggregate(votes[:, :asked], plan).labels
    found = analyze(count_votes(votes[:, :asked], classes=classes), plan, delta=DELTA)
    student = models.build("mlp", classes=classes, in_channels=public.shape[0], side=public.shape[-1])
    learned = replace(public.take(asked), targets=labels)
    fit(student, learned, FitConfig(epochs=10, learning_rate=0.02), progress=False)
    return {
        "queries": asked,
        "student_accuracy": evaluate(student, public.take(len(public) - asked, start=asked)).accuracy,
        "label_accuracy": float((labels == public.targets[:asked]).mean()),
        "epsilon": found.data_independent_epsilon,
        "data_dependent_epsilon": found.data_dependent_epsilon,  # a statement about these votes
        "source_moments_epsilon": found.source_moments_epsilon,
    }


def _histograms(votes: npt.NDArray[np.int64], plan: VotePlan) -> Any:
    """Draw the clearest, the median and the closest query, before and after noise."""
    from matplotlib.figure import Figure

    counts = count_votes(votes, classes=plan.classes)
    ordered = np.sort(counts, axis=1)
    ranks = np.argsort(ordered[:, -1] - ordered[:, -2])
    chosen = [("closest", ranks[0]), ("median", ranks[len(ranks) // 2]), ("clearest", ranks[-1])]
    noise = SecretStream().normal(3 * plan.classes).reshape(3, -1) * (plan.sigma or 0.0)
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    places = np.arange(plan.classes)
    for axes, (name, row), drawn in zip(figure.subplots(1, 3, sharey=True), chosen, noise, strict=True):
        axes.bar(places - 0.2, counts[row], 0.4, label="votes")
        axes.bar(places + 0.2, counts[row] + drawn, 0.4, label="with noise")
        axes.set(title=f"{name} of {len(counts)} queries", xlabel="class", xticks=places)
    figure.axes[0].set_ylabel(f"votes of {plan.teachers} teachers")
    figure.axes[0].legend(fontsize=8)
    return figure


def _accuracies(rows: Sequence[dict[str, Any]]) -> Any:
    figure, axes = canvas(
        "Student accuracy against ε", height=6, xlabel="ε (δ = 1e-5)", ylabel="accuracy on MNIST, %"
    )
    places = [0.0, *(row["epsilon"] for row in rows)]
    values = [rows[0]["start_accuracy"], *(statistics.fmean(row["accuracies"]) for row in rows)]
    axes.plot(places, [100 * value for value in values], "-o", label="ours, data-independent ε")
    for place, (name, epsilon, kind, accuracy) in enumerate(PUBLISHED):
        label = f"{name}, ε = {epsilon:g} ({kind})"
        axes.plot(epsilon, 100 * accuracy, marker="sD^vP*"[place % 6], linestyle="", label=label)
    figure.legend(fontsize=8, loc="outside lower center")
    return figure


def pate(
    out: show.Out = Path("out/pate"),
    seeds: Annotated[
        int, typer.Option(help="Number of runs at each ε, each with its own shards and noise.")
    ] = 5,
    prior: Annotated[str, typer.Option(help="Prior of teachers and student.")] = TOGETHER,
    adapt_steps: Annotated[
        int, typer.Option(help="Steps of adapting the prior to the public images; 0 for none.")
    ] = 240,
    source: Annotated[bool, typer.Option(help="Also run the published table of MLP teachers.")] = True,
    json: show.Json = False,
) -> None:
    """Run PATE beside the published results of 2017 and 2018 and a table of MLP teachers.

    Example: sfumato reproduce pate --seeds 5
    """
    with show.errors.status("adapting the prior") as status:
        report = run(
            out,
            seeds=seeds,
            prior=prior,
            adapt_steps=adapt_steps,
            source=source,
            tell=lambda text: status.update(text),
        )
    if json:
        show.emit_json(report)
        return
    rows = [(name, f"{epsilon:g}", kind, f"{accuracy:.1%}") for name, epsilon, kind, accuracy in PUBLISHED]
    start = f"{report['rows'][0]['start_accuracy']:.2%}"
    rows.append(("ours, no private labels", "0", "data-independent", start))
    for row in report["rows"]:
        name = f"ours, {row['teachers']} teachers, {row['queries']} answers"
        shown = mean_and_spread(row["accuracies"])
        rows.append((name, f"{row['epsilon']:.3f}", "data-independent", shown))
    print_table("Student accuracy on MNIST, δ = 1e-5", ("method", "ε", "which", "accuracy"), rows)
    if report["source"]:
        _print_project(report["source"])
    show.console.print(f"Figures: {out}")


def _print_project(source: Sequence[dict[str, Any]]) -> None:
    columns = (
        "teachers", "epochs", "γ", "student", "labels", "ε exact", "ε of these votes", "ε by the 2017 moments",
    )  # fmt: skip
    published = (
        str(PROJECT["teachers"]), str(PROJECT["epochs"]), str(PROJECT["gamma"]),
        f"{PROJECT['student']:.1%} (published)", "", "", "", str(PROJECT["epsilon"]),
    )  # fmt: skip
    rows = [
        (
            str(row["teachers"]), str(row["epochs"]), str(row["gamma"]), f"{row['student_accuracy']:.1%}",
            f"{row['label_accuracy']:.1%}", f"{row['epsilon']:.1f}", f"{row['data_dependent_epsilon']:.2f}",
            f"{row['source_moments_epsilon']:.1f}",
        )
        for row in source
    ]  # fmt: skip
    print_table(
        "The PySyft PATE project: MLP teachers, Laplace noise, 9,000 answers", columns, [published, *rows]
    )
