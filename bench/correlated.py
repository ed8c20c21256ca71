"""A linear head on the public features of MNIST: noise that knows the past, beside independent noise, at one ε.

The first row may sample (add/remove of one image, with amplification); the others take their batches in a fixed
order (zero-out of one image, without). Each is trained at several learning rates, five times, all in one run.
Printed are the mean and the standard deviation of the five, on the test images. `prefix error` is what the
plan's public figures say beforehand. Run with `python bench/correlated.py [rows]`.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time

import torch
from torch import nn

from sfumato import datasets
from sfumato.fitting import evaluate
from sfumato.learn.features import DIGITS, build, featured
from sfumato.mechanisms.factorisation import prefix_error
from sfumato.training import Optimization, PrivateTrainer, TrainingPlan
from sfumato.training.run import take_steps

EPSILON, DELTA = 1.0, 1e-5
BATCH, EPOCHS, TIMES = 250, 4, 5
RATES = (0.5, 2.0, 8.0)
IN_ORDER = {"sampling": "cyclic", "relation": "zero-out"}
CASES = {
    "Poisson sampling, independent noise": {},
    "fixed order, independent noise": IN_ORDER,
    "fixed order, lambda-CGD": {**IN_ORDER, "noise": "lambda-cgd"},
    "fixed order, banded": {**IN_ORDER, "noise": "banded"},
}


def accuracy(
    rows: datasets.Dataset, test: datasets.Dataset, plan: TrainingPlan, rate: float
) -> tuple[float, float]:
    model = nn.Linear(rows.shape[0], 10, bias=False)
    nn.init.zeros_(model.weight)
    how = Optimization(learning_rate=rate, momentum=0.0)
    trainer = PrivateTrainer(model, how.build(model), plan)
    start = time.perf_counter()
    take_steps(trainer, rows, how)
    return evaluate(model, test).accuracy, time.perf_counter() - start


def main() -> None:
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}")
    print(f"MNIST, {size} rows, batches of {BATCH}, {EPOCHS} passes, ε={EPSILON:g}, δ={DELTA:g}")
    network = build(DIGITS, classes=10)
    rows = featured(network, datasets.load("mnist").excerpt(size))
    test = featured(network, datasets.load("mnist", "test"))
    for name, choices in CASES.items():
        plan = TrainingPlan.calibrated(
            epsilon=EPSILON,
            delta=DELTA,
            public_size=size,
            expected_batch=BATCH,
            epochs=EPOCHS,
            clip_norm=DIGITS.clip_norm,
            **choices,
        )
        print(f"{name}: {plan.noise}, σ={plan.noise_multiplier:.3g}", end="")
        if plan.sampling == "cyclic":
            error = prefix_error(plan.noise, steps=plan.steps, steps_a_pass=plan.steps_an_epoch)
            print(f", prefix error {error:.1f}", end="")
        print(flush=True)
        for rate in RATES:
            found = [accuracy(rows, test, plan, rate) for _ in range(TIMES)]
            reached, seconds = zip(*found, strict=True)
            print(
                f"  rate {rate:4g}: {statistics.mean(reached):.2%} ± {statistics.stdev(reached):.2%}, "
                f"{statistics.median(seconds):.1f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
