"""The tanh CNN trained whole from random weights: no prior, no drawings, no designed features.

Tramèr & Boneh (2021) publish settings for it: batches of 512, rate ½, clip 0.1, momentum 0.9, 40 epochs. At a
given ε the noise of a step's mean gradient falls with larger batches faster than fewer steps cost: what T steps
move a weight over the noise they add, √T·batch/σ, is 33 thousand with theirs and 39 thousand here.
"""

from __future__ import annotations

import os

from sfumato import models
from sfumato.datasets import Dataset
from sfumato.training import Optimization, TrainingPlan, TrainingResult, train

BATCH, EPOCHS, CLIP_NORM, AVERAGING = 2048, 45, 0.1, 0.98
OPTIMIZATION = Optimization(learning_rate=5.0, momentum=0.9, schedule="cosine")
CAVEAT = "settings follow published ones; runs of others had been measured before"


def plan(*, epsilon: float, delta: float, public_size: int) -> TrainingPlan:
    return TrainingPlan.calibrated(
        epsilon=epsilon,
        delta=delta,
        public_size=public_size,
        expected_batch=min(BATCH, public_size // 4),
        epochs=EPOCHS,
        clip_norm=CLIP_NORM,
        average_decay=AVERAGING,
    )


def run(
    rows: Dataset,
    test: Dataset | None,
    *,
    epsilon: float,
    delta: float,
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
) -> TrainingResult:
    """Train under (epsilon, delta), priced before a row is looked at; `pixels.standardized` rows."""
    assert rows.public_size is not None
    return train(
        models.build("tanh-cnn", seed=seed),
        rows,
        plan(epsilon=epsilon, delta=delta, public_size=rows.public_size),
        delta=delta,
        optimization=OPTIMIZATION,
        test=test,
        out=out,
        caveats=(CAVEAT,),
        purpose="a CNN from random weights",
    )
