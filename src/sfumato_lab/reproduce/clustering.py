"""Invariant information clustering: digits told apart without any label.

A net's soft assignments of two distorted copies of an image should agree and still use all clusters: with
P = (1/n) Σ Φ(gx)Φ(hx)ᵀ, symmetrised, the loss is −Σ P_ij (ln P_ij − ln P_i − ln P_j), minus their mutual
information. Heads with more clusters than classes help the body, and stumble less often: a head of ten may
have two digits in one cluster and one digit in two, and no small step leads out of it. So the many clusters are
also merged, the two first whose merging costs the least information. Of all these assignments the one with
the most information is taken, without looking at labels; its clusters are named by Hungarian matching.

Ji, Henriques & Vedaldi 2019, "Invariant information clustering"; Slonim & Tishby 1999, "Agglomerative
information bottleneck" (merging). Their net is some 50 times larger and sees
each image hundreds of times. In fewer steps a net finds easier things than digits that survive crops and turns:
how thick the pen is, how much the writing slants. So copies differ in these, too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import torch
import typer
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn import functional

from sfumato import datasets
from sfumato.cli import show
from sfumato.randomness import public_torch_generator, public_torch_seed
from sfumato_lab.reproduce.tables import chosen, kept, mean_and_spread

_SIDE = 24
_TINY = 1e-9
_ROUNDS = 20  # of exchanges at most; a few are enough
_MEMORY = 0.98  # of the running mean of joint assignments: about the last 50 steps


@dataclass(frozen=True, kw_only=True)
class Distortion:
    """How much two copies of an image may differ: each in turn, slant, size, place and thickness."""

    turn: float = 15.0  # degrees
    slant: float = 0.2  # sideways for each step up
    zoom: float = 1.2  # larger or smaller by at most this factor
    move: float = 0.12  # of half the image's side
    thickness: float = 0.7  # 1: up to a whole pixel on each side of a line more, or less


@dataclass(frozen=True, kw_only=True)
class ClusteringPlan:
    """How clusters are learnt; chosen so that 60,000 images take minutes on two cores."""

    clusters: int = 10
    over_clusters: int = 50
    heads: int = 16
    over_heads: int = 5
    pairs: int = 700
    steps: int = 800
    learning_rate: float = 2e-3
    distortion: Distortion = field(default_factory=Distortion)
    seed: int = 0


class ClusteringNet(nn.Module):
    """Three strided convolutions with batch normalisation, and heads for both numbers of clusters."""

    def __init__(self, plan: ClusteringPlan) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs, kernel in ((1, 32, 5), (32, 64, 3), (64, 128, 3)):
            convolution = nn.Conv2d(inputs, outputs, kernel, stride=2, padding=kernel // 2, bias=False)
            layers += [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]
        self.body = nn.Sequential(*layers, nn.Flatten())
        width = 128 * (_SIDE // 8) ** 2
        self.heads = nn.Linear(width, plan.heads * plan.clusters)
        self.over_heads = nn.Linear(width, plan.over_heads * plan.over_clusters)
        self.shapes = (plan.heads, plan.clusters), (plan.over_heads, plan.over_clusters)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Soft assignments (images, heads, clusters), and those of the heads with more clusters."""
        seen = self.body(images.contiguous(memory_format=torch.channels_last))
        few, many = (
            functional.softmax(head(seen).unflatten(1, shape), dim=2)
            for head, shape in zip((self.heads, self.over_heads), self.shapes, strict=True)
        )
        return few, many


@dataclass(frozen=True, kw_only=True)
class Clustered:
    """Accuracy after matching clusters to classes, of the assignment with the least loss, and of each."""

    accuracy: float
    accuracies: tuple[float, ...] = ()  # of each head, then of each merged one
    losses: tuple[float, ...] = ()  # of the same, over the last steps
    seconds: float = 0.0
    cpu_seconds: float = 0.0


