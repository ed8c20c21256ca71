"""`sfumato train`: a model under a budget."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato.cli import show
from sfumato.cli.options import Rule, check
from sfumato.cli.train_job import (
    RECIPE,
    Given,
    Held,
    Job,
    hold_some_out,
    prepare,
    read_data,
    take_some,
    train_plainly,
)
from sfumato.cli.train_table import PolicyFile, TargetColumn, train_from_policy

if TYPE_CHECKING:
    from sfumato.datasets import Dataset
    from sfumato.ledger import Ledger
    from sfumato.training import TrainingPlan, TrainingResult

RULES = (
    Rule(option="data", needs=("epsilon", "plain"), because="say how much privacy may be spent"),
    Rule(
        option="plain",
        excludes=("epsilon", "delta", "clip_norm", "ledger", "hold_out", "audit", "dry_run"),
        because="without privacy nothing is clipped, charged or measured at a price; that takes --epsilon",
    ),
    Rule(option="hold_out_epsilon", needs=("hold_out",), because="it pays for what is kept out"),
    Rule(option="canaries", needs=("audit",), because="it says of which kind the canaries are"),
    Rule(option="audit", needs=("out",), because="what the canaries tell goes to its private half"),
    Rule(option="ledger", needs=("out", "dry_run"), because="a model that is paid for must be kept somewhere"),
)


def register(app: typer.Typer) -> None:
    app.command()(train)


def train(
    context: typer.Context,
    policy: PolicyFile = None,
    target: TargetColumn = None,
    data: Annotated[
        str, typer.Option(help="mnist, fashion-mnist, digits; or your folder or .npz of images.")
    ] = "",
    model: Annotated[
        str,
        typer.Option(
            help="recipe: a head on public features; or cnn, tanh-cnn, resnet18, mlp. "
            "Of a table: boosted (default), linear, mlp."
        ),
    ] = RECIPE,
    epsilon: Annotated[float | None, typer.Option(help="The ε that may be spent.")] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Train without privacy.")] = False,
    delta: Annotated[float, typer.Option(help="A small probability, well below 1 / number of people.")] = 1e-5,
    epochs: Annotated[
        float | None, typer.Option(help="Passes over the data; default 10, or the recipe's.")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Expected batch; default 1024, or the recipe's.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Default: 0.5 private, 0.05 plain.")] = None,
    clip_norm: Annotated[float | None, typer.Option(help="Bound of one person's gradient; default 1.")] = None,
    train_size: Annotated[
        int | None, typer.Option(help="Use about this many records, drawn by secret coins.")
    ] = None,
    public_size: Annotated[int | None, typer.Option(help="Of your own images: how many people.")] = None,
    classes: Annotated[str | None, typer.Option(help="Of your own images: 10, or names as in cat,dog.")] = None,
    test_data: Annotated[str | None, typer.Option(help="Public images or rows to measure on.")] = None,
    hold_out: Annotated[
        float | None, typer.Option(help="Keep this share out of training, and measure on it, at a price.")
    ] = None,
    hold_out_epsilon: Annotated[float, typer.Option(help="What measuring on it may cost, on top.")] = 0.1,
    seed: Annotated[int, typer.Option(help="Of the first weights, which are public; the noise has none.")] = 0,
    ledger: Annotated[str | None, typer.Option(help="The data set's ledger, charged before training.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; an interrupted run goes on from it.")] = None,
    audit: Annotated[
        int | None, typer.Option(min=1, help="Plant this many canaries, and attack the run with them.")
    ] = None,
    canaries: Annotated[
        str, typer.Option(help="dirac: own weights, heard in every step; labels: poisoned rows, black box.")
    ] = "dirac",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Price, time and memory; nothing is spent.")
    ] = False,
    json: show.Json = False,
) -> None:
    """Train a model with differential privacy, or without.

    Example: sfumato train --data mnist --epsilon 1 --delta 1e-5 --out out/mnist
    """
    from sfumato.storage import RunFolder

    if train_from_policy(context):
        return
    check(context, RULES)
    given = Given(epochs=epochs, batch=batch, learning_rate=learning_rate, clip_norm=clip_norm, seed=seed)
    place = None if dry_run else out
    if place is not None:
        RunFolder(place).refuse_finished()
    rows, test = read_data(data, model, public_size, classes, test_data)
    rows, held = take_some(rows, train_size, place), None
    if hold_out is not None:
        rows, held = hold_some_out(rows, hold_out, hold_out_epsilon, place)
    if epsilon is None:
        answer = train_plainly(model, rows, test, given, place)
    else:
        job = prepare(model, rows, test, given, epsilon, delta, canaries=audit or 0)
        planted = None if audit is None else (canaries, audit)
        answer = (
            _dry_run(job, delta, ledger, held) if dry_run else _private(job, delta, ledger, out, planted, held)
        )
    if json:
        show.emit_json(answer)
    else:
        show.facts([(name.replace("_", " "), _text(value)) for name, value in answer.items()])


def _private(
    job: Job,
    delta: float,
    place: str | None,
    out: Path | None,
    canaries: tuple[str, int] | None,
    held: Held | None,
) -> dict[str, Any]:
    from sfumato.fitting import evaluate
    from sfumato.ledger import Ledger

    book = None if place is None else Ledger.open(place)
    if book is not None:
        _check_room(book, job.plan, held, out)
    result, found = _trained(job, delta, book, out, canaries)
    if job.prepared is not None and out is not None:
        job.prepared.release(out)
    if held is not None:
        found |= _measured(job, held, delta, book, out)
    measured = None if job.test is None else evaluate(job.network, job.test)
    return {
        "test_accuracy": None if measured is None else measured.accuracy,
        "test_loss": None if measured is None else measured.loss,
        "epsilon": result.epsilon,
        "delta": delta,
        "noise_multiplier": job.plan.noise_multiplier,
        "steps": job.plan.steps,
        "seconds": result.seconds,
        **found,
        **({} if out is None else {"out": str(out)}),
        **({} if book is None else {"epsilon_spent": book.epsilon_spent, "epsilon_left": book.epsilon_left}),
    }


def _trained(
    job: Job, delta: float, book: Ledger | None, out: Path | None, canaries: tuple[str, int] | None
) -> tuple[TrainingResult, dict[str, Any]]:
    """The run, under a bar; and what canaries planted in it tell, if there are any."""
    from sfumato.audit.runs.one_run import Watch, audited
    from sfumato.training import EpochReport, PrivateTrainer, cross_entropy, train

    ready = job.prepared
    with show.progress() as bar:
        task = bar.add_task("training", total=job.plan.steps, note="")

        def after_epoch(report: EpochReport) -> None:
            accuracy = "" if report.test_accuracy is None else f"  test {report.test_accuracy:.2%}"
            bar.update(task, note=f"ε {report.epsilon:.3f}{accuracy}")

        def after_step(trainer: PrivateTrainer) -> None:
            bar.update(task, completed=trainer.steps_done)

        def training(
            model: Any, data: Any, loss_fn: Any, watch: Watch = after_step, shown: Dataset | None = None
        ) -> TrainingResult:
            def on_step(trainer: PrivateTrainer) -> None:
                after_step(trainer)
                watch(trainer)

            return train(
                model,
                data,
                job.plan,
                delta=delta,
                loss_fn=loss_fn,
                optimization=job.optimization,
                test=shown,
                ledger=book,
                out=out,
                caveats=() if ready is None else ready.caveats,
                purpose="private training" if ready is None else ready.purpose,
                on_step=on_step,
                on_epoch=after_epoch,
            )

        if canaries is not None and out is not None:
            kind, count = canaries
            result, verdict = audited(
                job.network, job.rows, training, plan=job.plan, kind=kind, canaries=count, out=out
            )
            return result, {"audit_lower_bound": verdict.lower_bound, "audit": verdict.in_words}
        return training(job.network, job.rows, cross_entropy, shown=job.test), {}


def _check_room(book: Ledger, plan: TrainingPlan, held: Held | None, out: Path | None) -> None:
    """Refuse before anything is spent what the ledger has no room for; a run that goes on is paid already."""
    from sfumato.training.checkpoint import can_resume
    from sfumato.training.run import CHECKPOINT

    goes_on = out is not None and can_resume(out / "private" / CHECKPOINT, book)
    events = [] if goes_on else [plan.event()]
    events += [] if held is None else [held.event]
    if events:
        book.check(events, relation=plan.relation, unit=plan.unit)


def _measured(job: Job, held: Held, delta: float, book: Ledger | None, out: Path | None) -> dict[str, Any]:
    """Accuracy on the records kept out, with what it cost on top of training."""
    from sfumato.recipes.classifier import fitted
    from sfumato.storage import RunFolder

    model, kept = job.network, held.rows
    if job.prepared is not None:
        model, kept = job.prepared.model, replace(kept, rows=fitted(kept.rows))
    answer = kept.accuracy(model, epsilon=held.epsilon, delta=delta, ledger=book)
    if out is not None:
        RunFolder.make(out).write_json("hold_out.json", answer.to_json())
    return {
        "held_out_accuracy": answer.accuracy,
        "held_out_interval": (answer.low, answer.high),
        "held_out_epsilon": answer.epsilon,
        "epsilon_with_hold_out": _both(job.plan, held, delta),
    }


def _both(plan: TrainingPlan, held: Held, delta: float) -> float:
    from sfumato.accounting import compose, epsilon

    return epsilon(compose(plan.event(), held.event), delta)


def _dry_run(job: Job, delta: float, ledger: str | None, held: Held | None) -> dict[str, Any]:
    """What it would cost, and whether the ledger has room for it."""
    from sfumato.ledger import Ledger
    from sfumato.training import estimate

    if ledger is not None:
        with Ledger.open(ledger) as book:
            _check_room(book, job.plan, held, None)
    guess = estimate(job.network, job.plan, job.rows.shape, classes=job.rows.classes or 2)
    return {
        "epsilon": job.plan.epsilon(delta),
        "delta": delta,
        "noise_multiplier": job.plan.noise_multiplier,
        "sample_rate": job.plan.sample_rate,
        "steps": job.plan.steps,
        "seconds_expected": guess.seconds,
        "memory_expected_mb": guess.megabytes,
        **({} if held is None else {"epsilon_with_hold_out": _both(job.plan, held, delta)}),
    }


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return " to ".join(map(_text, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
