"""How good synthetic images are: likeness, labels, copies, styles, and a net trained on them alone.

All of it compares with real images that are public. On private ones the outcome would be private.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sfumato import randomness
from sfumato.datasets import Dataset
from sfumato.learn.features import fitted
from sfumato.models import load_prior
from sfumato_lab.images.sampler import Drawn, ImageSampler
from sfumato_lab.images.styles import Floats, Images, Integers, to_inputs

Features = Callable[[Tensor], Tensor]
_BATCH = 100
_ANSWERED = 100  # images at a time: the nets' activations stay in the cache
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
    """A plain convolutional network for 28 × 28 images, trained on synthetic images alone.

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


_COMPARED = 5000  # images of either kind
_SEED = 12  # of drawings that were not used before
_NORMAL_95 = 1.96
GOOD_FOR = "training a classifier of the same classes, and showing what the images are like"
NOT_GOOD_FOR = "rare styles that few people have, fine texture, and anything that is not in the drawings"


def report(sampler: ImageSampler, drawn: Drawn, test: Dataset | None) -> dict[str, Any]:
    """Classes with intervals, how many images were left out, and distances to public images, if any."""
    found: dict[str, Any] = {
        "images": len(drawn),
        "left_out_as_unsure": round(drawn.unsure / drawn.tried, 4),
        "mean_confidence": round(float(drawn.sure.mean()), 4),
        "classes": _classes(sampler, drawn),
        "good_for": GOOD_FOR,
        "not_good_for": NOT_GOOD_FOR,
        "frechet_distance": None,
    }
    if test is not None:
        found["frechet_distance"] = _distances(sampler, drawn, test)
    return found


def _classes(sampler: ImageSampler, drawn: Drawn) -> list[dict[str, Any]]:
    """Images of each class beside the noisy count of private ones; the interval covers the noise alone."""
    made = np.bincount(drawn.labels, minlength=len(sampler.class_names))
    lines: list[dict[str, Any]] = [
        {"class": name, "images": int(count)} for name, count in zip(sampler.class_names, made, strict=True)
    ]
    if sampler.statistics is not None:
        reach = _NORMAL_95 * sampler.statistics.count_sigma
        for line, count in zip(lines, sampler.statistics.counts, strict=True):
            line["people"] = round(float(count))
            line["people_95"] = [round(float(count - reach)), round(float(count + reach))]
    return lines


def _distances(sampler: ImageSampler, drawn: Drawn, test: Dataset) -> dict[str, Any]:
    """In the features of the drawings' own net, of at most 5,000 images each."""
    settings = sampler.styles.settings
    name = settings.net
    features = load_prior(name).features
    real = features_of(fitted(test).tensors()[0][:_COMPARED], features)
    drawings, kinds = sampler.styles.draw(_COMPARED, seed=_SEED)
    if settings.matched:
        drawings = drawings[kinds < len(sampler.class_names)]
    return {
        "synthetic": round(frechet(features_of(to_inputs(drawn.images[:_COMPARED]), features), real), 4),
        "drawings": round(frechet(features_of(to_inputs(drawings), features), real), 4),
        "features": f"of the public prior {name!r}",
        "public_images": min(_COMPARED, len(test)),
    }


def in_words(found: dict[str, Any]) -> str:
    """The report as plain text."""
    lines = [
        f"{found['images']:,} synthetic images. Good for: {found['good_for']}.",
        f"Not good for: {found['not_good_for']}.",
        f"{found['left_out_as_unsure']:.1%} of the images that were drawn were left out: those whose label the "
        "head was least sure of, and those that it takes for something else than was drawn. The head gives the "
        f"labels of the others a probability of {found['mean_confidence']:.2f} on average; far below 1, it "
        "learned too little to rely on its labels.",
    ]
    for line in found["classes"]:
        people = ""
        if "people" in line:
            low, high = line["people_95"]
            people = f"; private images: about {line['people']:,} ({low:,} to {high:,} with 95%)"
        lines.append(f"class {line['class']}: {line['images']:,} images{people}")
    distance = found["frechet_distance"]
    if distance is None:
        lines.append("There are no public images to compare with, so that likeness was not measured.")
    else:
        lines.append(
            f"Fréchet distance to {distance['public_images']:,} public test images, in features "
            f"{distance['features']}: {distance['synthetic']}; plain drawings: {distance['drawings']}."
        )
    return "\n".join(lines) + "\n"
