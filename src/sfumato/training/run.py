"""Private training in one call: plan, charge, train, evaluate in public, leave a run folder."""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader

from sfumato import _validate, runs
from sfumato.accounting import NoEvent, warn_of_little_protection
from sfumato.caveats import Code, as_caveats
from sfumato.datasets import Dataset, public_name
from sfumato.errors import BudgetExceeded, InvalidInput, Refused, SettingsChanged
from sfumato.fitting import evaluate
from sfumato.ledger import Certificate, Ledger
from sfumato.randomness import Sampler
from sfumato.released import ModelCard, Released
from sfumato.runs import EpochReport, read_history
from sfumato.storage import CHECKPOINT, RunFolder, json_bytes, write_whole
from sfumato.training.checkpoint import (
    can_resume,
    go_on,
    keep_from_start,
    remove_checkpoint,
    save_checkpoint,
    warn_that_given_go_on,
)
from sfumato.training.checks import as_written
from sfumato.training.data import check_units, columns_of
from sfumato.training.hold_out import EarlyStopping, check_ledger, measured_at_most
from sfumato.training.hugging_face import default_loss
from sfumato.training.losses import LossFunction, Views, cross_entropy
from sfumato.training.optimization import Optimization, settled
from sfumato.training.plan import RECORD, TrainingPlan
from sfumato.training.state import Callback, plain
from sfumato.training.trainer import PrivateTrainer

