"""The run of `sfumato train`: prepare (read what is public, price), then train (charge, learn, release).

By default a private linear head on public features, which lost the least accuracy on all images tried; or any
network of `sfumato.models`, from random weights.
"""

from __future__ import annotations

import copy
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from msgspec import structs
from torch import nn

from sfumato import _validate, models, runs
from sfumato.accounting import DpEvent, compose, warn_of_little_protection
from sfumato.accounting import epsilon as priced
from sfumato.caveats import Code
from sfumato.datasets import Dataset, public_name
from sfumato.errors import BudgetExceeded, InvalidInput
from sfumato.fitting import Evaluation, evaluate
from sfumato.learn import features
from sfumato.learn.features import Recipe, declared
from sfumato.learn.statistic import StatisticPlan
from sfumato.ledger import Certificate, ChargeRequest, Ledger, Unrecorded
from sfumato.ledger.rule import same_releases
from sfumato.models import FeatureClassifier
from sfumato.randomness import Sampler, SecretStream
from sfumato.released import ModelCard, Predictor, Released
from sfumato.storage import CHECKPOINT, RunFolder
from sfumato.training import (
    CostEstimate,
    EpochReport,
    HeldOut,
    NoisyAccuracy,
    Optimization,
    PrivateTrainer,
    TrainingPlan,
    TrainingResult,
    Views,
    estimate,
    keep_out,
    moved_by_a_pixel,
    train,
)
from sfumato.training.checkpoint import can_resume
from sfumato.training.data import ChosenRows
from sfumato.training.devices import usable_device
from sfumato.training.hold_out import check_ledger, price, size_without
from sfumato.training.optimization import settled
from sfumato.training.plan import RECORD
from sfumato.training.run import check_test

if TYPE_CHECKING:
    from sfumato.audit import Verdict

RECIPE = "recipe"
EPOCHS, LARGEST_BATCH = 10.0, 1024
_STEPS = (100, 200)  # at least and at most, before the batch is larger than 1,024
Place = str | os.PathLike[str]
Watch = Callable[[PrivateTrainer], None]