def cluster(
    images: npt.NDArray[np.float32],
    test: npt.NDArray[np.float32],
    labels: npt.NDArray[np.int64],
    plan: ClusteringPlan,
    *,
    progress: Callable[[int], None] | None = None,
) -> Clustered:
    """Learn clusters of `images` (n, 28, 28) without labels; name and count them on public test images."""
    started, cpu = time.perf_counter(), time.process_time()
    with public_torch_seed(plan.seed):
        net = ClusteringNet(plan)
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack it
    few, many = _fit(net, torch.from_numpy(images)[:, None], plan, progress or (lambda step: None))
    merges = torch.stack([merged(joint, plan.clusters) for joint in many])  # (over heads, many, clusters)
    joints = torch.cat([few, merges.transpose(1, 2) @ many @ merges])
    losses = information_loss(joints)
    found = _accuracies(net, merges, torch.from_numpy(test)[:, None], labels)
    return Clustered(
        accuracy=found[int(losses.argmin())],
        accuracies=tuple(found),
        losses=tuple(losses.tolist()),
        seconds=time.perf_counter() - started,
        cpu_seconds=time.process_time() - cpu,
    )


def _fit(
    net: ClusteringNet, rows: Tensor, plan: ClusteringPlan, progress: Callable[[int], None]
) -> tuple[Tensor, Tensor]:
    """Both kinds of heads at once, step by step; the running means of their joint assignments."""
    optimizer = torch.optim.Adam(net.parameters(), lr=plan.learning_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, plan.learning_rate, total_steps=plan.steps, pct_start=0.1
    )
    generator = public_torch_generator(plan.seed)
    running = [torch.zeros(heads, size, size) for heads, size in net.shapes]
    batches = _batches(len(rows), plan, generator)
    net.train()
    for step in range(plan.steps):
        chosen = rows[next(batches)]
        copies = [distort(chosen, plan.distortion, generator) for _ in range(2)]
        joints = [joint_assignment(*part.chunk(2)) for part in net(torch.cat(copies))]
        optimizer.zero_grad()
        sum(information_loss(joint).mean() for joint in joints).backward()  # type: ignore[union-attr]
        optimizer.step()
        schedule.step()
        weight = max(1 - _MEMORY, 1 / (step + 1))
        running = [
            torch.lerp(mean, joint.detach(), weight) for mean, joint in zip(running, joints, strict=True)
        ]
        progress(step + 1)
    return running[0], running[1]


def _batches(count: int, plan: ClusteringPlan, generator: torch.Generator) -> Iterator[Tensor]:
    """Whole batches in a new order each time around, without end."""
    size = min(plan.pairs, count)
    while True:
        order = torch.randperm(count, generator=generator)
        yield from torch.split(order[: count - count % size], size)


def joint_assignment(one: Tensor, other: Tensor) -> Tensor:
    """P of each head (heads, clusters, clusters), from both copies' assignments (pairs, heads, clusters)."""
    joint = torch.einsum("nhi,nhj->hij", one, other) / len(one)
    return (joint + joint.transpose(1, 2)) / 2


def information_loss(joint: Tensor) -> Tensor:
    """−I of joint assignments (heads, clusters, clusters), in nats; one for each head.

    >>> sure = torch.eye(4)[:, None]
    >>> round(float(information_loss(joint_assignment(sure, sure))), 4)  # −ln 4
    -1.3863
    """
    joint = joint.clamp_min(_TINY)
    rows, columns = joint.sum(dim=2, keepdim=True), joint.sum(dim=1, keepdim=True)
    return -(joint * (joint.log() - rows.log() - columns.log())).sum(dim=(1, 2))


def merged(joint: Tensor, clusters: int) -> Tensor:
    """Which of `clusters` each of many becomes (many, clusters), 0 or 1: step by step the cheapest merger.

    Slonim & Tishby 1999, section 3, with both sides of the symmetric joint merged at once. Then single ones
    change over as long as that brings information (Slonim, Friedman & Tishby 2002).

    >>> blocks = torch.block_diag(torch.full((2, 2), 0.125), torch.full((2, 2), 0.125))
    >>> merged(blocks, 2).tolist()
    [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]
    """
    groups = torch.eye(len(joint))
    while groups.shape[1] > clusters:
        cost = _cost_of_merging(groups.T @ joint @ groups)
        first, second = divmod(int(cost.argmin()), groups.shape[1])
        kept = [index for index in range(groups.shape[1]) if index != max(first, second)]
        groups[:, min(first, second)] += groups[:, max(first, second)]
        groups = groups[:, kept]
    return _exchanged(groups, joint)