EPOCHS, EXPECTED_BATCH, CLIP_NORM = 10.0, 1024, 1.0
ROWS_NOTE = "rows.json"
_MOST_BYTES, _AT_ONCE = 2**28, 2**24  # of each column that are digested, in all and at a time


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainingResult:
    """A released model and its price. Printed it is a few lines of public figures.

    Attributes:
        model: The trained model.
        plan: The plan of the run.
        epsilon: Its ε at δ, measurements on records kept out included.
        delta: The δ.
        history: The public figures of each epoch.
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
        """The number of steps taken: those of the plan, or fewer if the run was stopped."""
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
    accept_new_graph: bool = False,
) -> TrainingResult:
    """Train a model privately: under a given plan, or under one calibrated to (epsilon, delta).

    Args:
        model: Any module without batch normalisation; it is trained in place.
        data: A Dataset, (inputs, targets), a map-style data set or a DataLoader of one.
        plan: The plan. Without one it is calibrated to `epsilon` and the next arguments.
        epsilon: The ε of the run.
        delta: The δ at which it is priced.
        public_size: The number of units that may be known in public. A Dataset declares it.
        epochs: How often each unit is used, on average; 10 by default.
        expected_batch: How many units a step uses on average; 1024 by default, or all.
        clip_norm: The bound of one unit's gradient; 1 by default.
        unit: The privacy unit, such as "person". The Dataset's by default.
        rows_per_unit: How many rows of one unit count.
        learning_rate: The step size of SGD. By default 0.5, or less where the noise would be too much for that.
        optimization: Optimizer, learning rate, momentum and schedule, in place of `learning_rate`. A run that
            goes on may be given another rate.
        first_weights: How the model's weights were made, such as "seed 7". A run that goes on says the same.
        loss_fn: One loss for each row; by default cross-entropy, or the loss of a model of transformers.
        units: The person behind each row, where people have several.
        views: K random views of each row, (rows, K, …), whose gradients are averaged before clipping.
        example: A public item like those of a map-style data set.
        public: Public tensors that model, loss or views bring along though they are large.
        test: Public data to measure accuracy on: `Dataset.public(…)`, or one that `datasets.load` gave.
        ledger: Where the plan is charged before a row is touched.
        out: A run folder. An interrupted run goes on from it; a finished one is refused.
        released: The model that the folder gets, if not `model`: the whole of which `model` is a part, or a
            module that `sfumato.load` can build by itself.
        caveats: Sentences for the certificate.
        purpose: One line for the ledger's readers.
        sampler: The secret stream; a seeded one, for tests, makes the run not private.
        on_step: Called after each step.
        on_epoch: Called after each epoch, with its public figures.
        callbacks: Told of steps and epochs, in public figures, once they are durable.
        stopping: Measure on records kept out after each epoch, at a price, and stop when they no longer gain.
        finish: Take no further step: end the interrupted run in `out` at its last checkpoint, and release that.
            Its price is that of a run that was stopped.
        accept_new_graph: Go on with an interrupted run although model, loss and views have another graph than
            before, or torch another version.

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
    _validate.text("purpose", purpose)
    check_test(test)
    check_ledger(ledger)
    caveats = as_caveats(caveats)
    optimization = _agreed_optimization(optimization, learning_rate)
    wanted: dict[str, Any] = {
        "epsilon": epsilon,
        "public_size": public_size,
        "epochs": epochs,
        "expected_batch": expected_batch,
        "clip_norm": clip_norm,
        "unit": unit,
        "rows_per_unit": rows_per_unit,
    }
    plan = _agreed_plan(plan, data, units, delta, wanted)
    check_units(plan, data, units)
    resumes = _resumes(out, ledger, finish)
    folder = None if out is None else RunFolder.begin(out, resumes=resumes)
    optimization = settled(optimization, plan, model)
    loss_fn = default_loss(model) if loss_fn is None else loss_fn
    started = time.perf_counter()
    trainer = PrivateTrainer(
        model, optimization.build(model), plan,
        ledger=ledger, purpose=purpose, sampler=sampler, public=public, callbacks=callbacks,
    )  # fmt: skip
    if stopping is not None:
        trainer.rest_on(stopping.held.rows.chosen)
    trainer.setup = asdict(optimization) | {"first_weights": first_weights}
    history: list[EpochReport] = []
    if folder is not None:
        _take_up(trainer, folder, None if finish else data, resumes=resumes, accept_new_graph=accept_new_graph)
        history += [report for report in read_history(folder) if resumes and report.step <= trainer.steps_done]
    _check_stopping(trainer, history, stopping, ends=finish)

    def tell_epoch() -> None:
        history.append(_report(trainer, test, delta, stopping))
        if folder is not None:
            runs.write_history(folder, history)
        for told in (*(callback.on_epoch for callback in callbacks), *([] if on_epoch is None else [on_epoch])):
            told(history[-1])

    def after_step(trainer: PrivateTrainer) -> None:
        if on_step is not None:
            on_step(trainer)
        if _ends_epoch(trainer):
            if folder is not None:
                save_checkpoint(trainer, folder.private / CHECKPOINT)
            tell_epoch()

    if (finish or _ends_epoch(trainer)) and trainer.steps_done not in [report.step for report in history]:
        tell_epoch()  # the process died when its steps were durable, and had told no one of them
    take_steps(
        trainer, data, optimization, loss_fn=loss_fn, units=units, views=views, example=example,
        on_step=after_step, is_over=lambda: stopping is not None and stopping.is_over(history), ended=finish,
    )  # fmt: skip
    result = _result(trainer, delta, history, stopping, caveats, time.perf_counter() - started)
    if folder is not None:
        write_run(folder, result, trainer, data, released or Released(module=model, card=ModelCard.of(data)))
    return result


# Arguments


