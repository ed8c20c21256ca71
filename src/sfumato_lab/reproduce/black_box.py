"""A black-box attacker on whole training runs at ε = 10: many small networks with and without one canary.

Full batches, so that the whole run is one Gaussian release and the GDP route is exact. Everything but the noise
is the attacker's choice: public initial weights, trained on other rows, at which the canary's loss is large and
theirs are small (Annamalai & De Cristofaro 2024, "Nearly tight black-box auditing of differentially private
machine learning": 7.21 of 10 with 200 models on MNIST). He sees nothing but the loss of the canary.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import numpy as np
import torch
import typer
from torch import Tensor
from torch.nn import functional as F

from sfumato import datasets
from sfumato.audit import Errors, Verdict, balanced_mu_bound, gdp_epsilon
from sfumato.cli import conclude, show
from sfumato.randomness import SecretStream
from sfumato.training import TrainingPlan
from sfumato_lab.reproduce import ensemble

UNTESTED = (
    "the sampler: every step takes all rows",
    "the trainer itself: the networks are trained as one batch",
)
_PILOT_SHARE = 0.1  # of the networks, on which the threshold is chosen; they are not counted
_PUBLIC_ROWS = 2000  # that the initial weights are trained on
_BATCH = 50  # networks trained at a time


def run(
    *,
    data: str = "mnist",
    networks: int = 3000,
    epsilon: float = 10.0,
    delta: float = 1e-5,
    rows: int = 200,
    steps: int = 10,
    hidden: int = 16,
    learning_rate: float = 0.2,
) -> Verdict:
    """Half of the networks with the canary, half without; the ε that its loss gives away."""
    plan = TrainingPlan.calibrated(
        epsilon=epsilon, delta=delta, public_size=rows + 1, expected_batch=rows + 1, steps=steps
    )
    inputs, targets, start = _prepared(data, rows, hidden)
    train = partial(_scores, plan, inputs, targets, start, learning_rate)
    present, absent = (
        np.concatenate([train(n, with_canary) for n in _batches(networks // 2)])
        for with_canary in (True, False)
    )
    pilot = max(1, round(_PILOT_SHARE * len(present)))
    # Half-way between the two is best where both spread alike, and takes few networks to find.
    threshold = float(present[:pilot].mean() + absent[:pilot].mean()) / 2
    errors = Errors.at(threshold, present[pilot:], absent[pilot:])
    return Verdict.of(
        lambda alpha: gdp_epsilon(balanced_mu_bound(errors, alpha=alpha), delta),
        claimed_epsilon=plan.epsilon(delta),
        delta=delta,
        untested=UNTESTED,
        details={"networks": 2 * len(present), "networks_counted": errors.positives + errors.negatives},
    )


def _prepared(data: str, rows: int, hidden: int) -> tuple[Tensor, Tensor, ensemble.Weights]:
    """Rows at half the resolution with the canary last, and weights trained on as many other rows and more."""
    images, labels = (column[: rows + _PUBLIC_ROWS] for column in datasets.load(data, "train").tensors())
    flat = F.avg_pool2d(images, 2).flatten(1) if images.shape[-1] > 14 else images.flatten(1)
    flat = flat - flat.mean(1, keepdim=True)
    start = ensemble.Weights.drawn(1, flat.shape[1], hidden, 10, seed=0)
    start = ensemble.fit(
        start,
        flat[rows:],
        labels[rows:],
        torch.ones(1, len(flat) - rows),
        steps=1500,
        learning_rate=0.1,
        batch=64,
    )
    # The canary: a checkerboard, which no digit resembles, with the label that the start finds least likely.
    side = int(flat.shape[1] ** 0.5)
    canary = torch.tensor([[1.0 if (i + j) % 2 else -1.0 for i in range(side)] for j in range(side)]).flatten()[
        None
    ]
    label = ensemble.logits(start, canary)[0, 0].argmin()[None]
    return torch.cat([flat[:rows], canary]), torch.cat([labels[:rows], label]), start


def _scores(
    plan: TrainingPlan,
    inputs: Tensor,
    targets: Tensor,
    start: ensemble.Weights,
    learning_rate: float,
    networks: int,
    with_canary: bool,
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Minus the canary's loss under each of so many trained networks."""
    members = torch.ones(networks, len(inputs))
    members[:, -1] = float(with_canary)
    step = ensemble.PrivateStep(
        clip_norm=plan.clip_norm, noise_multiplier=plan.noise_multiplier, expected_batch=plan.expected_batch
    )
    trained = ensemble.fit_privately(
        start.copies(networks),
        inputs,
        targets,
        members,
        step,
        SecretStream(),
        steps=plan.steps,
        learning_rate=learning_rate,
    )
    return -ensemble.losses(trained, inputs[-1:], targets[-1:])[:, 0].double().numpy()


def _batches(networks: int) -> list[int]:
    return [_BATCH] * (networks // _BATCH) + ([networks % _BATCH] if networks % _BATCH else [])


def black_box_audit(
    networks: Annotated[
        int, typer.Option(help="Number of networks to train. More give a tighter bound.")
    ] = 3000,
    data: Annotated[str, typer.Option(help="Data set of the networks: mnist or digits.")] = "mnist",
    json: show.Json = False,
) -> None:
    """Train many small networks with and without one canary, and tell them apart by its loss. ε is 10.

    Exit with 1 if the claim is refuted.

    Example: sfumato reproduce black-box
    """
    conclude(run(data=data, networks=networks), json)
