"""Networks from random weights at several learning rates: how far may the noise alone carry the weights?

A rate is named by that distance (`training.optimization`), since one rate fits no two plans; it is 0.5 (0.01
for Adam) where that carries them less far. Each row is one plan on digits that are public: scikit-learn's scans
(1,437 to train on), or drawings made by code. Printed are the mean and the standard deviation of the accuracy
on test images over three runs, each with other first weights, and how far a rate of 0.5 would carry the
weights. Run with `python bench/learning_rate.py [CASE …]`.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
from dataclasses import dataclass

import torch

from sfumato import datasets, models, train
from sfumato.training import Optimization, TrainingPlan
from sfumato.training.optimization import carried, longest

DELTA, TIMES = 1e-5, 3
DISTANCES = (10.0, 20.0, 30.0, 40.0, 80.0)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One plan."""

    data: str
    model: str
    epsilon: float
    epochs: float
    batch: int
    optimizer: str = "sgd"


CASES = {
    "mlp-large-batches": Case(data="digits", model="mlp", epsilon=1, epochs=10, batch=1024),
    "mlp-few-steps": Case(data="digits", model="mlp", epsilon=1, epochs=5, batch=256),
    "mlp-small-batches": Case(data="digits", model="mlp", epsilon=1, epochs=60, batch=128),
    "cnn-large-batches": Case(data="digits", model="cnn", epsilon=3, epochs=40, batch=400),
    "cnn-small-batches": Case(data="digits", model="cnn", epsilon=3, epochs=60, batch=128),
    "cnn-little-privacy-loss": Case(data="digits", model="cnn", epsilon=1, epochs=60, batch=128),
    "mlp-adam": Case(data="digits", model="mlp", epsilon=1, epochs=60, batch=128, optimizer="adam"),
    "cnn-adam": Case(data="digits", model="cnn", epsilon=3, epochs=40, batch=400, optimizer="adam"),
    "drawings": Case(data="strokes", model="cnn", epsilon=1, epochs=4, batch=256),
    "drawings-mlp": Case(data="strokes", model="mlp", epsilon=1, epochs=4, batch=256),
}


def rows_of(case: Case) -> tuple[datasets.Dataset, datasets.Dataset]:
    if case.data == "digits":
        side = None if case.model == "mlp" else 28
        return datasets.load("digits", "train", side=side), datasets.load("digits", "test", side=side)
    return datasets.load("strokes", "train").excerpt(10_000), datasets.load("strokes", "test").take(2000)


def accuracy(case: Case, rows: datasets.Dataset, test: datasets.Dataset, distance: float, seed: int) -> float:
    model = models.build(case.model, in_channels=rows.shape[0], side=rows.shape[-1], seed=seed)
    plan = plan_of(case, rows)
    how = longest(Optimization(optimizer=case.optimizer), plan, models_weights(model), distance=distance)
    found = train(model, rows, plan, delta=DELTA, test=test, optimization=how).test_accuracy
    assert found is not None
    return found


def plan_of(case: Case, rows: datasets.Dataset) -> TrainingPlan:
    assert rows.public_size is not None
    return TrainingPlan.calibrated(
        epsilon=case.epsilon,
        delta=DELTA,
        public_size=rows.public_size,
        expected_batch=case.batch,
        epochs=case.epochs,
    )


def models_weights(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def main() -> None:
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}")
    print(f"{'':26}{''.join(f'{distance:>14g}' for distance in DISTANCES)}  at 0.5 carried by")
    for name in sys.argv[1:] or CASES:
        case = CASES[name]
        rows, test = rows_of(case)
        cells = []
        for distance in DISTANCES:
            found = [accuracy(case, rows, test, distance, seed) for seed in range(TIMES)]
            cells.append(f"{statistics.mean(found):>8.3f} ±{statistics.stdev(found):.3f}")
        model = models.build(case.model, in_channels=rows.shape[0], side=rows.shape[-1], seed=0)
        largest = Optimization(optimizer=case.optimizer, learning_rate=0.5)
        far = carried(largest, plan_of(case, rows), models_weights(model))
        print(f"{name:26}{''.join(cells)}  {far:.0f}", flush=True)


if __name__ == "__main__":
    main()
