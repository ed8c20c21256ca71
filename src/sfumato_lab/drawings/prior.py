"""Make a public prior: draw, pre-train, evaluate, write the weights that ship with the package.

Every epoch is trained on fresh drawings, so that no image is seen twice. The same recipe on the same machine,
versions and number of threads gives the same bytes; elsewhere sums are rounded differently and the weights
come out as another, equally good, net.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional

from sfumato import _validate, randomness
from sfumato.datasets import Dataset, load
from sfumato.datasets.images import scale
from sfumato.errors import DataUnavailable
from sfumato.fitting import evaluate
from sfumato.models import PriorNet
from sfumato.storage import json_bytes, write_whole
from sfumato_lab.drawings import shapes, strokes
from sfumato_lab.drawings.skeletons import ALL_STYLES, STYLES
from sfumato_lab.drawings.writers import WRITERS, Moves, Writers

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]


class Learner(nn.Module):
    """A prior while it is trained: beside the classes it tells the kinds within them apart.

    Features that only tell ten digits apart keep too little for other people's digits; ways to write them are
    finer classes, which the drawings know at no cost. The layer that names them is left behind.
    """

    def __init__(self, source: Source) -> None:
        super().__init__()
        self.net = PriorNet(classes=source.classes)
        width = int(self.net.head[0].out_features)  # type: ignore[arg-type]
        self.kinds = nn.Linear(width, source.kinds) if source.kinds > 1 else nn.Identity()


@dataclass(frozen=True, kw_only=True)
class Source:
    """The drawings that a prior is trained on, and the public images it is measured on."""

    draw: Callable[..., tuple[Images, Labels]]
    classes: int
    draw_finer: Callable[..., tuple[Images, Labels, Labels]]  # also the kinds within the classes, if it has any
    kinds: int
    public: Mapping[str, Callable[[], Dataset]]
    drawn_by: str  # the module that draws
    moves: Moves | None = None  # of each drawing; None: by up to a pixel

    @property
    def halved(self) -> bool:
        """Whether the weights ship in half precision."""
        return self.moves is not None


def _of_digits(writers: Writers) -> Source:
    return Source(
        draw=partial(strokes.draw, hand=writers.hand, rarer=writers.rarer),
        classes=10,
        draw_finer=partial(strokes.draw_styles, hand=writers.hand, rarer=writers.rarer),
        kinds=len(ALL_STYLES if writers.rarer else STYLES),
        public={"digits": lambda: _digits(), "mnist": lambda: load("mnist", "test")},
        drawn_by="strokes",
        moves=writers.moves,
    )


SOURCES: dict[str, Source] = {
    **{name: _of_digits(writers) for name, writers in WRITERS.items()},
    "shapes": Source(
        draw=shapes.draw,
        classes=shapes.CLASSES,
        draw_finer=lambda count, *, seed: _without_kinds(*shapes.draw(count, seed=seed)),
        kinds=1,
        drawn_by="shapes",
        public={
            "fashion-mnist": lambda: load("fashion-mnist", "test")
        },  # its ten labels are the first ten kinds
    ),
}


@dataclass(frozen=True, kw_only=True)
class PriorRecipe:
    """How a prior is trained; the values were chosen on held-out drawings and scikit-learn's `digits`."""

    name: str = "strokes"  # the kind of drawings
    epochs: int = 10
    drawings: int = 60_000  # an epoch
    batch: int = 128
    learning_rate: float = 3e-3
    weight_decay: float = 1e-4
    dropout: float = 0.3  # of the features, while training
    sharpness: float = 16.0  # of the linear head: features have unit length, and logits need room to be sure
    averaging: float = 0.999  # of the weights, over the last steps
    seed: int = 2026
    threads: int = 1  # part of the recipe: more of them would add in another order

    def __post_init__(self) -> None:
        _validate.one_of("name", self.name, SOURCES)
        for name in ("epochs", "drawings", "batch", "threads"):
            _validate.integer(name, getattr(self, name), least=1)
        for name in ("learning_rate", "sharpness"):
            _validate.positive(name, getattr(self, name))
        for name in ("weight_decay", "dropout", "averaging"):
            _validate.non_negative(name, getattr(self, name))

    @property
    def steps(self) -> int:
        return self.epochs * max(1, self.drawings // self.batch)


SHIPPED: Mapping[str, PriorRecipe] = {
    "strokes": PriorRecipe(),
    "shapes": PriorRecipe(name="shapes", epochs=5),
    "strokes-wide": PriorRecipe(name="strokes-wide", epochs=6, learning_rate=4e-3, averaging=0.998, seed=5),
    "strokes-wild": PriorRecipe(name="strokes-wild", epochs=6, learning_rate=4e-3, averaging=0.998, seed=6),
    "strokes-rare": PriorRecipe(name="strokes-rare", epochs=6, learning_rate=4e-3, averaging=0.998, seed=9),
}
"""Of the weights that ship."""


def make_prior(
    folder: Path, *, recipe: PriorRecipe | None = None, progress: Callable[[int, int], None] | None = None
) -> dict[str, Any]:
    """Draw, pre-train, evaluate, and write weights and note, NAME.safetensors and NAME.json, to `folder`."""
    recipe = PriorRecipe() if recipe is None else recipe
    started = time.perf_counter()
    net = pretrain(recipe, progress=progress)
    seconds = time.perf_counter() - started
    kind = torch.float16 if SOURCES[recipe.name].halved else torch.float32
    weights = safetensors.torch.save(
        {name: value.to(kind).contiguous() for name, value in net.state_dict().items()}
    )
    net.load_state_dict(safetensors.torch.load(weights))  # measure the weights that ship
    note = {
        "sha256": hashlib.sha256(weights).hexdigest(),
        "bytes": len(weights),
        "made_by": "sfumato prior",
        "data": f"drawn by sfumato_lab.drawings.{SOURCES[recipe.name].drawn_by}; no person's image",
        "recipe": asdict(recipe),
        "versions": {"torch": torch.__version__, "numpy": np.__version__},
        "accuracy": accuracies(
            net, recipe.name, seed=recipe.seed + recipe.epochs
        ),  # drawings the net never saw
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / f"{recipe.name}.safetensors", weights, readable=True)
    write_whole(folder / f"{recipe.name}.json", json_bytes(note), readable=True)
    return note | {"seconds": round(seconds, 1)}  # not in the file, which is the same each time


def pretrain(recipe: PriorRecipe, *, progress: Callable[[int, int], None] | None = None) -> PriorNet:
    """A net trained on drawings alone, its weights averaged over the last steps."""
    threads = torch.get_num_threads()
    torch.set_num_threads(recipe.threads)
    try:
        with randomness.public_torch_seed(recipe.seed):  # first weights and dropout
            return _pretrain(recipe, progress or (lambda done, total: None))
    finally:
        torch.set_num_threads(threads)


def _pretrain(recipe: PriorRecipe, progress: Callable[[int, int], None]) -> PriorNet:
    learner = Learner(SOURCES[recipe.name])
    learner.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack it
    net = learner.net
    optimizer = torch.optim.AdamW(
        learner.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.learning_rate, total_steps=recipe.steps)
    average = {name: value.clone() for name, value in net.state_dict().items()}
    batches = (batch for epoch in range(recipe.epochs) for batch in _batches(recipe, seed=recipe.seed + epoch))
    for step, (images, targets, kinds) in enumerate(batches, start=1):
        optimizer.zero_grad()
        _loss(learner, images, targets, kinds, recipe).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        _average(average, net, min(recipe.averaging, step / (step + 10)))
        progress(step, recipe.steps)
    net.load_state_dict(average)
    with torch.no_grad():
        net.linear.weight.mul_(recipe.sharpness)  # the net that ships needs no extra factor
    return net.eval()


def _batches(recipe: PriorRecipe, *, seed: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Batches of fresh drawings (images, 1, 28, 28), each moved by itself, their classes and kinds."""
    source = SOURCES[recipe.name]
    images, labels, kinds = source.draw_finer(recipe.drawings, seed=seed)
    move = _by_a_pixel(images, seed) if source.moves is None else _moved_by(source.moves, images, seed)
    batch = min(recipe.batch, len(images))
    for start in range(0, len(images) - batch + 1, batch):
        chosen = np.arange(start, start + batch)
        inputs = move(chosen).contiguous(memory_format=torch.channels_last)
        yield inputs, torch.from_numpy(labels[chosen]), torch.from_numpy(kinds[chosen])


def _by_a_pixel(images: Images, seed: int) -> Callable[[Labels], Tensor]:
    moves = randomness.public_generator(seed).integers(3, size=(2, len(images)))
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, images.shape[1:], axis=(1, 2))
    return lambda chosen: _levels(windows[chosen, moves[0, chosen], moves[1, chosen]])


def _moved_by(moves: Moves, images: Images, seed: int) -> Callable[[Labels], Tensor]:
    generator = randomness.public_generator(seed)
    return lambda chosen: moves.of(_levels(images[chosen]), generator)


def _levels(images: Images) -> Tensor:
    return torch.from_numpy(scale(images, brightest=255)).unsqueeze(1)


def _loss(learner: Learner, images: Tensor, targets: Tensor, kinds: Tensor, recipe: PriorRecipe) -> Tensor:
    """Of both heads and of the kinds; the linear head learns from the features without shaping them."""
    net = learner.net
    body = net.body(images)
    hidden = net.head[:2](functional.dropout(body, recipe.dropout))
    main = functional.cross_entropy(net.head[2](hidden), targets)
    if SOURCES[recipe.name].kinds > 1:
        main = main + functional.cross_entropy(learner.kinds(hidden), kinds)
    features = functional.normalize(body.detach(), dim=1)
    return main + functional.cross_entropy(net.linear(recipe.sharpness * features), targets)


def _without_kinds(images: Images, labels: Labels) -> tuple[Images, Labels, Labels]:
    return images, labels, np.zeros_like(labels)


@torch.no_grad()
def _average(average: dict[str, Tensor], net: nn.Module, decay: float) -> None:
    for name, value in net.state_dict().items():
        average[name].lerp_(value, 1.0 - decay)


def accuracies(net: nn.Module, name: str, *, seed: int) -> dict[str, float | None]:
    """Shares of right answers without private data: on drawings not seen before, and on public images."""
    source = SOURCES[name]
    drawn = _as_dataset(name, *source.draw(_HELD_OUT, seed=seed), classes=source.classes)
    found: dict[str, float | None] = {name: evaluate(net, drawn).accuracy}
    for public, read in source.public.items():
        try:
            found[public] = evaluate(net, read()).accuracy
        except DataUnavailable:
            found[public] = None
    return {name: value if value is None else round(value, 4) for name, value in found.items()}


_HELD_OUT = 10_000


def _digits() -> Dataset:
    """All of scikit-learn's 8 × 8 digits, enlarged, their contrast raised, laid out as MNIST's are."""
    splits = [load("digits", "train", side=strokes.BOX), load("digits", "test", side=strokes.BOX)]
    levels = np.concatenate([split.inputs[:, 0] for split in splits])
    boxes = np.clip(1.8 * (levels - 0.25), 0.0, 1.0).astype(np.float32)
    labels = np.concatenate([split.targets for split in splits])
    return _as_dataset("digits", strokes.centre(boxes), labels, classes=10)


def _as_dataset(name: str, images: Images, labels: Labels, *, classes: int) -> Dataset:
    inputs = scale(images, brightest=255)[:, np.newaxis]
    return Dataset(inputs=inputs, targets=labels, name=name, visibility="public", classes=classes)
