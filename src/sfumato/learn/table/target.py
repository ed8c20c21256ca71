"""What is learned: one of the declared classes, or a number between declared bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sfumato.errors import InvalidInput
from sfumato.learn.table.encoding import categories_of, numbers_of, places_among, range_of
from sfumato.policy import Column, Policy

if TYPE_CHECKING:
    import pyarrow as pa

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Target:
    """The column that a model predicts: `classes` are its declared categories, or None for a number."""

    column: Column
    classes: tuple[Any, ...] | None

    @classmethod
    def of(cls, policy: Policy, name: str) -> Target:
        """The declared column `name`; InvalidInput, with the remedy, where it cannot be learned."""
        if policy.unit.column is not None and name.lower() == policy.unit.column.lower():
            raise InvalidInput(f"expected a target other than {name}, which tells people apart")
        column = policy.column(name)
        if column is None:
            section = f"tables.{policy.table}.columns" if policy.tables else "columns"
            raise InvalidInput(
                f"expected the target to be one of {', '.join(policy.columns)}, got {name!r}; or declare it "
                f"as [{section}.{name}]"
            )
        classes = categories_of(column)
        if classes is None and column.bounds is None:
            raise InvalidInput(
                f"expected categories or bounds of the target {column.name}, got neither; declare the classes "
                f"as columns.{column.name}.categories, or lower and upper of a number"
            )
        if classes is not None and len(classes) < 2:
            raise InvalidInput(
                f"expected at least two categories of the target {column.name}, got one; a model of one class "
                "has nothing to learn"
            )
        return cls(column=column, classes=classes)

    @property
    def name(self) -> str:
        return self.column.name

    @property
    def outputs(self) -> int:
        """How many scores a model gives: one for two classes and for a number."""
        return 1 if self.classes is None or len(self.classes) == 2 else len(self.classes)

    def encode(self, table: pa.Table) -> Floats:
        """Numbers of classes, or numbers scaled to ±1 and clipped; NaN where there is none."""
        values = table[self.name]
        if self.classes is not None:
            places = places_among(values, self.classes).astype(np.float64)
            return np.where(places < 0, np.nan, places)
        low, high = range_of(self.column)
        return np.clip(2 * (numbers_of(values, self.column) - low) / (high - low) - 1, -1, 1)

    def decode(self, scaled: Floats) -> Floats:
        """Numbers in their own units, from ±1."""
        low, high = range_of(self.column)
        return low + (np.clip(scaled, -1, 1) + 1) / 2 * (high - low)
