"""Private training in one call: plan, charge, train, evaluate in public, leave a run folder."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn

from sfumato import _validate
from sfumato import runs as results
from sfumato.accounting import DpEvent, NoEvent, Relation, compose, repeat, warn_of_little_protection
from sfumato.datasets import Dataset, public_name
from sfumato.errors import BudgetExceeded, InvalidInput, Refused
from sfumato.fitting import evaluate
from sfumato.ledger import Certificate, Ledger
from sfumato.randomness import Sampler
from sfumato.released import ModelCard, Released
from sfumato.runs import EpochReport, read_history
from sfumato.storage import CHECKPOINT, RunFolder, json_bytes
from sfumato.training.arguments import agreed_optimization, check_ledger, check_plan, check_test
from sfumato.training.callbacks import Callback
from sfumato.training.checkpoint import (
    can_resume,
    go_on,
    keep_from_start,
    remove_checkpoint,
    save_checkpoint,
)
from sfumato.training.checks import as_written
from sfumato.training.early_stopping import EarlyStopping
from sfumato.training.hold_out import price
from sfumato.training.hugging_face import default_loss
from sfumato.training.losses import LossFunction, Views, cross_entropy
from sfumato.training.optimization import Optimization
from sfumato.training.plan import TrainingPlan
from sfumato.training.rate import settled
from sfumato.training.same_rows import check_rows, forget_rows, note_rows
from sfumato.training.setup import warn_that_given_go_on
from sfumato.training.trainer import PrivateTrainer
from sfumato.training.wanted import Wanted, check_whose

MEASURED_BESIDE = (
    "the history holds measurements on records kept out, which are entries of their own in the ledger; ε of "
    "training and measurements together:"
)


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainingResult:
    """A released model and what it cost. Printed it is a few lines of public figures.

    Attributes:
        model: The trained model.
        plan: What was done.
        epsilon: Its ε at δ, measurements on records kept out included.
        delta: The δ.
        history: What may be published of each epoch.
        certificate: The claim, to be put beside the model.
        seconds: How long it took.
    """

    model: nn.Module
    plan: TrainingPlan
    epsilon: float
    delta: float
    history: tuple[EpochReport, ...]
    certificate: Certificate
    seconds: float

    @property
    def test_accuracy(self) -> float | None:
        return self.history[-1].test_accuracy if self.history else None

    @property
    def steps(self) -> int:
        """How many were taken: those of the plan, or fewer if the run was stopped."""
        return self.history[-1].step if self.history else self.plan.steps

    def __repr__(self) -> str:
        facts = {
            "test accuracy": None if self.test_accuracy is None else f"{self.test_accuracy:.4f}",
            "epsilon": f"{self.epsilon:.4f} at delta {self.delta:g}, for each {self.plan.unit}",
            "steps": f"{self.steps} of {self.plan.steps}, of {self.plan.expected_batch:g} on average",
            "noise": f"{self.plan.noise_multiplier:.4g} times the clipping norm {self.plan.clip_norm:g}",
            "seconds": f"{self.seconds:.1f}",
        }
        return "\n".join(
            ("TrainingResult", *(f"  {name:<13}  {fact}" for name, fact in facts.items() if fact is not None))
        )


def train(
    model: nn.Module,
    data: Any,
    plan: TrainingPlan | None = None,
    *,
    epsilon: float | None = None,
    delta: float = 1e-5,
    public_size: int | None = None,
    epochs: float | None = None,
    expected_batch: float | None = None,
    clip_norm: float | None = None,
    unit: str | None = None,
    rows_per_unit: int | None = None,
    learning_rate: float | None = None,
    optimization: Optimization | None = None,
    first_weights: str | None = None,
    loss_fn: LossFunction | None = None,
    units: npt.ArrayLike | None = None,
    views: Views | None = None,
    example: Any = None,
    public: Sequence[Tensor] = (),
    test: Dataset | None = None,
    ledger: Ledger | None = None,
    out: str | os.PathLike[str] | None = None,
    released: Released | None = None,
    caveats: tuple[str, ...] = (),
    purpose: str = "private training",
    sampler: Sampler | None = None,
    on_step: Callable[[PrivateTrainer], None] | None = None,
    on_epoch: Callable[[EpochReport], None] | None = None,
    callbacks: Sequence[Callback] = (),
    stopping: EarlyStopping | None = None,
    finish: bool = False,
) -> TrainingResult:
    """Train a model privately: under a given plan, or under one calibrated to (epsilon, delta).

    Args:
        model: Any module without batch normalisation; it is trained in place.
        data: A Dataset, (inputs, targets), a map-style data set or a DataLoader of one.
        plan: What to do. Without one it is calibrated to `epsilon` and the next arguments.
        epsilon: The ε of the run.
        delta: The δ at which it is priced.
        public_size: The number of units that may be known in public. A Dataset declares it.
        epochs: How often each unit is used, on average; 10 by default.
        expected_batch: How many units a step uses on average; 1024 by default, or all.
        clip_norm: The bound of one unit's gradient; 1 by default.
        unit: What the units are, such as "person". The Dataset's by default.
        rows_per_unit: How many rows of one unit count.
        learning_rate: The step size of SGD. By default 0.5, or less where the noise would be too much for that.
        optimization: Optimizer, learning rate, momentum and schedule, in place of `learning_rate`. A run that
            goes on may be given another rate.
        first_weights: How the model's weights were made, such as "seed 7". A run that goes on says the same.
        loss_fn: One loss for each row; cross-entropy by default, or what suits a model of transformers.
        units: The person behind each row, where people have several.
        views: K random views of each row, (rows, K, …), whose gradients are averaged before clipping.
        example: A public item like those of a map-style data set.
        public: Tensors that model, loss or views bring along though they are large: nobody's data.
        test: Public data to measure accuracy on: `Dataset.public(…)`, or one that `datasets.load` gave.
        ledger: Where the plan is charged before a row is touched.
        out: A run folder. An interrupted run goes on from it; a finished one is refused.
        released: What the folder gets as its model, if not `model`: the whole of which `model` is a part,
            or a module that `sfumato.load` can build by itself.
        caveats: Sentences for the certificate.
        purpose: One line for the ledger's readers.
        sampler: The secret stream; a seeded one, for tests, makes the run not private.
        on_step: Called after each step.
        on_epoch: Called after each epoch, with what may be published.
        callbacks: Told of steps and epochs, in public figures, once they are durable.
        stopping: Measure on records kept out after each epoch, at a price, and stop when they no longer gain.
        finish: Take no further step: end the interrupted run in `out` at its last checkpoint, and release that.
            Its price is that of a run that was stopped.

    Returns:
        The model, its cost, its certificate, and accuracy on `test`.

    Raises:
        BudgetExceeded: If the ledger has no room. Nothing was trained.
        UnsupportedModel: If gradients of single rows cannot be told apart.

    >>> rows = torch.rand(20, 2), torch.zeros(20, dtype=torch.long)
    >>> result = train(nn.Linear(2, 2), rows, epsilon=2, public_size=20, expected_batch=10, epochs=1)
    >>> 1.98 <= result.epsilon <= 2
    True
    """
    model = as_written(model)
    wanted = Wanted(
        epsilon=epsilon,
        public_size=public_size,
        epochs=epochs,
        expected_batch=expected_batch,
        clip_norm=clip_norm,
        unit=unit,
        rows_per_unit=rows_per_unit,
    )
    caveats = _checked(plan, test, ledger, purpose, caveats)
    optimization = agreed_optimization(optimization, learning_rate)
    plan = _agreed(plan, wanted, data, units, delta)
    folder = _begun(out, ledger, interrupted=finish)
    optimization = settled(optimization, plan, model)
    loss_fn = default_loss(model) if loss_fn is None else loss_fn
    started = time.perf_counter()
    steps = optimization.build(model)
    trainer = PrivateTrainer(
        model, steps, plan, ledger=ledger, purpose=purpose, sampler=sampler, public=public, callbacks=callbacks
    )
    if stopping is not None:
        trainer.rest_on(stopping.held.rows.chosen)
    trainer.setup = asdict(optimization) | {"first_weights": first_weights}
    history = _take_up(trainer, folder, None if finish else data)
    _check_stopping(trainer, history, stopping, ends=finish)

    def tell_epoch() -> None:
        history.append(_report(trainer, test, delta, folder, history, stopping))
        trainer.listeners.tell_epoch(history[-1])
        if on_epoch is not None:
            on_epoch(history[-1])

    def after_step(trainer: PrivateTrainer) -> None:
        if on_step is not None:
            on_step(trainer)
        if _ends_epoch(trainer):
            _keep(trainer, folder)
            tell_epoch()

    if (finish or _ends_epoch(trainer)) and trainer.steps_done not in [report.step for report in history]:
        tell_epoch()  # the process died when its steps were durable, and nobody had heard of them
    take_steps(
        trainer,
        data,
        optimization,
        loss_fn=loss_fn,
        units=units,
        views=views,
        example=example,
        on_step=after_step,
        is_over=lambda: stopping is not None and stopping.is_over(history),
        ended=finish,
    )
    result = _result(trainer, delta, history, stopping, caveats, time.perf_counter() - started)
    if folder is not None:
        write_run(folder, result, trainer, data, released or Released(module=model, card=ModelCard.of(data)))
    return result


def _checked(plan: Any, test: Any, ledger: Any, purpose: str, caveats: tuple[str, ...]) -> tuple[str, ...]:
    """The caveats, if what was given is of the right kind."""
    _validate.text("purpose", purpose)
    check_plan(plan)
    check_test(test)
    check_ledger(ledger)
    return _validate.sentences("caveats", caveats)


def _begun(out: str | os.PathLike[str] | None, ledger: Ledger | None, *, interrupted: bool) -> RunFolder | None:
    """The folder of the run, if it has one; of one that was interrupted it must be there."""
    if interrupted:
        _check_interrupted(out, ledger)
    return None if out is None else RunFolder.begin(out, resumes=_resumes(out, ledger))


def _agreed(
    plan: TrainingPlan | None, wanted: Wanted, data: Any, units: npt.ArrayLike | None, delta: float
) -> TrainingPlan:
    """The plan that was given, or one calibrated to what is wanted; it fits whose the rows are."""
    if plan is None:
        plan = wanted.calibrated(data, units, delta)
    else:
        plan = wanted.nothing_beside(plan)
        warn_of_little_protection("this training", plan.epsilon(delta), delta, people=plan.declared_units)
    check_whose(data, units, plan)
    return plan


def take_steps(
    trainer: PrivateTrainer,
    data: Any,
    optimization: Optimization,
    *,
    loss_fn: LossFunction = cross_entropy,
    units: npt.ArrayLike | None = None,
    views: Views | None = None,
    example: Any = None,
    on_step: Callable[[PrivateTrainer], None] = lambda trainer: None,
    is_over: Callable[[], bool] = lambda: False,
    ended: bool = False,
) -> None:
    """All steps that are left, or until it is over, each at its rate; then the average takes their place."""
    trainer.model.train()
    if trainer.charge is None and not ended:  # or a process died that had settled it, and only released nothing
        for batch in trainer.batches(data, units=units, views=views, example=example):
            if is_over():
                break
            _set_rate(trainer, optimization)
            trainer.step(batch, loss_fn)
            on_step(trainer)
    trainer.finish()
    _put_average_in_place(trainer)


def write_run(
    folder: RunFolder, result: TrainingResult, trainer: PrivateTrainer, data: Any, released: Released
) -> None:
    """The run folder: what was paid for or computed on public data under release, the rest under private."""
    steps = b"".join(json_bytes(asdict(step), indent=None) for step in trainer.private_log.steps)
    results.write_run(
        folder,
        results.Training(
            epsilon=result.epsilon,
            delta=result.delta,
            test_accuracy=result.test_accuracy,
            test_loss=result.history[-1].test_loss if result.history else None,
            data=public_name(data.name) if isinstance(data, Dataset) else None,
        ),
        certificate=result.certificate,
        plan=result.plan.to_json(),
        history=result.history,
        model=released.to_bytes(),
        private={"steps.jsonl": steps},
        seconds=result.seconds,
    )
    remove_checkpoint(folder.private / CHECKPOINT)
    forget_rows(folder.private)


def _take_up(trainer: PrivateTrainer, folder: RunFolder | None, data: Any) -> list[EpochReport]:
    """Go on from the folder's checkpoint, if it has one of this plan, with the same rows, if any are used."""
    if folder is None:
        return []
    looks = data is not None and not trainer.peers.several
    if not _resumes(folder.path, trainer.ledger):
        if looks:
            note_rows(data, folder.private)
        keep_from_start(trainer, folder.private / CHECKPOINT)
        return []
    if looks:
        check_rows(data, folder.private)
    given, groups = trainer.setup, [_settings(group) for group in trainer.optimizer.param_groups]
    go_on(trainer, folder.private / CHECKPOINT)
    warn_that_given_go_on(trainer.setup, given)
    trainer.setup = given
    for group, settings in zip(trainer.optimizer.param_groups, groups, strict=True):
        group.update(settings)
    return [report for report in read_history(folder) if report.step <= trainer.steps_done]