def _exchanged(groups: Tensor, joint: Tensor) -> Tensor:
    """The groups after single clusters have changed over to where they bring the most information."""
    choices = torch.eye(groups.shape[1])
    for _ in range(_ROUNDS):
        before = groups.clone()
        for one in range(len(groups)):
            tried = groups.repeat(len(choices), 1, 1)
            tried[:, one] = choices
            groups = tried[int(information_loss(tried.transpose(1, 2) @ joint @ tried).argmin())]
        if torch.equal(groups, before):
            break
    return groups


def _cost_of_merging(joint: Tensor) -> Tensor:
    """The information lost by merging each two clusters; infinite for a cluster with itself."""

    def term(share: Tensor) -> Tensor:
        return torch.xlogy(share, share)

    whole, alone, own = joint.sum(dim=1), term(joint), joint.diagonal()
    # I = Σ P ln P − 2 Σ p ln p. Rows i and j become one, (i, j, others); so do the columns.
    rows = (term(joint[:, None] + joint[None]) - alone[:, None] - alone[None]).sum(dim=2)
    at_i = term(own[:, None] + joint) - term(own)[:, None] - alone
    corner = term(own[:, None] + own[None] + 2 * joint) - term(own)[:, None] - term(own)[None] - 2 * alone
    margins = term(whole[:, None] + whole[None]) - term(whole)[:, None] - term(whole)[None]
    gained = 2 * (rows - at_i - at_i.T) + corner - 2 * margins
    return (-gained).fill_diagonal_(math.inf)


def centre_crop(images: Tensor) -> Tensor:
    """The middle 24 × 24 of 28 × 28."""
    edge = (images.shape[-1] - _SIDE) // 2
    return images[..., edge : edge + _SIDE, edge : edge + _SIDE]


def distort(images: Tensor, most: Distortion, generator: torch.Generator) -> Tensor:
    """A copy of each image, 24 × 24, turned, slanted, scaled and moved in one sampling; thicker or thinner."""
    count = len(images)

    def uniform(width: float) -> Tensor:
        return width * (2 * torch.rand(count, generator=generator) - 1)

    angle, slant = uniform(math.radians(most.turn)), uniform(most.slant)
    high = _SIDE / images.shape[-1] * torch.exp(uniform(math.log(most.zoom)))
    wide = high * torch.exp(uniform(0.35 * math.log(most.zoom)))
    cosine, sine = torch.cos(angle), torch.sin(angle)
    across = torch.stack([wide * cosine, wide * (cosine * slant - sine), uniform(most.move)], dim=1)
    down = torch.stack([high * sine, high * (sine * slant + cosine), uniform(most.move)], dim=1)
    matrix = torch.stack([across, down], dim=1)  # (images, 2, 3)
    grid = functional.affine_grid(matrix, [count, 1, _SIDE, _SIDE], align_corners=False)
    copies = functional.grid_sample(images, grid, align_corners=False)
    return _thicken(copies, uniform(most.thickness)[:, None, None, None])


def _thicken(images: Tensor, amount: Tensor) -> Tensor:
    """Towards the brightest of the 3 × 3 pixels around for amounts above 0, towards the darkest below."""
    sign = torch.where(amount < 0, -1.0, 1.0)  # the darkest is minus the brightest of the negative
    extreme = sign * functional.max_pool2d(sign * images, 3, stride=1, padding=1)
    return images + amount.abs() * (extreme - images)


