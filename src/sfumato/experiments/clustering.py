"""Invariant information clustering: digits told apart without any label.

A net's soft assignment of an image and of a distorted copy should agree and still use all clusters: with
P = (1/n) Σ Φ(x)Φ(gx)ᵀ, symmetrised, the loss is −Σ P_ij (ln P_ij − ln P_i − ln P_j), minus their mutual
information. A second head with more clusters than classes helps the body. Clusters are named by Hungarian
matching; of several sub-heads the one with the least loss is taken, without looking at labels.

Ji, Henriques & Vedaldi 2019, "Invariant information clustering". Their net is 45 times larger than ours.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn import functional

from sfumato import _validate
from sfumato.randomness import public_torch_generator, public_torch_seed

_SIDE = 24
_CROPS = (16, 20, 24)
_TINY = 1e-9


@dataclass(frozen=True, kw_only=True)
class ClusteringPlan:
    """Settings of the original MNIST run, with a smaller net, fewer passes and larger steps."""

    clusters: int = 10
    over_clusters: int = 50
    sub_heads: int = 5
    pairs: int = 700
    epochs: int = 12
    learning_rate: float = 1e-3
    turn: float = 25.0  # degrees, at most, of every second copy
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("clusters", "over_clusters", "sub_heads", "pairs", "epochs"):
            _validate.integer(name, getattr(self, name), least=1)
        _validate.positive("learning_rate", self.learning_rate)
        _validate.non_negative("turn", self.turn)


class ClusteringNet(nn.Module):
    """Convolutions 16-32-64-128 with batch normalisation, and sub-heads for both numbers of clusters."""

    def __init__(self, plan: ClusteringPlan) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in ((1, 16), (16, 32), (32, 64), (64, 128)):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
            layers += [nn.MaxPool2d(2)] if outputs < 128 else []
        self.body = nn.Sequential(*layers, nn.Flatten())
        width = 128 * (_SIDE // 8) ** 2
        self.heads = nn.ModuleList(nn.Linear(width, plan.clusters) for _ in range(plan.sub_heads))
        self.over_heads = nn.ModuleList(nn.Linear(width, plan.over_clusters) for _ in range(plan.sub_heads))

    def assignments(self, images: Tensor, *, over: bool) -> list[Tensor]:
        """Soft assignments (images, clusters) of each sub-head."""
        seen = self.body(images)
        return [functional.softmax(head(seen), dim=1) for head in (self.over_heads if over else self.heads)]


@dataclass(frozen=True, kw_only=True)
class Clustered:
    """Accuracy after matching clusters to classes, of the sub-head with the least loss, and how it was got."""

    accuracy: float
    accuracies: tuple[float, ...] = field(default=())
    losses: tuple[float, ...] = field(default=())
    seconds: float = 0.0
    cpu_seconds: float = 0.0


def cluster(
    images: npt.NDArray[np.float32],
    test: npt.NDArray[np.float32],
    labels: npt.NDArray[np.int64],
    plan: ClusteringPlan,
    *,
    progress: Callable[[str], None] | None = None,
) -> Clustered:
    """Learn clusters of `images` (n, 28, 28) without labels; name and count them on public test images."""
    started, cpu = time.perf_counter(), time.process_time()
    with public_torch_seed(plan.seed):
        net = ClusteringNet(plan)
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack it
    optimizer = torch.optim.Adam(net.parameters(), lr=plan.learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, plan.epochs)
    generator, rows = public_torch_generator(plan.seed), torch.from_numpy(images)[:, None]
    losses = torch.zeros(plan.sub_heads)
    for epoch in range(plan.epochs):
        losses = _one_pass(net, optimizer, rows, plan, generator)
        schedule.step()
        if progress is not None:
            progress(f"epoch {epoch + 1} of {plan.epochs}: loss {float(losses.min()):.3f}")
    found = _accuracies(net, torch.from_numpy(test)[:, None], labels, plan.clusters)
    return Clustered(
        accuracy=found[int(losses.argmin())],
        accuracies=tuple(found),
        losses=tuple(losses.tolist()),
        seconds=time.perf_counter() - started,
        cpu_seconds=time.process_time() - cpu,
    )


def _one_pass(
    net: ClusteringNet,
    optimizer: torch.optim.Optimizer,
    rows: Tensor,
    plan: ClusteringPlan,
    generator: torch.Generator,
) -> Tensor:
    """One pass for each head in turn, step by step; mean losses of the sub-heads."""
    net.train()
    total, steps = torch.zeros(plan.sub_heads), 0
    for number, chosen in enumerate(torch.split(torch.randperm(len(rows), generator=generator), plan.pairs)):
        if len(chosen) < plan.pairs // 2:
            continue
        both = torch.cat([centre_crop(rows[chosen]), distort(rows[chosen], plan.turn, generator)])
        over = number % 3 == 2
        parts = net.assignments(both.to(memory_format=torch.channels_last), over=over)
        losses = torch.stack([mutual_information_loss(*part.chunk(2)) for part in parts])
        optimizer.zero_grad()
        losses.mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if not over:
            total, steps = total + losses.detach(), steps + 1
    return total / max(steps, 1)


def mutual_information_loss(one: Tensor, other: Tensor) -> Tensor:
    """−I of the joint assignment of pairs, in nats.

    >>> sure = torch.eye(4)
    >>> round(float(mutual_information_loss(sure, sure)), 4)  # −ln 4
    -1.3863
    """
    joint = one.T @ other / len(one)
    joint = ((joint + joint.T) / 2).clamp_min(_TINY)
    rows, columns = joint.sum(dim=1, keepdim=True), joint.sum(dim=0, keepdim=True)
    return -(joint * (joint.log() - rows.log() - columns.log())).sum()


def centre_crop(images: Tensor) -> Tensor:
    """The middle 24 × 24 of 28 × 28."""
    edge = (images.shape[-1] - _SIDE) // 2
    return images[..., edge : edge + _SIDE, edge : edge + _SIDE]


def distort(images: Tensor, turn: float, generator: torch.Generator) -> Tensor:
    """Crops of 16, 20 or 24 pixels anywhere, every second one turned, all resized to 24 × 24; one sampling."""
    count, side = len(images), images.shape[-1]
    size = torch.tensor(_CROPS)[torch.randint(len(_CROPS), (count,), generator=generator)]
    turned = torch.rand(count, generator=generator) < 0.5
    angle = math.radians(turn) * (2 * torch.rand(count, generator=generator) - 1) * turned
    scale = size / side
    # The crop's centre, in coordinates from −1 to 1, may be anywhere the crop stays inside.
    centre = (2 * torch.rand(count, 2, generator=generator) - 1) * (1 - scale)[:, None]
    cosine, sine = scale * torch.cos(angle), scale * torch.sin(angle)
    matrix = torch.stack(
        [torch.stack([cosine, -sine, centre[:, 0]], dim=1), torch.stack([sine, cosine, centre[:, 1]], dim=1)],
        dim=1,
    )  # (images, 2, 3)
    grid = functional.affine_grid(matrix, [count, 1, _SIDE, _SIDE], align_corners=False)
    return functional.grid_sample(images, grid, align_corners=False)


def _accuracies(net: ClusteringNet, test: Tensor, labels: npt.NDArray[np.int64], clusters: int) -> list[float]:
    net.eval()
    with torch.inference_mode():
        parts = [net.assignments(centre_crop(batch), over=False) for batch in torch.split(test, 1000)]
    heads = [torch.cat(part).argmax(dim=1).numpy() for part in zip(*parts, strict=True)]
    return [matched_accuracy(head, labels, clusters) for head in heads]


def matched_accuracy(found: npt.NDArray[np.int64], labels: npt.NDArray[np.int64], clusters: int) -> float:
    """The share of right answers under the best one-to-one naming of clusters (Kuhn 1955).

    >>> matched_accuracy(np.array([1, 1, 0, 0]), np.array([0, 0, 1, 0]), 2)
    0.75
    """
    counts = np.zeros((clusters, clusters), dtype=np.int64)
    np.add.at(counts, (found, labels), 1)
    rows, columns = linear_sum_assignment(-counts)
    return float(counts[rows, columns].sum() / len(labels))
