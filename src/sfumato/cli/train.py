"""`sfumato train`: a model under a budget."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato.cli import show
from sfumato.cli.expected import room, show_room
from sfumato.cli.inputs import read_data, take_some
from sfumato.cli.options import SHARES, Allocation, LeaveOut, Purpose, Rule, TableName, Unit, charged, check
from sfumato.cli.train_table import PolicyFile, TargetColumn, train_from_policy

if TYPE_CHECKING:
    from sfumato.fitting import Evaluation
    from sfumato.learn import Canaries, Classifier, HoldOut, Trained
    from sfumato.learn.plain import PlainlyTrained
    from sfumato.ledger import Ledger

_RECIPE = "recipe"
RULES = (
    Rule(option="data", needs=("epsilon", "plain"), because="say how much privacy may be spent"),
    Rule(
        option="plain",
        excludes=(
            "epsilon",
            "delta",
            "clip_norm",
            "ledger",
            "hold_out",
            "audit",
            "dry_run",
            "device",
            "noise",
            "moved",
        ),
        because="without privacy nothing is clipped, charged or measured at a price; that takes --epsilon",
    ),
    Rule(option="hold_out_epsilon", needs=("hold_out",), because="it pays for what is kept out"),
    Rule(
        option="noise",
        excludes=("hold_out", "audit"),
        because="a fixed order has other neighbours (zero-out) than what is kept out, and than canaries",
    ),
    Rule(
        option="finish",
        needs=("out",),
        excludes=("plain", "dry_run", "audit"),
        because="it ends the interrupted private run in --out",
    ),
    Rule(
        option="accept_new_graph",
        needs=("out",),
        excludes=("plain", "dry_run"),
        because="it goes on with the interrupted private run in --out",
    ),
    Rule(option="canaries", needs=("audit",), because="it says of which kind the canaries are"),
    Rule(option="audit", needs=("out",), because="what the canaries show goes to its private folder"),
    Rule(option="ledger", needs=("out", "dry_run"), because="a model that is paid for must be kept somewhere"),
    *SHARES,
)


_REMEDIES = {
    "test_accuracy": "give public images as --test-data, or measure on private ones at a price with --hold-out"
}


def register(app: typer.Typer) -> None:
    app.command()(train)


def train(
    context: typer.Context,
    policy: PolicyFile = None,
    target: TargetColumn = None,
    table: TableName = None,
    leave_out: LeaveOut = None,
    data: Annotated[
        str, typer.Option(help="mnist, fashion-mnist, cifar10, digits; or your folder or .npz of images.")
    ] = "",
    model: Annotated[
        str,
        typer.Option(
            help="recipe: a head on public features; or cnn, tanh-cnn, resnet18, mlp. "
            "For a table: boosted (default), linear, mlp."
        ),
    ] = _RECIPE,
    epsilon: Annotated[float | None, typer.Option(help="ε to spend.")] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Train without privacy.")] = False,
    delta: Annotated[
        float, typer.Option(help="The δ of the guarantee; choose it well below 1 / number of people.")
    ] = 1e-5,
    epochs: Annotated[
        float | None,
        typer.Option(help="Number of epochs. Default: 10, or the recipe's."),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(help="Expected batch size. Default: 1024, or less for 100 to 200 steps; or the recipe's."),
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(
            help="Learning rate. Default: 0.5, or less if the noise would be too much for that; 0.05 plain."
        ),
    ] = None,
    clip_norm: Annotated[
        float | None, typer.Option(help="Clip each person's gradient to this norm. Default: 1.")
    ] = None,
    train_size: Annotated[
        int | None, typer.Option(help="Train on about this many records, each chosen by a secret coin.")
    ] = None,
    public_size: Annotated[
        int | None, typer.Option(help="With your own images: how many people they are from.")
    ] = None,
    classes: Annotated[
        str | None, typer.Option(help="With your own images: how many classes, or their names (cat,dog).")
    ] = None,
    test_data: Annotated[str | None, typer.Option(help="Public images or rows to measure on.")] = None,
    hold_out: Annotated[
        float | None,
        typer.Option(
            help="Share of the records to keep out of training, for a private measurement of accuracy."
        ),
    ] = None,
    hold_out_epsilon: Annotated[float, typer.Option(help="ε of that measurement, in addition.")] = 0.1,
    seed: Annotated[int, typer.Option(help="Seed for the first weights. The noise cannot be seeded.")] = 0,
    ledger: Annotated[
        str | None, typer.Option(help="Ledger of the data set. It is charged before training.")
    ] = None,
    unit: Unit = "record",
    allocation: Allocation = None,
    purpose: Purpose = None,
    noise: Annotated[
        str | None,
        typer.Option(
            help="banded, lambda-cgd: fixed order of records, noise that later steps take back in part."
        ),
    ] = None,
    moved: Annotated[
        bool,
        typer.Option(
            "--moved",
            help="Learn from each image moved by a pixel in four directions too: five times the work, mostly "
            "more accurate. For images with a margin; not for the recipe.",
        ),
    ] = False,
    device: Annotated[
        str, typer.Option(help="Where the model is trained: cpu, cuda, or another device of torch.")
    ] = "cpu",
    out: Annotated[Path | None, typer.Option(help="Run folder. An interrupted run is resumed from it.")] = None,
    audit: Annotated[
        int | None, typer.Option(min=1, help="Insert this many canaries, and audit the run with them.")
    ] = None,
    canaries: Annotated[
        str,
        typer.Option(help="dirac: own weights, observed in every step; labels: mislabelled rows, black box."),
    ] = "dirac",
    finish: Annotated[
        bool,
        typer.Option(
            "--finish",
            help="End an interrupted run: take no further step, and release what its last checkpoint holds.",
        ),
    ] = False,
    accept_new_graph: Annotated[
        bool,
        typer.Option(
            "--accept-new-graph",
            help="Resume although the model's code or torch's version is another than before.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show price, time and memory. Nothing is spent.")
    ] = False,
    json: show.Json = False,
) -> None:
    """Train a model with differential privacy, or without.

    Example: sfumato train --data mnist --epsilon 1 --delta 1e-5 --out out/mnist
    """
    from sfumato.learn import Classifier, Settings
    from sfumato.learn.plain import train as train_plainly

    if train_from_policy(context):
        return
    check(context, RULES)
    settings = Settings(
        epochs=epochs,
        batch=batch,
        learning_rate=learning_rate,
        clip_norm=clip_norm,
        seed=seed,
        noise=noise,
        moved=moved,
    )
    place = _new_place(None if dry_run else out)
    side = 28 if data == "digits" and model not in ("mlp", _RECIPE) else None
    rows, test = read_data(data, side=side, public_size=public_size, classes=classes, test_data=test_data)
    rows = replace(take_some(rows, train_size, place), unit=unit)
    if epsilon is None:
        answer = _plain_answer(train_plainly(rows, test, model=model, settings=settings, out=place))
    else:
        book = charged(ledger, allocation=allocation, purpose=purpose)
        ready = Classifier.prepare(
            rows,
            test,
            epsilon=epsilon,
            delta=delta,
            model=model,
            settings=settings,
            hold_out=_hold_out(hold_out, hold_out_epsilon),
            canaries=_canaries(audit, canaries),
        ).on(device)
        answer = (
            _dry_run(ready, book)
            if dry_run
            else _private(ready, book, out, finish=finish, accept_new_graph=accept_new_graph)
        )
    _show(answer, place, json=json)


def _new_place(out: Path | None) -> Path | None:
    """Where the run goes, if it is kept: a folder without a finished run."""
    from sfumato.storage import RunFolder

    if out is not None:
        RunFolder(out).refuse_finished()
    return out


def _hold_out(share: float | None, epsilon: float) -> HoldOut | None:
    from sfumato.learn import HoldOut

    return None if share is None else HoldOut(share=share, epsilon=epsilon)


def _canaries(count: int | None, kind: str) -> Canaries | None:
    from sfumato.learn import Canaries

    return None if count is None else Canaries(count=count, kind=kind)


def _show(answer: dict[str, Any], out: Path | None, *, json: bool) -> None:
    shown = answer if out is None else answer | {"out": str(out)}
    if json:
        show.emit_json(shown)
        return
    apart = {"epsilon_left", "epsilon_left_after"} if "epsilon_left_after" in shown else set()
    show.answer({name: shown[name] for name in shown if name not in apart}, remedies=_REMEDIES)
    if apart:
        show_room(shown)


def _private(
    ready: Classifier, book: Ledger | None, out: Path | None, *, finish: bool, accept_new_graph: bool
) -> dict[str, Any]:
    """Charge and train, under a bar."""
    from sfumato.training import EpochReport, PrivateTrainer

    with show.progress() as bar:
        task = bar.add_task("training", total=ready.plan.steps, note="")

        def after_epoch(report: EpochReport) -> None:
            if report.test_accuracy is not None:
                bar.update(task, note=f"test {report.test_accuracy:.2%}")

        def after_step(trainer: PrivateTrainer) -> None:
            bar.update(task, completed=trainer.steps_done)

        trained = ready.train(
            ledger=book,
            out=out,
            on_step=after_step,
            on_epoch=after_epoch,
            finish=finish,
            accept_new_graph=accept_new_graph,
        )
    answer = _answer(ready, trained)
    if book is not None:
        answer |= {"epsilon_spent": book.epsilon_spent, "epsilon_left": book.epsilon_left}
    return answer


def _answer(ready: Classifier, trained: Trained) -> dict[str, Any]:
    answer = {
        **_measured(trained.test),
        "epsilon": trained.epsilon,
        "delta": ready.delta,
        "noise_multiplier": ready.plan.noise_multiplier,
        "steps": trained.result.steps,
        **({} if trained.result.steps == ready.plan.steps else {"steps_planned": ready.plan.steps}),
        "seconds": trained.seconds,
    }
    if trained.verdict is not None:
        answer |= {"audit_lower_bound": trained.verdict.lower_bound, "audit": trained.verdict.in_words}
    if trained.held_out is not None:
        answer |= {
            "held_out_accuracy": trained.held_out.accuracy,
            "held_out_interval": (trained.held_out.low, trained.held_out.high),
            "held_out_epsilon": trained.held_out.epsilon,
            "epsilon_with_hold_out": trained.epsilon_with_hold_out,
        }
    return answer


def _plain_answer(trained: PlainlyTrained) -> dict[str, Any]:
    return {**_measured(trained.test), "epsilon": float("inf"), "delta": 0.0, "seconds": trained.seconds}


def _measured(test: Evaluation | None) -> dict[str, Any]:
    return {
        "test_accuracy": None if test is None else test.accuracy,
        "test_loss": None if test is None else test.loss,
    }


def _dry_run(ready: Classifier, book: Ledger | None) -> dict[str, Any]:
    """What it would cost, and what the ledger would have left; BudgetExceeded if it has no room for it."""
    left: dict[str, float] = {}
    if book is not None:
        with book:
            ready.check_room(book)
            left = room(book, ready.events, relation=ready.plan.relation, unit=ready.plan.unit)
    guess, both = ready.estimate(), ready.epsilon_with_hold_out
    return {
        "epsilon": ready.epsilon,
        "delta": ready.delta,
        "noise_multiplier": ready.plan.noise_multiplier,
        "sample_rate": ready.plan.sample_rate,
        "expected_batch": ready.plan.expected_batch,
        "steps": ready.plan.steps,
        "learning_rate": ready.optimization.highest_rate,
        "seconds_expected": guess.seconds,
        "memory_expected_mb": guess.megabytes,
        **({} if both is None else {"epsilon_with_hold_out": both}),
        **left,
    }
