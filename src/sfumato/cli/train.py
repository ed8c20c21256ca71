"""`sfumato train`: a model under a budget."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato.cli import show

if TYPE_CHECKING:
    from sfumato.accounting import DpEvent
    from sfumato.datasets import Dataset
    from sfumato.experiments.best_recipe import Prepared, Recipe
    from sfumato.ledger import Ledger
    from sfumato.training import HeldOut, Optimization, TrainingPlan, TrainingResult

RECIPE = "recipe"


def register(app: typer.Typer) -> None:
    app.command()(train)


def train(
    data: Annotated[str, typer.Option(help="mnist, fashion-mnist, digits; or your folder or .npz of images.")],
    model: Annotated[
        str, typer.Option(help="recipe: a head on public features; or cnn, tanh-cnn, resnet18, mlp.")
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
    train_size: Annotated[int | None, typer.Option(help="Use the first rows only.")] = None,
    public_size: Annotated[int | None, typer.Option(help="Of your own images: how many people.")] = None,
    classes: Annotated[str | None, typer.Option(help="Of your own images: 10, or names as in cat,dog.")] = None,
    test_data: Annotated[str | None, typer.Option(help="Public images like yours, to measure on.")] = None,
    hold_out: Annotated[
        float | None, typer.Option(help="Keep this share out of training, and measure on it, at a price.")
    ] = None,
    hold_out_epsilon: Annotated[float, typer.Option(help="What measuring on it may cost, on top.")] = 0.1,
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

    Example: sfumato train --data mnist --epsilon 1 --delta 1e-5 --out out/mnist
    """
    from sfumato.errors import InvalidInput

    if plain == (epsilon is not None):
        raise InvalidInput("expected either --epsilon E or --plain; say how much privacy may be spent")
    if audit and out is None:
        raise InvalidInput("expected --out with --audit; what the canaries tell goes to its private half")
    if hold_out is not None and plain:
        raise InvalidInput("expected --hold-out with --epsilon; without privacy nothing is measured at a price")
    rows, test = read_data(data, model, public_size, classes, test_data)
    rows = rows if train_size is None else rows.take(train_size)
    held = None
    if hold_out is not None:
        rows, held = _keep_out(rows, hold_out, hold_out_epsilon, None if dry_run else out)
    given = Given(epochs=epochs, batch=batch, learning_rate=learning_rate, clip_norm=clip_norm, seed=seed)
    if epsilon is None:
        answer = _plain(model, rows, test, given)
    else:
        job = _job(model, rows, test, given, epsilon, delta, canaries=audit)
        planted = (canaries, audit) if audit else None
        answer = _dry_run(job, delta, held) if dry_run else _private(job, delta, ledger, out, planted, held)
    if json:
        show.emit_json(answer)
    else:
        show.facts([(name.replace("_", " "), _text(value)) for name, value in answer.items()])


@dataclass(frozen=True, kw_only=True)
class Given:
    """What the user said about training; None: nothing."""

    epochs: float | None
    batch: int | None
    learning_rate: float | None
    clip_norm: float | None
    seed: int


@dataclass(frozen=True, kw_only=True)
class Held:
    """Records kept out of training, and what measuring on them may cost."""

    rows: HeldOut
    epsilon: float

    @property
    def event(self) -> DpEvent:
        from sfumato.training.hold_out import price

        return price(self.epsilon)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A private training run, priced and ready to be charged."""

    network: Any
    rows: Dataset
    test: Dataset | None
    plan: TrainingPlan
    optimization: Optimization
    prepared: Prepared | None = None


def read_data(
    data: str, model: str, public_size: int | None, classes: str | None, test_data: str | None
) -> tuple[Dataset, Dataset | None]:
    """A known data set by name, or the user's own images; and public images to measure on, if there are any."""
    from sfumato import datasets
    from sfumato.errors import InvalidInput

    if data in datasets.DATASETS or not Path(data).expanduser().exists():
        side = 28 if data == "digits" and model not in ("mlp", RECIPE) else None
        return datasets.load(data, "train", side=side), datasets.load(data, "test", side=side)
    if public_size is None or classes is None:
        raise InvalidInput(
            "expected --public-size and --classes with your own images; they are declared, not counted"
        )
    names = [str(number) for number in range(int(classes))] if classes.isdigit() else classes.split(",")
    rows = datasets.read_images(data, classes=names, public_size=public_size)
    if test_data is None:
        return rows, None
    return rows, datasets.read_images(test_data, classes=names, public_size=None, visibility="public")