def usual_batch(size: int, epochs: float, weights: int) -> int:
    """Return the default expected batch of a network, from public figures alone.

    Large batches lose less to noise, but few steps learn little: a network takes as many steps as the square
    root of its number of weights, between 100 and 200, or more of 1,024 rows each. Chosen on training rows of
    scikit-learn's digits; other ε call for hardly another batch, and the learning rate follows the noise.

    >>> usual_batch(60_000, 10, 26_010), usual_batch(1_437, 10, 9_610), usual_batch(1_437, 3, 9_610)
    (1024, 144, 43)
    """
    steps = min(max(math.sqrt(weights), _STEPS[0]), _STEPS[1])
    return min(LARGEST_BATCH, size, max(1, round(size * epochs / steps)))


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Changes to a recipe, or to a network's defaults; None changes nothing.

    Args:
        epochs: How often each record is used, on average.
        batch: How many records a step uses, on average.
        learning_rate: The step size.
        clip_norm: The bound of one record's gradient.
        seed: Fixes the first weights, which are public. The noise cannot be seeded.
        noise: "banded" or "lambda-cgd": go through the records in a fixed order, with noise that later steps
            take back in part. Neighbours are then those of zero-out.
        moved: Learn from each image moved by a pixel in four directions too, for networks from random weights.
    """

    epochs: float | None = None
    batch: int | None = None
    learning_rate: float | None = None
    clip_norm: float | None = None
    seed: int = 0
    noise: str | None = None
    moved: bool = False

    def __post_init__(self) -> None:
        for name in ("epochs", "learning_rate", "clip_norm"):
            if getattr(self, name) is not None:
                _validate.positive(name, getattr(self, name))
        if self.batch is not None:
            _validate.integer("batch", self.batch, least=1)
        if self.noise is not None:
            _validate.one_of("noise", self.noise, ("banded", "lambda-cgd"))

    def said(self, *names: str) -> dict[str, Any]:
        """Return those of the names that have a value."""
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def choices(self, unit: str) -> dict[str, Any]:
        """Return further fields of a plan for one row of each unit."""
        whose = {} if unit == RECORD else {"unit": unit, "rows_per_unit": 1}
        if self.noise is None:
            return whose
        return {**whose, "sampling": "cyclic", "relation": "zero-out", "noise": self.noise}

    def adjusted(self, recipe: Recipe, size: int) -> Recipe:
        rate = recipe.sample_rate
        if self.batch is not None:
            rate = _validate.probability("batch / size", self.batch / size)
        steps = recipe.steps if self.epochs is None else max(1, round(self.epochs / rate))
        return replace(recipe, sample_rate=rate, steps=steps, **self.said("clip_norm"))


@dataclass(frozen=True, kw_only=True)
class HoldOut:
    """The share of the records that is kept out of training, and the ε of measuring on them, on top."""

    share: float
    epsilon: float = 0.1

    def __post_init__(self) -> None:
        size_without(self.share, 1)
        _validate.positive("hold_out_epsilon", self.epsilon)

    @property
    def event(self) -> DpEvent:
        return price(self.epsilon)


@dataclass(frozen=True, kw_only=True)
class Canaries:
    """How many canaries are planted among the rows, to attack the run with, and of which kind.

    Args:
        count: How many.
        kind: "dirac", weights of their own, observed in every step; or "labels", mislabelled rows, seen as a
            black box.
    """

    count: int
    kind: str = "dirac"

    def __post_init__(self) -> None:
        _validate.integer("canaries", self.count, least=1)


@dataclass(frozen=True, kw_only=True, repr=False)
class Trained:
    """A released classifier, its cost, and its accuracy on public or paid-for records."""

    result: TrainingResult  # plan, history, cost and certificate of the whole classifier
    predictor: Predictor  # predicts, as `sfumato.load` would
    test: Evaluation | None  # accuracy and loss on public rows, if there are any
    held_out: NoisyAccuracy | None = None  # accuracy on private rows kept out, if it was asked for
    epsilon_with_hold_out: float | None = None  # ε of both together
    verdict: Verdict | None = None  # the bound that the canaries proved, if there were any
    seconds: float  # how long it took

    def __repr__(self) -> str:
        text, held = f"Trained{repr(self.result).removeprefix('TrainingResult')}", self.held_out
        if held is None:
            return text
        return f"{text}\n  {'held out':<13}  {held.accuracy:.4f} ({held.low:.4f} to {held.high:.4f})"

    @property
    def test_accuracy(self) -> float | None:
        return None if self.test is None else self.test.accuracy

    @property
    def model(self) -> nn.Module:
        return self.result.model

    @property
    def epsilon(self) -> float:
        return self.result.epsilon

    @property
    def certificate(self) -> Certificate:
        return self.result.certificate


@dataclass(frozen=True, kw_only=True)
class Classifier:
    """A private training run, priced and ready to be charged. `prepare` makes one; `train` leaves it unchanged.

    ```python
    trained = Classifier.prepare(rows, test, epsilon=1).train(ledger=ledger, out="out/mnist")
    trained.test_accuracy, trained.predictor.predict(images)
    ```
    """

    network: nn.Module  # all of it, untrained
    card: ModelCard
    rows: Dataset  # private, as the part that learns takes them
    test: Dataset | None  # public
    plan: TrainingPlan
    delta: float
    optimization: Optimization
    purpose: str = "private training"
    caveats: tuple[str, ...] = ()
    recipe: Recipe | None = None  # None: a network from random weights
    statistic: StatisticPlan | None = None  # of the private features, released before the head is trained
    hold_out: HoldOut | None = None
    canaries: Canaries | None = None
    views: Views | None = None  # of each row, whose gradients are averaged before clipping
    nets: Path | None = None  # the networks below the features, if they are not those that ship
    first_weights: str | None = None

    @classmethod
    def prepare(
        cls,
        rows: Dataset,
        test: Dataset | None = None,
        *,
        epsilon: float,
        delta: float = 1e-5,
        model: str = RECIPE,
        recipe: Recipe | None = None,
        settings: Settings | None = None,
        hold_out: HoldOut | None = None,
        canaries: Canaries | None = None,
        nets: Path | None = None,
    ) -> Classifier:
        """Price the run, then compute the features of each image by itself; nothing is charged yet.

        Args:
            rows: Private images that declare their size and classes.
            test: Public images to measure accuracy on.
            epsilon: The ε of training.
            delta: Its δ.
            model: A network of `sfumato.models`, or "recipe".
            recipe: Features and settings; the recipe for the data set by default.
            settings: Changes to the recipe or the network's defaults.
            hold_out: Measure accuracy on private rows that are kept out, at a price.
            canaries: Plant canaries, for an audit.
            nets: A folder of networks that `sfumato prior` made, in place of those that ship, to measure with:
                `train` then takes neither `ledger` nor `out`, as `sfumato.load` could not read the model.

        Returns:
            The run, ready to be trained.
        """
        check_test(test)
        told = settings or Settings()
        common: dict[str, Any] = {"delta": delta, "hold_out": hold_out, "canaries": canaries}
        size, more = _sizes(rows, hold_out, canaries)
        if model != RECIPE:
            return cls(
                **common, **_from_random_weights(model, rows, test, epsilon, delta, size + more, told, canaries)
            )
        _refuse_moves(told, "features come from public networks; choose a network, such as --model cnn")
        warn_of_little_protection("this training", epsilon, delta, people=size)
        # Canaries attack the head's training; a statistic released before it would hide nothing from them.
        default = features.head_only if canaries is not None or told.noise is not None else features.recipe_for
        chosen = told.adjusted(recipe or default(rows.name), size)
        network = features.build(chosen, classes=declared(rows)[1], nets=nets)
        terms = _terms(chosen, network, epsilon, delta, size, more, told.choices(rows.unit))
        terms["optimization"] = replace(terms["optimization"], **told.said("learning_rate"))
        return cls(
            network=network,
            nets=nets,
            card=features.card(chosen, rows, nets=nets),
            rows=features.featured(network, rows),
            test=None if test is None else features.featured(network, test),
            purpose=f"linear head on public features ({', '.join(chosen.extractors)})",
            caveats=features.caveats(chosen, rows.name, nets=nets),
            recipe=chosen,
            **common,
            **terms,
        )

    def at(self, epsilon: float) -> Classifier:
        """Take the same recipe on the same features, for another ε; the learning rate follows the recipe."""
        if self.recipe is None:
            raise InvalidInput("expected a recipe, got a network; prepare it for the other epsilon")
        size, more = _sizes(self.rows, self.hold_out, self.canaries)
        choices = Settings().choices(self.rows.unit)
        return replace(self, **_terms(self.recipe, self.network, epsilon, self.delta, size, more, choices))

    def on(self, device: str) -> Classifier:
        """Return the same run with a copy of its network on a device of torch, such as "cuda:1"."""
        return replace(self, network=copy.deepcopy(self.network).to(usable_device(device)))

    @property
    def events(self) -> list[DpEvent]:
        """All that the run releases: the training, and the accuracy on records kept out."""
        held = [] if self.hold_out is None else [price(self.hold_out.epsilon, self.plan.relation)]
        return [self.training_event(), *held]

    def training_event(self, steps: int | None = None) -> DpEvent:
        """Return the event of the statistic, if any, and the first steps of training; all by default."""
        head = self.plan.event(steps)
        return head if self.statistic is None else compose(self.statistic.event(), head)

    @property
    def epsilon(self) -> float:
        """The exact ε of all of the training, at δ."""
        return priced(self.training_event(), self.delta, relation=self.plan.relation)

    @property
    def epsilon_with_hold_out(self) -> float | None:
        if self.hold_out is None:
            return None
        return priced(compose(*self.events), self.delta, relation=self.plan.relation)

    def estimate(self) -> CostEstimate:
        """Estimate time and memory."""
        part, classes = learner(self.network), self.rows.classes or 2
        return estimate(part, self.plan, self.rows.shape, classes=classes, views=self.views)

    def check_room(self, ledger: Ledger, out: Place | None = None) -> None:
        """Refuse a run that the ledger has no room for; one that goes on in `out` has paid for its training.

        Raises:
            BudgetExceeded: If it would not fit.
        """
        resumed = (
            out is not None
            and self.statistic is None  # a run that measures first is charged at once, and begun anew
            and can_resume(RunFolder(Path(out)).private / CHECKPOINT, ledger)
        )
        events = self.events[1:] if resumed else self.events
        if events:
            terms: dict[str, Any] = {"relation": self.plan.relation, "unit": self.plan.unit}
            ledger.check(events, **terms, resumable=True)
            requests = [ChargeRequest(event=event, purpose="a check", **terms) for event in events]
            if ledger.first_beyond(requests) is not None:  # each is charged by itself, the later by the filter
                raise BudgetExceeded(
                    "expected room for the training and after it for accuracy on records kept out, got room "
                    "for the training alone; lower --epsilon or --hold-out-epsilon",
                    epsilon_spent=ledger.epsilon_spent,
                    epsilon_left=ledger.epsilon_left,
                )

    def train(
        self,
        *,
        ledger: Ledger | None = None,
        paid: DpEvent | None = None,
        out: Place | None = None,
        purpose: str | None = None,
        caveats: tuple[str, ...] = (),
        sampler: Sampler | None = None,
        on_step: Watch = lambda trainer: None,
        on_epoch: Callable[[EpochReport], None] | None = None,
        finish: bool = False,
        accept_new_graph: bool = False,
    ) -> Trained:
        """Charge the ledger, train, release.

        Args:
            ledger: Where the run is charged; without one nothing is recorded.
            paid: The event that was charged already, as a part of another release; it holds all of this run.
            out: A run folder, from which an interrupted run goes on.
            purpose: One line for the ledger's readers.
            caveats: Sentences for the certificate.
            sampler: The secret stream; a seeded one, for tests, makes the run not private.
            on_step: Called after each step.
            on_epoch: Called after each epoch, with its publishable report.
            finish: Take no further step: end the interrupted run in `out` at its last checkpoint.
            accept_new_graph: Go on with an interrupted run although its code has another graph than before, or
                torch another version.

        Returns:
            The released classifier and its cost.

        Raises:
            BudgetExceeded: If the ledger has no room. Nothing was trained.
            InvalidInput: If the event that was paid is not that of this run. Nothing was trained.
        """
        started = time.perf_counter()
        self._check(ledger, paid, out, finish)
        purpose, caveats = purpose or self.purpose, (*self.caveats, *caveats)
        if self.statistic is not None:
            stream = SecretStream() if sampler is None else sampler
            rows, held = self.split(out, stream, resumes=False)
            return self._train_adapted(
                rows, held, ledger, out, stream, on_step, on_epoch, started, purpose=purpose, caveats=caveats
            )
        released = Released(module=copy.deepcopy(self.network), card=self.card)
        rows, held = self.split(out, sampler)
        training = partial(
            train,
            plan=self.plan,
            delta=self.delta,
            optimization=self.optimization,
            first_weights=self.first_weights,
            ledger=ledger,
            out=out,
            released=released,
            sampler=sampler,
            on_epoch=on_epoch,
            finish=finish,
            accept_new_graph=accept_new_graph,
            units=one_each(rows),
            views=self.views,
            purpose=purpose,
            caveats=caveats,
        )
        result, verdict = self._learn(learner(released.module), rows, training, on_step, out)
        released.module.cpu()  # where its predictor answers
        result = replace(result, model=released.module)
        return replace(self._trained(result, self.test, held, ledger, out, sampler, started), verdict=verdict)

    def _check(self, ledger: Ledger | None, paid: DpEvent | None, out: Place | None, finish: bool) -> None:
        if paid is not None and ledger is not None:
            raise InvalidInput("expected a ledger or what was paid, got both; the run would be charged twice")
        if paid is not None and not same_releases(paid, whole := compose(*self.events)):
            raise InvalidInput(
                f"expected a charge of all that this run releases, {whole!r}, got paid={paid!r}; "
                "price the whole recipe, what it measures first as well"
            )
        if self.nets is not None and (ledger is not None or out is not None):
            raise InvalidInput(
                "expected neither ledger nor out with nets=, got one; a model on networks that do not ship "
                "cannot be loaded again: use them to measure"
            )
        check_ledger(ledger)
        if ledger is not None:
            self.check_room(ledger, out)
        if finish and (self.statistic is not None or self.canaries is not None):
            raise InvalidInput(
                "expected no finish=True with canaries, or with a recipe that measures features first, got it; "
                "such a run cannot be ended in the middle: begin it anew"
            )

    def split(
        self, out: Place | None, sampler: Sampler | None, *, resumes: bool = True
    ) -> tuple[Dataset, HeldOut | None]:
        """Part the rows by secret coins, which the folder keeps: those to train on, those kept out."""
        folder = None if out is None else RunFolder.begin(out, resumes=resumes)
        if self.hold_out is None:
            return self.rows, None
        records = replace(self.rows, unit=RECORD)  # one row each: coins of rows are coins of units
        rows, held = keep_out(records, self.hold_out.share, folder=folder, sampler=sampler)
        unit = self.rows.unit
        return replace(rows, unit=unit), HeldOut(rows=replace(held.rows, unit=unit))

    def _learn(
        self,
        part: nn.Module,
        rows: Dataset,
        training: Callable[..., TrainingResult],
        on_step: Watch,
        out: Place | None,
    ) -> tuple[TrainingResult, Verdict | None]:
        """Train the part that learns; with canaries among the rows, if there are any."""
        if self.canaries is None:
            return training(part, rows, test=self.test, on_step=on_step), None
        if out is None:
            raise InvalidInput("expected out=... with canaries, got none; their coins go to its private half")
        from sfumato.audit.runs.one_run import audited

        def with_canaries(model: nn.Module, among: Any, loss_fn: Any, watch: Watch) -> TrainingResult:
            def heard(trainer: PrivateTrainer) -> None:
                on_step(trainer)
                watch(trainer)

            inputs, targets = among
            return training(model, ChosenRows(inputs, targets, rows.chosen), loss_fn=loss_fn, on_step=heard)

        kind, count = self.canaries.kind, self.canaries.count
        return audited(part, rows, with_canaries, plan=self.plan, kind=kind, canaries=count, out=Path(out))

    def _train_adapted(
        self,
        rows: Dataset,
        held: HeldOut | None,
        ledger: Ledger | None,
        out: Place | None,
        sampler: Sampler,
        on_step: Watch,
        on_epoch: Callable[[EpochReport], None] | None,
        started: float,
        *,
        purpose: str,
        caveats: tuple[str, ...],
    ) -> Trained:
        """Charge, measure the statistic, adapt the features, train the head: one charge for the whole.

        It is paid for before a row is looked at, so that a run that is interrupted stays paid and begins anew.
        """
        assert self.statistic is not None
        plan = {"adapted": {"statistic": vars(self.statistic), "head": self.plan.to_json()}}
        rounding = Code.ROUNDING_OF_PARTS()
        certificate = (Unrecorded(delta=self.delta) if ledger is None else ledger).pay_for(
            self.training_event(),
            purpose=purpose,
            relation=self.plan.relation,
            unit=self.plan.unit,
            private=rows.chosen.private_with(sampler),
            plan=plan,
            eta=self.statistic.mechanism.eta,
            caveats=(*caveats, rounding, *rows.chosen.caveats_with(sampler)),
        )
        network = copy.deepcopy(self.network).cpu()
        assert isinstance(network, FeatureClassifier)
        size = round(self.plan.expected_batch / self.plan.sample_rate)
        network.adapt(self.statistic.measure(rows.tensors()[0], public_size=size, sampler=sampler))
        test = None if self.test is None else features.adapted(network, self.test)
        head = train(
            network.head,
            features.adapted(network, rows),
            plan=self.plan,
            delta=self.delta,
            optimization=self.optimization,
            test=test,
            sampler=sampler,
            on_step=on_step,
            on_epoch=None if on_epoch is None else lambda report: on_epoch(self._whole(report)),
        )
        result = replace(
            head,
            model=network,
            epsilon=self.epsilon,
            certificate=certificate.with_part(head.certificate),
            history=tuple(self._whole(report) for report in head.history[-1:]),
        )
        if out is not None:
            self._write(RunFolder(Path(out)), result, plan)
        kept = None if held is None else HeldOut(rows=features.adapted(network, held.rows))
        return self._trained(result, test, kept, ledger, out, sampler, started)

    def _whole(self, report: EpochReport) -> EpochReport:
        """Return the same report with the ε of the statistic as well."""
        spent = priced(self.training_event(report.step), self.delta, relation=self.plan.relation)
        return structs.replace(report, epsilon_if_fixed_in_advance=spent)

    def _write(self, folder: RunFolder, result: TrainingResult, plan: Mapping[str, Any]) -> None:
        runs.write_run(
            folder,
            runs.Training(
                epsilon=result.epsilon,
                delta=result.delta,
                test_accuracy=result.test_accuracy,
                test_loss=result.history[-1].test_loss if result.history else None,
                data=public_name(self.rows.name),
            ),
            certificate=result.certificate,
            plan=plan,
            history=result.history,
            model=Released(module=result.model, card=self.card).to_bytes(),
            seconds=result.seconds,
        )

    def _trained(
        self,
        result: TrainingResult,
        test: Dataset | None,
        held: HeldOut | None,
        ledger: Ledger | None,
        out: Place | None,
        sampler: Sampler | None,
        started: float,
    ) -> Trained:
        """Measure on public rows, and at a price on those kept out."""
        part, found = learner(result.model), None
        if held is not None and self.hold_out is not None:
            found = held.accuracy(
                part,
                epsilon=self.hold_out.epsilon,
                delta=self.delta,
                relation=self.plan.relation,
                ledger=ledger,
                sampler=sampler,
            )
            if out is not None:
                RunFolder(Path(out)).write_json("hold_out.json", found.to_json())
        return Trained(
            result=result,
            predictor=Predictor.of(Released(module=result.model, card=self.card), result.certificate),
            test=None if test is None else evaluate(part, test),
            held_out=found,
            epsilon_with_hold_out=self.epsilon_with_hold_out,
            seconds=time.perf_counter() - started,
        )


def learner(network: nn.Module) -> nn.Module:
    """Return the part that learns from the rows: the head on public features, or all of it."""
    return network.head if isinstance(network, FeatureClassifier) else network


def one_each(rows: Dataset) -> npt.NDArray[np.int64] | None:
    """Return the unit of each row, where each unit has one row; None where rows are units."""
    return None if rows.unit == RECORD else np.arange(len(rows))


def _sizes(rows: Dataset, hold_out: HoldOut | None, canaries: Canaries | None) -> tuple[int, int]:
    """Return the declared number of records to train on, and the number of canaries among them."""
    size, _ = declared(rows)
    size = size if hold_out is None else size_without(hold_out.share, size)
    return size, 0 if canaries is None else canaries.count


def _refuse_moves(settings: Settings, because: str) -> None:
    if settings.moved:
        raise InvalidInput(f"expected moved=False, got moved=True: {because}")


def _terms(
    recipe: Recipe,
    network: nn.Module,
    epsilon: float,
    delta: float,
    size: int,
    canaries: int,
    choices: dict[str, Any],
) -> dict[str, Any]:
    """Plans and optimization of a recipe at ε."""
    assert isinstance(network, FeatureClassifier)
    sizes = features.part_sizes(network)
    statistic, plan = recipe.plans(
        epsilon=epsilon, delta=delta, public_size=size + canaries, sizes=sizes, **choices
    )
    return {
        "statistic": statistic,
        "plan": plan,
        "optimization": recipe.optimization(epsilon=epsilon, public_size=size),
    }


def _from_random_weights(
    model: str,
    rows: Dataset,
    test: Dataset | None,
    epsilon: float,
    delta: float,
    size: int,
    settings: Settings,
    canaries: Canaries | None,
) -> dict[str, Any]:
    """Network, plan and optimization of a network from random weights."""
    classes, views = declared(rows)[1], None
    network = models.build(
        model, classes=classes, in_channels=rows.shape[0], side=rows.shape[-1], seed=settings.seed
    )
    epochs = EPOCHS if settings.epochs is None else settings.epochs
    weights = sum(value.numel() for value in network.parameters())
    plan = TrainingPlan.calibrated(
        epsilon=epsilon,
        delta=delta,
        public_size=size,
        expected_batch=usual_batch(size, epochs, weights) if settings.batch is None else settings.batch,
        epochs=epochs,
        clip_norm=1.0 if settings.clip_norm is None else settings.clip_norm,
        **settings.choices(rows.unit),
    )
    if canaries is not None:
        _refuse_moves(settings, "canaries are no images")
    if settings.moved:
        if len(rows.shape) != 3:
            raise InvalidInput(
                f"expected images (channels, height, width) to move, got rows of shape {rows.shape}"
            )
        views = moved_by_a_pixel
    return {
        "network": network,
        "card": ModelCard.of(rows, architecture=model),
        "rows": rows,
        "test": test,
        "plan": plan,
        "optimization": settled(Optimization(**settings.said("learning_rate")), plan, network),
        "purpose": "private training" + (", images moved by a pixel" if settings.moved else ""),
        "views": views,
        "first_weights": f"seed {settings.seed}",
    }