def _check_interrupted(out: str | os.PathLike[str] | None, ledger: Ledger | None) -> None:
    if out is None or not _resumes(out, ledger):
        raise InvalidInput(
            f"expected an interrupted run to finish at out={None if out is None else str(out)!r}, got none; "
            "give the options, the folder and the ledger of the run"
        )


def _check_learned(trainer: PrivateTrainer) -> None:
    if not trainer.steps_done:
        raise InvalidInput(
            "expected a run with a checkpoint to finish, got one that was interrupted in its first epoch; "
            "go on with it without finish: it is paid for"
        )


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


def _resumes(out: str | os.PathLike[str], ledger: Ledger | None) -> bool:
    return can_resume(RunFolder(Path(out)).private / CHECKPOINT, ledger)


def _set_rate(trainer: PrivateTrainer, optimization: Optimization) -> None:
    for group in trainer.optimizer.param_groups:
        group["lr"] = optimization.rate_at(trainer.steps_done / trainer.plan.steps)


def _keep(trainer: PrivateTrainer, folder: RunFolder | None) -> None:
    """Make the steps durable, if there is a place for them."""
    if folder is not None:
        save_checkpoint(trainer, folder.private / CHECKPOINT)


def _ends_epoch(trainer: PrivateTrainer) -> bool:
    done, plan = trainer.steps_done, trainer.plan
    return done > 0 and plan.epochs_at(done) > plan.epochs_at(done - 1)