def plan_for(
    data: Any,
    units: npt.ArrayLike | None,
    *,
    epsilon: float | None,
    delta: float,
    public_size: int | None = None,
    epochs: float | None = None,
    expected_batch: float | None = None,
    clip_norm: float | None = None,
    unit: str | None = None,
    rows_per_unit: int | None = None,
    **choices: Any,
) -> TrainingPlan:
    """Return a plan calibrated to the arguments; size and unit are those that the data declare, if they do."""
    if epsilon is None:
        raise InvalidInput("expected a plan or epsilon=..., got neither; say how much privacy may be spent")
    declared = getattr(data, "public_size", None)
    size = declared if public_size is None else public_size
    if size is None:
        raise InvalidInput(
            "expected public_size=..., got none; declare how many people the data has, as far as may be known"
        )
    if declared not in (None, size):
        raise InvalidInput(
            f"expected one declared size, got public_size={size} and data that declare {declared}; leave "
            "public_size out, or declare it in the data"
        )
    size = _validate.integer("public_size", size, least=1)
    of_data = getattr(data, "unit", RECORD)
    if units is not None and unit is None and of_data == RECORD:
        raise InvalidInput("expected unit=... with units=..., got none; say what they are, as in unit='person'")
    batch = min(EXPECTED_BATCH, size) if expected_batch is None else expected_batch
    given = data.batch_size if isinstance(data, DataLoader) and expected_batch is None else None
    if given not in (None, 1, batch):  # 1 is torch's default
        warnings.warn(
            f"the loader's batch_size={given} is not used: steps draw their own rows, {batch} on average, as "
            f"large batches lose less to noise; say expected_batch={given} for smaller ones",
            SettingsChanged,
            stacklevel=3,
        )
    return TrainingPlan.calibrated(
        epsilon=epsilon,
        delta=delta,
        public_size=size,
        expected_batch=batch,
        epochs=EPOCHS if epochs is None else epochs,
        clip_norm=CLIP_NORM if clip_norm is None else clip_norm,
        unit=of_data if unit is None else unit,
        rows_per_unit=rows_per_unit,
        **choices,
    )


def check_test(test: Any) -> None:
    """Refuse rows to measure on that are not declared to be public."""
    remedy = (
        "public rows are declared: test=Dataset.public(…), of sfumato.datasets; on others measure at "
        "a price with training.keep_out"
    )
    _validate.instance("test", test, Dataset, remedy=remedy)
    if test is not None and test.visibility != "public":
        raise InvalidInput("expected test to be public data; accuracy on private rows is a release of its own")


def _resumes(out: str | os.PathLike[str] | None, ledger: Ledger | None, finish: bool) -> bool:
    """Return whether the folder holds an interrupted run; one to be finished must."""
    resumes = out is not None and can_resume(RunFolder(Path(out)).private / CHECKPOINT, ledger)
    if finish and not resumes:
        raise InvalidInput(
            f"expected an interrupted run to finish at out={None if out is None else str(out)!r}, got none; "
            "give the options, the folder and the ledger of the run"
        )
    return resumes


def _agreed_plan(
    plan: TrainingPlan | None, data: Any, units: npt.ArrayLike | None, delta: float, wanted: Mapping[str, Any]
) -> TrainingPlan:
    """Return the given plan, or one calibrated to the wanted settings; both at once are refused."""
    _validate.instance(
        "plan",
        plan,
        TrainingPlan,
        remedy="rows are handed over as one: train(model, (inputs, targets), epsilon=1)",
    )
    if plan is None:
        return plan_for(data, units, delta=delta, **wanted)
    if said := ", ".join(f"{name}={value!r}" for name, value in wanted.items() if value is not None):
        raise InvalidInput(
            f"expected a plan, or what to calibrate one to, got a plan and {said}; a plan says all of it: "
            "leave these out, or make another with TrainingPlan.calibrated"
        )
    warn_of_little_protection("this training", plan.epsilon(delta), delta, people=plan.declared_units)
    return plan


def _agreed_optimization(optimization: Any, learning_rate: float | None) -> Optimization:
    remedy = (
        "as in Optimization(learning_rate=0.1); PrivateTrainer(model, optimizer, plan) takes an "
        "optimizer of torch"
    )
    _validate.instance("optimization", optimization, Optimization, remedy=remedy)
    if learning_rate is not None and optimization is not None:
        raise InvalidInput(
            "expected learning_rate or optimization, got both; say it in one: "
            f"Optimization(learning_rate={learning_rate!r}, …)"
        )
    return optimization or Optimization(learning_rate=learning_rate)


# Steps


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
    """Take all steps that are left, or until it is over, each at its rate; then put the average in place."""
    trainer.model.train()
    if trainer.charge is None and not ended:  # where a process died that had settled it, only the release lacks
        for batch in trainer.batches(data, units=units, views=views, example=example):
            if is_over():
                break
            for group in trainer.optimizer.param_groups:
                group["lr"] = optimization.rate_at(trainer.steps_done / trainer.plan.steps)
            trainer.step(batch, loss_fn)
            on_step(trainer)
    trainer.finish()
    trainer.use_average()


