"""The lab's commands: demo, images, trace, prior, and the group `reproduce`.

Modules that compute are imported when a command runs: help waits for none of them.
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from typer.core import TyperGroup

from sfumato import interruption
from sfumato.cli import SHARES, Allocation, Purpose, Rule, charged, check, read_data, show
from sfumato.errors import InvalidInput

if TYPE_CHECKING:
    from rich.progress import Progress

    from sfumato.datasets import Dataset
    from sfumato.report import Page
    from sfumato.storage import RunFolder
    from sfumato_lab.demo import Stage, StageOutcome
    from sfumato_lab.images import PublicSet
    from sfumato_lab.tracing import Campaign, Outcome, Simulator

RULES = (
    Rule(option="unprotected", excludes=("epsilon", "per_release"), because="without noise nothing is spent"),
)
_ONE_RUN = (
    "This is one run. Peaks differ up to fivefold between two runs of one town, and tenfold between towns; "
    "sfumato reproduce tracing --towns N --repeats N compares many."
)
RECIPES = {
    "accuracy": "accuracy",
    "black-box": "black_box:black_box_audit",
    "clustering": "clustering",
    "differencing": "differencing",
    "epsilon-sweep": "networks:epsilon_sweep",
    "local-noise": "local_noise",
    "membership": "membership",
    "pate": "pate",
    "private-cnn": "networks:private_cnn",
    "published-mnist": "networks:published_mnist",
    "shuffle": "shuffle",
    "synthesis": "synthesis",
    "synthetic-tables": "synthetic_tables",
    "tracing": "tracing",
}
"""Command of `reproduce` → its module, and its function if that has another name."""


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    for command in (demo, images, trace, prior):
        app.command()(command)
    group = typer.Typer(cls=_Reproductions, no_args_is_help=True)
    group.callback()(reproduce)
    app.add_typer(group, name="reproduce")


def reproduce() -> None:
    """Run published systems and tables, and compare with ours."""


class _Imported(dict[str, click.Command]):
    """Commands by name, each imported when it is looked up."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(RECIPES, click.Command("reproduce")))

    def __getitem__(self, name: str) -> click.Command:
        module, _, function = RECIPES[name].partition(":")
        alone = typer.Typer(add_completion=False)
        found = import_module(f"sfumato_lab.reproduce.{module}")
        alone.command(name)(getattr(found, function or module))
        return typer.main.get_command(alone)

    def get(self, name: str, default: Any = None) -> Any:
        return default if name not in RECIPES else self[name]

    def items(self) -> Any:
        return {name: self[name] for name in self}.items()


class _Reproductions(TyperGroup):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Imported()


# Demo


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs, the ledger and the page.")] = Path("out"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Run everything at a small size, in about a minute.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over: remove earlier stages and their ledger.")
    ] = False,
    json: show.Json = False,
) -> None:
    """Run every kind of release and attack on MNIST under one budget, and write out/report.html.

    Three minutes on two cores. Run it again to go on after an interruption. Exit with 1 if a stage failed.

    Example: sfumato demo --quick
    """
    from sfumato.report import write_report
    from sfumato_lab import demo as story

    size = story.QUICK if quick else story.FULL
    if fresh:
        story.begin_again(out, size)
    interruption.offer("the same command goes on after the last stage that was done")
    with show.progress() as bar:
        watch = Watch(bar, story.STAGES, quick=quick, quiet=json)
        outcomes = story.run_stages(
            out,
            size,
            stages=story.STAGES,
            on_start=watch.start,
            on_progress=watch.advance,
            on_end=watch.end,
        )
        page = write_report([story.folder_of(out, size)], out / "report.html")
    if json:
        show.emit_json(_demo_answer(outcomes, page, story.folder_of(out, size)))
    else:
        _summarize(outcomes, page, story.folder_of(out, size))
    if any(outcome.status == "failed" for outcome in outcomes):
        raise typer.Exit(1)


class Watch:
    """Two bars: this stage, and everything, whose time left follows from how long stages usually take."""

    def __init__(self, bar: Progress, stages: tuple[Stage, ...], *, quick: bool, quiet: bool) -> None:
        self._bar, self._quiet = bar, quiet
        self._usual = {stage.name: stage.seconds[quick] for stage in stages}
        self._total = sum(self._usual.values())
        self._all = bar.add_task("all stages", total=self._total, note="")
        self._stage = bar.add_task("", total=100, note="")
        self._before = 0.0
        self._shown = time.monotonic()

    def start(self, stage: Stage) -> None:
        self._bar.reset(self._stage, description=stage.title, total=100)

    def advance(self, stage: Stage, share: float) -> None:
        self._bar.update(self._stage, completed=100 * share)
        self._bar.update(self._all, completed=self._before + share * self._usual[stage.name])

    def end(self, outcome: StageOutcome) -> None:
        if outcome.status == "already done":  # a jump forward would be taken for speed
            self._total -= self._usual[outcome.stage]
        else:
            self._before += self._usual[outcome.stage]
        self._bar.update(self._all, completed=self._before, total=self._total)
        if not self._quiet:
            show.console.print(_line(outcome), markup=False, highlight=False, soft_wrap=True)
            sys.stdout.flush()


