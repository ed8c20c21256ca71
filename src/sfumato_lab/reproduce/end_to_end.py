"""The tanh CNN trained whole from random weights: no prior, no drawings, no designed features.

Settings are those that Tramèr & Boneh (2021) publish for it, with the noise that a true ε asks for, pixels
standardised, and the weights averaged over the last hundred steps, which costs nothing.
"""

from __future__ import annotations

import os

from sfumato import models
from sfumato.datasets import Dataset
from sfumato.training import Optimization, TrainingPlan, TrainingResult, Views, train

BATCH, EPOCHS, CLIP_NORM, AVERAGING = 512, 40, 0.1, 0.99
OPTIMIZATION = Optimization(learning_rate=0.5, momentum=0.9)
CAVEAT = "settings as published by others, who chose them on MNIST"


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
    views: Views | None = None,
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
        views=views,
        out=out,
        caveats=(CAVEAT,),
        purpose="a CNN from random weights",
    )
