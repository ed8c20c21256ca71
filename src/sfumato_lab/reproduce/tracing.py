"""Contact tracing: peak infection rate against ε for each method, beside the published table.

Published (Romijnders et al. 2024): median peak infection rate at ε = 1 a release, δ = 1e-3, in ‰.

Peaks differ tenfold between towns, and up to fivefold between two runs of one town. So each method is compared
with `traditional` in the same towns, each of which may be run several times. Published campaigns test everybody
once; methods may also be measured with confirming tests, for which one in twenty tests a day is set aside.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato import _validate
from sfumato.randomness import SecretStream
from sfumato.storage import json_bytes, write_figure, write_whole
from sfumato_lab.tracing import Campaign, Outcome, Release, TestKit, attack
from sfumato_lab.tracing import run as run_campaign
from sfumato_lab.tracing.release import Span
from sfumato_lab.tracing.settings import SETTINGS, Setting

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DELTA = 1e-3
PUBLISHED = {
    "covasim": {"dpfn-daily": 1.23, "traditional": 11.6, "per-message": 12.3},
    "seir": {"dpfn-daily": 0.94, "traditional": 105.7, "none": 200.0},  # on OpenABM
}
PUBLISHED_EPSILON = 1.0
"""The ε that is stated for them: of the message of one contact on one day (see docs/design/tracing.md)."""
METHODS = ("dpfn-s", "dpfn", "dpfn-daily", "traditional", "per-message", "random", "none")


COMPARED_WITH = "traditional"
_NEXT_REPEAT = 100_003  # added to the seed of test errors from one run of a town to the next


@dataclass(frozen=True, kw_only=True)
class Towns:
    """The simulated towns in which every method is measured.

    Args:
        simulator: A name of `SETTINGS`.
        people: How many live in a town.
        days: How long a campaign lasts.
        seeds: One for each town; fixes its people, who meets whom, and who is infected first.
        repeats: How often each town is run, with other test errors and other noise.
        kit: Error rates of tests.
        ages: Whether scores know people's age, where the simulator has it.

    >>> len(Towns(seeds=(1, 2), repeats=3).runs)
    6
    """

    simulator: str = "seir"
    people: int = 10_000
    days: int = 80
    seeds: Sequence[int] = (1, 2, 3)
    repeats: int = 1
    kit: TestKit = field(default_factory=TestKit)
    ages: bool = True

    def __post_init__(self) -> None:
        _validate.one_of("simulator", self.simulator, SETTINGS)
        _validate.integer("repeats", self.repeats, least=1)

    @property
    def setting(self) -> Setting:
        setting = SETTINGS[self.simulator]
        if self.ages:
            return setting
        return replace(setting, disease=replace(setting.disease, susceptibility=()))

    @property
    def runs(self) -> list[tuple[int, int]]:
        """(seed of the town, seed of its test errors), the repeats of a town side by side."""
        return [(seed, seed + _NEXT_REPEAT * repeat) for seed in self.seeds for repeat in range(self.repeats)]


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Peaks of one method against those of `traditional` at the same ε.

    Attributes:
        of_medians: The ratio of the two medians over all runs.
        geometric_mean: The geometric mean of the ratios run by run, each town and repeat with its own.
        error: The standard error of the logarithm of that mean, from how much towns differ. Repeats of a town
            are averaged first, as they share its people. None for a single town.
    """

    of_medians: float
    geometric_mean: float
    error: float | None


@dataclass(frozen=True, kw_only=True)
class TracingRow:
    """One method at one ε: median over all runs; `peaks` has the repeats of a town side by side.

    `ratio` compares it with `traditional` without confirming tests, `ratio_confirmed` with the same with them.
    """

    method: str
    confirm: bool
    epsilon: float | None
    span: str
    peak: float
    peaks: tuple[float, ...]
    ratio: Ratio | None = None
    ratio_confirmed: Ratio | None = None
    tests: int
    epsilon_release: float
    epsilon_lifetime: float
    epsilon_person: float
    prevalence: tuple[float, ...]


