"""Local noise on images: the five ε of the local-noise project by its formula, the true ε, and the accuracy.

Every image is scaled to length 1 *by itself* (the project scaled a batch as one: its noise was about √700 times
too strong) and noised once (the project drew anew each epoch). Its ε came from the classical formula with
sensitivity 1; replacing a person's image moves a unit vector by up to 2, and the exact curve is used. Beside it
stand releases at an ε that holds, of image *and* label, one report a person.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from sfumato import accounting, datasets, models
from sfumato.cli import show
from sfumato.datasets import TOGETHER
from sfumato.local import (
    GaussianVector,
    NoisedData,
    ReportPlan,
    build_view,
    learn,
    prior_outputs,
)
from sfumato.randomness import SecretStream
from sfumato_lab.reproduce.clustering import ClusteringPlan, cluster
from sfumato_lab.reproduce.noised_network import NetworkFit, WienerFilter, fit_network, predict
from sfumato_lab.reproduce.tables import (
    DELTA,
    canvas,
    conclude,
    kept,
    mean_and_spread,
    number,
    print_table,
)

SOURCE_DELTA = 1 / 784**2
SOURCE_EPOCHS = 80  # in each of which the project noised every image anew
SOURCE_ERRORS = {math.inf: 0.05, 200_000: 0.05, 5000: 0.30, 3000: 0.29, 2000: 0.89, 150: 0.89}
LOW_FREQUENCIES = "low-frequencies"

Images = npt.NDArray[np.float32]
Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How much is run."""

    data: str = "mnist"
    people: int = 60_000
    test: int = 10_000
    epochs: int = 3
    clustering_steps: int = ClusteringPlan.steps  # of raw images, a quarter as many of noised ones; 0: none
    releases: int = 5


def classical_sigma(epsilon: float, delta: float = SOURCE_DELTA) -> float:
    """Return the project's σ = √(2 ln(1.25/δ))/ε, for sensitivity 1; proved for ε < 1 only.

    >>> round(classical_sigma(150), 5)
    0.03471
    """
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def true_epsilon(sigma: float, *, delta: float = SOURCE_DELTA, releases: int = 1) -> float:
    """Return ε at δ of unit vectors with noise σ, for a person's image replaced: sensitivity 2, exact.

    >>> round(true_epsilon(classical_sigma(150)) / 150)
    13
    """
    event = accounting.repeat(accounting.GaussianEvent(sigma / 2), releases)
    return accounting.epsilon(event, delta, relation=accounting.Relation.REPLACE_ONE)


def unit_images(images: Images) -> Images:
    """Scale each image (n, 28, 28) to length 1, by itself; a blank one gets a single bright pixel."""
    rows = images.reshape(len(images), -1).astype(np.float32)
    rows[~rows.any(axis=1), 0] = 1.0
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float32)


def pictures_of(rows: Images) -> Images:
    """Bring unit vectors back to about the brightness of images: a digit's length is about 9."""
    return (9.0 * rows).reshape(-1, 28, 28)


def _noised(rows: Images, sigma: float) -> Images:
    # Noise as little as the project's hides nothing, and `GaussianVector` would refuse it: it is plainly added.
    noise = SecretStream().normal(rows.size).reshape(rows.shape)
    return rows + (sigma * noise).astype(np.float32)


def run(out: Path, settings: Settings, *, only_releases: bool = False, tell: Tell = lambda text: None) -> Any:
    """Measure every ε; write the findings and two figures."""
    parts = out / "parts"
    honest = [_released(case, settings, parts, tell) for case in CASES]
    findings: dict[str, Any] = {
        "settings": asdict(settings),
        "delta": SOURCE_DELTA,
        "rows": [],
        "honest": honest,
    }
    if only_releases:
        return findings
    train, test = datasets.load(settings.data, "train"), datasets.load(settings.data, "test")
    train, test = train.excerpt(settings.people), test.take(settings.test)
    private, public = (unit_images(part.inputs[:, 0]) for part in (train, test))
    for epsilon in SOURCE_ERRORS:
        tell(f"claimed ε = {epsilon:g}")
        about = {**asdict(settings), "epsilon": f"{epsilon:g}"}
        name = f"claimed-{epsilon:g}"
        make = partial(_measured, epsilon, private, train.targets, public, test.targets, settings)
        findings["rows"].append(_source_row(epsilon) | kept(parts, name, about, make))
    figures = {"noised": _grid(private[:8]), "errors": _errors(findings)}
    return conclude(out, "local-noise", findings, figures)


# The project's ε


