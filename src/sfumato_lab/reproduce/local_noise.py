"""Local noise on images: the five ε of the local-noise project by its formula, the true ε, and what is learnt.

Every image is scaled to length 1 *by itself* (the project scaled a batch as one: its noise was about √700 times
too strong) and noised once (the project drew anew each epoch). Its ε came from the classical formula with
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

from sfumato import accounting, datasets, models
from sfumato.datasets.drawings import TOGETHER
from sfumato.local import LOW_FREQUENCIES, GaussianVector
from sfumato.randomness import SecretStream
from sfumato.storage import json_bytes, write_figure, write_whole
from sfumato_lab.reproduce.clustering import ClusteringPlan, cluster
from sfumato_lab.reproduce.local_noise_releases import CASES, Case, Released, run_releases
from sfumato_lab.reproduce.noised_network import NetworkFit, WienerFilter, fit_network, predict

SOURCE_DELTA = 1 / 784**2
SOURCE_EPOCHS = 80  # in each of which the project noised every image anew
SOURCE_ERRORS = {150: 0.89, 2000: 0.89, 3000: 0.29, 5000: 0.30, 200_000: 0.05, math.inf: 0.05}
SOURCE_EPSILONS = (150, 2000, 3000, 5000, 200_000)

Images = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class LocalNoiseRow:
    """One of the project's ε: what it is in truth, and errors on test images noised the same way."""

    source_epsilon: float
    sigma: float
    honest_epsilon: float
    honest_epsilon_redrawn: float
    source_error: float
    network_error: float
    clustering_error: float | None = None
    clustering_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How much is run: enough for the curves by default, all of it with 60,000 people and more passes."""

    data: str = "mnist"
    people: int = 60_000
    test: int = 10_000
    epochs: int = 3
    clustering_steps: int = ClusteringPlan.steps  # 0: no clustering
    noised_share: float = 0.25  # of these steps for noised images: six whole runs would take an hour
    releases: int = 5
    seed: int = 0


def classical_sigma(epsilon: float, delta: float = SOURCE_DELTA) -> float:
    """The project's σ = √(2 ln(1.25/δ))/ε, for sensitivity 1; proved for ε < 1 only.

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
) -> tuple[list[LocalNoiseRow], list[Released]]:
    """Measure every ε, write `local_noise.json` and two figures into `out`; a stopped run is taken up."""
    settings, folder = settings or Settings(), Path(out)
    tell = progress or (lambda text: None)
    honest = releases(folder, settings, progress=tell)
    train, test = datasets.load(settings.data, "train"), datasets.load(settings.data, "test")
    train, test = train.excerpt(settings.people), test.take(settings.test)
    private, public = (unit_images(part.inputs[:, 0]) for part in (train, test))
    rows = []
    for epsilon in (math.inf, *reversed(SOURCE_EPSILONS)):
        tell(f"claimed ε = {epsilon:g}")
        crowd = _Crowd(
            epsilon=epsilon, private=private, labels=train.targets, public=public, truth=test.targets
        )
        rows.append(_measure(crowd, folder / "parts", settings))
    _write(folder, rows, honest, settings)
    draw_grid(folder / "noised.png", private[:8])
    draw_errors(folder / "errors.png", rows, honest)
    return rows, honest


def releases(out: str | Path, settings: Settings, *, progress: Callable[[str], None]) -> list[Released]:
    """Only what holds at its ε: image and label noised, one report a person."""
    about = {
        "people": settings.people,
        "releases": settings.releases,
        "cases": [asdict(case) for case in CASES],
    }

    def make() -> list[dict[str, Any]]:
        found = run_releases(people=settings.people, releases=settings.releases, cases=CASES, progress=progress)
        return [part.to_json() for part in found]

    return [Released.from_json(part) for part in kept(Path(out) / "parts" / "releases.json", about, make)]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Crowd:
    """Unit images of people and of a public test, to be noised at one of the project's ε."""

    epsilon: float
    private: Images
    labels: npt.NDArray[np.int64]
    public: Images
    truth: npt.NDArray[np.int64]

    @property
    def raw(self) -> bool:
        return math.isinf(self.epsilon)

    @property
    def sigma(self) -> float:
        return 0.0 if self.raw else classical_sigma(self.epsilon)

    def pictures(self) -> tuple[Images, Images]:
        """Noised once, and filtered by what is known of the noise, as images again."""
        if self.raw:
            return pictures_of(self.private), pictures_of(self.public)
        sampler = SecretStream()
        noised, tested = (_noise(part, self.sigma, sampler) for part in (self.private, self.public))
        clean = WienerFilter.of(noised, self.sigma)
        return pictures_of(clean(noised)), pictures_of(clean(tested))


def _measure(crowd: _Crowd, parts: Path, settings: Settings) -> LocalNoiseRow:
    common = {"data": settings.data, "people": settings.people, "test": settings.test, "seed": settings.seed}
    name, clustering = f"{crowd.epsilon:g}.json", {}
    about = {**common, "epochs": settings.epochs}
    network = kept(parts / f"network-{name}", about, lambda: {"error": _network_error(crowd, settings)})
    if settings.clustering_steps:
        share = 1.0 if crowd.raw else settings.noised_share
        plan = ClusteringPlan(steps=max(1, round(share * settings.clustering_steps)), seed=settings.seed)
        about = {**common, "plan": asdict(plan)}
        clustering = kept(parts / f"clustering-{name}", about, lambda: _clustering(crowd, plan))
    sigma = crowd.sigma
    return LocalNoiseRow(
        source_epsilon=crowd.epsilon,
        sigma=sigma,
        honest_epsilon=math.inf if crowd.raw else honest_epsilon(sigma),
        honest_epsilon_redrawn=math.inf if crowd.raw else honest_epsilon(sigma, releases=SOURCE_EPOCHS),
        source_error=SOURCE_ERRORS[crowd.epsilon],
        network_error=network["error"],
        clustering_error=clustering.get("error"),
        clustering_seconds=clustering.get("seconds"),
    )


