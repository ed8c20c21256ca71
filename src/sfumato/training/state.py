"""Where a run is: what a checkpoint keeps of a trainer besides the weights and the optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from sfumato.ledger import Charge, Reservation
from sfumato.mechanisms.correlated import Past


@dataclass(frozen=True, kw_only=True)
class TrainerState:
    """`PrivateTrainer.state` gives it, `PrivateTrainer.take_up` goes on from it."""

    step: int
    clip_norm: float  # as adaptive clipping left it
    average: Mapping[str, Tensor]  # of the weights
    averaged: int  # steps that are in it
    private: bool  # whether no step had noise from a seeded stream
    reservation: Reservation | None  # under which the steps were taken
    charge: Charge | None = None  # to which a process that died had settled them: no step is left
    past_noise: Past | None = None  # that the noise of steps to come is correlated with: secret
    caveats: frozenset[str] = frozenset()  # that the certificate will have, from the steps so far
    eta: float | None = None  # the largest that any step had
    views: str | None = None  # the name of the views that rows were seen by, "" for none; None: not known
    setup: Mapping[str, Any] = field(default_factory=dict)  # optimizer, learning rate and the like
    graph: Mapping[str, str] = field(default_factory=dict)  # its digest, and the version of torch