def _report(
    trainer: PrivateTrainer,
    test: Dataset | None,
    delta: float,
    folder: RunFolder | None,
    history: Sequence[EpochReport],
    stopping: EarlyStopping | None,
) -> EpochReport:
    """Once the steps are durable, look at the public test data, and last at what is kept out; write it down."""
    report = _public_report(trainer, test, delta)
    if stopping is not None:
        with trainer.averaged() as model:
            report = _measured(report, stopping, model, trainer, delta)
    if folder is not None:
        results.write_history(folder, (*history, report))
    return report


def _measured(
    report: EpochReport, stopping: EarlyStopping, model: nn.Module, trainer: PrivateTrainer, delta: float
) -> EpochReport:
    """As it was where others have spent what was left: the run then goes on to the end of its plan."""
    relation = trainer.plan.relation
    try:
        found = stopping.measure(
            model, delta=delta, ledger=trainer.ledger, sampler=trainer.sampler, relation=relation
        )
    except BudgetExceeded as refusal:
        warnings.warn(
            f"not measured on the records kept out, so that nothing stops the run: {refusal}", stacklevel=2
        )
        return report
    return replace(report, held_out_accuracy=found, held_out_epsilon=stopping.epsilon)


def _check_stopping(
    trainer: PrivateTrainer, history: Sequence[EpochReport], stopping: EarlyStopping | None, *, ends: bool
) -> None:
    """Refuse measurements without a price or room, before anything is spent, and a run that would end empty."""
    _check_kept_out(trainer.plan, stopping)
    _check_measured_alike(history, stopping, trainer.ledger)
    if ends:
        _check_learned(trainer)
    else:
        _check_room(trainer, stopping)


