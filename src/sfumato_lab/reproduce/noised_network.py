"""A network trained on noised images and noised labels, with both kinds of noise in its model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sfumato import _validate
from sfumato.errors import InvalidInput
from sfumato.local import second_moment
from sfumato.randomness import public_torch_generator

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, eq=False)
class WienerFilter:
    """The best linear guess of x from x + Z: mean + Σ(Σ + σ²I)⁻¹(report − mean), Σ debiased from reports."""

    mean: Rows
    matrix: Rows  # (values, values)

    @classmethod
    def of(cls, reports: Rows, sigma: float) -> WienerFilter:
        """From the reports alone; eigenvalues of Σ that noise explains are 0."""
        sigma = _validate.non_negative("sigma", sigma)
        mean = reports.mean(axis=0, dtype=np.float64)
        spread = second_moment(reports - mean, sigma**2).values
        values, vectors = np.linalg.eigh(spread)
        # Noise alone spreads eigenvalues over ±2σ²√(d/n) (Marchenko & Pastur).
        noise = 2.0 * sigma**2 * float(np.sqrt(reports.shape[1] / len(reports)))
        kept = np.where(values > noise, values, 0.0)
        gain = (vectors * (kept / (kept + sigma**2 + 1e-12))) @ vectors.T
        return cls(mean=mean.astype(np.float32), matrix=gain.astype(np.float32))

    def __call__(self, reports: Rows) -> Rows:
        return ((reports - self.mean) @ self.matrix + self.mean).astype(np.float32)


def channel_loss(scores: Tensor, reported: Tensor, channel: Tensor) -> Tensor:
    """−ln P(reported label): the net's probabilities sent through the label's own noise.

    Patrini et al. 2017, "Making deep neural networks robust to label noise", section 4 (forward correction).

    >>> even = channel_loss(torch.zeros(1, 2), torch.tensor([1]), torch.tensor([[0.9, 0.1], [0.1, 0.9]]))
    >>> round(float(even), 4)  # −ln ½
    0.6931
    """
    said = torch.softmax(scores, dim=1) @ channel  # channel[truth, reported]
    return -torch.log(said.gather(1, reported[:, None]).clamp_min(1e-12)).mean()


@dataclass(frozen=True, kw_only=True)
class NetworkFit:
    """How a network is fitted to reports."""

    epochs: int = 3
    batch: int = 128
    learning_rate: float = 2e-3
    seed: int = 0

    def __post_init__(self) -> None:
        _validate.integer("epochs", self.epochs, least=1)
        _validate.integer("batch", self.batch, least=1)
        _validate.positive("learning_rate", self.learning_rate)


def fit_network(
    model: nn.Module,
    images: Rows,
    labels: npt.NDArray[np.int64],
    channel: npt.NDArray[np.float64],
    config: NetworkFit | None = None,
) -> None:
    """Fit in place to filtered images (n, 28, 28) and reported labels with the channel P(report | truth)."""
    config = config or NetworkFit()
    if len(images) != len(labels) or not len(images):
        raise InvalidInput(f"expected a label for each image, got {len(labels)} and {len(images)}")
    rows, said = torch.from_numpy(images)[:, None], torch.from_numpy(labels)
    table = torch.from_numpy(channel.astype(np.float32))
    optimizer = torch.optim.Adam(model.parameters(), lr=config.learning_rate)
    generator = public_torch_generator(config.seed)
    model.train()
    for _ in range(config.epochs):
        for chosen in torch.split(torch.randperm(len(rows), generator=generator), config.batch):
            loss = channel_loss(model(rows[chosen]), said[chosen], table)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    model.eval()


def predict(model: nn.Module, images: Rows) -> npt.NDArray[np.int64]:
    """The likeliest class of each image (n, 28, 28)."""
    with torch.inference_mode():
        parts = [model(batch).argmax(dim=1) for batch in torch.split(torch.from_numpy(images)[:, None], 1000)]
    return torch.cat(parts).numpy()
