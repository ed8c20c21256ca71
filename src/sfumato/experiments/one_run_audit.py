"""One run, many canaries: train once on a data set with canaries among its rows, and guess their coins.

The whole step is under test, the sampler included. Published: ε ≥ 1.8 of 4 (white box, one run, CIFAR-10;
Steinke, Nasr & Jagielski 2023).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save
from torch import Tensor, nn

from sfumato import datasets, models
from sfumato.audit import Verdict
from sfumato.audit.canary_layer import Canaries
from sfumato.datasets import Dataset
from sfumato.experiments.run_audit import one_run_verdict
from sfumato.randomness import SecretStream
from sfumato.run_folder import RunFolder, write_whole
from sfumato.training import Optimization, TrainingPlan, TrainingResult, cross_entropy, train

Training = Callable[[nn.Module, Any, Callable[[Any, Tensor], Tensor]], TrainingResult]
"""Trains a model on (inputs, targets) with a loss, as the caller would train without canaries."""

_LOUDNESS = 16.0  # norm of a canary's gradient, in clip norms, before clipping
_GUESSED_SHARE = 0.05  # of the canaries: the surest few say more than all of them; fixed before any run


def run(
    out_dir: str | Path,
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
    """Train a small network with canaries, in doubles: no noise is added for rounding."""
    rows = datasets.load(data, "train")
    size = datasets.DATASETS[data].public_size["train"] + canaries
    plan = TrainingPlan.calibrated(
        epsilon=epsilon, delta=delta, public_size=size, expected_batch=sample_rate * size, steps=steps
    )
    network = models.build(
        model, classes=rows.classes or 2, in_channels=rows.shape[0], side=rows.shape[-1], seed=seed
    )

    def training(joint: nn.Module, among: Any, loss: Any) -> TrainingResult:
        inputs, targets = among
        doubles = {name: values.double() for name, values in inputs.items()}
        plain = Optimization(learning_rate=0.5, momentum=0.0)
        return train(
            joint.double(), (doubles, targets), plan, delta=delta, loss_fn=loss, optimization=plain, out=out_dir
        )

    _, verdict = audited(network, rows, training, clip_norm=plan.clip_norm, canaries=canaries, out=out_dir)
    return verdict


def audited(
    network: nn.Module,
    rows: Dataset,
    training: Training,
    *,
    clip_norm: float,
    canaries: int,
    out: str | Path,
) -> tuple[TrainingResult, Verdict]:
    """A training run with canaries among the rows, and what guessing their coins proves.

    The plan must be made for the declared size plus `canaries`. The coins, the scores and the verdict go to the
    run folder's private half; the released model is rid of the canary weights. A run that was interrupted goes
    on with the coins that it had. Scores tell most with plain steps: momentum blurs them a little, Adam a lot.
    """
    folder = RunFolder.make(out)
    planted = _coins(folder, canaries, _LOUDNESS * clip_norm)
    joint = planted.beside(network)
    result = training(joint, planted.among(*rows.tensors()), planted.loss(cross_entropy))
    record = {**_record(planted), "scores": planted.scores(joint).tolist()}
    verdict = one_run_verdict(record, epsilon=result.epsilon, delta=result.delta)
    state = {name: value.detach().clone().contiguous() for name, value in network.state_dict().items()}
    write_whole(folder.release / "model.safetensors", save(state))
    write = partial(folder.write_json, private=True)
    write("canaries.json", record)
    write("audit.json", {"one run": verdict.to_json()})
    return replace(result, model=network), verdict


def _coins(folder: RunFolder, canaries: int, loudness: float) -> Canaries:
    """The coins of this folder: tossed and written down before anything is trained."""
    path = folder.private / "canaries.json"
    if path.exists():
        included = np.array(json.loads(path.read_text(encoding="utf-8"))["included"], dtype=np.bool_)
        return Canaries(included=included, loudness=loudness)
    planted = Canaries.drawn(canaries, SecretStream(), loudness=loudness)
    folder.write_json("canaries.json", _record(planted), private=True)
    return planted


def _record(planted: Canaries) -> dict[str, Any]:
    """What is registered before training."""
    count = planted.included.size
    return {"included": planted.included.tolist(), "guesses": max(20, round(_GUESSED_SHARE * count))}
