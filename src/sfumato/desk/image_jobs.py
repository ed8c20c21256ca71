"""Jobs on images: labels by votes of teachers, and drawings of nobody; each planned from declared facts alone.

Which images are private and which are public follows from the data set: its training images are private, and
its test images are what anybody may have. Plans are made without the private ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sfumato import _validate
from sfumato.errors import InvalidInput
from sfumato.policy import Policy

if TYPE_CHECKING:
    from sfumato.datasets import Dataset
    from sfumato.ledger import Ledger
    from sfumato.pate import PateSettings

SOURCES = ("digits", "fashion-mnist", "mnist", "strokes")
_SIDE = 28


def pate_settings(policy: Policy, *, teachers: int, epsilon: float) -> PateSettings:
    """Everything of a vote that is decided before a private image is touched."""
    from sfumato.datasets.drawings import prior_for
    from sfumato.pate import Adaptation, PateSettings, TeacherConfig, VotePlan, queries_for

    facts, delta = public_facts(policy.source), policy.budget.delta
    most = _size(policy) // 2
    if not 2 <= teachers <= most:
        raise InvalidInput(f"expected 2 to {most} teachers, got teachers={teachers}")
    plan = VotePlan.calibrated(
        epsilon=epsilon,
        delta=delta,
        mechanism="gnmax",
        teachers=teachers,
        queries=queries_for(teachers, epsilon=epsilon, delta=delta, most=facts[0]),
        classes=facts[1],
    )
    adaptation = Adaptation(prior=prior_for(policy.source))
    return PateSettings(plan=plan, teacher=TeacherConfig.of("head"), adaptation=adaptation)


def image_request(policy: Policy, *, images: int, epsilon: float) -> Any:
    """What a set of drawings takes; from the shape, the classes and the declared size."""

    from sfumato.plugins import part

    return part("images").ImageRequest.of(
        _nobodys(policy), images=images, epsilon=epsilon, delta=policy.budget.delta
    )


def run_pate(
    policy: Policy, ledger: Ledger, settings: PateSettings, *, out: Path, progress: Callable[[float], None]
) -> dict[str, Any]:
    """Let teachers label the public images, and train a student on the labels."""
    from sfumato import pate

    private = replace(_loaded(policy.source, "train"), public_size=_size(policy))
    public = replace(_loaded(policy.source, "test"), visibility="public")
    found = pate.run(
        private,
        public,
        settings,
        delta=policy.budget.delta,
        ledger=ledger,
        out=out,
        progress=lambda _, share: progress(share),
    )
    labels = {"labels": settings.plan.queries, "student_accuracy": found.student_accuracy}
    return {"epsilon": found.epsilon, "delta": policy.budget.delta, **labels}


def run_images(policy: Policy, ledger: Ledger, request: Any, *, out: Path) -> dict[str, Any]:
    """Draw images of nobody, and measure them against the public ones."""
    from sfumato.plugins import part
    from sfumato.randomness import SecretStream

    rows = replace(_loaded(policy.source, "train"), public_size=_size(policy))
    test = replace(_loaded(policy.source, "test"), visibility="public")
    made = part("images").release_images(
        request, rows, ledger=ledger, out=out, sampler=SecretStream(), test=test
    )
    return {"epsilon": made.epsilon, "delta": request.delta, "images": request.images}


@lru_cache(maxsize=len(SOURCES))
def public_facts(source: str) -> tuple[int, int, tuple[int, ...]]:
    """How many public images there are, their classes and their shape."""
    public = _loaded(source, "test")
    return len(public), public.classes or 2, tuple(public.shape)


def _loaded(source: str, split: Any) -> Dataset:
    from sfumato import datasets

    name = _validate.one_of("source", source, SOURCES)
    return datasets.load(name, split, side=_SIDE if name == "digits" else None)


def _nobodys(policy: Policy) -> Dataset:
    """Rows as the private ones are declared to be, and none of them."""
    from sfumato.datasets import Dataset

    _, classes, shape = public_facts(policy.source)
    return Dataset(
        name=policy.source,
        visibility="private",
        inputs=np.zeros((0, *shape), dtype=np.float32),
        targets=np.zeros(0, dtype=np.int64),
        classes=classes,
        public_size=_size(policy),
    )


def _size(policy: Policy) -> int:
    assert policy.public_size is not None  # the settings need it
    return policy.public_size
