"""How good synthetic images are: likeness, labels, copies, styles, and what a net learns from them alone.

All of it compares with real images that are public. On private ones the outcome would be private.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sfumato import randomness
from sfumato_lab.images.styles import Floats, Images, Integers, to_inputs

Features = Callable[[Tensor], Tensor]
_BATCH = 100
_ANSWERED = 100  # images at a time: what nets compute on them stays in the cache
WIDTH = 32
_HELD_OUT = 0.1  # of the synthetic images, on which the number of epochs is chosen


def to_targets(labels: Integers) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(labels))


@torch.no_grad()
def features_of(images: Tensor, features: Features) -> Floats:
    """(images, features), in doubles."""
    return np.concatenate([features(part).double().numpy() for part in torch.split(images, _ANSWERED)])


def frechet(one: Floats, two: Floats) -> float:
    """Fréchet distance of two sets of features, as if each were Gaussian (Heusel et al. 2017).

    |μ₁ − μ₂|² + tr(Σ₁ + Σ₂ − 2(Σ₁Σ₂)^½). Features of few images make it too large.

    >>> rows = np.array([[0.0, 1.0], [2.0, 5.0], [1.0, 0.0]])
    >>> abs(frechet(rows, rows + [3.0, 4.0]) - 25.0) < 1e-6
    True
    """
    (mean, spread), (other, width) = ((rows.mean(axis=0), np.cov(rows.T)) for rows in (one, two))
    values, vectors = np.linalg.eigh(spread)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    common = np.sqrt(np.maximum(np.linalg.eigvalsh(root @ width @ root), 0.0)).sum()
    return float(np.square(mean - other).sum() + np.trace(spread) + np.trace(width) - 2 * common)


def nearest_distances(images: Images, others: Images) -> Floats:
    """Root mean squared distance, in grey levels from 0 to 1, of each image to the nearest of the others."""
    return _nearest(images, others)[0].double().numpy() / 28


def nearest_places(images: Images, others: Images) -> Integers:
    """Which of the others is nearest to each image."""
    return _nearest(images, others)[1].numpy()


def _nearest(images: Images, others: Images) -> tuple[Tensor, Tensor]:
    rows, near = (to_inputs(each).flatten(1) for each in (images, others))
    parts = [torch.cdist(part, near).min(dim=1) for part in torch.split(rows, _ANSWERED)]
    return torch.cat([part.values for part in parts]), torch.cat([part.indices for part in parts])


def coverage(made: Floats, real: Floats, *, neighbours: int = 5) -> float:
    """Share of real images with a synthetic one nearer than their fifth real neighbour (Naeem et al. 2020).

    Take as many of both: the more synthetic ones, the likelier one is near.
    """
    rows, other = torch.from_numpy(real).float(), torch.from_numpy(made).float()
    reach = torch.cdist(rows, rows).kthvalue(neighbours + 1, dim=1).values
    return float((torch.cdist(rows, other).min(dim=1).values <= reach).float().mean())


class Reader(nn.Module):
    """A plain convolutional network for 28 × 28 images: what is trained on synthetic images alone.

    `width`: channels of the first layer; the second has twice as many.
    """

    def __init__(self, classes: int, width: int = WIDTH) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_block(1, width),  # 14 × 14
            *_block(width, 2 * width),  # 7 × 7
            nn.Flatten(),
            nn.Dropout(0.3),
            nn.Linear(2 * width * 49, 128),
            nn.ReLU(),
        )
        self.head = nn.Linear(128, classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(images))
        return logits

    def features(self, images: Tensor) -> Tensor:
        """(images, 128), of unit length."""
        return functional.normalize(self.body(images), dim=1)


def _block(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.MaxPool2d(2), nn.BatchNorm2d(outputs), nn.ReLU()]


@dataclass(frozen=True, kw_only=True)
class Learned:
    """A network, and after which epoch it was best on held-out images of the set that it learned from."""

    net: Reader
    epoch: int
    held_out_accuracy: float


def learn(
    images: Images, labels: Integers, *, classes: int, epochs: int = 5, width: int = WIDTH, seed: int = 0
) -> Learned:
    """A network from these images alone; a tenth, which it does not learn from, says which epoch was best."""
    held = round(_HELD_OUT * len(images))
    order = randomness.public_generator(seed).permutation(len(images))
    inputs, targets = to_inputs(images[order]), to_targets(labels[order])
    with randomness.public_torch_seed(seed):
        net = Reader(classes, width)
        net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack it
        return _best_epoch(net, (inputs[held:], targets[held:]), (inputs[:held], targets[:held]), epochs)


def _best_epoch(net: Reader, rows: tuple[Tensor, Tensor], held: tuple[Tensor, Tensor], epochs: int) -> Learned:
    steps = epochs * -(-len(rows[0]) // _BATCH)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    best, found, epoch = -1.0, dict[str, Tensor](), 0
    for number in range(1, epochs + 1):
        net.train()
        for chosen in torch.split(torch.randperm(len(rows[0])), _BATCH):
            optimizer.zero_grad()
            logits = net(_moved(rows[0][chosen]))
            functional.cross_entropy(logits, rows[1][chosen]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
        reached = accuracy(net, *held)
        if reached >= best:
            best, epoch = reached, number
            found = {name: value.clone() for name, value in net.state_dict().items()}
    net.load_state_dict(found)
    return Learned(net=net.eval(), epoch=epoch, held_out_accuracy=best)


def _moved(images: Tensor) -> Tensor:
    """A batch moved by up to a pixel, the same way for all of it."""
    down, right = torch.randint(-1, 2, (2,)).tolist()
    return images.roll((down, right), (2, 3)).contiguous(memory_format=torch.channels_last)


@torch.no_grad()
def accuracy(net: nn.Module, images: Tensor, targets: Tensor) -> float:
    net.eval()
    right = [
        (net(part).argmax(dim=1) == answer).sum()
        for part, answer in zip(torch.split(images, _ANSWERED), torch.split(targets, _ANSWERED), strict=True)
    ]
    return float(sum(right)) / max(1, len(images))
