"""What a stage is handed: its folder, its size, the data, the ledger, and where to report its progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sfumato import datasets
from sfumato.datasets import Dataset
from sfumato.errors import DataError
from sfumato.ledger import Ledger
from sfumato.storage import RunFolder
from sfumato_lab.demo.size import BUDGET, Size

_SIDE = 28  # of the images that the network and the readers expect; those of "digits" are enlarged
Progress = Callable[[float], None]  # the share of the stage that is done, in [0, 1]


@dataclass
class Shelf:
    """A data set, loaded once; if it cannot be had, nobody looks for it twice."""

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
    """What one stage works with."""

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
