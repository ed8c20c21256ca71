"""What `sfumato train` runs: prepare (read what is public, price), then train (charge, learn, release).

By default a private linear head on public features, which lost the least accuracy whatever the images; or any
network of `sfumato.models`, from random weights.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch import nn

from sfumato import models
from sfumato.accounting import DpEvent, compose, warn_of_little_protection
from sfumato.accounting import epsilon as priced
from sfumato.datasets import Dataset
from sfumato.errors import InvalidInput
from sfumato.fitting import Evaluation, evaluate
from sfumato.learn import features
from sfumato.learn.features import Recipe, declared
from sfumato.learn.options import Canaries, HoldOut, Settings
from sfumato.learn.statistic import StatisticPlan
from sfumato.ledger import Certificate, Ledger
from sfumato.ledger.rule import same_releases
from sfumato.models import FeatureClassifier
from sfumato.randomness import Sampler
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
from sfumato.training.arguments import check_ledger, check_test
from sfumato.training.checkpoint import can_resume
from sfumato.training.devices import usable_device
from sfumato.training.hold_out import price, size_without
from sfumato.training.ownership import RECORD
from sfumato.training.rate import settled
from sfumato.training.sources import ChosenRows
from sfumato.training.wanted import Wanted

if TYPE_CHECKING:
    from sfumato.audit import Verdict

RECIPE = "recipe"
Place = str | os.PathLike[str]
Watch = Callable[[PrivateTrainer], None]


@dataclass(frozen=True, kw_only=True, repr=False)
class Trained:
    """A released classifier: what it is, what it cost, how good it is on public or paid-for records.

    Attributes:
        result: Plan, history, cost and certificate.
        predictor: Predicts, as `sfumato.load` would.
        test: Accuracy and loss on public rows, if there are any.
        held_out: Accuracy on private rows kept out, if it was asked for.
        epsilon_with_hold_out: ε of both together.
        verdict: What the canaries proved, if there were any.
        seconds: How long it took.
    """

    result: TrainingResult  # of the whole classifier
    predictor: Predictor
    test: Evaluation | None  # on public images
    held_out: NoisyAccuracy | None = None
    epsilon_with_hold_out: float | None = None
    verdict: Verdict | None = None  # of the canaries
    seconds: float

    @property
    def test_accuracy(self) -> float | None:
        return None if self.test is None else self.test.accuracy

    def __repr__(self) -> str:
        held = self.held_out
        more = (
            ""
            if held is None
            else f"\n  {'held out':<13}  {held.accuracy:.4f} ({held.low:.4f} to {held.high:.4f})"
        )
        return f"Trained{repr(self.result).removeprefix('TrainingResult')}{more}"

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

    Args:
        network: What is trained.
        card: What the released file says of itself.
        rows: The private rows, as the network takes them.
        test: Public rows to measure accuracy on.
        plan: What will be done, priced.
        delta: The δ at which it is priced.
        optimization: Optimizer, learning rate and schedule.
        purpose: One line for the ledger's readers.
        caveats: Sentences for the certificate.
        recipe: The recipe, if features come from one.
        statistic: What is measured of the private features before the head is trained, if anything.
        hold_out: Accuracy on private rows kept out, at a price.
        canaries: Canaries for an audit.
        views: Several views of each row, whose gradients are averaged before clipping.
        nets: Where the networks below the features come from, if they are not those that ship.
        first_weights: How the network's first weights were made.

    ```python
    trained = Classifier.prepare(rows, test, epsilon=1).train(ledger=ledger, out="out/mnist")
    trained.test_accuracy, trained.predictor.predict(images)
    ```
    """

    network: nn.Module  # all of it, untrained
    card: ModelCard
    rows: Dataset  # as the part that learns sees them
    test: Dataset | None
    plan: TrainingPlan
    delta: float
    optimization: Optimization
    purpose: str = "private training"
    caveats: tuple[str, ...] = ()
    recipe: Recipe | None = None  # None: a network from random weights
    statistic: StatisticPlan | None = None
    hold_out: HoldOut | None = None
    canaries: Canaries | None = None
    views: Views | None = None
    nets: Path | None = None
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
            settings: What to change of the recipe or the network's defaults.
            hold_out: Measure accuracy on private rows that are kept out, at a price.
            canaries: Plant canaries, for an audit.
            nets: A folder of networks that `sfumato prior` made, in place of those that ship, to measure with:
                `train` then takes neither `ledger` nor `out`, as `sfumato.load` could not read the model.

        Returns:
            The run, ready to be trained.
        """
        check_test(test)
        told = settings or Settings()
        size, more = _sizes(rows, hold_out, canaries)
        if model == RECIPE:
            _refuse_moves(told, "features come from public networks; choose a network, such as --model cnn")
            warn_of_little_protection("this training", epsilon, delta, people=size)
            # Canaries attack the head's training; what is measured before it would hide nothing from them.
            alone = canaries is not None or told.noise is not None
            default = features.head_only if alone else features.recipe_for
            chosen = told.adjusted(recipe or default(rows.name), size)
            classes = declared(rows)[1]
            build = features.build if nets is None else partial(features.build_on, nets)
            network = build(chosen, classes=classes)
            terms = _terms(chosen, network, epsilon, delta, size, more, told.choices(rows.unit))
            parts = _on_public_features(network, rows, test, chosen, nets)
        else:
            parts = {"rows": rows, "test": test, **_network(model, rows, told.seed)}
            terms = _calibrated(rows, epsilon, delta, size + more, told)
            if canaries is not None:
                _refuse_moves(told, "canaries are no images")
            if told.moved:
                parts |= {"views": _views_of(rows), "purpose": "private training, images moved by a pixel"}
        said = replace(terms["optimization"], **told.said("learning_rate"))
        terms["optimization"] = said if model == RECIPE else settled(said, terms["plan"], parts["network"])
        return cls(delta=delta, hold_out=hold_out, canaries=canaries, **parts, **terms)

    def at(self, epsilon: float) -> Classifier:
        """Take the same recipe on the same features, for another ε; the learning rate follows the recipe.

        Args:
            epsilon: The ε of training.

        Returns:
            The other run.
        """
        if self.recipe is None:
            raise InvalidInput("expected a recipe, got a network; prepare it for the other epsilon")
        size, more = _sizes(self.rows, self.hold_out, self.canaries)
        choices = Settings().choices(self.rows.unit)
        return replace(self, **_terms(self.recipe, self.network, epsilon, self.delta, size, more, choices))

    def on(self, device: str) -> Classifier:
        """The same run with its network on a device of torch; the rows follow it there.

        Args:
            device: As torch names it, such as "cpu", "cuda" or "cuda:1".

        Returns:
            The other run, with a copy of the network; this one stays where it is.

        Raises:
            InvalidInput: If torch does not know the name, or the machine has no such device.
        """
        return replace(self, network=copy.deepcopy(self.network).to(usable_device(device)))

    @property
    def events(self) -> list[DpEvent]:
        """All that the run releases: the training, and the accuracy on what is kept out."""
        held = [] if self.hold_out is None else [price(self.hold_out.epsilon, self.plan.relation)]
        return [self.training_event(), *held]

    def training_event(self, steps: int | None = None) -> DpEvent:
        """What is measured first, if anything, and the first steps of training.

        Args:
            steps: How many steps; all by default.

        Returns:
            The event.
        """
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
        """Estimate time and memory.

        Returns:
            What to expect.
        """
        part, classes = learner(self.network), self.rows.classes or 2
        return estimate(part, self.plan, self.rows.shape, classes=classes, views=self.views)

    def check_room(self, ledger: Ledger, out: Place | None = None) -> None:
        """Refuse what the ledger has no room for; a run that goes on in `out` has paid for its training.

        Args:
            ledger: The ledger.
            out: The run folder.

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
            ledger.check(events, relation=self.plan.relation, unit=self.plan.unit, resumable=True)

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
    ) -> Trained:
        """Charge the ledger, train, release.

        Args:
            ledger: Where the run is charged; without one nothing is recorded.
            paid: What was charged already, as a part of another release, and holds all that this run releases.
            out: A run folder, from which an interrupted run goes on.
            purpose: One line for the ledger's readers.
            caveats: Sentences for the certificate.
            sampler: The secret stream; a seeded one, for tests, makes the run not private.
            on_step: Called after each step.
            on_epoch: Called after each epoch, with what may be published.
            finish: Take no further step: end the interrupted run in `out` at its last checkpoint.

        Returns:
            The released classifier and what it cost.

        Raises:
            BudgetExceeded: If the ledger has no room. Nothing was trained.
            InvalidInput: If what was paid is not what this run releases. Nothing was trained.
        """
        started = time.perf_counter()
        if paid is not None:
            self._check_paid(paid, ledger)
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
        if self.statistic is not None:
            from sfumato.learn.adapted import train_adapted

            return train_adapted(
                self,
                ledger=ledger,
                out=out,
                purpose=purpose or self.purpose,
                caveats=(*self.caveats, *caveats),
                sampler=sampler,
                on_step=on_step,
                on_epoch=on_epoch,
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
            caveats=(*self.caveats, *caveats),
            purpose=purpose or self.purpose,
            sampler=sampler,
            on_epoch=on_epoch,
            finish=finish,
            units=one_each(rows),
            views=self.views,
        )
        result, verdict = self._learn(learner(released.module), rows, training, on_step, out)
        released.module.cpu()  # where its predictor answers
        return Trained(
            result=replace(result, model=released.module),
            predictor=Predictor.of(released, result.certificate),
            test=None if self.test is None else evaluate(learner(released.module), self.test),
            held_out=self.measure(released.module, held, ledger, out, sampler),
            epsilon_with_hold_out=self.epsilon_with_hold_out,
            verdict=verdict,
            seconds=time.perf_counter() - started,
        )

    def _check_paid(self, paid: DpEvent, ledger: Ledger | None) -> None:
        if ledger is not None:
            raise InvalidInput("expected a ledger or what was paid, got both; the run would be charged twice")
        whole = compose(*self.events)
        if not same_releases(paid, whole):
            raise InvalidInput(
                f"expected a charge of all that this run releases, {whole!r}, got paid={paid!r}; "
                "price the whole recipe, what it measures first as well"
            )

    def split(self, out: Place | None, sampler: Sampler | None) -> tuple[Dataset, HeldOut | None]:
        """Part the rows by secret coins, which the folder keeps.

        Args:
            out: The run folder, if there is one.
            sampler: The secret stream.

        Returns:
            The rows to train on, and those kept out, if any are.
        """
        folder = None if out is None else RunFolder.begin(out, resumes=True)  # or not: `train` finds out
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

    def measure(
        self,
        network: nn.Module,
        held: HeldOut | None,
        ledger: Ledger | None,
        out: Place | None,
        sampler: Sampler | None,
    ) -> NoisyAccuracy | None:
        """Measure accuracy on the records kept out, charged on top of the training.

        Args:
            network: The trained network.
            held: The records kept out, as its head gets them.
            ledger: Where the measurement is charged.
            out: The run folder, if there is one.
            sampler: The secret stream.

        Returns:
            The noisy accuracy; None if nothing was kept out.
        """
        if held is None or self.hold_out is None:
            return None
        answer = held.accuracy(
            learner(network),
            epsilon=self.hold_out.epsilon,
            delta=self.delta,
            relation=self.plan.relation,
            ledger=ledger,
            sampler=sampler,
        )
        if out is not None:
            RunFolder(Path(out)).write_json("hold_out.json", answer.to_json())
        return answer


