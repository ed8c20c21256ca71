"""One run, many canaries: train once on a data set with canaries among its rows, and guess their coins.

The whole run is under test, the sampler included. Published: ε ≥ 1.8 of 4 (white box, one run, CIFAR-10;
Steinke, Nasr & Jagielski 2023).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn
from torch.utils import _pytree as pytree

from sfumato import _validate, datasets, models
from sfumato.accounting import Relation
from sfumato.audit import Verdict, one_run
from sfumato.audit.runs.canaries import draw_canaries, one_run_verdict
from sfumato.audit.runs.planted import Canaries, LabelCanaries, WithCanaries
from sfumato.datasets import Dataset
from sfumato.errors import InvalidInput
from sfumato.randomness import Bools, Floats, SecretStream
from sfumato.released import ModelCard, Released
from sfumato.storage import RunFolder, read_json
from sfumato.training import (
    LossFunction,
    Optimization,
    PrivateTrainer,
    TrainingPlan,
    TrainingResult,
    cross_entropy,
    train,
)

Watch = Callable[[PrivateTrainer], None]
Training = Callable[[nn.Module, Any, LossFunction, Watch], TrainingResult]
"""Trains a model on (inputs, targets) with a loss as the caller would; the last one looks after each step."""

KINDS = ("dirac", "labels")
_LOUDNESS = 16.0  # norm of a canary's gradient, in clip norms, before clipping


def run(
    out_dir: str | Path,
    *,
    kind: str = "dirac",
    data: str = "digits",
    model: str = "mlp",
    epsilon: float = 4.0,
    delta: float = 1e-5,
    canaries: int = 20_000,
    steps: int = 20,
    sample_rate: float = 0.5,
    seed: int = 0,
    **choices: Any,
) -> Verdict:
    """Train a small network with canaries, in doubles: no noise is added for rounding.

    Further fields of the plan may be given by name.
    """
    rows = datasets.load(data, "train")
    size = datasets.DATASETS[data].public_size["train"] + canaries
    plan = TrainingPlan.calibrated(
        epsilon=epsilon,
        delta=delta,
        public_size=size,
        expected_batch=sample_rate * size,
        steps=steps,
        **choices,
    )
    network = models.build(
        model, classes=rows.classes or 2, in_channels=rows.shape[0], side=rows.shape[-1], seed=seed
    )

    released = Released(module=network, card=ModelCard.of(rows, architecture=model))
    training = in_doubles(plan, delta=delta, out=out_dir, released=released)
    return audited(network, rows, training, plan=plan, kind=kind, canaries=canaries, out=out_dir)[1]


def in_doubles(
    plan: TrainingPlan, *, delta: float, out: str | Path | None = None, released: Released | None = None
) -> Training:
    """Plain steps in float64; `released` is the network without the planted canaries."""

    def training(joint: nn.Module, among: Any, loss: LossFunction, watch: Watch) -> TrainingResult:
        doubles = pytree.tree_map(lambda column: column.double(), among[0]), among[1]
        plain = Optimization(learning_rate=0.5, momentum=0.0)
        return train(
            joint.double(),
            doubles,
            plan,
            delta=delta,
            loss_fn=loss,
            optimization=plain,
            out=out,
            released=released,
            on_step=watch,
        )

    return training


def audited(
    network: nn.Module,
    rows: Dataset,
    training: Training,
    *,
    plan: TrainingPlan,
    kind: str = "dirac",
    canaries: int,
    out: str | Path,
) -> tuple[TrainingResult, Verdict]:
    """Train with canaries among the rows, and return the verdict of guessing their coins.

    The plan must be made for the declared size plus `canaries`. "dirac" canaries own a weight each, beside the
    model, and are heard in every step; "labels" are rows of noise with labels drawn by lot, and the attacker
    sees the finished model from outside. The coins, the scores and the verdict go to the run folder's private
    half. `training` must release the network alone (`train(released=…)`), without the canary weights. A run
    that was interrupted goes on with the coins that it had.
    """
    folder = RunFolder.make(out)
    record = _registered(folder, _validate.one_of("kind", kind, KINDS), canaries)
    result, scores = _PLANTED[kind](network, rows, training, plan, np.array(record["included"], dtype=np.bool_))
    record["scores"] = scores.tolist()
    verdict = one_run_verdict(record, plan, epsilon=result.epsilon, delta=result.delta)
    folder.write_json("canaries.json", record, private=True)
    folder.write_json("audit.json", {"one run": verdict.result.to_json()}, private=True)
    draw_canaries(record, verdict, folder.private / "canaries.png")
    return replace(result, model=network), verdict


def with_weights(
    network: nn.Module, rows: Dataset, training: Training, plan: TrainingPlan, included: Bools
) -> tuple[TrainingResult, Floats]:
    """Train with canary weights beside the network; the evidence on each coin."""
    planted = Canaries(included=included, loudness=_LOUDNESS * plan.clip_norm)
    joint = planted.beside(network)
    zero_out = plan.relation is Relation.ZERO_OUT
    among = planted.among(*rows.tensors(), zero_out=zero_out)
    result = training(joint, among, planted.loss(cross_entropy), partial(_hear, joint))
    return result, planted.scores(joint)


def _hear(joint: WithCanaries, trainer: PrivateTrainer) -> None:
    """Record the release of the last step as evidence on each canary's coin."""
    plan, step = trainer.plan, trainer.steps_done
    scale = plan.expected_batch / trainer.clip_norm
    deviation = plan.noise_at(step - 1) * (1 + (trainer.eta or 0.0))
    if plan.sampling == "poisson":
        joint.hear(scale, deviation=deviation, rate=plan.sample_rate)
    else:
        steps = plan.steps_an_epoch
        joint.hear_in_pass(scale, deviation=deviation, steps=steps, last=step % steps == 0)


def _with_labels(
    network: nn.Module, rows: Dataset, training: Training, plan: TrainingPlan, included: Bools
) -> tuple[TrainingResult, Floats]:
    """Train with poisoned labels among the rows; how much each canary was taken to heart."""
    if plan.relation is not Relation.ADD_REMOVE:
        raise InvalidInput(
            f"expected relation 'add-remove' with canaries of kind 'labels', got {plan.relation}"
        )
    planted = LabelCanaries.drawn(included, shape=rows.shape, classes=rows.classes or 2, seed=_PATTERNS)
    before = planted.margins(network)
    result = training(network, planted.among(*rows.tensors()), cross_entropy, lambda trainer: None)
    return result, planted.scores(before, planted.margins(network))


_PATTERNS = 20  # the public seed of the rows of noise
_PLANTED = {"dirac": with_weights, "labels": _with_labels}


def _registered(folder: RunFolder, kind: str, canaries: int) -> dict[str, Any]:
    """The coins of this folder and the number of guesses: written down before anything is trained."""
    path = folder.private / "canaries.json"
    if path.exists():
        record = read_json(path)
        if (record["kind"], len(record["included"])) != (kind, canaries):
            raise InvalidInput(
                f"expected the canaries that {folder.path} was begun with, {len(record['included'])} of kind "
                f"{record['kind']!r}, got {canaries} of kind {kind!r}; choose another folder"
            )
        return record
    included = one_run.toss(canaries, SecretStream())
    record = {"kind": kind, "guesses": one_run.planned_guesses(canaries), "included": included.tolist()}
    folder.write_json("canaries.json", record, private=True)
    return record
