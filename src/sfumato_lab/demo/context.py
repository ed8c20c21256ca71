"""The context of a stage: its folder, its size, the data, the ledger, and the progress callback."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sfumato import datasets
from sfumato.accounting import Budget
from sfumato.datasets import Dataset
from sfumato.errors import DataError
from sfumato.ledger import Ledger
from sfumato.storage import RunFolder, write_whole

DELTA = 1e-5
BUDGET = Budget(epsilon=12.0, delta=DELTA)
"""Of all MNIST stages together. A sweep with repetitions is a luxury that only public data can afford."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """The settings of all stages; a stage that was run with others is run again."""

    name: str
    data: str = "mnist"
    rows: int  # private training images
    test_rows: int  # public test images
    plain_epochs: int
    private_epochs: int
    sweep_epochs: int
    sweep_epsilons: tuple[float, ...]
    sweep_seeds: tuple[int, ...]
    recipe_epsilons: tuple[float, ...]
    recipe_seeds: tuple[int, ...]
    teachers: int
    vote_rows: int  # private images that the teachers share
    vote_images: int  # public images that a student learns from and is tested on
    vote_adaptation: int  # steps
    synthetic_rows: int  # private images that synthetic ones are made of
    synthetic_images: int
    readers_drawings: int  # that the readers of noised digits learn from
    readers_test: int  # noised digits that are read at each ε
    differencing_tries: int
    reconstruction_people: int
    reconstruction_queries: int
    audit_pairs: int
    membership_rows: int
    membership_networks: int
    membership_targets: int
    town: int  # people
    days: int


FULL = Size(
    name="demo",
    rows=60_000,
    test_rows=10_000,
    plain_epochs=4,
    private_epochs=4,
    sweep_epochs=2,
    sweep_epsilons=(0.25, 1.0, 4.0),
    sweep_seeds=(1,),
    recipe_epsilons=(0.5, 1.0, 2.0),
    recipe_seeds=(1,),
    teachers=500,
    vote_rows=60_000,
    vote_images=10_000,
    vote_adaptation=40,
    synthetic_rows=20_000,
    synthetic_images=5000,
    readers_drawings=6000,
    readers_test=2000,
    differencing_tries=1000,
    reconstruction_people=32,
    reconstruction_queries=128,
    audit_pairs=100,
    membership_rows=1000,
    membership_networks=32,
    membership_targets=8,
    town=5000,
    days=60,
)
QUICK = Size(
    name="demo-quick",
    rows=9_000,
    test_rows=3000,
    plain_epochs=3,
    private_epochs=3,
    sweep_epochs=2,
    sweep_epsilons=(0.25, 2.0),
    sweep_seeds=(1,),
    recipe_epsilons=(1.0,),
    recipe_seeds=(1,),
    teachers=200,
    vote_rows=6000,
    vote_images=2000,
    vote_adaptation=0,
    synthetic_rows=9000,
    synthetic_images=1500,
    readers_drawings=4000,
    readers_test=300,
    differencing_tries=300,
    reconstruction_people=32,
    reconstruction_queries=64,
    audit_pairs=25,
    membership_rows=400,
    membership_networks=16,
    membership_targets=4,
    town=3000,
    days=45,
)


_GREYS = 31  # steps of grey: enough for the eye, and noise packs into fewer bytes


def tiles(maps: npt.NDArray[Any], *, across: int) -> npt.NDArray[np.float64]:
    """(maps, height, width) side by side, `across` in a row, a pixel of nothing (NaN) between them."""
    count, height, width = maps.shape
    down = -(-count // across)
    sheet = np.full((down * (height + 1) - 1, across * (width + 1) - 1), np.nan)
    for number, one in enumerate(maps):
        top, left = (number // across) * (height + 1), (number % across) * (width + 1)
        sheet[top : top + height, left : left + width] = one
    return sheet


def save_grey(values: npt.NDArray[Any], path: Path) -> None:
    """Values in [0, 1] as grey; where there is none (NaN) the picture is transparent."""
    from PIL import Image

    there = np.isfinite(values)
    steps = np.round(np.clip(np.where(there, values, 0.0), 0, 1) * _GREYS)
    grey = (steps * 255 / _GREYS).astype(np.uint8)
    picture = Image.fromarray(grey)
    if not there.all():
        alpha = Image.fromarray(np.where(there, 255, 0).astype(np.uint8))
        picture = Image.merge("LA", (picture, alpha))
    buffer = io.BytesIO()
    picture.save(buffer, format="png", optimize=True)
    write_whole(path, buffer.getvalue(), readable=True)


_SIDE = 28  # of the images that the network and the readers expect; those of "digits" are enlarged
Progress = Callable[[float], None]  # the share of the stage that is done, in [0, 1]


@dataclass
class Shelf:
    """A data set, loaded once; a failed load is not tried again."""

    name: str
    _found: dict[str, Dataset] = field(default_factory=dict)
    _missing: DataError | None = None

    def load(self, split: Literal["train", "test"]) -> Dataset:
        if self._missing is not None:
            raise self._missing
        if split not in self._found:
            try:
                self._found[split] = datasets.load(
                    self.name, split, side=_SIDE if self.name == "digits" else None
                )
            except DataError as error:
                self._missing = error
                raise
        return self._found[split]


@dataclass(frozen=True, kw_only=True)
class StageContext:
    """The inputs of one stage."""

    folder: RunFolder
    size: Size
    shelf: Shelf
    ledger_path: Path
    progress: Progress

    def rows(self) -> Dataset:
        """The private rows: the first of the training images, a data set of their own."""
        return self.shelf.load("train").excerpt(self.size.rows)

    def test(self) -> Dataset:
        """The public test images."""
        found = self.shelf.load("test")
        return found.take(min(self.size.test_rows, len(found)))

    def ledger(self) -> Ledger:
        return Ledger.open(self.ledger_path, budget=BUDGET)

    def part(self, first: float, last: float) -> Progress:
        """Progress of one piece of the stage, that is its shares `first` to `last`."""
        return lambda share: self.progress(first + (last - first) * share)
