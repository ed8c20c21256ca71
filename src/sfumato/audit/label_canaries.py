"""Poisoned labels: rows of noise with labels drawn by lot, which a model can only know by heart.

Each is put into the training data or left out by a coin of its own. The attacker sees the finished model from
outside: by how much its answers on a canary moved towards the canary's label. There is no hook in the training,
and nothing of the canaries in the model but what it learned.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sfumato import _validate, randomness


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