def kept(place: Path, about: dict[str, Any], make: Callable[[], Any]) -> Any:
    """What was measured with the same settings; or else it is measured now, and kept."""
    if place.is_file():
        kept = json.loads(place.read_text())
        if kept["settings"] == about:
            return kept["found"]
    found = make()
    place.parent.mkdir(parents=True, exist_ok=True)
    write_whole(place, json_bytes({"settings": about, "found": found}), readable=True)
    return found


def _noise(rows: Images, sigma: float, sampler: SecretStream) -> Images:
    # Noise as little as the project's hides nothing, and `GaussianVector` would refuse it: it is plainly added.
    noise = sampler.normal(rows.size).reshape(rows.shape)
    return rows + (sigma * noise).astype(np.float32)


def pictures_of(rows: Images) -> Images:
    """Unit vectors back to about the brightness of images: a digit's length is about 9."""
    return (9.0 * rows).reshape(-1, 28, 28)


def _network_error(crowd: _Crowd, settings: Settings) -> float:
    """A small convolutional net on filtered images; labels are as they are, as in the project."""
    noised, tested = crowd.pictures()
    net = models.build("cnn", classes=10, in_channels=1, side=28, seed=settings.seed)
    fit = NetworkFit(epochs=settings.epochs, seed=settings.seed)
    fit_network(net, noised, crowd.labels, np.eye(10), fit)
    return float(np.mean(predict(net, tested) != crowd.truth))


def _clustering(crowd: _Crowd, plan: ClusteringPlan) -> dict[str, float]:
    """Without any label."""
    noised, tested = crowd.pictures()
    found = cluster(noised, tested, crowd.truth, plan)
    return {"error": 1 - found.accuracy, "seconds": found.seconds, "cpu_seconds": found.cpu_seconds}


def _write(folder: Path, rows: Sequence[LocalNoiseRow], honest: Sequence[Released], settings: Settings) -> None:
    document = {
        "settings": asdict(settings),
        "delta": SOURCE_DELTA,
        "source": "σ = √(2 ln(1.25/δ))/ε, sensitivity 1; labels not protected",
        "rows": [{name: _plain(value) for name, value in asdict(row).items()} for row in rows],
        "honest": [released.to_json() for released in honest],
    }
    write_whole(folder / "local_noise.json", json_bytes(document), readable=True)


def _plain(value: Any) -> Any:
    return "inf" if value == math.inf else value


def draw_grid(place: Path, digits: Images) -> None:
    """The same digits at each ε of the project, with the true ε beside, and at a true ε of 8."""
    from matplotlib.figure import Figure

    lines = [("raw", 0.0)]
    for epsilon in reversed(SOURCE_EPSILONS):
        sigma = classical_sigma(epsilon)
        lines.append((f"source ε {epsilon:,}\nhonest {honest_epsilon(sigma):,.0f}", sigma))
    small = GaussianVector.calibrated(dimension=digits.shape[1], epsilon=8.0, delta=SOURCE_DELTA)
    lines.append(("true ε 8", small.sigma))
    figure = Figure(figsize=(8.6, 7.0), layout="constrained")
    for line, (text, sigma) in zip(figure.subplots(len(lines), len(digits)), lines, strict=True):
        for frame, row in zip(line, _noise(digits, sigma, SecretStream()), strict=True):
            frame.imshow(row.reshape(28, 28), cmap="gray_r", vmin=0.0, vmax=0.2)
            frame.set(xticks=[], yticks=[])
        line[0].set_ylabel(text, rotation=0, ha="right", va="center", fontsize=9)
    figure.suptitle("Images of length 1, noised once: at the claimed ε, and at a true ε of 8", fontsize=11)
    write_figure(place, figure, readable=True, dpi=120)


def draw_errors(place: Path, rows: Sequence[LocalNoiseRow], honest: Sequence[Released]) -> None:
    """Error against the true ε: the project's five, ours beside them, and releases made for a small ε."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    figure = Figure(figsize=(8.0, 4.8), layout="constrained")
    axes = figure.subplots()
    noised = [row for row in rows if math.isfinite(row.source_epsilon)]
    at = [row.honest_epsilon for row in noised]
    axes.plot(at, [row.source_error for row in noised], "k--o", label="source, as reported")
    axes.plot(at, [row.network_error for row in noised], "C0-s", label="ours: network on filtered images")
    clustered = [row.clustering_error for row in noised if row.clustering_error is not None]
    if len(clustered) == len(noised):
        axes.plot(at, clustered, "C1-^", label="ours: clustering, no labels, short runs")
    for view, style, words in ((TOGETHER, "C2-D", "drawn priors"), (LOW_FREQUENCIES, "C4-v", "no prior")):
        line = [part for part in honest if part.case == Case(view=view, epsilon=part.case.epsilon)]
        line.sort(key=lambda part: part.case.epsilon)
        errors = [1 - part.mean for part in line]
        label = f"ours: directions, label noised too, {words}"
        axes.plot([part.case.epsilon for part in line], errors, style, label=label)
    axes.set(
        xscale="log",
        yscale="log",
        ylim=(0.005, 1),
        xlabel="true ε of one person's report",
        ylabel="test error",
        title="Local noise: the five claimed ε, and what a small ε can give",
    )
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=9)
    write_figure(place, figure, readable=True, dpi=120)
