"""Choose the recipe's settings on the private rows themselves, and pay for it.

A secret, random number of trials is trained, each with settings drawn at random from the candidates; the one
with the most right answers among the rows, counted with noise, is released, and nothing is told of the others
(Papernot & Steinke 2022). The whole is priced and charged before the first trial.
"""

from __future__ import annotations

import copy
import os
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import nn

from sfumato import _validate, accounting
from sfumato import runs as results
from sfumato.accounting import Budget, DpEvent, warn_of_little_protection
from sfumato.datasets import Dataset, public_name
from sfumato.errors import InvalidInput
from sfumato.fitting import evaluate
from sfumato.learn import features
from sfumato.learn.classifier import Classifier, learner, one_each
from sfumato.learn.features import Recipe
from sfumato.learn.options import Settings
from sfumato.ledger import Certificate, Ledger, Unrecorded
from sfumato.mechanisms import Gaussian
from sfumato.randomness import Sampler, SecretStream
from sfumato.released import Predictor, Released
from sfumato.runs import write_run
from sfumato.storage import RunFolder
from sfumato.training import Optimization, PrivateTrainer, TrainingPlan
from sfumato.training.run import take_steps

_COUNT_SHARE = 5.0  # the count's noise multiplier, in units of the whole training's: 4% of the divergence


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Which settings are tried, and how often on average."""

    learning_rates: tuple[float, ...] = (2.0, 8.0, 32.0)
    clip_norms: tuple[float, ...] = (0.1, 0.5)
    mean_trials: float = 5.0

    def __post_init__(self) -> None:
        for name in ("learning_rates", "clip_norms"):
            if not getattr(self, name):
                raise InvalidInput(f"expected at least one of {name}, got none; each is a setting to try")
            for value in getattr(self, name):
                _validate.positive(name, value)
        _validate.positive("mean_trials - 1", self.mean_trials - 1)

    def draw(self, recipe: Recipe, sampler: Sampler) -> Recipe:
        """A candidate; all of them have one price, for only post-processing and scale differ."""
        rate, norm = (
            values[int(sampler.integers(len(values), 1)[0])]
            for values in (self.learning_rates, self.clip_norms)
        )
        return replace(recipe, learning_rate=rate, clip_norm=norm)


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The released classifier, the settings it was trained with, and what the whole search cost."""

    released: Released
    recipe: Recipe
    epsilon: float
    delta: float
    test_accuracy: float | None
    certificate: Certificate
    seconds: float

    @property
    def model(self) -> nn.Module:
        return self.released.module

    @property
    def predictor(self) -> Predictor:
        return Predictor.of(self.released, self.certificate)


def run(
    rows: Dataset,
    test: Dataset | None,
    *,
    epsilon: float,
    delta: float = 1e-5,
    tuning: Tuning | None = None,
    recipe: Recipe | None = None,
    ledger: Ledger | None = None,
    out: str | os.PathLike[str] | None = None,
    sampler: Sampler | None = None,
) -> Tuned:
    """The best of a random number of trials under (epsilon, delta), charged in full before the first.

    What a reader may be shown is in the result and under `release`; how many trials there were is in neither.
    """
    started = time.perf_counter()
    tuning, recipe = tuning or Tuning(), recipe or features.head_only(rows.name)
    folder = None if out is None else RunFolder.begin(out)
    warn_of_little_protection("this search", epsilon, delta, people=rows.public_size)
    stream: Sampler = SecretStream() if sampler is None else sampler
    budget = Budget(epsilon=epsilon, delta=delta, unit=rows.unit)
    plan = calibrated(recipe, rows, budget, tuning)
    event = selection_event(plan, tuning.mean_trials)
    if ledger is not None:  # before features are computed, which takes long
        ledger.check(event, relation=plan.relation, unit=plan.unit)
    ready = replace(Classifier.prepare(rows, test, epsilon=epsilon, delta=delta, recipe=recipe), plan=plan)
    certificate = _charge(event, ledger, budget, plan, tuning, recipe, rows, stream)
    chosen, released, caveats = best_trial(ready, recipe, tuning, stream)
    accuracy = None if ready.test is None else evaluate(learner(released.module), ready.test).accuracy
    found = Tuned(
        released=replace(released, card=features.card(chosen, rows)),
        recipe=chosen,
        epsilon=accounting.rdp_epsilon(event, delta),
        delta=delta,
        test_accuracy=accuracy,
        certificate=certificate.with_caveats(caveats),
        seconds=time.perf_counter() - started,
    )
    if folder is not None:
        _write(folder, replace(ready, recipe=chosen), found, tuning)
    return found