def learner(network: nn.Module) -> nn.Module:
    """The part that learns from the rows: the head on public features, or all of it."""
    return network.head if isinstance(network, FeatureClassifier) else network


def one_each(rows: Dataset) -> npt.NDArray[np.int64] | None:
    """The unit of each row, where a row is one of a unit that has no other; None where units are the rows."""
    return None if rows.unit == RECORD else np.arange(len(rows))


def _sizes(rows: Dataset, hold_out: HoldOut | None, canaries: Canaries | None) -> tuple[int, int]:
    """How many records are declared to be trained on, and how many canaries are among them."""
    size, _ = declared(rows)
    size = size if hold_out is None else size_without(hold_out.share, size)
    return size, 0 if canaries is None else canaries.count


def _refuse_moves(settings: Settings, because: str) -> None:
    if settings.moved:
        raise InvalidInput(f"expected moved=False, got moved=True: {because}")


def _views_of(rows: Dataset) -> Views:
    if len(rows.shape) != 3:
        raise InvalidInput(f"expected images (channels, height, width) to move, got rows of shape {rows.shape}")
    return moved_by_a_pixel


def _on_public_features(
    network: FeatureClassifier, rows: Dataset, test: Dataset | None, recipe: Recipe, nets: Path | None
) -> dict[str, Any]:
    return {
        "network": network,
        "nets": nets,
        "card": features.card(recipe, rows, nets=nets),
        "rows": features.featured(network, rows),
        "test": None if test is None else features.featured(network, test),
        "purpose": f"linear head on public features ({', '.join(recipe.extractors)})",
        "caveats": features.caveats(recipe, rows.name, nets=nets),
        "recipe": recipe,
    }


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


def _network(model: str, rows: Dataset, seed: int) -> dict[str, Any]:
    network = models.build(
        model, classes=declared(rows)[1], in_channels=rows.shape[0], side=rows.shape[-1], seed=seed
    )
    card = ModelCard.of(rows, architecture=model)
    return {"network": network, "card": card, "first_weights": f"seed {seed}"}


def _calibrated(rows: Dataset, epsilon: float, delta: float, size: int, settings: Settings) -> dict[str, Any]:
    """Plan and optimization of a network from random weights."""
    wanted = Wanted(
        epsilon=epsilon,
        public_size=size,
        epochs=settings.epochs,
        expected_batch=settings.batch,
        clip_norm=settings.clip_norm,
        unit=None,
        rows_per_unit=None,
        choices=settings.choices(rows.unit),
    )
    return {
        "plan": wanted.calibrated(None, None, delta),
        "optimization": Optimization(),
    }