def _check_kept_out(plan: TrainingPlan, stopping: EarlyStopping | None) -> None:
    """A measurement is priced for one of the units that were kept out; the run, for one of the plan's."""
    if stopping is not None and stopping.held.rows.unit != plan.unit:
        raise InvalidInput(
            f"expected records kept out that are one {plan.unit} each, as the plan protects, got "
            f"unit={stopping.held.rows.unit!r}; declare the unit of the data set, of which each has one row"
        )


def _check_measured_alike(
    history: Sequence[EpochReport], stopping: EarlyStopping | None, ledger: Ledger | None
) -> None:
    """Without a ledger, whose filter holds for any choice, the price is that of what was fixed in advance."""
    before = {report.held_out_epsilon for report in history if report.held_out_accuracy is not None}
    now = None if stopping is None else stopping.epsilon
    if before and ((ledger is None and before != {now}) or None in before):
        raise Refused(
            f"expected stopping= with the ε at which this run was measured before, got ε={now}; a run without "
            "a ledger measures alike until its end: give the same, or begin anew in another folder"
        )


def _looks(history: Sequence[EpochReport], relation: Relation) -> DpEvent:
    """What was released of the records kept out."""
    prices = [report.held_out_epsilon for report in history if report.held_out_epsilon is not None]
    return compose(*(repeat(price(one, relation), prices.count(one)) for one in dict.fromkeys(prices)))


