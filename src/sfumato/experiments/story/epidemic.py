"""A town, an epidemic, and tests for those whose private risk score is highest."""

from __future__ import annotations

import json
from typing import Any

from sfumato.experiments import tracing
from sfumato.experiments.story.scene import Scene

_METHODS = ("none", "traditional", "dpfn")
_NAMES = {
    "none": "no tests",
    "traditional": "tests for contacts of the sick",
    "dpfn": "tests by risk score",
}


def epidemic(scene: Scene) -> dict[str, Any]:
    """Prevalence by day without tests, with traditional tracing, and with scores, exact and private."""
    size, done = scene.size, iter(range(1, 100))
    rows = tracing.run(
        scene.folder.figures,
        people=size.town,
        days=size.days,
        epsilons=(1.0,),
        seeds=(1,),
        methods=_METHODS,
        progress=lambda _: scene.progress(min(1.0, next(done) / 7)),
    )
    attacks = json.loads((scene.folder.figures / "tracing.json").read_text())["attack"]
    return {
        "people": size.town,
        "days": size.days,
        "delta": tracing.DELTA,
        "unit": "one contact-day message",
        "curves": [_curve(row) for row in rows if row.span == "release" or row.epsilon],
        "attack": attacks,
    }


def _curve(row: tracing.Row) -> dict[str, Any]:
    return {
        "method": row.method,
        "name": _NAMES[row.method],
        "epsilon": row.epsilon,
        "span": row.span,
        "peak": row.peak,
        "prevalence": list(row.prevalence),
        "epsilon_lifetime": None if row.epsilon is None else row.epsilon_lifetime,
        "epsilon_person": None if row.epsilon is None else row.epsilon_person,
    }
