"""The PySyft PATE project: teachers × epochs × γ, Laplace noise, every public image asked, an MLP
student.

The project: 100 teachers of 600 images each, 40 epochs, γ = 0.1, 9,000 queries, student 92.3%, printed ε 371.5
(data-independent) and 11.21 (its analysis was handed ten queries instead of 9,000, so that figure means
nothing).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sfumato import models
from sfumato.datasets import Dataset
from sfumato.fitting import FitConfig, evaluate, fit
from sfumato.pate import (
    TeacherConfig,
    VotePlan,
    aggregate,
    analyze,
    assign,
    capacity_for,
    count_votes,
    draw_key,
    shard_table,
    vote,
)
from sfumato.pate.votes import Integers
from sfumato.randomness import SecretStream

PUBLISHED = {"teachers": 100, "epochs": 40, "gamma": 0.1, "student": 0.923, "epsilon": 371.5}
DELTA = 1e-5


@dataclass(frozen=True, kw_only=True)
class SourceRow:
    """One cell of the table; accuracies are on the last tenth of the public images."""

    teachers: int
    epochs: int
    gamma: float
    queries: int
    student_accuracy: float
    label_accuracy: float
    teacher_accuracy: float
    epsilon: float  # exact composition, whatever the votes
    data_dependent_epsilon: float  # a statement about these votes
    source_moments_epsilon: float


def run(
    private: Dataset,
    public: Dataset,
    *,
    teachers: Sequence[int] = (50, 100, 250),
    epochs: Sequence[int] = (5, 40),
    gammas: Sequence[float] = (0.05, 0.1),
    progress: Callable[[str], None] = lambda text: None,
) -> list[SourceRow]:
    """Train each ensemble once, and answer with each γ."""
    rows = []
    for count in teachers:
        for passes in epochs:
            progress(f"{count} teachers, {passes} epochs")
            votes = _votes(private, public, count, passes)
            rows += [_row(votes, public, count, passes, gamma) for gamma in gammas]
    return rows


def _votes(private: Dataset, public: Dataset, teachers: int, epochs: int) -> Integers:
    assert private.public_size is not None
    config = TeacherConfig.of("mlp")
    config = replace(config, fit=replace(config.fit, epochs=epochs))
    owner = assign(np.arange(len(private)), teachers=teachers, key=draw_key(SecretStream()))
    table = shard_table(owner, teachers=teachers, capacity=capacity_for(private.public_size, teachers))
    inputs, targets = private.tensors()
    return vote(inputs, targets, table, public.tensors()[0], config, classes=public.classes or 10)


def _row(votes: Integers, public: Dataset, teachers: int, epochs: int, gamma: float) -> SourceRow:
    asked = len(public) * 9 // 10
    plan = VotePlan(
        mechanism="laplace", teachers=teachers, queries=asked, classes=public.classes or 10, gamma=gamma
    )
    labels = aggregate(votes[:, :asked], plan).labels
    found = analyze(count_votes(votes[:, :asked], classes=plan.classes), plan, delta=DELTA)
    assert found.source_moments_epsilon is not None
    return SourceRow(
        teachers=teachers,
        epochs=epochs,
        gamma=gamma,
        queries=asked,
        student_accuracy=_student(public, labels),
        label_accuracy=float((labels == public.targets[:asked]).mean()),
        teacher_accuracy=float((votes == public.targets).mean()),
        epsilon=found.data_independent_epsilon,
        data_dependent_epsilon=found.data_dependent_epsilon,
        source_moments_epsilon=found.source_moments_epsilon,
    )


def _student(public: Dataset, labels: Integers) -> float:
    """An MLP on the noisy labels, tested on the images that were not asked about."""
    asked = len(labels)
    model = models.build(
        "mlp", classes=public.classes or 10, in_channels=public.shape[0], side=public.shape[-1]
    )
    learned = replace(public.take(asked), targets=labels)
    fit(model, learned, FitConfig(epochs=10, learning_rate=0.02), progress=False)
    return evaluate(model, public.take(len(public) - asked, start=asked)).accuracy