def _looks_at_most(
    plan: TrainingPlan, history: Sequence[EpochReport], stopping: EarlyStopping | None
) -> DpEvent:
    """The same, and one more for each epoch of the plan that was not measured."""
    done = _looks(history, plan.relation)
    if stopping is None:
        return done
    measured = sum(report.held_out_epsilon is not None for report in history)
    left = plan.epochs_at(plan.steps) - measured
    return compose(done, stopping.event(left, relation=plan.relation))


def _check_room(trainer: PrivateTrainer, stopping: EarlyStopping | None) -> None:
    """Refuse now what would be refused later: the whole plan, and every measurement that there can be."""
    if stopping is None or trainer.ledger is None or trainer.charge is not None:
        return
    plan = trainer.plan
    left = plan.epochs_at(plan.steps) - plan.epochs_at(trainer.steps_done)
    events = [stopping.event(left, relation=plan.relation)]
    if trainer.reservation is None:
        events.append(plan.event())
    trainer.ledger.check(events, relation=plan.relation, unit=plan.unit)


def _result(
    trainer: PrivateTrainer,
    delta: float,
    history: Sequence[EpochReport],
    stopping: EarlyStopping | None,
    caveats: tuple[str, ...],
    seconds: float,
) -> TrainingResult:
    looks = _looks(history, trainer.plan.relation)
    at_most = _looks_at_most(trainer.plan, history, stopping)
    epsilon = trainer.epsilon(delta, beside=looks, beside_planned=at_most)
    if trainer.ledger is not None and not isinstance(looks, NoEvent):
        caveats = (*caveats, f"{MEASURED_BESIDE} {epsilon:.4g}")
    certificate = trainer.certificate(delta=delta, caveats=caveats, beside=looks, beside_planned=at_most)
    return TrainingResult(
        model=trainer.model,
        plan=trainer.plan,
        epsilon=epsilon,
        delta=delta,
        history=tuple(history),
        certificate=certificate,
        seconds=seconds,
    )


def _public_report(trainer: PrivateTrainer, test: Dataset | None, delta: float) -> EpochReport:
    with trainer.averaged() as model:
        measured = None if test is None else evaluate(model, test)
    return EpochReport(
        epoch=trainer.plan.epochs_at(trainer.steps_done),
        step=trainer.steps_done,
        epsilon_if_fixed_in_advance=trainer.epsilon_if_fixed_in_advance(delta),
        test_accuracy=None if measured is None else measured.accuracy,
        test_loss=None if measured is None else measured.loss,
    )


def _put_average_in_place(trainer: PrivateTrainer) -> None:
    with torch.no_grad():
        for name, value in trainer.average.values.items():
            trainer.parameters[name].copy_(value)
