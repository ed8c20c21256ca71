"""What a logger is told of a run: public values, and of a step only what is durable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sfumato.runs import EpochReport


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
    """Override what you want to hear of, and hand it to `train(…, callbacks=[…])`.

    *Guarantees*: nothing here is seen of private rows but what was released with noise. Where checkpoints are
    kept, or a ledger pays, steps are told after the checkpoint is durable and the ledger has been told: a step
    that a crash takes away, and that is taken again with fresh noise, was never shown. A callback that raises
    stops the run, which can be resumed.

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
        """A step was taken."""

    def on_epoch(self, report: EpochReport) -> None:
        """An epoch is over, with the accuracy on public data if there are some."""


@dataclass
class Listeners:
    """The callbacks of a run, and the steps that they have not been told of yet."""

    callbacks: Sequence[Callback]
    waiting: list[StepReport] = field(default_factory=list)

    def note(self, step: int, *, learning_rate: float, clip_norm: float, noised: Mapping[str, Tensor]) -> None:
        """Remember a step, to be told of by `tell`."""
        if not self.callbacks:
            return
        norms = torch.stack([torch.linalg.vector_norm(part.double()) for part in noised.values()])
        self.waiting.append(
            StepReport(
                step=step,
                learning_rate=float(learning_rate),
                clip_norm=clip_norm,
                gradient_norm=float(torch.linalg.vector_norm(norms)),
            )
        )

    def tell(self) -> None:
        """What waits is durable now."""
        waiting, self.waiting = self.waiting, []
        for report in waiting:
            for callback in self.callbacks:
                callback.on_step(report)

    def tell_epoch(self, report: EpochReport) -> None:
        for callback in self.callbacks:
            callback.on_epoch(report)
