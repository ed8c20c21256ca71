"""One run, many canaries: train once on a data set with canaries among its rows, and guess their coins.

The whole step is under test, the sampler included. Published: ε ≥ 1.8 of 4 (white box, one run, CIFAR-10;
Steinke, Nasr & Jagielski 2023).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch

from sfumato import datasets, models
from sfumato.audit import Verdict
from sfumato.audit.canary_layer import Canaries, WithCanaries
from sfumato.experiments.run_audit import one_run_verdict
from sfumato.randomness import SecretStream
from sfumato.run_folder import RunFolder
from sfumato.training import PrivateTrainer, TrainingPlan, cross_entropy

_LOUDNESS = 16.0
_GUESSED_SHARE = 0.05  # of the canaries: the surest few say more than all of them; fixed before any run


def run(
    out_dir: str | Path | None = None,
    *,
    data: str = "digits",
    model: str = "mlp",
    epsilon: float = 4.0,
    delta: float = 1e-5,
    canaries: int = 20_000,
    steps: int = 20,
    sample_rate: float = 0.5,
    seed: int = 0,
) -> Verdict:
    """Train privately with canaries; what the guesses prove, beside the claim."""
    rows = datasets.load(data, "train")
    planted = Canaries.drawn(canaries, SecretStream(), loudness=_LOUDNESS)
    size = len(rows) + canaries
    plan = TrainingPlan.calibrated(
        epsilon=epsilon, delta=delta, public_size=size, expected_batch=sample_rate * size, steps=steps
    )
    network = models.build(
        model, classes=rows.classes or 2, in_channels=rows.shape[0], side=rows.shape[-1], seed=seed
    )
    trained = train_with(planted, network, rows, plan)
    record = {
        "included": planted.included.tolist(),
        "scores": planted.scores(trained).tolist(),
        "guesses": max(20, round(_GUESSED_SHARE * canaries)),
    }
    verdict = one_run_verdict(record, epsilon=plan.epsilon(delta), delta=delta)
    if out_dir is not None:
        _write(out_dir, record, verdict)
    return verdict


def train_with(planted: Canaries, network: torch.nn.Module, rows: Any, plan: TrainingPlan) -> WithCanaries:
    """Plain noisy steps on the rows and the canaries among them, in doubles: no noise is added for rounding."""
    joint = planted.beside(network.double())
    trainer = PrivateTrainer(joint, torch.optim.SGD(joint.parameters(), lr=0.5), plan)
    loss = planted.loss(cross_entropy)
    inputs, targets = rows.tensors()
    for batch in trainer.batches(planted.among(inputs.double(), targets)):
        trainer.step(batch, loss)
    return joint


def _write(out_dir: str | Path, record: dict[str, Any], verdict: Verdict) -> None:
    folder = RunFolder.make(out_dir)
    write = partial(folder.write_json, private=True)
    write("canaries.json", record)
    write("audit.json", {"one run": verdict.to_json()})