def _line(outcome: StageOutcome) -> str:
    if outcome.status == "failed":
        return f"✗ {outcome.title}: {outcome.sentence}"
    return f"✓ {outcome.title}" + (
        f", {outcome.seconds:.0f} s" if outcome.status == "done" else ", done before"
    )


def _demo_answer(outcomes: tuple[StageOutcome, ...], page: Page, folder: Path) -> dict[str, Any]:
    return {
        "headline": page.headline,
        "report": str(page.path),
        "ledger": str(folder / "ledger.db"),
        "stages": [asdict(outcome) for outcome in outcomes],
        "seconds": sum(outcome.seconds for outcome in outcomes),
    }


def _summarize(outcomes: tuple[StageOutcome, ...], page: Page, folder: Path) -> None:
    show.console.print(f"\n{page.headline}", style="bold")
    rows = [
        ("page", str(page.path)),
        ("ledger", f"sfumato ledger show {folder / 'ledger.db'}"),
        ("a certificate", f"sfumato verify {folder / 'plain-and-private/twin/release/certificate.json'}"),
        ("next", "sfumato train --help, sfumato query --help, and docs/"),
    ]
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    if failed:
        rows.append(
            ("failed", f"{len(failed)} of {len(outcomes)} stages; run the same command to try them again")
        )
    for name, value in rows:  # commands are copied: they must stay on one line
        show.console.print(f"{name:<15}{value}", markup=False, highlight=False, soft_wrap=True)


# Synthetic images


def images(
    context: typer.Context,
    source: Annotated[
        str, typer.Argument(help="The private images: mnist, fashion-mnist, a folder, or an .npz file.")
    ],
    images: Annotated[int, typer.Option(help="Number of images to draw.")],
    epsilon: Annotated[float, typer.Option(help="Price of the release.")],
    out: Annotated[Path, typer.Option(help="A new .npz file. Certificate, sampler and report go beside it.")],
    delta: Annotated[float, typer.Option(help="The δ at which ε is stated.")] = 1e-5,
    prior: Annotated[
        str | None,
        typer.Option(
            help="Where images start from: strokes or shapes, which are drawings, or a folder or .npz file of "
            "public images with the same classes. Default: drawings, by the data set."
        ),
    ] = None,
    public_size: Annotated[
        int | None, typer.Option(help="With your own images: the number of people they are from.")
    ] = None,
    classes: Annotated[
        str | None, typer.Option(help="With your own images: the number of classes, or their names (cat,dog).")
    ] = None,
    ledger: Annotated[
        str | None, typer.Option(help="Ledger to charge before any private image is read.")
    ] = None,
    allocation: Allocation = None,
    purpose: Purpose = None,
    test_seed: Annotated[
        int | None,
        typer.Option(
            "--test-seed", help="Seed for the noise, for tests only: the release is marked not private."
        ),
    ] = None,
    json: show.Json = False,
) -> None:
    """Draw synthetic images, for a share of the budget.

    Example: sfumato images mnist --images 60000 --epsilon 1 --out digits.npz
    """
    from sfumato.ledger import Unrecorded
    from sfumato.randomness import SecretStream
    from sfumato_lab.images import ImagePlaces, ImageRequest, StyleSettings, release_images
    from sfumato_lab.images.release import STAGES
    from sfumato_lab.images.styles import DRAW, PUBLIC

    check(context, SHARES)
    started = time.perf_counter()
    places = ImagePlaces(out)
    if prior is not None and prior not in DRAW and not Path(prior).expanduser().exists():
        raise InvalidInput(
            f"expected --prior {' or '.join(DRAW)}, or a folder or .npz file of public images, got {prior}"
        )
    rows, test = read_data(source, side=None, public_size=public_size, classes=classes, test_data=None)
    public = None if prior is None or prior in DRAW else _public_set(prior, rows)
    settings = StyleSettings.for_data(rows.name, prior if public is None else PUBLIC)
    request = ImageRequest.of(
        rows, images=images, epsilon=epsilon, delta=delta, settings=settings, public=public
    )
    book = charged(ledger, allocation=allocation, purpose=purpose)
    with show.stages(STAGES) as next_stage:
        made = release_images(
            request,
            rows,
            ledger=Unrecorded(delta=delta) if book is None else book,
            out=out,
            sampler=SecretStream(test_seed=test_seed),
            test=test,
            progress=next_stage,
        )
    answer = {
        "out": str(out),
        "epsilon": made.epsilon,
        "delta": delta,
        "images": images,
        "rows": images,
        "sampler": str(places.sampler),
        "fidelity": made.report,
        "epsilon_left": None if book is None else book.epsilon_left,
        "seconds": time.perf_counter() - started,
    }
    if json:
        show.emit_json(answer)
        return
    show.facts(
        [
            ("written", str(out)),
            ("images", f"{images:,}"),
            ("epsilon, delta", f"{made.epsilon:.4g}, {delta:g}"),
            ("seconds", f"{answer['seconds']:.1f}"),
        ]
    )