def _ends_epoch(trainer: PrivateTrainer) -> bool:
    done, plan = trainer.steps_done, trainer.plan
    return done > 0 and plan.epochs_at(done) > plan.epochs_at(done - 1)


def _report(
    trainer: PrivateTrainer, test: Dataset | None, delta: float, stopping: EarlyStopping | None
) -> EpochReport:
    """Measure, once the steps are durable, on public test data, and last on the records that are kept out."""
    plan, found = trainer.plan, None
    with trainer.averaged() as model:
        public = None if test is None else evaluate(model, test)
        try:
            if stopping is not None:
                found = stopping.held.accuracy(
                    model,
                    epsilon=stopping.epsilon,
                    delta=delta,
                    ledger=trainer.ledger,
                    sampler=trainer.sampler,
                    relation=plan.relation,
                )
        except BudgetExceeded as refusal:  # others have spent the rest: the run goes on to the end of its plan
            warnings.warn(
                f"not measured on the records kept out, so that nothing stops the run: {refusal}", stacklevel=2
            )
    return EpochReport(
        epoch=plan.epochs_at(trainer.steps_done),
        step=trainer.steps_done,
        epsilon_if_fixed_in_advance=trainer.epsilon_if_fixed_in_advance(delta),
        test_accuracy=None if public is None else public.accuracy,
        test_loss=None if public is None else public.loss,
        held_out_accuracy=None if found is None else found.accuracy,
        held_out_epsilon=None if found is None else found.epsilon,
    )


def _check_stopping(
    trainer: PrivateTrainer, history: Sequence[EpochReport], stopping: EarlyStopping | None, *, ends: bool
) -> None:
    """Refuse measurements without a price or room, before anything is spent, and a run that would end empty."""
    plan, ledger = trainer.plan, trainer.ledger
    if stopping is not None and stopping.held.rows.unit != plan.unit:
        raise InvalidInput(
            f"expected records kept out that are one {plan.unit} each, as the plan protects, got "
            f"unit={stopping.held.rows.unit!r}; declare the unit of the data set, of which each has one row"
        )
    # Without a ledger, whose filter holds for any choice, the price is that of looks fixed in advance.
    before = {report.held_out_epsilon for report in history if report.held_out_accuracy is not None}
    now = None if stopping is None else stopping.epsilon
    if before and ledger is None and before != {now}:
        raise Refused(
            f"expected stopping= with the ε at which this run was measured before, got ε={now}; a run without "
            "a ledger measures alike until its end: give the same, or begin anew in another folder"
        )
    if ends and not trainer.steps_done:
        raise InvalidInput(
            "expected a run with a checkpoint to finish, got one that was interrupted in its first epoch; "
            "go on with it without finish: it is paid for"
        )
    if ends or stopping is None or ledger is None or trainer.charge is not None:
        return
    left = plan.epochs_at(plan.steps) - plan.epochs_at(trainer.steps_done)
    events = [stopping.event(left, relation=plan.relation)]
    if trainer.reservation is None:
        events.append(plan.event())
    ledger.check(events, relation=plan.relation, unit=plan.unit)


def _result(
    trainer: PrivateTrainer,
    delta: float,
    history: Sequence[EpochReport],
    stopping: EarlyStopping | None,
    caveats: tuple[str, ...],
    seconds: float,
) -> TrainingResult:
    plan = trainer.plan
    looks, at_most = measured_at_most(history, stopping, plan.epochs_at(plan.steps), relation=plan.relation)
    epsilon = trainer.epsilon(delta, beside=looks, beside_planned=at_most)
    if trainer.ledger is not None and not isinstance(looks, NoEvent):
        caveats = (*caveats, Code.MEASURED_BESIDE(epsilon=epsilon))
    return TrainingResult(
        model=trainer.model,
        plan=plan,
        epsilon=epsilon,
        delta=delta,
        history=tuple(history),
        certificate=trainer.certificate(delta=delta, caveats=caveats, beside=looks, beside_planned=at_most),
        seconds=seconds,
    )


