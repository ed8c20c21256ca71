"""Local noise on images: the source's five ε with its formula, the honest ε beside, and what is learnt.

Every image is scaled to length 1 *by itself* (the source scaled a batch as one: its noise was about √700 times
too strong) and noised once (the source drew anew each epoch). Its ε came from the classical formula with
sensitivity 1; replacing a person's image moves a unit vector by up to 2, and the exact curve is used.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato import accounting, datasets
from sfumato.experiments.clustering import ClusteringPlan, cluster
from sfumato.local import ReportPlan, build_view, learn, noise_images
from sfumato.randomness import SecretStream

SOURCE_DELTA = 1 / 784**2
SOURCE_EPOCHS = 80  # in each of which the source noised every image anew
SOURCE_ERRORS = {150: 0.89, 2000: 0.89, 3000: 0.29, 5000: 0.30, 200_000: 0.05, math.inf: 0.05}
SOURCE_EPSILONS = (150, 2000, 3000, 5000, 200_000)

Images = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One of the source's ε: what it is in truth, and errors on test images noised the same way."""

    source_epsilon: float
    sigma: float
    honest_epsilon: float
    honest_epsilon_redrawn: float
    source_error: float
    network_error: float
    clustering_error: float | None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How much is run: enough for the curves by default, all of it with 60,000 people and more passes."""

    data: str = "mnist"
    people: int = 60_000
    test: int = 10_000
    epochs: int = 3
    clustering_people: int = 60_000
    clustering_epochs: int = 12  # 0: no clustering
    seed: int = 0


def classical_sigma(epsilon: float, delta: float = SOURCE_DELTA) -> float:
    """The source's σ = √(2 ln(1.25/δ))/ε, for sensitivity 1; proved for ε < 1 only.

    >>> round(classical_sigma(150), 5)
    0.03471
    """
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def honest_epsilon(sigma: float, *, delta: float = SOURCE_DELTA, releases: int = 1) -> float:
    """ε at δ of unit vectors with noise σ, for a person's image replaced: sensitivity 2, by the exact curve.

    >>> round(honest_epsilon(classical_sigma(150)) / 150)
    13
    """
    event = accounting.repeat(accounting.GaussianEvent(sigma / 2), releases)
    return accounting.epsilon(event, delta, relation=accounting.Relation.REPLACE_ONE)


def unit_images(images: Images) -> Images:
    """Each image (n, 28, 28) as a vector of length 1, by itself; a blank one becomes a single bright pixel."""
    rows = images.reshape(len(images), -1).astype(np.float32)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    blank = lengths[:, 0] == 0
    rows = np.where(lengths > 0, rows / np.maximum(lengths, 1e-12), 0.0).astype(np.float32)
    rows[blank, 0] = 1.0
    return rows


def run(
    out: str | Path, settings: Settings | None = None, *, progress: Callable[[str], None] | None = None
) -> list[Row]:
    """Measure every ε, write `local_noise.json` and two figures into `out`, and return the rows."""
    settings = settings or Settings()
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    train, test = datasets.load(settings.data, "train"), datasets.load(settings.data, "test")
    train, test = train.take(settings.people), test.take(settings.test)
    private, public = (unit_images(part.inputs[:, 0]) for part in (train, test))
    rows = []
    for epsilon in (*SOURCE_EPSILONS, math.inf):
        if progress is not None:
            progress(f"ε = {epsilon:g}")
        rows.append(_measure(epsilon, private, train.targets, public, test.targets, settings))
    _write(folder, rows, _honest(train, test, settings), settings)
    draw_grid(folder / "noised.png", private[:8])
    draw_errors(folder / "errors.png", rows)
    return rows


def _measure(
    epsilon: float,
    private: Images,
    labels: npt.NDArray[np.int64],
    public: Images,
    test_labels: npt.NDArray[np.int64],
    settings: Settings,
) -> Row:
    raw = math.isinf(epsilon)
    sigma = 0.0 if raw else classical_sigma(epsilon)
    sampler = SecretStream()
    noised, tested = (part if raw else _noise(part, sigma, sampler) for part in (private, public))
    error = None
    if settings.clustering_epochs:
        plan = ClusteringPlan(epochs=settings.clustering_epochs, seed=settings.seed)
        pictures = [_pictures(part) for part in (noised[: settings.clustering_people], tested)]
        error = 1 - cluster(pictures[0], pictures[1], test_labels, plan).accuracy
    return Row(
        source_epsilon=epsilon,
        sigma=sigma,
        honest_epsilon=math.inf if raw else honest_epsilon(sigma),
        honest_epsilon_redrawn=math.inf if raw else honest_epsilon(sigma, releases=SOURCE_EPOCHS),
        source_error=SOURCE_ERRORS[epsilon],
        network_error=_network_error(noised, labels, tested, test_labels, sigma, settings),
        clustering_error=error,
    )


def _noise(rows: Images, sigma: float, sampler: SecretStream) -> Images:
    # Noise as little as the source's hides nothing, and `GaussianVector` would refuse it: it is plainly added.
    noise = sampler.normal(rows.size).reshape(rows.shape)
    return rows + (sigma * noise).astype(np.float32)


def _pictures(rows: Images) -> Images:
    """Unit vectors back to about the brightness of images: a digit's length is about 9."""
    return (9.0 * rows).reshape(-1, 28, 28)


