"""`sfumato trace`: hold an epidemic down by testing on private risk scores."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato.cli import show
from sfumato.cli.options import Rule, check

if TYPE_CHECKING:
    from sfumato.storage import RunFolder
    from sfumato_lab.tracing import Campaign, Outcome, Simulator

RULES = (
    Rule(option="unprotected", excludes=("epsilon", "per_release"), because="without noise nothing is spent"),
)
_ONE_RUN = (
    "This is one run. Peaks differ up to fivefold between two runs of one town, and tenfold between towns; "
    "sfumato reproduce tracing --towns N --repeats N compares many."
)


def register(app: typer.Typer) -> None:
    app.command()(trace)


def trace(
    context: typer.Context,
    agents: Annotated[int, typer.Option(help="Number of people in the simulated town.")] = 100_000,
    days: Annotated[int, typer.Option(help="Number of days to simulate.")] = 100,
    epsilon: Annotated[float, typer.Option(help="ε of one message.")] = 1.0,
    delta: Annotated[
        float, typer.Option(help="The δ at which ε is stated. The published work has 0.001, which is large.")
    ] = 1e-5,
    simulator: Annotated[str, typer.Option(help="seir or covasim.")] = "seir",
    method: Annotated[
        str, typer.Option(help="dpfn, dpfn-daily, dpfn-s, per-message, traditional, random or none.")
    ] = "dpfn",
    per_release: Annotated[
        bool,
        typer.Option(
            "--per-release",
            help="Read --epsilon as the price of each daily release, not of a message's whole life.",
        ),
    ] = False,
    confirm: Annotated[
        bool,
        typer.Option(
            help="Test whoever is positive a second time on the same day; one in twenty tests is set aside "
            "for it. Only if both agree, the person is isolated and contacts are told."
        ),
    ] = True,
    unprotected: Annotated[bool, typer.Option("--unprotected", help="Add no noise, for comparison.")] = False,
    out: Annotated[Path | None, typer.Option(help="Run folder, for sfumato report.")] = None,
    seed: Annotated[int, typer.Option(help="Seed for the simulated town. The noise cannot be seeded.")] = 0,
    json: show.Json = False,
) -> None:
    """Simulate an epidemic in which people with the highest private risk scores are tested each day.

    Example: sfumato trace --agents 100000 --days 100 --epsilon 1 --simulator seir
    """
    from sfumato import _validate
    from sfumato.accounting import warn_of_little_protection
    from sfumato.storage import RunFolder
    from sfumato_lab.tracing import Campaign, Release, TestKit
    from sfumato_lab.tracing.settings import SETTINGS

    check(context, RULES)
    setting = SETTINGS[_validate.one_of("simulator", simulator, SETTINGS)]
    _validate.integer("agents", agents, least=setting.fewest_people)
    disease, asked = setting.disease, None if unprotected else epsilon
    release = Release(method=method)
    if asked is not None:
        warn_of_little_protection("this tracing", asked, delta)
        release = Release.calibrated(
            method=method,
            epsilon=asked,
            delta=delta,
            disease=disease,
            span="release" if per_release else "lifetime",
        )
    plan = Campaign(
        release=release,
        disease=disease,
        kit=TestKit(confirm=confirm),
        days=days,
        test_fraction=setting.test_fraction,
    )
    folder = None if out is None else RunFolder.make(out)
    started = time.perf_counter()
    outcome = _simulated(plan, setting.make(agents, days, seed), seed)
    answer = _answer(plan, outcome, delta) | {"simulator": simulator, "seconds": time.perf_counter() - started}
    if folder is not None:
        _write(folder, plan, outcome, people=agents, epsilon=asked, delta=delta)
        answer["out"] = str(out)
    if json:
        show.emit_json(answer)
    else:
        show.facts(_rows(answer))
        show.console.print(_ONE_RUN, style="dim")


def _simulated(plan: Campaign, simulator: Simulator, seed: int) -> Outcome:
    """Run the campaign under a bar."""
    from sfumato.randomness import SecretStream
    from sfumato_lab.tracing import run

    with show.progress() as bar:
        task = bar.add_task("days", total=plan.days, note="")

        def update(day: int, prevalence: float) -> None:
            bar.update(task, completed=day + 1, note=f"infected today: {1000 * prevalence:.2f} ‰")

        return run(plan, simulator, SecretStream(), seed=seed, progress=update)


def _answer(plan: Campaign, outcome: Outcome, delta: float) -> dict[str, Any]:
    from sfumato_lab.tracing import UNIT

    price = plan.release.price(plan.disease, contacts_per_day=outcome.contacts_per_day).epsilons(delta)
    return {
        "peak_infection_rate": outcome.peak_infection_rate,
        "epsilon_release": price["release"],
        "epsilon_lifetime": price["lifetime"],
        "epsilon_person": price["person"],
        "delta": delta,
        "unit": UNIT,
        "method": plan.release.method,
        "confirm": plan.kit.confirm,
        "contacts_per_day": outcome.contacts_per_day,
        "tests_used": sum(outcome.tests),
        "prevalence": list(outcome.prevalence),
    }


def _write(
    folder: RunFolder, plan: Campaign, outcome: Outcome, *, people: int, epsilon: float | None, delta: float
) -> None:
    from sfumato.runs import Tracing, write_run
    from sfumato_lab.tracing import UNIT

    curve = outcome.curve(plan.release, plan.disease, epsilon=epsilon, delta=delta)
    result = Tracing(people=people, days=plan.days, delta=delta, unit=UNIT, curves=(curve,))
    write_run(folder, result, certificate=None)


def _rows(answer: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("peak infection rate", f"{1000 * answer['peak_infection_rate']:.2f} ‰"),
        ("unit", f"{answer['unit']}; beside it, one person"),
        ("ε of a day's release", f"{answer['epsilon_release']:.3g} at δ = {answer['delta']:g}"),
        ("ε of a message's life", f"{answer['epsilon_lifetime']:.3g}"),
        (
            f"ε of a person's test, {answer['contacts_per_day']:.0f} contacts a day",
            f"{answer['epsilon_person']:.3g}",
        ),
        ("tests used", f"{answer['tests_used']:,}"),
        ("seconds", f"{answer['seconds']:.1f}"),
    ]