def _keep_out(rows: Dataset, share: float, epsilon: float, out: Path | None) -> tuple[Dataset, Held]:
    from sfumato import _validate
    from sfumato.run_folder import RunFolder
    from sfumato.training import keep_out

    epsilon = _validate.positive("hold_out_epsilon", epsilon)
    rows, kept = keep_out(rows, share, folder=None if out is None else RunFolder.make(out))
    return rows, Held(rows=kept, epsilon=epsilon)


def _network(model: str, rows: Dataset, seed: int) -> Any:
    from sfumato import models

    return models.build(
        model, classes=rows.classes or 2, in_channels=rows.shape[0], side=rows.shape[-1], seed=seed
    )


def _job(
    model: str,
    rows: Dataset,
    test: Dataset | None,
    given: Given,
    epsilon: float,
    delta: float,
    *,
    canaries: int,
) -> Job:
    from sfumato.experiments import best_recipe
    from sfumato.training import Optimization

    if model == RECIPE:
        recipe = _adjusted(best_recipe.recipe_for(rows.name), given, best_recipe.declared(rows)[0])
        ready = best_recipe.prepare(rows, test, epsilon=epsilon, delta=delta, recipe=recipe, canaries=canaries)
        return Job(
            network=ready.model.head,
            rows=ready.rows,
            test=ready.test,
            plan=ready.plan,
            optimization=_rated(ready.optimization(epsilon), given),
            prepared=ready,
        )
    return Job(
        network=_network(model, rows, given.seed),
        rows=rows,
        test=test,
        plan=_plan(rows, given, epsilon, delta, canaries=canaries),
        optimization=_rated(Optimization(learning_rate=0.5), given),
    )


def _adjusted(recipe: Recipe, given: Given, size: int) -> Recipe:
    rate = recipe.sample_rate if given.batch is None else min(1.0, given.batch / size)
    return replace(
        recipe,
        sample_rate=rate,
        steps=recipe.steps if given.epochs is None else max(1, round(given.epochs / rate)),
        clip_norm=given.clip_norm or recipe.clip_norm,
    )


def _rated(optimization: Optimization, given: Given) -> Optimization:
    """With the learning rate that was asked for, if one was."""
    return (
        optimization
        if given.learning_rate is None
        else replace(optimization, learning_rate=given.learning_rate)
    )


def _plan(rows: Dataset, given: Given, epsilon: float, delta: float, *, canaries: int) -> TrainingPlan:
    from sfumato.experiments.best_recipe import declared
    from sfumato.training import TrainingPlan

    size = declared(rows)[0] + canaries
    return TrainingPlan.calibrated(
        epsilon=epsilon,
        delta=delta,
        public_size=size,
        expected_batch=min(given.batch or 1024, size),
        epochs=given.epochs or 10,
        clip_norm=given.clip_norm or 1.0,
        unit=rows.unit,
    )


def _plain(model: str, rows: Dataset, test: Dataset | None, given: Given) -> dict[str, Any]:
    from sfumato.experiments import plain_recipe
    from sfumato.fitting import FitConfig, evaluate, fit

    started = time.perf_counter()
    if model == RECIPE:
        network, test = plain_recipe.run(rows, epochs=given.epochs, seed=given.seed), plain_recipe.seen(test)
    else:
        network = _network(model, rows, given.seed)
        config = FitConfig(
            epochs=round(given.epochs or 10),
            batch_size=given.batch or 64,
            learning_rate=given.learning_rate or 0.05,
            seed=given.seed,
        )
        fit(network, rows, config)
    measured = None if test is None else evaluate(network, test)
    return {
        "test_accuracy": None if measured is None else measured.accuracy,
        "test_loss": None if measured is None else measured.loss,
        "epsilon": float("inf"),
        "delta": 0.0,
        "seconds": time.perf_counter() - started,
    }


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
    if held is not None and book is not None:
        _check_both(book, job.plan, held, out)
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
    from sfumato.experiments.one_run_audit import Watch, audited
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


def _check_both(book: Ledger, plan: TrainingPlan, held: Held, out: Path | None) -> None:
    """Refuse before anything is spent what the ledger has no room for; a run that goes on is paid already."""
    from sfumato.accounting import Relation
    from sfumato.training.checkpoint import can_resume
    from sfumato.training.run import CHECKPOINT

    goes_on = out is not None and can_resume(out / "private" / CHECKPOINT, book)
    events = [held.event] if goes_on else [plan.event(), held.event]
    book.check(events, relation=Relation.ADD_REMOVE, unit=plan.unit)


def _measured(job: Job, held: Held, delta: float, book: Ledger | None, out: Path | None) -> dict[str, Any]:
    """Accuracy on the records kept out, with what it cost on top of training."""
    from sfumato.experiments.best_recipe import fitted
    from sfumato.run_folder import RunFolder

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


def _dry_run(job: Job, delta: float, held: Held | None) -> dict[str, Any]:
    from sfumato.training import estimate

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
