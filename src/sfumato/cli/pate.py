"""`sfumato pate`: private labels from teachers who never share their data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato.cli import show
from sfumato.cli.options import PAYS, SHARES, Allocation, Delta, Purpose, by_default, charged, check

if TYPE_CHECKING:
    from sfumato.datasets import Dataset
    from sfumato.ledger import Ledger
    from sfumato.pate import PateSettings, VotePlan

VOTES, STUDENT = "Votes", "Teachers and student"
app = typer.Typer(
    cls=by_default("run"),
    help="Label public images by private votes. `sfumato pate --data …` means `sfumato pate run --data …`.",
    no_args_is_help=True,
)


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="pate")


@app.command()
def run(
    context: typer.Context,
    data: Annotated[
        str, typer.Option(help="mnist, fashion-mnist, digits or strokes; its test images are public.")
    ],
    epsilon: Annotated[float, typer.Option(help="ε of all answers together.")],
    teachers: Annotated[
        int, typer.Option(help="Number of teachers. Each gets its own shard of the private rows.")
    ] = 250,
    delta: Delta = 1e-5,
    mechanism: Annotated[str, typer.Option(help="gnmax, laplace, confident or interactive.")] = "gnmax",
    queries: Annotated[
        int | None,
        typer.Option(
            help="Number of public images to label. Default: as many as the noise allows.",
            rich_help_panel=VOTES,
        ),
    ] = None,
    answers: Annotated[
        int | None,
        typer.Option(
            help="Most answers to give (confident, interactive). Default: half of the queries.",
            rich_help_panel=VOTES,
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Votes that an answer needs (confident, interactive). Default: 0.6 of the teachers.",
            rich_help_panel=VOTES,
        ),
    ] = None,
    teacher: Annotated[
        str, typer.Option(help="head (on a public prior's features), mlp or cnn.", rich_help_panel=STUDENT)
    ] = "head",
    prior: Annotated[
        str | None,
        typer.Option(
            help="strokes, strokes-wide, strokes-wild, strokes-rare, strokes-together (several of them) or "
            "shapes. Default: strokes-together, for fashion-mnist shapes.",
            rich_help_panel=STUDENT,
        ),
    ] = None,
    epochs: Annotated[
        int, typer.Option(help="Epochs of each teacher on its shard.", rich_help_panel=STUDENT)
    ] = 40,
    adapt_steps: Annotated[
        int,
        typer.Option(
            help="Steps of adapting the prior to the public images; 0 for none.", rich_help_panel=STUDENT
        ),
    ] = 240,
    folds: Annotated[
        int,
        typer.Option(
            help="Number of folds of the public images, each tested by a student that did not see it.",
            rich_help_panel=STUDENT,
        ),
    ] = 10,
    ledger: Annotated[
        str | None, typer.Option(help="Ledger of the data set. It is charged before any answer.")
    ] = None,
    allocation: Allocation = None,
    purpose: Purpose = None,
    out: Annotated[Path | None, typer.Option(help="Run folder.")] = None,
    json: show.Json = False,
) -> None:
    """Let teachers label public images privately, and train a student on the labels.

    Example: sfumato pate --data mnist --teachers 250 --epsilon 1
    """
    from sfumato import datasets
    from sfumato.datasets.drawings import prior_for
    from sfumato.storage import RunFolder

    check(context, (PAYS, *SHARES))
    if out is not None:
        RunFolder(out).refuse_finished()
    side = 28 if data == "digits" else None
    public = datasets.load(data, "test", side=side)
    plan = _plan(
        mechanism, teachers, epsilon, delta, queries, answers, threshold, len(public), public.classes or 2
    )
    settings = _settings(prior or prior_for(data), plan, teacher, epochs, adapt_steps, folds)
    book = charged(ledger, allocation=allocation, purpose=purpose)
    answer = _released(datasets.load(data, "train", side=side), public, settings, delta, book, out)
    if json:
        show.emit_json(answer)
    else:
        show.facts(_run_rows(answer))


@app.command()
def analyze(
    votes: Annotated[
        Path,
        typer.Argument(
            help="Votes as a table of class numbers (teachers × queries), .npy or .csv; -1 for no vote."
        ),
    ],
    mechanism: Annotated[str, typer.Option(help="laplace, gnmax or confident.")],
    delta: Annotated[float, typer.Option(help="The δ at which ε is stated.")] = 1e-5,
    gamma: Annotated[float | None, typer.Option(help="laplace: γ, where the noise has scale 1/γ.")] = None,
    sigma: Annotated[
        float | None, typer.Option(help="gnmax, confident: standard deviation of the noise on the votes.")
    ] = None,
    threshold: Annotated[float | None, typer.Option(help="confident: votes that an answer needs.")] = None,
    sigma_threshold: Annotated[
        float | None, typer.Option(help="confident: standard deviation of the noise of the threshold test.")
    ] = None,
    answers: Annotated[
        int | None,
        typer.Option(help="confident: most answers to give. Default: one for each query."),
    ] = None,
    classes: Annotated[int, typer.Option(help="Number of classes. It is declared, never counted.")] = 10,
    json: show.Json = False,
) -> None:
    """Compute the price of a set of votes. Nothing is spent; the data-dependent figures are not private.

    Example: sfumato pate analyze votes.npy --mechanism laplace --gamma 0.1 --delta 1e-5
    """
    from sfumato.pate import VotePlan, count_votes, read_votes
    from sfumato.pate import analyze as analyze_counts

    given = read_votes(votes)
    counts = count_votes(given, classes=classes)
    plan = VotePlan(
        mechanism=mechanism,
        teachers=len(given),
        queries=len(counts),
        classes=classes,
        gamma=gamma,
        sigma=sigma,
        threshold=threshold,
        sigma_threshold=sigma_threshold,
        answers=len(counts) if mechanism == "confident" and answers is None else answers,
    )
    found = analyze_counts(counts, plan, delta=delta).to_json()
    if json:
        show.emit_json(found)
    else:
        show.facts(_analysis_rows(found))


def _released(
    private: Dataset, test: Dataset, settings: PateSettings, delta: float, book: Ledger | None, out: Path | None
) -> dict[str, Any]:
    from dataclasses import replace

    from sfumato import pate

    with show.progress() as bar:
        task = bar.add_task("starting", total=100, note="")
        result = pate.run(
            private,
            replace(test, visibility="public"),
            settings,
            delta=delta,
            ledger=book,
            out=out,
            progress=lambda what, share: bar.update(task, description=what, completed=100 * share),
        )
    answer = {**result.to_json(), "seconds": result.seconds}
    if out is not None:
        answer["out"] = str(out)
    if book is not None:
        answer |= {"epsilon_spent": book.epsilon_spent, "epsilon_left": book.epsilon_left}
    return answer


def _plan(
    mechanism: str,
    teachers: int,
    epsilon: float,
    delta: float,
    queries: int | None,
    answers: int | None,
    threshold: float | None,
    images: int,
    classes: int,
) -> VotePlan:
    from sfumato.pate import VotePlan, queries_for

    silent = mechanism in ("confident", "interactive")
    asked = queries_for(teachers, epsilon=epsilon, delta=delta, most=images) if queries is None else queries
    return VotePlan.calibrated(
        epsilon=epsilon,
        delta=delta,
        mechanism=mechanism,
        teachers=teachers,
        queries=asked,
        classes=classes,
        answers=max(1, asked // 2) if silent and answers is None else answers,
        threshold=0.6 * teachers if silent and threshold is None else threshold,
    )


def _settings(
    prior: str, plan: VotePlan, teacher: str, epochs: int, adapt_steps: int, folds: int
) -> PateSettings:
    from dataclasses import replace

    from sfumato.pate import Adaptation, PateSettings, TeacherConfig

    config = TeacherConfig.of(teacher)
    return PateSettings(
        plan=plan,
        teacher=replace(config, fit=replace(config.fit, epochs=epochs)),
        adaptation=Adaptation(prior=prior, steps=adapt_steps),
        folds=folds,
    )


def _run_rows(answer: dict[str, Any]) -> list[tuple[str, str]]:
    labels = "–" if answer["label_accuracy"] is None else f"{answer['label_accuracy']:.1%} of them right"
    rows = [
        ("student accuracy", f"{answer['student_accuracy']:.2%}, over all public images, each in its own fold"),
        ("without private labels", f"{answer['start_accuracy']:.2%}"),
        ("ε", f"{answer['epsilon']:.4g} at δ = {answer['delta']:g}, whatever the votes"),
        ("teachers", f"{answer['teachers']:,}"),
        ("asked, answered", f"{answer['asked']:,}, {answer['answered']:,}; {labels}"),
        ("seconds", f"{answer['seconds']:.1f}"),
    ]
    for name in ("epsilon_spent", "epsilon_left"):
        if name in answer:
            rows.append((name.replace("_", " "), f"{answer[name]:.4g}"))
    return rows


def _analysis_rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    def figure(name: str) -> str:
        return "–" if found[name] is None else f"{found[name]:.4f}"

    return [
        ("data-independent ε", f"{figure('data_independent_epsilon')} (exact composition; what is charged)"),
        ("data-dependent ε", f"{figure('data_dependent_epsilon')} (of these votes; not for publication)"),
        ("the same, published", f"{figure('data_dependent_epsilon_published')} (noised; own cost included)"),
        ("moments bound of 2017", figure("source_moments_epsilon")),
        ("δ, queries", f"{found['delta']:g}, {found['queries']:,}"),
    ]