def run(
    out_dir: str | Path,
    towns: Towns,
    *,
    epsilons: Sequence[float] = (0.3, 1.0, 3.0),
    methods: Sequence[str] = METHODS,
    confirmed: Sequence[str] = (),
    unprotected: bool = True,
    progress: Callable[[str], None] | None = None,
) -> list[TracingRow]:
    """Measure, write `tracing.json` and two figures into `out_dir`, and return the rows.

    `methods` are measured with the towns' kit as it is, `confirmed` with confirming tests.
    """
    rows = []
    plans = [(method, towns.kit) for method in methods]
    plans += [(method, replace(towns.kit, confirm=True)) for method in confirmed]
    for method, kit in plans:
        for span, epsilon in _budgets(method, epsilons, unprotected):
            row = _measure(replace(towns, kit=kit), method, span, epsilon)
            rows.append(row)
            if progress is not None:
                progress(f"{label(row)} ε={epsilon} {span}: {1000 * row.peak:.2f} ‰")
    rows = compared(rows, towns.repeats)
    folder = Path(out_dir)
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder, towns, rows)
    draw(folder, towns.simulator, rows)
    return rows


def _budgets(method: str, epsilons: Sequence[float], unprotected: bool) -> list[tuple[Span, float | None]]:
    if method in ("random", "none"):
        return [("release", None)]
    spans: tuple[Span, ...] = ("release", "lifetime")
    noised: list[tuple[Span, float | None]] = [(span, epsilon) for span in spans for epsilon in epsilons]
    return [*noised, ("release", None)] if unprotected else noised


def _measure(towns: Towns, method: str, span: Span, epsilon: float | None) -> TracingRow:
    setting = towns.setting
    release = Release(method=method)
    if epsilon is not None:
        release = Release.calibrated(
            method=method, epsilon=epsilon, delta=DELTA, disease=setting.disease, span=span
        )
    plan = Campaign(
        release=release,
        disease=setting.disease,
        kit=towns.kit,
        days=towns.days,
        test_fraction=setting.test_fraction,
    )
    outcomes = [
        run_campaign(plan, setting.make(towns.people, towns.days, town), SecretStream(), seed=errors)
        for town, errors in towns.runs
    ]
    return _row(plan, epsilon, span, outcomes)


def compared(rows: Sequence[TracingRow], repeats: int) -> list[TracingRow]:
    """Rows with their ratios to `traditional` at the same ε and span, where that was measured."""
    standard = {(row.confirm, row.span, row.epsilon): row for row in rows if row.method == COMPARED_WITH}

    def against(row: TracingRow, confirm: bool) -> Ratio | None:
        other = standard.get((confirm, row.span, row.epsilon))
        return None if other is None or other is row else ratio(row.peaks, other.peaks, repeats)

    return [replace(row, ratio=against(row, False), ratio_confirmed=against(row, True)) for row in rows]


def ratio(peaks: Sequence[float], others: Sequence[float], repeats: int) -> Ratio:
    """Compare two lists of peaks run by run, with `repeats` neighbouring runs to a town.

    >>> found = ratio((1.0, 4.0, 2.0, 2.0), (2.0, 8.0, 4.0, 4.0), repeats=2)
    >>> found.of_medians, round(found.geometric_mean, 3), found.error
    (0.5, 0.5, 0.0)
    """
    logs = [math.log(one / other) for one, other in zip(peaks, others, strict=True)]
    towns = [statistics.fmean(logs[start : start + repeats]) for start in range(0, len(logs), repeats)]
    return Ratio(
        of_medians=statistics.median(peaks) / statistics.median(others),
        geometric_mean=math.exp(statistics.fmean(towns)),
        error=statistics.stdev(towns) / math.sqrt(len(towns)) if len(towns) > 1 else None,
    )


def label(row: TracingRow) -> str:
    """The method as tables and figures name it."""
    return f"{row.method}, confirmed" if row.confirm else row.method


