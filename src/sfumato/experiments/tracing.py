"""Contact tracing: peak infection rate against ε for each method, beside the published table.

Published (Romijnders et al. 2024): median peak infection rate at ε = 1 a release, δ = 1e-3, in ‰.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sfumato.randomness import SecretStream
from sfumato.tracing import Campaign, Outcome, Release, attack
from sfumato.tracing import run as run_campaign
from sfumato.tracing.release import Span
from sfumato.tracing.settings import SETTINGS, Setting

DELTA = 1e-3
PUBLISHED = {
    "covasim": {"dpfn-daily": 1.23, "traditional": 11.6, "per-message": 12.3},
    "seir": {"dpfn-daily": 0.94, "traditional": 105.7, "none": 200.0},  # on OpenABM
}
METHODS = ("dpfn-s", "dpfn", "dpfn-daily", "traditional", "per-message", "random", "none")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One method at one ε: median over the seeds."""

    method: str
    epsilon: float | None
    span: str
    peak: float
    peaks: tuple[float, ...]
    tests: int
    epsilon_release: float
    epsilon_lifetime: float
    epsilon_person: float
    prevalence: tuple[float, ...]


def run(
    out_dir: str | Path,
    *,
    simulator: str = "seir",
    people: int = 10_000,
    days: int = 80,
    epsilons: Sequence[float] = (0.3, 1.0, 3.0),
    seeds: Sequence[int] = (1, 2, 3),
    methods: Sequence[str] = METHODS,
    progress: Callable[[str], None] | None = None,
) -> list[Row]:
    """Measure, write `tracing.json` and two figures into `out_dir`, and return the rows."""
    setting = SETTINGS[simulator]
    rows = []
    for method in methods:
        for span, epsilon in _budgets(method, epsilons):
            row = _measure(setting, method, span, epsilon, people, days, seeds)
            rows.append(row)
            if progress is not None:
                progress(f"{method} ε={epsilon} {span}: {1000 * row.peak:.2f} ‰")
    folder = Path(out_dir)
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder, simulator, people, days, rows, setting)
    draw(folder, simulator, rows)
    return rows


def _budgets(method: str, epsilons: Sequence[float]) -> list[tuple[Span, float | None]]:
    if method in ("random", "none"):
        return [("release", None)]
    spans: tuple[Span, ...] = ("release", "lifetime")
    return [(span, epsilon) for span in spans for epsilon in epsilons] + [("release", None)]


def _measure(
    setting: Setting,
    method: str,
    span: Span,
    epsilon: float | None,
    people: int,
    days: int,
    seeds: Sequence[int],
) -> Row:
    release = Release(method=method)
    if epsilon is not None:
        release = Release.calibrated(
            method=method, epsilon=epsilon, delta=DELTA, disease=setting.disease, span=span
        )
    plan = Campaign(release=release, disease=setting.disease, days=days, test_fraction=setting.test_fraction)
    outcomes = [
        run_campaign(plan, setting.make(people, days, seed), SecretStream(), seed=seed) for seed in seeds
    ]
    return _row(method, epsilon, span, release, setting, outcomes)


def _row(
    method: str,
    epsilon: float | None,
    span: str,
    release: Release,
    setting: Setting,
    outcomes: Sequence[Outcome],
) -> Row:
    contacts = max(outcome.contacts_per_day for outcome in outcomes)
    price = release.price(setting.disease, contacts_per_day=contacts).epsilons(DELTA)
    peaks = tuple(outcome.peak_infection_rate for outcome in outcomes)
    middle = sorted(outcomes, key=lambda outcome: outcome.peak_infection_rate)[len(outcomes) // 2]
    return Row(
        method=method,
        epsilon=epsilon,
        span=span,
        peak=statistics.median(peaks),
        peaks=peaks,
        tests=sum(middle.tests),
        epsilon_release=price["release"],
        epsilon_lifetime=price["lifetime"],
        epsilon_person=price["person"],
        prevalence=middle.prevalence,
    )


def _write(folder: Path, simulator: str, people: int, days: int, rows: Sequence[Row], setting: Setting) -> None:
    document: dict[str, Any] = {
        "simulator": simulator,
        "people": people,
        "days": days,
        "delta": DELTA,
        "unit": "one contact-day message",
        "published_peak_permille": PUBLISHED[simulator],
        "rows": [_finite(asdict(row)) for row in rows],
        "attack": _attacks(setting),
    }
    (folder / "tracing.json").write_text(json.dumps(document, indent=1, ensure_ascii=False))


def _attacks(setting: Setting) -> dict[str, Any]:
    """One app against one victim, without noise and with ε = 1 over a message's life."""
    disease = setting.disease
    noised = Release.calibrated(method="dpfn", epsilon=1, delta=DELTA, disease=disease)
    releases = {"unprotected": Release(method="dpfn"), "epsilon 1": noised}
    return {
        name: _finite(asdict(attack(release, disease=disease, sampler=SecretStream())))
        for name, release in releases.items()
    }


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    return {name: "inf" if value == float("inf") else value for name, value in values.items()}


def draw(folder: Path, simulator: str, rows: Sequence[Row]) -> None:
    """Peak against ε, and the prevalence curves at ε = 1 a release."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.subplots()
    for number, method in enumerate(dict.fromkeys(row.method for row in rows)):
        mine = [row for row in rows if row.method == method]
        color = f"C{number}"
        for span, style in (("release", "-o"), ("lifetime", "--s")):
            points = [(row.epsilon, 1000 * row.peak) for row in mine if row.span == span and row.epsilon]
            if points:
                axes.plot(*zip(*points, strict=True), style, color=color, label=f"{method}, per {span}")
        flat = [row for row in mine if row.epsilon is None]
        if flat and method in ("random", "none"):
            axes.axhline(1000 * flat[0].peak, color=color, linestyle=":", label=method)
    axes.set(xscale="log", yscale="log", xlabel="ε of one message (δ = 0.001)", ylabel="peak infection rate, ‰")
    axes.set_title(f"Peak infection rate against ε ({simulator})")
    figure.legend(fontsize=7, loc="outside right center")
    figure.savefig(folder / "peak.png", dpi=120)

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.subplots()
    for number, method in enumerate(dict.fromkeys(row.method for row in rows)):
        for row in rows:
            if row.method == method and row.span == "release" and row.epsilon in (1.0, None):
                protected = row.epsilon is not None or method in ("random", "none")
                label = method if protected else f"{method}, no noise"
                curve = [1000 * value for value in row.prevalence]
                axes.plot(curve, color=f"C{number}", linestyle="-" if protected else ":", label=label)
    axes.set(
        yscale="log", xlabel="day", ylabel="infected, ‰", title=f"Prevalence, ε = 1 a release ({simulator})"
    )
    figure.legend(fontsize=7, loc="outside right center")
    figure.savefig(folder / "prevalence.png", dpi=120)
