"""Canaries inside a network and among its rows, so that a run trains on them with everything else."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sfumato import _validate, randomness


class WithCanaries(nn.Module):
    """A model, and a square of canary weights beside it; takes rows and their canary codes.

    Without codes it is the model alone, so that it can be evaluated as one. The evidence on each canary is
    kept in buffers, so that a checkpoint holds it.
    """

    evidence: Tensor  # (canaries,): ln P(all that was heard | in) − ln P(… | out)
    this_pass: Tensor  # the same of a shuffled pass that has not ended, before its logarithm is added

    def __init__(self, model: nn.Module, side: int) -> None:
        super().__init__()
        self.model = model
        like = next(model.parameters())
        self.canaries = nn.Linear(side, side, bias=False, dtype=like.dtype)
        nn.init.zeros_(self.canaries.weight)
        self.register_buffer("evidence", torch.zeros(side * side, dtype=torch.float64))
        self.register_buffer("this_pass", torch.full((side * side,), -math.inf, dtype=torch.float64))

    def forward(self, inputs: Tensor, codes: Tensor | None = None) -> Any:
        predicted = self.model(inputs)
        return predicted if codes is None else (predicted, self.canaries(codes))

    def hear(self, scale: float, *, deviation: float, rate: float) -> None:
        """Add the evidence of a step that each included canary joined secretly with probability `rate`.

        `scale` turns the gradient into the noised sum in clip norms, N(1, deviation²) at a canary that took
        part and N(0, deviation²) at any other.
        """
        ratio = math.log(rate) + self._ratio(scale, deviation)
        absent = torch.tensor(math.log1p(-rate) if rate < 1 else -math.inf, dtype=torch.float64)
        self.evidence += torch.logaddexp(absent, ratio)

    def hear_in_pass(self, scale: float, *, deviation: float, steps: int, last: bool) -> None:
        """A step of a pass of so many, in exactly one of which each canary that is in took part."""
        self.this_pass.copy_(torch.logaddexp(self.this_pass, self._ratio(scale, deviation) - math.log(steps)))
        if last:
            self.evidence += self.this_pass
            self.this_pass.fill_(-math.inf)

    def _ratio(self, scale: float, deviation: float) -> Tensor:
        """ln of N(x; 1, s²) / N(x; 0, s²) = (x − ½) / s² at each canary's weight."""
        gradient = self.canaries.weight.grad
        assert gradient is not None
        heard = -scale * gradient.detach().double().flatten()  # a canary's loss falls as its weight grows
        return (heard - 0.5) / deviation**2


@dataclass(frozen=True, kw_only=True, eq=False)
class Canaries:
    """`included[j]` is the coin of canary j, whose weight is the j-th of the square."""

    included: npt.NDArray[np.bool_]
    loudness: float  # norm of a canary's gradient before clipping: several clip norms

    @property
    def side(self) -> int:
        return math.isqrt(self.included.size - 1) + 1

    def beside(self, model: nn.Module) -> WithCanaries:
        return WithCanaries(model, self.side)

    def among(
        self, inputs: Tensor, targets: Tensor, *, zero_out: bool = False
    ) -> tuple[dict[str, Tensor], Tensor]:
        """The rows with the included canaries after them, as named inputs of `WithCanaries`, and targets.

        A canary's row is the first input's shape in zeros; its target is −1 − its row of the square. With
        `zero_out` those that are left out keep a row that moves nothing, as the relation of that name wants.
        """
        planted = np.arange(self.included.size) if zero_out else np.flatnonzero(self.included)
        row, column = np.divmod(planted, self.side)
        codes = inputs.new_zeros(len(inputs) + len(row), self.side)
        loud = torch.from_numpy(self.included[planted]).to(codes.dtype) * self.loudness
        codes[torch.arange(len(inputs), len(codes)), torch.from_numpy(column)] = loud
        idle = inputs.new_zeros(len(row), *inputs.shape[1:])
        return {"inputs": torch.cat([inputs, idle]), "codes": codes}, torch.cat(
            [targets, torch.from_numpy(-1 - row)]
        )

    def loss(self, loss_fn: Callable[[Any, Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
        """The loss of ordinary rows, and for canaries minus their weight times the loudness."""

        def combined(outputs: tuple[Any, Tensor], targets: Tensor) -> Tensor:
            predicted, squares = outputs
            canary = targets < 0
            own = squares.gather(1, (-1 - targets).clamp(min=0)[:, None])[:, 0]
            return torch.where(canary, -own, loss_fn(predicted, targets.clamp(min=0)))

        return combined

    def scores(self, trained: WithCanaries) -> npt.NDArray[np.float64]:
        """The evidence on each coin: above 0 where it speaks for "in"."""
        return trained.evidence[: self.included.size].numpy().copy()


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelCanaries:
    """`inputs` and `targets` of all canaries are public; whether each is `included` is not."""

    inputs: Tensor  # (canaries, …)
    targets: Tensor  # (canaries,)
    included: npt.NDArray[np.bool_]

    @classmethod
    def drawn(
        cls, included: npt.NDArray[np.bool_], *, shape: tuple[int, ...], classes: int, seed: int
    ) -> LabelCanaries:
        """Rows of ±1, of which any two are nearly at right angles, so that few spoil each other."""
        chance = randomness.public_generator(seed)
        signs = chance.integers(0, 2, (included.size, *shape)) * 2 - 1
        labels = chance.integers(0, _validate.integer("classes", classes, least=2), included.size)
        return cls(
            inputs=torch.from_numpy(signs.astype(np.float32)),
            targets=torch.from_numpy(labels),
            included=included,
        )

    def among(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The rows, with the included canaries after them."""
        chosen = torch.from_numpy(self.included)
        planted = self.inputs[chosen].to(inputs.dtype)
        return torch.cat([inputs, planted]), torch.cat([targets, self.targets[chosen].to(targets.dtype)])

    def margins(self, model: nn.Module) -> npt.NDArray[np.float64]:
        """ln(p / (1 − p)) of each canary's label, as anyone can ask of the model."""
        training = model.training
        like = next(model.parameters())
        model.eval()
        with torch.no_grad():
            logits = model(self.inputs.to(like.dtype)).double()
        model.train(training)
        own = logits.gather(1, self.targets[:, None])
        others = logits.scatter(1, self.targets[:, None], -torch.inf).logsumexp(1)
        return (own[:, 0] - others).numpy()

    def scores(
        self, before: npt.NDArray[np.float64], after: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.float64]:
        """The rise of each margin, beyond that of most canaries of its label: all classes drift in training."""
        rise = after - before
        labels = self.targets.numpy()
        for label in np.unique(labels):
            same = labels == label
            rise[same] -= np.median(rise[same])
        return rise