def calibrated(recipe: Recipe, rows: Dataset, budget: Budget, tuning: Tuning) -> TrainingPlan:
    """The plan of one trial, whose noise makes the whole search fit the budget."""
    size, _ = features.declared(rows)
    plan = recipe.plan(
        epsilon=budget.epsilon, delta=budget.delta, public_size=size, **Settings().choices(rows.unit)
    )

    def trial(noise: float) -> DpEvent:
        return _trial_event(replace(plan, noise_multiplier=noise))

    noise = accounting.calibrate_selection(
        trial, budget, mean_trials=tuning.mean_trials, guess=plan.noise_multiplier
    )
    return replace(plan, noise_multiplier=noise)


def _count(plan: TrainingPlan) -> Gaussian:
    """The noised number of right answers, which one record moves by at most one."""
    sigma = _COUNT_SHARE * plan.noise_multiplier / (plan.steps**0.5 * plan.sample_rate)
    return Gaussian(sensitivity=1.0, sigma=sigma)


def selection_event(plan: TrainingPlan, mean_trials: float) -> DpEvent:
    """The best of a random number of trials of one plan."""
    return accounting.best_of(_trial_event(plan), mean_trials)


def _trial_event(plan: TrainingPlan) -> DpEvent:
    """Training, and the noised count of right answers."""
    return accounting.compose(plan.event(), _count(plan).event())


def _charge(
    event: DpEvent,
    ledger: Ledger | None,
    budget: Budget,
    plan: TrainingPlan,
    tuning: Tuning,
    recipe: Recipe,
    rows: Dataset,
    sampler: Sampler,
) -> Certificate:
    purpose = f"best of a random number of trials, {tuning.mean_trials:g} on average"
    described: dict[str, Any] = {"trial": plan.to_json(), "tuning": asdict(tuning), "recipe": asdict(recipe)}
    own = (
        "settings were chosen on the private rows, which is charged",
        *features.features_from(recipe, rows.name),
        *rows.chosen.caveats_with(sampler),
    )
    return (ledger or Unrecorded(delta=budget.delta)).pay_for(
        event,
        purpose=purpose,
        relation=plan.relation,
        unit=plan.unit,
        private=rows.chosen.private_with(sampler),
        plan=described,
        caveats=own,
    )


def best_trial(
    ready: Classifier, recipe: Recipe, tuning: Tuning, sampler: Sampler
) -> tuple[Recipe, Released, tuple[str, ...]]:
    """Settings, classifier and caveats of the best trial, which is all that may be told of the search."""
    best: tuple[float, Recipe, nn.Module, tuple[str, ...]] | None = None
    for _ in range(accounting.draw_trials(tuning.mean_trials, sampler)):
        drawn = tuning.draw(recipe, sampler)
        score, network, caveats = _trial(ready, drawn, sampler)
        if best is None or score > best[0]:
            best = score, drawn, network, caveats
    assert best is not None  # there is one trial at least
    return best[1], Released(module=best[2], card=ready.card), best[3]


def _trial(ready: Classifier, recipe: Recipe, sampler: Sampler) -> tuple[float, nn.Module, tuple[str, ...]]:
    """Train a head from zero; the noised number of right answers among the rows."""
    network = copy.deepcopy(ready.network)
    head, optimization = learner(network), _exactly(recipe)
    plan = replace(ready.plan, clip_norm=recipe.clip_norm)
    trainer = PrivateTrainer(head, optimization.build(head), plan, sampler=sampler)
    take_steps(trainer, ready.rows, optimization, units=one_each(ready.rows))
    with torch.no_grad():
        inputs, targets = ready.rows.tensors()
        right = int((head(inputs).argmax(1) == targets).sum())
    return float(_count(plan).release(float(right), sampler)), network, trainer.caveats


def _exactly(recipe: Recipe) -> Optimization:
    """The candidate's own learning rate: what suits the noise is for the search to find."""
    return Optimization(learning_rate=recipe.learning_rate, momentum=recipe.momentum)


def _write(folder: RunFolder, ready: Classifier, found: Tuned, tuning: Tuning) -> None:
    write_run(
        folder,
        results.Tuning(
            epsilon=found.epsilon,
            delta=found.delta,
            test_accuracy=found.test_accuracy,
            mean_trials=tuning.mean_trials,
            learning_rate=found.recipe.learning_rate,
            clip_norm=found.recipe.clip_norm,
            data=public_name(ready.rows.name),
        ),
        certificate=found.certificate,
        plan=ready.plan.to_json(),
        model=found.released.to_bytes(),
        seconds=found.seconds,
    )
