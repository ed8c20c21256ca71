"""`sfumato train`: a model under a budget."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato.cli import show

if TYPE_CHECKING:
    from sfumato.datasets import Dataset
    from sfumato.training import TrainingPlan


def register(app: typer.Typer) -> None:
    app.command()(train)


def train(
    data: Annotated[str, typer.Option(help="mnist, fashion-mnist or digits.")],
    model: Annotated[str, typer.Option(help="cnn, tanh-cnn, resnet18 or mlp.")] = "cnn",
    epsilon: Annotated[float | None, typer.Option(help="The ε that may be spent.")] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Train without privacy.")] = False,
    delta: Annotated[float, typer.Option(help="A small probability, well below 1 / number of people.")] = 1e-5,
    epochs: Annotated[float, typer.Option(help="Expected passes over the data.")] = 10,
    batch: Annotated[int, typer.Option(help="Expected batch (private), or batch size (plain).")] = 1024,
    learning_rate: Annotated[float | None, typer.Option(help="Default: 0.5 private, 0.05 plain.")] = None,
    clip_norm: Annotated[float, typer.Option(help="Bound of one person's gradient.")] = 1.0,
    train_size: Annotated[int | None, typer.Option(help="Use the first rows only.")] = None,
    seed: Annotated[int, typer.Option(help="Of the first weights, which are public; the noise has none.")] = 0,
    ledger: Annotated[str | None, typer.Option(help="The data set's ledger, charged before training.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; an interrupted run goes on from it.")] = None,
    audit: Annotated[int, typer.Option(help="Plant this many canaries, and attack the run with them.")] = 0,
    canaries: Annotated[
        str, typer.Option(help="dirac: own weights, heard in every step; labels: poisoned rows, black box.")
    ] = "dirac",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Price, time and memory; nothing is spent.")
    ] = False,
    json: show.Json = False,
) -> None:
    """Train a model with differential privacy, or without.

    Example: sfumato train --data mnist --model cnn --epsilon 1 --delta 1e-5 --epochs 10 --out out/cnn
    """
    from sfumato import datasets, models
    from sfumato.errors import InvalidInput

    if plain == (epsilon is not None):
        raise InvalidInput("expected either --epsilon E or --plain; say how much privacy may be spent")
    side = 28 if data == "digits" and model != "mlp" else None
    rows = datasets.load(data, "train", side=side)
    test = datasets.load(data, "test", side=side)
    if train_size is not None:
        rows = rows.take(train_size)
    network = models.build(
        model, classes=rows.classes or 2, in_channels=rows.shape[0], side=rows.shape[-1], seed=seed
    )
    if plain:
        answer = _plain(
            network, rows, test, epochs, min(batch, 64) if batch == 1024 else batch, learning_rate, seed
        )
    else:
        assert epsilon is not None
        if audit and out is None:
            raise InvalidInput("expected --out with --audit; what the canaries tell goes to its private half")
        plan = _plan(rows, epsilon, delta, epochs, batch, clip_norm, canaries=audit)
        if dry_run:
            answer = _dry_run(network, rows, plan, delta)
        else:
            planted = (canaries, audit) if audit else None
            answer = _private(network, rows, test, plan, delta, learning_rate or 0.5, ledger, out, planted)
    if json:
        show.emit_json(answer)
    else:
        show.facts([(name.replace("_", " "), _text(value)) for name, value in answer.items()])


def _plan(
    rows: Dataset, epsilon: float, delta: float, epochs: float, batch: int, clip_norm: float, *, canaries: int
) -> TrainingPlan:
    from sfumato.errors import InvalidInput
    from sfumato.training import TrainingPlan

    if rows.public_size is None:
        raise InvalidInput(f"expected {rows.name} to declare its public size; its rows are not counted")
    size = rows.public_size + canaries
    return TrainingPlan.calibrated(
        epsilon=epsilon,
        delta=delta,
        public_size=size,
        expected_batch=min(batch, size),
        epochs=epochs,
        clip_norm=clip_norm,
        unit=rows.unit,
    )


def _plain(
    network: Any, rows: Dataset, test: Dataset, epochs: float, batch: int, rate: float | None, seed: int
) -> dict[str, Any]:
    from sfumato.fitting import FitConfig, fit

    started = time.perf_counter()
    config = FitConfig(epochs=round(epochs), batch_size=batch, learning_rate=rate or 0.05, seed=seed)
    history = fit(network, rows, config, evaluate_on=test)
    last = history[-1].evaluation if history else None
    return {
        "test_accuracy": None if last is None else last.accuracy,
        "test_loss": None if last is None else last.loss,
        "epsilon": float("inf"),
        "delta": 0.0,
        "seconds": time.perf_counter() - started,
    }


def _private(
    network: Any,
    rows: Dataset,
    test: Dataset,
    plan: TrainingPlan,
    delta: float,
    rate: float,
    place: str | None,
    out: Path | None,
    canaries: tuple[str, int] | None,
) -> dict[str, Any]:
    from sfumato.experiments.one_run_audit import Watch, audited
    from sfumato.fitting import evaluate
    from sfumato.ledger import Ledger
    from sfumato.training import EpochReport, Optimization, PrivateTrainer, TrainingResult, cross_entropy, train

    book = None if place is None else Ledger.open(place)
    found: dict[str, Any] = {}
    with show.progress() as bar:
        task = bar.add_task("training", total=plan.steps, note="")

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
                plan,
                delta=delta,
                loss_fn=loss_fn,
                optimization=Optimization(learning_rate=rate),
                test=shown,
                ledger=book,
                out=out,
                on_step=on_step,
                on_epoch=after_epoch,
            )

        if canaries is not None and out is not None:
            kind, count = canaries
            result, verdict = audited(network, rows, training, plan=plan, kind=kind, canaries=count, out=out)
            found = {"audit_lower_bound": verdict.lower_bound, "audit": verdict.in_words}
        else:
            result = training(network, rows, cross_entropy, shown=test)
    measured = evaluate(network, test)
    return {
        "test_accuracy": measured.accuracy,
        "test_loss": measured.loss,
        "epsilon": result.epsilon,
        "delta": delta,
        "noise_multiplier": plan.noise_multiplier,
        "steps": plan.steps,
        "seconds": result.seconds,
        **found,
        **({} if out is None else {"out": str(out)}),
        **({} if book is None else {"epsilon_spent": book.epsilon_spent, "epsilon_left": book.epsilon_left}),
    }


def _dry_run(network: Any, rows: Dataset, plan: TrainingPlan, delta: float) -> dict[str, Any]:
    from sfumato.training import estimate

    guess = estimate(network, plan, rows.shape, classes=rows.classes or 2)
    return {
        "epsilon": plan.epsilon(delta),
        "delta": delta,
        "noise_multiplier": plan.noise_multiplier,
        "sample_rate": plan.sample_rate,
        "steps": plan.steps,
        "seconds_expected": guess.seconds,
        "memory_expected_mb": guess.megabytes,
    }


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