# The run folder


def _take_up(
    trainer: PrivateTrainer, folder: RunFolder, data: Any, *, resumes: bool, accept_new_graph: bool
) -> None:
    """Go on from the folder's checkpoint, if it has one of this plan, with the same rows, if any are used."""
    looks = data is not None and not trainer.peers.several
    if not resumes:
        if looks:
            note_rows(data, folder.private)
        keep_from_start(trainer, folder.private / CHECKPOINT)
        return
    if looks:
        check_rows(data, folder.private)
    given, groups = trainer.setup, [plain(group) for group in trainer.optimizer.param_groups]
    go_on(trainer, folder.private / CHECKPOINT, accept_new_graph=accept_new_graph)
    warn_that_given_go_on(trainer.setup, given)
    trainer.setup = given
    for group, settings in zip(trainer.optimizer.param_groups, groups, strict=True):
        group.update(settings)


def write_run(
    folder: RunFolder, result: TrainingResult, trainer: PrivateTrainer, data: Any, released: Released
) -> None:
    """Write the run folder: under release only figures that were paid for or computed on public data."""
    steps = b"".join(json_bytes(asdict(step), indent=None) for step in trainer.private_log.steps)
    runs.write_run(
        folder,
        runs.Training(
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
    (folder.private / ROWS_NOTE).unlink(missing_ok=True)


def note_rows(data: Any, folder: Path) -> None:
    """Keep a keyed digest of the rows of a run that begins, in the private half of its folder, while it lasts.

    Neither the release nor the checkpoint, which is a release, may hold anything that is computed from rows.
    Data whose items are read one by one are not looked at.
    """
    (folder / ROWS_NOTE).unlink(missing_ok=True)
    key = secrets.token_bytes(32)
    found = _digests(data, key)
    if found is not None:
        write_whole(folder / ROWS_NOTE, json_bytes({"key": key.hex(), **found}))


def check_rows(data: Any, folder: Path) -> None:
    """Refuse rows other than those that were noted; warn where only real numbers in them differ.

    Whole numbers (labels, tokens, bytes of images) are the same wherever they are read. Real numbers may have
    been computed, as features are, and differ in their last bits on another machine.
    """
    try:
        noted = json.loads((folder / ROWS_NOTE).read_bytes())
    except (FileNotFoundError, ValueError):
        return  # begun with data that are read item by item
    found = _digests(data, bytes.fromhex(noted["key"]))
    if found is None:
        return
    if any(noted[name] != found[name] for name in ("shapes", "whole")):
        raise Refused(
            f"expected the rows that the run in {folder.parent} began with, in the same order, got others; "
            "give the same, end the run as it is (--finish, or finish=True in Python), or begin anew in "
            "another folder, which is charged anew"
        )
    if noted["real"] != found["real"]:
        warnings.warn(
            f"the run in {folder.parent} began with other numbers in its rows, and goes on with those given "
            "now; if it is not that they were computed anew, as on another machine, stop it and begin anew in "
            "another folder",
            SettingsChanged,
            stacklevel=4,
        )


def _digests(data: Any, key: bytes) -> dict[str, str] | None:
    """Digest the columns; of large ones evenly spaced rows."""
    columns = columns_of(data)
    if columns is None:
        return None
    kinds = {name: hashlib.blake2b(key=key, digest_size=32) for name in ("shapes", "whole", "real")}
    for column in pytree.tree_leaves(columns):
        kinds["shapes"].update(f"{tuple(column.shape)} {column.dtype};".encode())
        real = column.is_floating_point() or column.is_complex()
        kept = column.detach().resolve_conj().resolve_neg()[:: max(1, math.ceil(column.nbytes / _MOST_BYTES))]
        for part in kept.split(max(1, _AT_ONCE * len(kept) // max(1, kept.nbytes))):
            kinds["real" if real else "whole"].update(
                part.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            )
    return {name: digest.hexdigest() for name, digest in kinds.items()}
