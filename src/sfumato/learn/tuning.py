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

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from sfumato import _validate, accounting, datasets, runs
from sfumato.accounting import Budget, DpEvent, warn_of_little_protection
from sfumato.audit import Errors, Verdict, epsilon_bound
from sfumato.caveats import Code
from sfumato.datasets import Dataset, public_name
from sfumato.errors import InvalidInput
from sfumato.fitting import evaluate
from sfumato.learn import features
from sfumato.learn.classifier import Classifier, Settings, learner, one_each
from sfumato.learn.features import Recipe
from sfumato.ledger import Certificate, Ledger, Unrecorded
from sfumato.mechanisms import Gaussian
from sfumato.randomness import Sampler, SecretStream
from sfumato.released import Predictor, Released
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
    """The released classifier, the settings it was trained with, and the cost of the whole search."""

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

    The result and `release` hold all that may be shown; the number of trials is in neither.
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
    certificate = (ledger or Unrecorded(delta=delta)).pay_for(
        event,
        purpose=f"best of a random number of trials, {tuning.mean_trials:g} on average",
        relation=plan.relation,
        unit=plan.unit,
        private=rows.chosen.private_with(stream),
        plan={"trial": plan.to_json(), "tuning": asdict(tuning), "recipe": asdict(recipe)},
        caveats=(
            Code.SETTINGS_CHARGED(),
            *features.features_from(recipe, rows.name),
            *rows.chosen.caveats_with(stream),
        ),
    )
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
        result = runs.Tuning(
            epsilon=found.epsilon,
            delta=delta,
            test_accuracy=accuracy,
            mean_trials=tuning.mean_trials,
            learning_rate=chosen.learning_rate,
            clip_norm=chosen.clip_norm,
            data=public_name(rows.name),
        )
        runs.write_run(
            folder,
            result,
            certificate=found.certificate,
            plan=plan.to_json(),
            model=found.released.to_bytes(),
            seconds=found.seconds,
        )
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
    # The candidate's own learning rate: the rate that suits the noise is for the search to find.
    head = learner(network)
    optimization = Optimization(learning_rate=recipe.learning_rate, momentum=recipe.momentum)
    plan = replace(ready.plan, clip_norm=recipe.clip_norm)
    trainer = PrivateTrainer(head, optimization.build(head), plan, sampler=sampler)
    take_steps(trainer, ready.rows, optimization, units=one_each(ready.rows))
    with torch.no_grad():
        inputs, targets = ready.rows.tensors()
        right = int((head(inputs).argmax(1) == targets).sum())
    return float(_count(plan).release(float(right), sampler)), network, trainer.caveats


# The search attacked: does the classifier it released give away that one row took part?

_DELTA = 1e-5
_ROWS = 20  # the last of them comes or goes
_RECIPE = Recipe(extractors=("strokes",), drawn=100, directions=8, steps=1, sample_rate=1.0)
_TUNING = Tuning(learning_rates=(8.0,), clip_norms=(0.5,), mean_trials=2.0)


def searches(*, epsilon: float = 8.0, searches: int = 300) -> Verdict:
    """One row more or less, in a search whose best classifier is all that the attacker sees.

    Every trial takes one step from zero with all rows, so that a row's gradient stands along its own features:
    the attacker reads how far the released head leans towards the row's label. A quarter of the searches set
    the threshold, in the middle between the two means; the others are guessed.
    """
    rows = datasets.load("digits", "train").excerpt(_ROWS)
    budget = Budget(epsilon=epsilon, delta=_DELTA, unit=rows.unit)
    plan = calibrated(_RECIPE, rows, budget, _TUNING)
    ready = Classifier.prepare(rows, None, epsilon=epsilon, delta=_DELTA, recipe=_RECIPE)
    with_row = replace(ready, plan=plan)
    without = replace(with_row, rows=ready.rows.excerpt(_ROWS - 1))
    seen = [_leanings(side, ready, searches) for side in (with_row, without)]
    known, attacked = (slice(None, searches // 4), slice(searches // 4, None))
    middle = sum(float(each[known].mean()) for each in seen) / 2
    errors = Errors.at(middle, *(each[attacked] for each in seen))
    return Verdict.of(
        lambda alpha: epsilon_bound(errors, delta=_DELTA, alpha=alpha),
        claimed_epsilon=epsilon,
        delta=_DELTA,
        details={"trials": searches},
    )


def _leanings(side: Classifier, ready: Classifier, count: int) -> npt.NDArray[np.float64]:
    """Return by how much each released head prefers the row's label for the row's features."""
    inputs, targets = ready.rows.tensors()
    stream = SecretStream()
    found = []
    for _ in range(count):
        head = learner(best_trial(side, _RECIPE, _TUNING, stream)[1].module)
        with torch.no_grad():
            outputs = head(inputs[-1:])[0]
        found.append(float(outputs[targets[-1]] - outputs.mean()))
    return np.array(found)
