"""Make the autoencoders of synthetic images: draw with wide variety, train, write the weights that ship.

No image of a person goes in. The same recipe on the same machine, versions and number of threads gives the same
bytes.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.torch
import torch
from torch import Tensor
from torch.nn import functional

from sfumato import _validate, randomness
from sfumato.datasets import shapes, strokes
from sfumato.models.latents import Autoencoder
from sfumato.storage import json_bytes, write_whole

WIDE = strokes.Hand(
    pose_concentration=0.5, shake=0.02, slant_spread=0.34, turn=0.14, stretch=0.26, bend=0.18, warp=0.032,
    pen_spread=0.45, pressure=0.2, rough=0.12,
)  # fmt: skip
"""Writers who differ more than those of the classifier's prior: more shapes to be near to."""

Drawings = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]


def draw_wide(count: int, *, seed: int) -> Drawings:
    """Digits of wide variety, half of them by the ordinary hand."""
    ordinary, labels = strokes.draw(max(1, count // 2), seed=seed)
    wide, more = strokes.draw(max(1, count - count // 2), seed=seed + 10_000, hand=WIDE)
    return np.concatenate([ordinary, wide])[:count], np.concatenate([labels, more])[:count]


DRAW: Mapping[str, Callable[..., Drawings]] = {"strokes-latents": draw_wide, "shapes-latents": shapes.draw}


@dataclass(frozen=True, kw_only=True)
class LatentsRecipe:
    """How an autoencoder is trained; the values were set on held-out drawings."""

    name: str = "strokes-latents"
    rounds: int = 3  # of fresh drawings
    drawings: int = 40_000  # a round
    epochs: int = 6  # over each round
    batch: int = 200
    learning_rate: float = 1.5e-3
    divergence: float = 0.5  # weight of the KL divergence: under 1, latents keep more detail
    seed: int = 2027
    threads: int = 1

    def __post_init__(self) -> None:
        _validate.one_of("name", self.name, DRAW)
        for name in ("rounds", "drawings", "epochs", "batch", "threads"):
            _validate.integer(name, getattr(self, name), least=1)
        _validate.positive("learning_rate", self.learning_rate)
        _validate.non_negative("divergence", self.divergence)

    @property
    def steps(self) -> int:
        return self.rounds * self.epochs * max(1, self.drawings // self.batch)


def make_latents(
    folder: Path, *, recipe: LatentsRecipe, progress: Callable[[int, int], None] | None = None
) -> dict[str, Any]:
    """Draw, train, measure, and write weights and note, NAME.safetensors and NAME.json, to `folder`."""
    started = time.perf_counter()
    net = train_autoencoder(recipe, progress=progress)
    seconds = time.perf_counter() - started
    weights = safetensors.torch.save(
        {name: value.half().contiguous() for name, value in net.state_dict().items()}
    )
    note = {
        "sha256": hashlib.sha256(weights).hexdigest(),
        "bytes": len(weights),
        "made_by": f"sfumato prior {recipe.name}",
        "data": f"drawn by sfumato.datasets.{recipe.name.partition('-')[0]}; no person's image",
        "recipe": asdict(recipe),
        "versions": {"torch": torch.__version__, "numpy": np.__version__},
        "mean_squared_error": _error(net, recipe),
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / f"{recipe.name}.safetensors", weights, readable=True)
    write_whole(folder / f"{recipe.name}.json", json_bytes(note), readable=True)
    return note | {"seconds": round(seconds, 1)}


def train_autoencoder(
    recipe: LatentsRecipe, *, progress: Callable[[int, int], None] | None = None
) -> Autoencoder:
    """An autoencoder trained on drawings alone."""
    threads = torch.get_num_threads()
    torch.set_num_threads(recipe.threads)
    try:
        with randomness.public_torch_seed(recipe.seed):
            return _train(Autoencoder(), recipe, progress or (lambda done, total: None))
    finally:
        torch.set_num_threads(threads)


def _train(net: Autoencoder, recipe: LatentsRecipe, progress: Callable[[int, int], None]) -> Autoencoder:
    optimizer = torch.optim.Adam(net.parameters(), lr=recipe.learning_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.learning_rate, total_steps=recipe.steps)
    for step, images in enumerate(_batches(recipe), start=1):
        optimizer.zero_grad()
        _loss(net, images, recipe.divergence).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        progress(step, recipe.steps)
    return net.eval()


def _loss(net: Autoencoder, images: Tensor, divergence: float) -> Tensor:
    """Cross-entropy of the pixels and β times the KL divergence, a drawing (Kingma & Welling 2014; β-VAE)."""
    noise = torch.randn(len(images), net.size)
    logits, mean, log_variance = net(images, noise)
    pixels = functional.binary_cross_entropy_with_logits(logits, images.flatten(1), reduction="sum")
    apart = 0.5 * (mean.square() + log_variance.exp() - 1.0 - log_variance).sum()
    return (pixels + divergence * apart) / len(images)


def _batches(recipe: LatentsRecipe) -> Iterator[Tensor]:
    batch = min(recipe.batch, recipe.drawings)
    for number in range(recipe.rounds):
        drawn, _ = DRAW[recipe.name](recipe.drawings, seed=recipe.seed + number)
        for _ in range(recipe.epochs):
            order = torch.randperm(len(drawn)).numpy()
            for start in range(0, len(drawn) - batch + 1, batch):
                yield torch.from_numpy(drawn[order[start : start + batch]]).unsqueeze(1) / 255


def _error(net: Autoencoder, recipe: LatentsRecipe) -> float:
    """Of a pixel of drawings that the net never saw."""
    drawn, _ = DRAW[recipe.name](2000, seed=recipe.seed + recipe.rounds)
    images = torch.from_numpy(drawn).unsqueeze(1) / 255
    return round(float((net.decode(net.encode(images)) - images).square().mean()), 6)
