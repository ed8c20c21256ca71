"""The search for settings, attacked: does the classifier it released give away that one row took part?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from sfumato import datasets
from sfumato.accounting import Budget
from sfumato.audit import Errors, Verdict, epsilon_bound
from sfumato.learn.classifier import Classifier, learner
from sfumato.learn.features import Recipe
from sfumato.learn.tuning import Tuning, best_trial, calibrated
from sfumato.randomness import SecretStream

DELTA = 1e-5
_ROWS = 20  # the last of them comes or goes
_RECIPE = Recipe(extractors=("strokes",), drawn=100, directions=8, steps=1, sample_rate=1.0)
_TUNING = Tuning(learning_rates=(8.0,), clip_norms=(0.5,), mean_trials=2.0)

Floats = npt.NDArray[np.float64]


def searches(*, epsilon: float = 8.0, searches: int = 300) -> Verdict:
    """One row more or less, in a search whose best classifier is all that the attacker sees.

    Every trial takes one step from zero with all rows, so that a row's gradient stands along its own features:
    the attacker reads how far the released head leans towards the row's label. A quarter of the searches set
    the threshold, in the middle between the two means; the others are guessed.
    """
    rows = datasets.load("digits", "train").excerpt(_ROWS)
    budget = Budget(epsilon=epsilon, delta=DELTA, unit=rows.unit)
    plan = calibrated(_RECIPE, rows, budget, _TUNING)
    ready = Classifier.prepare(rows, None, epsilon=epsilon, delta=DELTA, recipe=_RECIPE)
    with_row = replace(ready, plan=plan)
    without = replace(with_row, rows=ready.rows.excerpt(_ROWS - 1))
    seen = [_leanings(side, ready, searches) for side in (with_row, without)]
    known, attacked = (slice(None, searches // 4), slice(searches // 4, None))
    middle = sum(float(each[known].mean()) for each in seen) / 2
    errors = Errors.at(middle, *(each[attacked] for each in seen))
    return Verdict.of(
        lambda alpha: epsilon_bound(errors, delta=DELTA, alpha=alpha),
        claimed_epsilon=epsilon,
        delta=DELTA,
        details={"trials": searches},
    )


def _leanings(side: Classifier, ready: Classifier, count: int) -> Floats:
    """By how much each released head prefers the row's label for the row's features."""
    inputs, targets = ready.rows.tensors()
    stream = SecretStream()
    found = []
    for _ in range(count):
        head = learner(best_trial(side, _RECIPE, _TUNING, stream)[1].module)
        with torch.no_grad():
            outputs = head(inputs[-1:])[0]
        found.append(float(outputs[targets[-1]] - outputs.mean()))
    return np.array(found)