def _public_set(prior: str, rows: Dataset) -> PublicSet:
    """Public images with the classes of the private ones."""
    import numpy as np

    from sfumato import datasets
    from sfumato.learn.features import fitted
    from sfumato.released import class_names
    from sfumato_lab.images import PublicSet

    found = fitted(
        datasets.read_images(prior, classes=list(class_names(rows)), public_size=None, visibility="public")
    )
    return PublicSet(images=np.rint(255 * found.inputs[:, 0]).astype(np.uint8), kinds=found.targets)


# Contact tracing


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
    from sfumato.accounting import warn_of_little_protection
    from sfumato.storage import RunFolder
    from sfumato_lab.tracing import Campaign, Release, TestKit
    from sfumato_lab.tracing.settings import SETTINGS

    check(context, RULES)
    if simulator not in SETTINGS:
        raise InvalidInput(f"expected simulator {' or '.join(SETTINGS)}, got simulator={simulator!r}")

    setting = SETTINGS[simulator]
    if agents < setting.fewest_people:
        raise InvalidInput(f"expected agents >= {setting.fewest_people}, got agents={agents}")
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
    answer = _trace_answer(plan, outcome, delta) | {
        "simulator": simulator,
        "seconds": time.perf_counter() - started,
    }
    if folder is not None:
        _write_trace(folder, plan, outcome, people=agents, epsilon=asked, delta=delta)
        answer["out"] = str(out)
    if json:
        show.emit_json(answer)
    else:
        show.facts(_trace_rows(answer))
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


def _trace_answer(plan: Campaign, outcome: Outcome, delta: float) -> dict[str, Any]:
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


def _write_trace(
    folder: RunFolder, plan: Campaign, outcome: Outcome, *, people: int, epsilon: float | None, delta: float
) -> None:
    from sfumato.runs import Tracing, write_run
    from sfumato_lab.tracing import UNIT

    curve = outcome.curve(plan.release, plan.disease, epsilon=epsilon, delta=delta)
    result = Tracing(people=people, days=plan.days, delta=delta, unit=UNIT, curves=(curve,))
    write_run(folder, result, certificate=None)


def _trace_rows(answer: dict[str, Any]) -> list[tuple[str, str]]:
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


# Priors


def prior(
    name: Annotated[
        str,
        typer.Argument(
            help="strokes, strokes-wide, strokes-wild or strokes-rare (digits), or shapes (things)."
        ),
    ] = "strokes",
    out: Annotated[Path, typer.Option(help="Folder for the weights and their description.")] = Path(
        "out/prior"
    ),
    epochs: Annotated[int | None, typer.Option(help="Epochs. Default: as for the weights that ship.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed. Default: as for the weights that ship.")] = None,
    json: show.Json = False,
) -> None:
    """Pre-train a network on synthetic drawings, and measure it on public images.

    Example: sfumato prior strokes --out out/prior
    """
    from sfumato_lab.drawings.prior import SHIPPED, PriorRecipe, make_prior

    if name not in SHIPPED:
        raise InvalidInput(f"expected name to be one of {', '.join(SHIPPED)}, got name={name!r}")
    recipe: PriorRecipe = SHIPPED[name]
    passes, start = recipe.epochs if epochs is None else epochs, recipe.seed if seed is None else seed
    recipe = replace(recipe, epochs=passes, seed=start)
    with show.progress() as bar:
        task = bar.add_task("pre-training", total=recipe.steps, note="")

        def advance(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        note = make_prior(out, recipe=recipe, progress=advance)
    if json:
        show.emit_json(note)
        return
    rows = [("weights", str(out / f"{name}.safetensors")), ("sha256", note["sha256"]), *_quality(note)]
    show.facts([*rows, ("seconds", f"{note['seconds']:.0f}")])


def _quality(note: dict[str, Any]) -> list[tuple[str, str]]:
    """On drawings that the network never saw, and on public images."""
    measured = note["accuracy"].items()
    return [(f"accuracy on {source}", f"{value:.2%}") for source, value in measured if value is not None]