def _source_row(epsilon: float) -> dict[str, Any]:
    sigma = 0.0 if math.isinf(epsilon) else classical_sigma(epsilon)
    return {
        "source_epsilon": epsilon if sigma else None,
        "sigma": sigma,
        "true_epsilon": true_epsilon(sigma) if sigma else None,
        "true_epsilon_redrawn": true_epsilon(sigma, releases=SOURCE_EPOCHS) if sigma else None,
        "source_error": SOURCE_ERRORS[epsilon],
    }


def _measured(
    epsilon: float, private: Images, labels: Any, public: Images, truth: Any, settings: Settings
) -> dict[str, Any]:
    """Return the errors of a network with labels and of clustering without, on filtered noised images."""
    raw = math.isinf(epsilon)
    pair = (private, public)
    if not raw:
        sigma = classical_sigma(epsilon)
        pair = (_noised(private, sigma), _noised(public, sigma))
        clean = WienerFilter.of(pair[0], sigma)
        pair = (clean(pair[0]), clean(pair[1]))
    learned, tested = (pictures_of(part) for part in pair)
    net = models.build("cnn", classes=10, in_channels=1, side=28, seed=0)
    fit_network(net, learned, labels, np.eye(10), NetworkFit(epochs=settings.epochs, seed=0))
    found: dict[str, Any] = {"network_error": float(np.mean(predict(net, tested) != truth))}
    if settings.clustering_steps:
        steps = settings.clustering_steps if raw else max(1, settings.clustering_steps // 4)
        clusters = cluster(learned, tested, truth, ClusteringPlan(steps=steps))
        found |= {"clustering_error": 1 - clusters.accuracy, "clustering_seconds": clusters.seconds}
    return found


# Releases at an ε that holds


@dataclass(frozen=True, kw_only=True)
class Case:
    """The data, its reported part, and the ε."""

    data: str = "mnist"
    view: str = TOGETHER
    randomiser: str = "direction"
    epsilon: float = 8.0

    @property
    def words(self) -> str:
        prior = "no prior" if self.view == LOW_FREQUENCIES else self.view
        return f"{self.data}, {prior}{', Gaussian' if self.randomiser == 'gaussian' else ''}"


CASES = (
    *(Case(epsilon=epsilon) for epsilon in (8.0, 4.0, 2.0)),
    *(Case(view="strokes", epsilon=epsilon) for epsilon in (8.0, 4.0, 2.0)),
    *(Case(view="strokes", randomiser="gaussian", epsilon=epsilon) for epsilon in (8.0, 4.0)),
    *(Case(view=LOW_FREQUENCIES, epsilon=epsilon) for epsilon in (8.0, 4.0)),
    *(Case(data="fashion-mnist", view="shapes", epsilon=epsilon) for epsilon in (8.0, 4.0)),
    Case(data="fashion-mnist", view=LOW_FREQUENCIES),
)


def _released(case: Case, settings: Settings, parts: Path, tell: Tell) -> dict[str, Any]:
    about = {**asdict(case), "people": settings.people, "releases": settings.releases}
    tell(f"{case.words}, ε = {case.epsilon:g}")
    make = partial(released, case, people=settings.people, releases=settings.releases)
    found: dict[str, Any] = kept(parts, "release", about, make)
    return found


def released(case: Case, *, people: int, releases: int) -> dict[str, Any]:
    """Return test accuracies of a case, one for each release, and of the prior alone.

    The images are those of a public data set: their noise may be seeded, and a table repeated.
    """
    side = 28 if case.data == "digits" else None
    train, test = (datasets.load(case.data, part, side=side) for part in ("train", "test"))
    train = train.excerpt(people)
    view, prior = build_view(case.view).of_classes(10), None
    if view.public is None:
        tested = view.directions(test.inputs[:, 0])
    else:
        seen, prior = prior_outputs(case.view, test.inputs[:, 0])
        tested = view.directions_of(seen)
    plan = ReportPlan(
        classes=10,
        dimension=view.dimension,
        epsilon=case.epsilon,
        delta=DELTA if case.randomiser == "gaussian" else 0.0,
        randomiser=case.randomiser,
    )
    directions = view.directions(train.inputs[:, 0])
    accuracies, classifiers = [], []
    for seed in range(releases):
        labels, vectors = plan.randomise(train.targets, directions, SecretStream(test_seed=seed))
        learned = learn(NoisedData(labels=labels, vectors=vectors, plan=plan, view=view, name=case.data))
        accuracies.append(_accuracy(learned.scores_of(tested, prior), test.targets))
        classifiers.append(learned.name)
    return {
        **asdict(case),
        "words": case.words,
        "accuracies": accuracies,
        "classifiers": classifiers,
        "prior_accuracy": None if prior is None else _accuracy(prior, test.targets),
    }


def _accuracy(scores: npt.NDArray[Any], truth: npt.NDArray[np.int64]) -> float:
    return float(np.mean(np.argmax(scores, axis=1) == truth))


# Figures and tables


def _grid(digits: Images) -> Any:
    """Draw the same digits at each ε of the project, with the true ε beside, and at a true ε of 8."""
    from matplotlib.figure import Figure

    lines = [("raw", 0.0)]
    for epsilon in (epsilon for epsilon in SOURCE_ERRORS if math.isfinite(epsilon)):
        sigma = classical_sigma(epsilon)
        lines.append((f"claimed ε {epsilon:,}\ntrue {true_epsilon(sigma):,.0f}", sigma))
    small = GaussianVector.calibrated(dimension=digits.shape[1], epsilon=8.0, delta=SOURCE_DELTA)
    lines.append(("true ε 8", small.sigma))
    figure = Figure(figsize=(8.6, 7.0), layout="constrained")
    for line, (text, sigma) in zip(figure.subplots(len(lines), len(digits)), lines, strict=True):
        for frame, row in zip(line, _noised(digits, sigma), strict=True):
            frame.imshow(row.reshape(28, 28), cmap="gray_r", vmin=0.0, vmax=0.2)
            frame.set(xticks=[], yticks=[])
        line[0].set_ylabel(text, rotation=0, ha="right", va="center", fontsize=9)
    return figure


def _errors(findings: Any) -> Any:
    """Draw the error against the true ε: the project's five, ours beside them, and releases at a small ε."""
    figure, axes = canvas(
        "Local noise: the claimed ε, and what a small ε can give", width=8.0,
        xscale="log", yscale="log", xlabel="true ε of one person's report", ylabel="test error",
    )  # fmt: skip
    noised = [row for row in findings["rows"] if row["source_epsilon"] is not None]
    at = [row["true_epsilon"] for row in noised]
    axes.plot(at, [row["source_error"] for row in noised], "k--o", label="source, as reported")
    axes.plot(at, [row["network_error"] for row in noised], "C0-s", label="ours: network on filtered images")
    for words in dict.fromkeys(part["words"] for part in findings["honest"]):
        mine = [part for part in findings["honest"] if part["words"] == words]
        errors = [1 - fmean(part["accuracies"]) for part in mine]
        axes.plot([part["epsilon"] for part in mine], errors, "-D", label=f"label noised too: {words}")
    figure.legend(fontsize=8, loc="outside lower center", ncols=2)
    return figure


def local_noise(
    out: show.Out = Path("out/local-noise"),
    people: Annotated[int, typer.Option(help="Number of images to noise and learn from.")] = 60_000,
    epochs: Annotated[int, typer.Option(help="Epochs of the network on the noised images.")] = 3,
    clustering_steps: Annotated[
        int,
        typer.Option(
            help="Steps of clustering raw images (a quarter as many for noised ones); 0 leaves it out."
        ),
    ] = 800,
    releases: Annotated[int, typer.Option(help="Number of releases at each ε, for mean and spread.")] = 5,
    only_releases: Annotated[
        bool, typer.Option("--only-releases", help="Leave out the published ε, networks and clustering.")
    ] = False,
    json: show.Json = False,
) -> None:
    """Noise images locally: the published ε, the true ε, and the error with and without labels.

    Example: sfumato reproduce local-noise --clustering-steps 0
    """
    settings = Settings(people=people, epochs=epochs, clustering_steps=clustering_steps, releases=releases)
    with show.errors.status("noising") as status:
        found = run(out, settings, only_releases=only_releases, tell=lambda text: status.update(text))
    if json:
        show.emit_json(found)
        return
    if found["rows"]:
        _print_source(found["rows"])
    rows = [
        (
            part["words"], f"{part['epsilon']:g}", mean_and_spread(part["accuracies"]),
            "" if part["prior_accuracy"] is None else f"{part['prior_accuracy']:.2%}",
            "/".join(sorted(set(part["classifiers"]))),
        )
        for part in found["honest"]
    ]  # fmt: skip
    columns = ("people", "ε", "accuracy", "prior alone", "classifier")
    print_table("Image and label noised, one report a person, ε that holds", columns, rows)
    show.console.print(f"Figures and numbers: {out}")


def _print_source(rows: Sequence[dict[str, Any]]) -> None:
    columns = ("ε claimed", "ε true", "ε over 80 epochs", "error published", "network", "clustering")
    shown = [
        (
            number(row["source_epsilon"], ",g"), number(row["true_epsilon"], ",.0f"),
            number(row["true_epsilon_redrawn"], ",.3g"), f"{row['source_error']:.0%}",
            f"{row['network_error']:.1%}",
            f"{row['clustering_error']:.1%}" if "clustering_error" in row else "",
        )
        for row in rows
    ]  # fmt: skip
    print_table("Images of length 1, noised once; labels as they are", columns, shown)
