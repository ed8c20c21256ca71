"""All stages, in the order in which they are told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sfumato.experiments.story.attacks import audit, differencing, membership_attack
from sfumato.experiments.story.books import balance
from sfumato.experiments.story.dissolving import dissolving_digits
from sfumato.experiments.story.epidemic import epidemic
from sfumato.experiments.story.networks import plain_and_private, sweep
from sfumato.experiments.story.scene import Scene


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A name, which is its folder; what the reader sees; and about how long it takes, full and quick."""

    name: str
    title: str
    run: Callable[[Scene], dict[str, Any]]
    seconds: tuple[float, float]  # on two quiet cores, to say how much time is left
    always: bool = False  # cheap, and out of date as soon as another stage was run


STAGES: tuple[Stage, ...] = (
    Stage(
        name="plain-and-private",
        title="one network, plain and private",
        run=plain_and_private,
        seconds=(50, 8),
    ),
    Stage(name="sweep", title="the network at several ε", run=sweep, seconds=(100, 8)),
    Stage(name="digits", title="digits dissolving", run=dissolving_digits, seconds=(6, 4)),
    Stage(name="differencing", title="an age out of two averages", run=differencing, seconds=(8, 8)),
    Stage(name="audit", title="attacking the private step", run=audit, seconds=(12, 3)),
    Stage(name="membership", title="who was in the data?", run=membership_attack, seconds=(12, 4)),
    Stage(name="epidemic", title="an epidemic held down", run=epidemic, seconds=(8, 3)),
    Stage(name="ledger", title="the budget, spent", run=balance, seconds=(2, 2), always=True),
)
