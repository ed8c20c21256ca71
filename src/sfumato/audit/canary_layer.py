"""Canaries inside a run: records that nobody is, which move weights that nothing else uses.

A layer of canary weights is trained beside the model, under the same sampling, clipping and noise. Each canary
is put into the training data or left out by a coin of its own; its gradient is one canary weight, and nothing
else. What that weight has become is all that a release says about the coin: after training, the guesses are
made from it, the layer is thrown away, and the model's own weights have only seen a batch with some idle rows.

    canaries = Canaries.drawn(1000, SecretStream(), loudness=10 * plan.clip_norm)
    trainer = PrivateTrainer(canaries.beside(model), …)         # any optimizer without momentum or decay
    for batch in trainer.batches(canaries.among(inputs, targets)):
        trainer.step(batch, canaries.loss(loss_fn))
    Guesses.of_scores(canaries.scores(trainer.model), canaries.included, guesses=100)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sfumato import _validate
from sfumato.randomness import Sampler


class WithCanaries(nn.Module):
    """A model, and a square of canary weights beside it; takes rows and their canary codes.

    Without codes it is the model alone, so that it can be evaluated as one.
    """

    def __init__(self, model: nn.Module, side: int) -> None:
        super().__init__()
        self.model = model
        like = next(model.parameters())
        self.canaries = nn.Linear(side, side, bias=False, dtype=like.dtype)
        nn.init.zeros_(self.canaries.weight)

    def forward(self, inputs: Tensor, codes: Tensor | None = None) -> Any:
        predicted = self.model(inputs)
        return predicted if codes is None else (predicted, self.canaries(codes))


@dataclass(frozen=True, kw_only=True, eq=False)
class Canaries:
    """`included[j]` is the coin of canary j, whose weight is the j-th of the square."""

    included: npt.NDArray[np.bool_]
    loudness: float  # norm of a canary's gradient before clipping

    @classmethod
    def drawn(cls, count: int, sampler: Sampler, *, loudness: float) -> Canaries:
        """Toss the coins; `loudness` should be several clip norms."""
        _validate.integer("count", count, least=2)
        return cls(included=sampler.bernoulli(0.5, count), loudness=_validate.positive("loudness", loudness))

    @property
    def side(self) -> int:
        return math.isqrt(self.included.size - 1) + 1

    def beside(self, model: nn.Module) -> WithCanaries:
        return WithCanaries(model, self.side)

    def among(self, inputs: Tensor, targets: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """The rows with the included canaries after them, as named inputs of `WithCanaries`, and targets.

        A canary's row is the first input's shape in zeros; its target is −1 − its row of the square.
        """
        row, column = np.divmod(np.flatnonzero(self.included), self.side)
        codes = inputs.new_zeros(len(inputs) + len(row), self.side)
        codes[torch.arange(len(inputs), len(codes)), torch.from_numpy(column)] = self.loudness
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
        """What each canary's weight has become: with plain steps, the sum of all that was released about it."""
        weights = trained.canaries.weight.detach().double().flatten().numpy()
        return weights[: self.included.size].copy()