def _network_error(
    noised: Images,
    labels: npt.NDArray[np.int64],
    tested: Images,
    test_labels: npt.NDArray[np.int64],
    sigma: float,
    settings: Settings,
) -> float:
    """A small convolutional net on filtered images; labels are as they are, as in the source."""
    from sfumato import models
    from sfumato.local.network import NetworkFit, WienerFilter, fit_network, predict

    clean = WienerFilter.of(noised, sigma) if sigma else (lambda rows: rows)
    net = models.build("cnn", classes=10, in_channels=1, side=28, seed=settings.seed)
    fit = NetworkFit(epochs=settings.epochs, seed=settings.seed)
    fit_network(net, _pictures(clean(noised)), labels, np.eye(10), fit)
    return float(np.mean(predict(net, _pictures(clean(tested))) != test_labels))


def _honest(train: datasets.Dataset, test: datasets.Dataset, settings: Settings) -> list[dict[str, Any]]:
    """What the same people can give at an honest ε, image and label: without a prior, and with one."""
    found = []
    for kind in ("low-frequencies", "strokes"):
        view = build_view(kind)
        for epsilon in (2.0, 4.0, 8.0):
            plan = ReportPlan(classes=10, dimension=view.dimension, epsilon=epsilon)
            data = noise_images(
                train.inputs[:, 0],
                train.targets,
                plan=plan,
                view=view,
                name=settings.data,
                sampler=SecretStream(),
            )
            right = learn(data).predict(test.inputs[:, 0]) == test.targets
            found.append({"view": kind, "epsilon": epsilon, "error": float(1 - right.mean())})
    return found


def _write(folder: Path, rows: Sequence[Row], honest: Sequence[dict[str, Any]], settings: Settings) -> None:
    document = {
        "settings": asdict(settings),
        "delta": SOURCE_DELTA,
        "source": "σ = √(2 ln(1.25/δ))/ε, sensitivity 1; labels not protected",
        "rows": [{name: _plain(value) for name, value in asdict(row).items()} for row in rows],
        "honest": list(honest),
    }
    (folder / "local_noise.json").write_text(json.dumps(document, indent=1, ensure_ascii=False))


def _plain(value: Any) -> Any:
    return "inf" if value == math.inf else value


def draw_grid(place: Path, digits: Images) -> None:
    """The same digits at each ε of the source, with the honest ε beside."""
    from matplotlib.figure import Figure

    epsilons = (math.inf, *reversed(SOURCE_EPSILONS))
    figure = Figure(figsize=(8.6, 6.2), layout="constrained")
    axes = figure.subplots(len(epsilons), len(digits))
    for line, epsilon in zip(axes, epsilons, strict=True):
        raw = math.isinf(epsilon)
        noised = digits if raw else _noise(digits, classical_sigma(epsilon), SecretStream())
        for frame, row in zip(line, noised, strict=True):
            frame.imshow(row.reshape(28, 28), cmap="gray_r", vmin=-0.05, vmax=0.25)
            frame.set(xticks=[], yticks=[])
        text = "raw" if raw else f"source ε {epsilon:,}\nhonest {honest_epsilon(classical_sigma(epsilon)):,.0f}"
        line[0].set_ylabel(text, rotation=0, ha="right", va="center", fontsize=9)
    figure.suptitle("Images of length 1, noised once by the source's formula", fontsize=11)
    figure.savefig(place, dpi=120)


def draw_errors(place: Path, rows: Sequence[Row]) -> None:
    """Error against the honest ε, ours beside the source's."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.subplots()
    noised = [row for row in rows if math.isfinite(row.source_epsilon)]
    at = [row.honest_epsilon for row in noised]
    axes.plot(at, [row.source_error for row in noised], "k--o", label="source, as reported")
    axes.plot(at, [row.network_error for row in noised], "C0-s", label="network, noise filtered")
    clustered = [
        (row.honest_epsilon, row.clustering_error) for row in noised if row.clustering_error is not None
    ]
    if clustered:
        axes.plot(*zip(*clustered, strict=True), "C1-^", label="clustering (IIC), no labels")
    axes.set(
        xscale="log",
        ylim=(0, 1),
        xlabel="honest ε of one noised image (δ = 1/784²)",
        ylabel="error on noised test images",
        title="What the source's five ε cost and give",
    )
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(place, dpi=120)
