"""State of a run beside its weights: steps done, averages, settings, reports to callbacks, the private log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sfumato.ledger import Charge, Reservation
from sfumato.mechanisms.correlated import Past
from sfumato.runs import EpochReport
from sfumato.training.clip import ChunkResult

Setup = Mapping[str, Any]
"""Plain settings by name."""


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """One step, in figures that were paid for: all follow from the plan and from noised sums.

    Attributes:
        step: The number of the step, from 1.
        learning_rate: That of the optimizer's first group of parameters.
        clip_norm: The clipping norm of the next step, as adaptive clipping left it.
        gradient_norm: The L2 norm of the noised gradient.

    >>> StepReport(step=1, learning_rate=0.1, clip_norm=1.0, gradient_norm=0.7).step
    1
    """

    step: int
    learning_rate: float
    clip_norm: float
    gradient_norm: float


class Callback:
    """Override a method, and hand an instance to `train(…, callbacks=[…])`.

    *Guarantees*: nothing here is seen of private rows but figures that were released with noise. Where
    checkpoints are kept, or a ledger pays, steps are told after the checkpoint is durable and the ledger has
    been told: a step that a crash takes away, and that is taken again with fresh noise, was never shown. A
    callback that raises stops the run, which can be resumed.

    >>> class Curve(Callback):
    ...     def __init__(self):
    ...         self.norms = []
    ...
    ...     def on_step(self, report):
    ...         self.norms.append(report.gradient_norm)
    >>> curve = Curve()
    >>> curve.on_step(StepReport(step=1, learning_rate=0.1, clip_norm=1.0, gradient_norm=0.7))
    >>> curve.norms
    [0.7]
    """

    def on_step(self, report: StepReport) -> None:
        """Hear of a step."""

    def on_epoch(self, report: EpochReport) -> None:
        """Hear of an epoch, with the accuracy on public data if there are some."""


@dataclass(frozen=True)
class StepRecord:
    units: int
    not_finite: int
    mean_loss: float


@dataclass
class PrivateLog:
    """Batch sizes, training losses and counts of units left out: never part of a release."""

    steps: list[StepRecord] = field(default_factory=list)
    _units: int = 0
    _not_finite: int = 0
    _rows: int = 0
    _loss: float = 0.0

    def add(self, result: ChunkResult) -> None:
        self._units += len(result.finite)
        self._not_finite += int((~result.finite).sum())
        self._rows += len(result.losses)
        self._loss += float(result.losses.detach().nan_to_num().sum())

    def end_step(self) -> None:
        self.steps.append(StepRecord(self._units, self._not_finite, self._loss / max(1, self._rows)))
        self._units, self._not_finite, self._rows, self._loss = 0, 0, 0, 0.0


@dataclass(frozen=True, kw_only=True)
class TrainerState:
    """The state that a checkpoint keeps of a trainer besides the weights and the optimizer."""

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
    setup: Setup = field(default_factory=dict)  # optimizer, learning rate and the like
    graph: Mapping[str, str] = field(default_factory=dict)  # its digest, and the version of torch


class WeightAverage:
    """w̄ ← d·w̄ + (1−d)·w with d = min(decay, (1+t)/(10+t)): post-processing; decay 0 keeps no average."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], decay: float) -> None:
        self._parameters, self._decay, self.updates = parameters, decay, 0
        kept = parameters.items() if decay else ()
        self.values: dict[str, Tensor] = {name: parameter.detach().clone() for name, parameter in kept}

    @torch.no_grad()
    def update(self) -> None:
        decay = min(self._decay, (1 + self.updates) / (10 + self.updates))
        for name, value in self.values.items():
            value.lerp_(self._parameters[name], 1 - decay)
        self.updates += 1

    @torch.no_grad()
    def take_up(self, values: Mapping[str, Tensor], updates: int) -> None:
        """Go on from an average that was kept, whichever device the weights are on now."""
        for name, value in self.values.items():
            value.copy_(values[name])
        self.updates = updates

    @torch.no_grad()
    def put(self, values: Mapping[str, Tensor]) -> None:
        """Copy values into the parameters."""
        for name, value in values.items():
            self._parameters[name].copy_(value)


def setup_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the class of an optimizer, and the settings of each of its groups."""
    found: dict[str, Any] = {"optimizer": type(optimizer).__name__}
    for number, group in enumerate(optimizer.param_groups):
        of_group = f" of group {number}" if number else ""
        found |= {f"{name}{of_group}": value for name, value in plain(group).items() if name != "params"}
    return found


def plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that JSON can hold: learning rates and the like, no functions."""
    return {name: value for name, value in settings.items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)
