"""What callers hand over in place of what is expected: each gets one sentence, before anything is spent."""

from __future__ import annotations

import os
from typing import Any

import torch

from sfumato.datasets import Dataset
from sfumato.errors import InvalidInput
from sfumato.ledger import Ledger
from sfumato.training.optimization import OPTIMIZERS, Optimization
from sfumato.training.plan import TrainingPlan


def check_ledger(ledger: Any) -> None:
    """Refuse the name of a ledger: whoever opens it closes it."""
    if ledger is None or isinstance(ledger, Ledger):
        return
    name = os.fspath(ledger) if isinstance(ledger, str | os.PathLike) else "people.db"
    raise InvalidInput(
        f"expected ledger to be an open Ledger, got {_kind(ledger)}; as in ledger=sfumato.Ledger.open({name!r})"
    )


def check_plan(plan: Any) -> None:
    """Refuse targets in the place of the plan."""
    if plan is None or isinstance(plan, TrainingPlan):
        return
    raise InvalidInput(
        f"expected a TrainingPlan, got {_kind(plan)}; inputs and targets are handed over as one: "
        "train(model, (inputs, targets), epsilon=1, …)"
    )


def check_test(test: Any) -> None:
    """Refuse rows of which nobody said that they are public."""
    if test is None or (isinstance(test, Dataset) and test.visibility == "public"):
        return
    if isinstance(test, Dataset):
        raise InvalidInput("expected test to be public data; accuracy on private rows is a release of its own")
    raise InvalidInput(
        f"expected test to be rows that are said to be public, got {_kind(test)}; if everybody may have them, "
        "say so: test=Dataset.public(…), of sfumato.datasets; if not, measure at a price with training.keep_out"
    )


def agreed_optimization(optimization: Any, learning_rate: float | None) -> Optimization:
    """What was said of the optimizer, by one of the two."""
    if isinstance(optimization, torch.optim.Optimizer):
        kind = type(optimization).__name__.lower()
        name = kind if kind in OPTIMIZERS else "sgd"
        rate = optimization.param_groups[0].get("lr", 0.1)
        raise InvalidInput(
            f"expected optimization=Optimization(optimizer={name!r}, learning_rate={rate:g}), got a torch "
            "optimizer; train makes its own, and PrivateTrainer(model, optimizer, plan) takes any"
        )
    if optimization is not None and not isinstance(optimization, Optimization):
        raise InvalidInput(
            f"expected optimization to be an Optimization, got {_kind(optimization)}; as in "
            "optimization=Optimization(learning_rate=0.1)"
        )
    if learning_rate is None:
        return optimization or Optimization()
    if optimization is not None:
        raise InvalidInput(
            "expected learning_rate or optimization, got both; say it in one: "
            f"Optimization(learning_rate={learning_rate!r}, …)"
        )
    return Optimization(learning_rate=learning_rate)


def _kind(value: Any) -> str:
    return (
        f"{type(value).__name__} {str(value)!r}"
        if isinstance(value, str | os.PathLike)
        else type(value).__name__
    )
