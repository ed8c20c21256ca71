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
from typing import Annotated, Any

import typer

from sfumato.cli import show
from sfumato.errors import InvalidInput
from sfumato.randomness import SecretStream
from sfumato_lab.reproduce.tables import canvas, conclude, number, print_table
from sfumato_lab.tracing import Campaign, Outcome, Release, TestKit, attack
from sfumato_lab.tracing import run as run_campaign
from sfumato_lab.tracing.release import Span
from sfumato_lab.tracing.settings import SETTINGS, Setting

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
        if self.simulator not in SETTINGS or self.repeats < 1:
            known = " or ".join(SETTINGS)
            raise InvalidInput(
                f"expected simulator {known} and repeats >= 1, got {self.simulator!r}, repeats={self.repeats}"
            )

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
    """Measure, write the run with two figures, and return the rows.

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
    findings = {
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
    figures = {"peak": _peaks(towns.simulator, rows), "prevalence": _curves(towns.simulator, rows)}
    conclude(out_dir, "tracing", findings, figures)
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


def _peaks(simulator: str, rows: Sequence[TracingRow]) -> Any:
    """Draw the peak against ε, a line for each method and way of counting ε."""
    figure, axes = canvas(
        f"Peak infection rate against ε ({simulator})", width=9,
        xscale="log", yscale="log", xlabel="ε of one message (δ = 0.001)", ylabel="peak infection rate, ‰",
    )  # fmt: skip
    for place, method in enumerate(dict.fromkeys(label(row) for row in rows)):
        mine = [row for row in rows if label(row) == method]
        for span, style in (("release", "-o"), ("lifetime", "--s")):
            points = [(row.epsilon, 1000 * row.peak) for row in mine if row.span == span and row.epsilon]
            if points:
                axes.plot(*zip(*points, strict=True), style, color=f"C{place}", label=f"{method}, per {span}")
        if mine[0].method in ("random", "none"):
            axes.axhline(1000 * mine[0].peak, color=f"C{place}", linestyle=":", label=method)
    figure.legend(fontsize=7, loc="outside right center")
    return figure


def _curves(simulator: str, rows: Sequence[TracingRow]) -> Any:
    """Draw the prevalence at ε = 1 a release, and without noise (dotted)."""
    figure, axes = canvas(
        f"Prevalence, ε = 1 a release ({simulator})", width=9, yscale="log", xlabel="day", ylabel="infected, ‰"
    )
    for row in rows:
        if row.span == "release" and row.epsilon in (1.0, None):
            curve = [1000 * value for value in row.prevalence]
            axes.plot(curve, "-" if row.epsilon else ":", label=label(row))
    figure.legend(fontsize=7, loc="outside right center")
    return figure


def tracing(
    out: show.Out = Path("out/tracing"),
    simulator: Annotated[str, typer.Option(help="seir or covasim.")] = "seir",
    people: Annotated[int, typer.Option(help="Number of people in the simulated town.")] = 10_000,
    days: Annotated[int, typer.Option(help="Number of days to simulate.")] = 80,
    towns: Annotated[int, typer.Option(min=1, help="Number of simulated towns. The median is shown.")] = 3,
    first_town: Annotated[int, typer.Option(help="Seed of the first town; the others follow.")] = 1,
    repeats: Annotated[
        int, typer.Option(min=1, help="Runs of each town, with other test errors and other noise.")
    ] = 1,
    false_positives: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="Chance of a positive test for somebody who is not infectious. "
            "0 is the setting in the public configurations of the published work.",
        ),
    ] = 0.01,
    epsilon: Annotated[
        list[float] | None, typer.Option(help="An ε to measure at. May be repeated. Default: 0.3, 1 and 3.")
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="A method to measure. May be repeated. Default: all, or none beside --confirm."),
    ] = None,
    confirm: Annotated[
        list[str] | None,
        typer.Option(
            help="A method to measure with confirming tests: somebody counts as positive only if a second test "
            "of the same day agrees; one in twenty tests a day is set aside for that. May be repeated."
        ),
    ] = None,
    ages: Annotated[bool, typer.Option(help="Let the scores of dpfn know people's age (covasim).")] = True,
    unprotected: Annotated[bool, typer.Option(help="Measure each method without noise, too.")] = True,
    json: show.Json = False,
) -> None:
    """Measure the peak infection rate against ε for each method, beside the published table.

    If the method traditional is measured, each other method is compared with it at the same ε, town by town and
    repeat by repeat: the geometric mean of the ratios is shown with a standard error. Ratios are to traditional
    without confirming tests; with --confirm traditional, ratios to that are shown below.

    Example: sfumato reproduce tracing --simulator covasim --epsilon 1 --method dpfn --method traditional
    """
    measured = Towns(
        simulator=simulator,
        people=people,
        days=days,
        seeds=range(first_town, first_town + towns),
        repeats=repeats,
        kit=TestKit(false_positive_rate=false_positives),
        ages=ages,
    )
    with show.errors.status("simulating") as status:
        rows = run(
            out,
            measured,
            epsilons=tuple(epsilon or (0.3, 1.0, 3.0)),
            methods=tuple(method or (() if confirm else METHODS)),
            confirmed=tuple(confirm or ()),
            unprotected=unprotected,
            progress=lambda text: status.update(text),
        )
    if json:
        show.emit_json({"rows": [asdict(row) for row in rows]})
        return
    columns = (
        "method",
        "noise set for",
        "ε, one release",
        "ε, a lifetime",
        "peak",
        "ratio of medians",
        "mean ratio",
    )
    shown = [
        (
            label(row), row.span, number(row.epsilon_release, ".2f"), number(row.epsilon_lifetime, ".2f"),
            f"{1000 * row.peak:.2f}", *_ratios(row.ratio),
        )
        for row in rows
    ]  # fmt: skip
    title = f"Peak infection rate, ‰, {simulator}, {people} people, {towns} × {repeats} runs"
    print_table(title, columns, shown)
    for row in rows:
        if row.ratio_confirmed is not None and row.confirm:
            medians, mean = _ratios(row.ratio_confirmed)
            show.console.print(
                f"{row.method}, ε of a {row.span}, against {COMPARED_WITH}, both with confirming tests: "
                f"ratio of medians {medians}, mean ratio {mean}."
            )
    published = ", ".join(f"{name} {peak:g}" for name, peak in PUBLISHED[simulator].items())
    show.console.print(
        f"Ratios in the table are to {COMPARED_WITH} without confirming tests at the same ε: of the medians, "
        "and the geometric mean over all runs ± one standard error.\n"
        "Noise is set for the ε of one message (of a contact, about a day): in a single day's release, or over "
        "its lifetime, all the daily releases in which it counts. Both columns of ε are of the same noise.\n"
        f"Published peaks: {published}; stated for ε = {PUBLISHED_EPSILON:g}, of one release.\n"
        f"Figures: {out}"
    )


def _ratios(ratio: Ratio | None) -> tuple[str, str]:
    """The ratio of medians, and the mean ratio with its standard error."""
    if ratio is None:
        return "", ""
    mean = f"{ratio.geometric_mean:.2f}"
    if ratio.error is not None:
        mean += f" ± {ratio.geometric_mean * ratio.error:.2f}"
    return f"{ratio.of_medians:.2f}", mean