def _accuracies(net: ClusteringNet, merges: Tensor, test: Tensor, labels: npt.NDArray[np.int64]) -> list[float]:
    net.eval()
    parts = []
    with torch.inference_mode():
        for batch in torch.split(test, 1000):
            few, many = net(centre_crop(batch))
            parts.append(torch.cat([few, torch.einsum("nhm,hmc->nhc", many, merges)], dim=1).argmax(dim=2))
    heads = torch.cat(parts).numpy().T  # (heads, images)
    return [matched_accuracy(head, labels, merges.shape[2]) for head in heads]


def matched_accuracy(found: npt.NDArray[np.int64], labels: npt.NDArray[np.int64], clusters: int) -> float:
    """The share of right answers under the best one-to-one naming of clusters (Kuhn 1955).

    >>> matched_accuracy(np.array([1, 1, 0, 0]), np.array([0, 0, 1, 0]), 2)
    0.75
    """
    counts = np.zeros((clusters, clusters), dtype=np.int64)
    np.add.at(counts, (found, labels), 1)
    rows, columns = linear_sum_assignment(-counts)
    return float(counts[rows, columns].sum() / len(labels))


def run(
    out: Path,
    plan: ClusteringPlan,
    *,
    data: str = "mnist",
    people: int = 60_000,
    seeds: int = 5,
    tell: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Cluster raw images from several initial weights: MNIST's, or drawings, on which settings are chosen."""
    from sfumato_lab.reproduce.local_noise import pictures_of, unit_images

    @cache
    def images() -> list[Any]:
        if data == "mnist":
            train, test = datasets.load("mnist", "train").excerpt(people), datasets.load("mnist", "test")
            first, second, labels = train.inputs[:, 0], test.inputs[:, 0], test.targets
        else:
            first, _ = datasets.draw(datasets.TOGETHER, people, seed=1)
            second, labels = datasets.draw(datasets.TOGETHER, min(people, 10_000), seed=2)
        return [pictures_of(unit_images(first)), pictures_of(unit_images(second)), labels]

    def once(own: ClusteringPlan) -> dict[str, float]:
        first, second, labels = images()
        found = cluster(first, second, labels, own, progress=lambda step: tell(f"seed {own.seed}, step {step}"))
        return {"accuracy": found.accuracy, "cpu_seconds": found.cpu_seconds}

    found = []
    for seed in range(seeds):
        own = replace(plan, seed=seed)
        about = {"data": data, "people": people, "plan": asdict(own)}
        found.append(kept(out, f"{chosen([data], ('mnist', 'drawings'))[0]}-{seed}", about, partial(once, own)))
    return {
        "data": data,
        "plan": asdict(plan),
        "accuracies": [one["accuracy"] for one in found],
        "mean_accuracy": fmean(one["accuracy"] for one in found),
        "cpu_seconds": [one["cpu_seconds"] for one in found],
    }


def clustering(
    out: show.Out = Path("out/clustering"),
    data: Annotated[
        str, typer.Option(help="mnist, or drawings: settings are chosen on drawings, never on MNIST.")
    ] = "mnist",
    seeds: Annotated[int, typer.Option(help="Number of runs, each from other initial weights.")] = 5,
    steps: Annotated[int, typer.Option(help="Steps of each run.")] = 800,
    people: Annotated[int, typer.Option(help="Number of images.")] = 60_000,
    turn: Annotated[float, typer.Option(help="Most that a copy is turned, in degrees.")] = 15.0,
    slant: Annotated[float, typer.Option(help="Most that a copy is slanted.")] = 0.2,
    json: show.Json = False,
) -> None:
    """Cluster raw images without labels (invariant information clustering), several times.

    Example: sfumato reproduce clustering --seeds 5
    """
    plan = ClusteringPlan(steps=steps, distortion=Distortion(turn=turn, slant=slant))
    with show.errors.status("clustering") as status:
        found = run(out, plan, data=data, people=people, seeds=seeds, tell=lambda text: status.update(text))
    if json:
        show.emit_json(found)
        return
    show.facts(
        [
            ("accuracy", mean_and_spread(found["accuracies"])),
            ("each run", ", ".join(f"{accuracy:.2%}" for accuracy in found["accuracies"])),
            ("CPU seconds a run", f"{fmean(found['cpu_seconds']):.0f}"),
        ]
    )