def _row(plan: Campaign, epsilon: float | None, span: str, outcomes: Sequence[Outcome]) -> TracingRow:
    contacts = max(outcome.contacts_per_day for outcome in outcomes)
    price = plan.release.price(plan.disease, contacts_per_day=contacts).epsilons(DELTA)
    peaks = tuple(outcome.peak_infection_rate for outcome in outcomes)
    middle = sorted(outcomes, key=lambda outcome: outcome.peak_infection_rate)[len(outcomes) // 2]
    return TracingRow(
        method=plan.release.method,
        confirm=plan.kit.confirm,
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


def _write(folder: Path, towns: Towns, rows: Sequence[TracingRow]) -> None:
    document: dict[str, Any] = {
        "simulator": towns.simulator,
        "people": towns.people,
        "days": towns.days,
        "towns": list(towns.seeds),
        "repeats": towns.repeats,
        "test_errors": asdict(towns.kit),
        "ages": towns.ages,
        "delta": DELTA,
        "unit": "one contact-day message",
        "compared_with": COMPARED_WITH,
        "published_peak_permille": PUBLISHED[towns.simulator],
        "rows": [_finite(asdict(row)) for row in rows],
        "attack": _attacks(towns.setting),
    }
    write_whole(folder / "tracing.json", json_bytes(document), readable=True)


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


def draw(folder: Path, simulator: str, rows: Sequence[TracingRow]) -> None:
    """Peak against ε, and the prevalence curves at ε = 1 a release."""
    methods = list(dict.fromkeys(label(row) for row in rows))
    peaks, axes = _canvas("Peak infection rate against ε", simulator)
    for number, method in enumerate(methods):
        _draw_peaks(axes, [row for row in rows if label(row) == method], f"C{number}")
    axes.set(xscale="log", xlabel="ε of one message (δ = 0.001)", ylabel="peak infection rate, ‰")
    _finish(peaks, axes, folder / "peak.png")
    curves, axes = _canvas("Prevalence, ε = 1 a release", simulator)
    for number, method in enumerate(methods):
        _draw_curves(axes, [row for row in rows if label(row) == method], f"C{number}")
    axes.set(xlabel="day", ylabel="infected, ‰")
    _finish(curves, axes, folder / "prevalence.png")


def _draw_peaks(axes: Axes, rows: Sequence[TracingRow], color: str) -> None:
    """One method: a line for each way of counting ε, with the towns as faint points."""
    for span, style in (("release", "-o"), ("lifetime", "--s")):
        mine = [(row.epsilon, row) for row in rows if row.span == span and row.epsilon]
        if mine:
            medians = [1000 * row.peak for _, row in mine]
            axes.plot([e for e, _ in mine], medians, style, color=color, label=f"{label(rows[0])}, per {span}")
        for epsilon, row in mine:
            axes.plot([epsilon] * len(row.peaks), [1000 * p for p in row.peaks], "_", color=color, alpha=0.4)
    flat = [row for row in rows if row.epsilon is None]
    if flat and flat[0].method in ("random", "none"):
        axes.axhline(1000 * flat[0].peak, color=color, linestyle=":", label=label(flat[0]))


def _draw_curves(axes: Axes, rows: Sequence[TracingRow], color: str) -> None:
    for row in rows:
        if row.span == "release" and row.epsilon in (1.0, None):
            protected = row.epsilon is not None or row.method in ("random", "none")
            name = label(row) if protected else f"{label(row)}, no noise"
            curve = [1000 * value for value in row.prevalence]
            axes.plot(curve, color=color, linestyle="-" if protected else ":", label=name)


def _canvas(title: str, simulator: str) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.set(yscale="log", title=f"{title} ({simulator})")
    return figure, axes


def _finish(figure: Figure, axes: Axes, path: Path) -> None:
    """Plain numbers on the logarithmic axes, and the legend beside them."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() == "log":
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_minor_formatter(NullFormatter())
    figure.legend(fontsize=7, loc="outside right center")
    write_figure(path, figure, readable=True, dpi=120)
