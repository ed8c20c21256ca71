"""Declared columns → cells: a public, finite list of values for each column, and one cell for what is missing.

Cells come from the policy alone: its categories, its bounds, or true and false. The last cell of a column holds
what is missing, which is also what a value outside the declared categories counts as.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from sfumato import _validate
from sfumato.errors import InvalidInput
from sfumato.policy import Column, Policy

MOST_CELLS = 64
"""Of a number or a date; longer ranges are cut into as many bins of one width, or fewer."""

MOST_COLUMNS = 64
MOST_CATEGORIES = 4096


@dataclass(frozen=True, kw_only=True)
class CellColumn:
    """One column as cells 0, …, size − 2, and size − 1 for what is missing.

    Args:
        name: The column.
        type: Its type, as the policy has it.
        values: One value for each cell; None if cells are bins of numbers.
        lower: Where the first bin begins.
        upper: Where the last one ends.
        width: The width of a bin.

    >>> CellColumn(name="city", type="text", values=("Delft", "Utrecht")).label(1)
    'Utrecht'
    """

    name: str
    type: str
    values: tuple[Any, ...] | None = None
    lower: float = 0.0
    upper: float = 0.0
    width: float = 0.0

    @property
    def size(self) -> int:
        """How many cells there are, with that of missing values."""
        return self.missing + 1

    @property
    def missing(self) -> int:
        if self.values is not None:
            return len(self.values)
        span = self.upper - self.lower
        return max(1, round(span / self.width)) if self.type == "real" else int(span // self.width) + 1

    def label(self, cell: int, last: int | None = None) -> str:
        """A cell in words, or a row of bins up to the last one."""
        if cell == self.missing:
            return "missing"
        if self.values is not None:
            return str(self.values[cell])
        ends = [self.lower + at * self.width for at in (cell, (cell if last is None else last) + 1)]
        shown: list[Any] = [ends[0], min(ends[1], self.upper)]
        if self.type == "date":
            shown = [datetime.date.fromordinal(int(day)) for day in shown]
        return f"{shown[0]} to {shown[1]}"

    def to_json(self) -> dict[str, Any]:
        values = None if self.values is None else [str(v) if self.type == "date" else v for v in self.values]
        return {
            "name": self.name,
            "type": self.type,
            "values": values,
            "lower": self.lower,
            "upper": self.upper,
            "width": self.width,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> CellColumn:
        """As `to_json` wrote it: a column that a policy could declare; ValueError or TypeError elsewhere."""
        values, name, kind = data["values"], data["name"], data["type"]
        if not isinstance(name, str) or set(data) != {field.name for field in fields(cls)}:
            raise ValueError("expected the fields of a column")
        if values is None:
            ends = [_bound(kind, data[end]) for end in ("lower", "upper")]
            Column(name=name, type=kind, lower=ends[0], upper=ends[1])
            found = cls(**{**data, "width": _validate.positive("width", data["width"])})
        else:
            Column(name=name, type=kind, categories=tuple(values))
            found = cls(name=name, type=kind, values=tuple(map(_day, values) if kind == "date" else values))
        if found.missing > MOST_CATEGORIES:
            raise ValueError("expected fewer cells")
        return found


def _bound(kind: str, value: Any) -> Any:
    return datetime.date.fromordinal(_validate.integer("bound", value)) if kind == "date" else value


def cell_columns(
    policy: Policy, names: Sequence[str] | None = None, *, leave_out: Sequence[str] = ()
) -> tuple[tuple[CellColumn, ...], tuple[str, ...]]:
    """The policy's columns as cells, or those named, and the names of those left out on purpose.

    Args:
        policy: What is declared about the table.
        names: The columns wanted; None for all.
        leave_out: Columns that are left out on purpose.

    Returns:
        The columns as cells, and the names of those left out.

    Raises:
        InvalidInput: If a name is not the policy's, or a column has neither categories nor bounds.

    >>> from sfumato.accounting import Budget
    >>> from sfumato.policy import Column
    >>> ill = Column(name="ill", type="boolean")
    >>> policy = Policy(table="people", source="people.csv", columns={"ill": ill}, budget=Budget(epsilon=1))
    >>> [column.name for column in cell_columns(policy)[0]]
    ['ill']
    """
    used, left_out = policy.used_columns(leave_out=leave_out, only=names)
    columns = tuple(found for column in used if (found := _cells(column)) is not None)
    if not columns:
        raise InvalidInput("expected at least one column to synthesize, got none; leave fewer out")
    for column in columns:
        if column.missing > MOST_CATEGORIES:
            raise InvalidInput(
                f"expected at most {MOST_CATEGORIES} categories of {column.name}, got {column.missing}; "
                "declare coarser ones"
            )
    if len(columns) > MOST_COLUMNS:
        raise InvalidInput(
            f"expected at most {MOST_COLUMNS} columns, got {len(columns)}; name the ones to synthesize with "
            "--columns"
        )
    return columns, left_out


def declared_cells(policy: Policy) -> tuple[CellColumn, ...]:
    """Every column that has cells, however many: what rules may speak of."""
    return tuple(found for column in policy.columns.values() if (found := _cells(column)) is not None)


def _cells(column: Column) -> CellColumn | None:
    if column.categories is not None:
        return _listed(column, column.categories)
    if column.type == "boolean":
        return _listed(column, (False, True))
    if column.days is not None:
        first, last = (day.toordinal() for day in column.days)
        if last - first < MOST_CELLS:
            return _listed(column, tuple(range(first, last + 1)))
        return _binned(column, first, last)
    if column.bounds is None:
        return None
    lower, upper = column.bounds
    if column.type == "real":
        return CellColumn(
            name=column.name, type="real", lower=lower, upper=upper, width=(upper - lower) / MOST_CELLS
        )
    if upper - lower < MOST_CELLS:
        return _listed(column, tuple(range(int(lower), int(upper) + 1)))
    return _binned(column, int(lower), int(upper))


def _listed(column: Column, values: tuple[Any, ...]) -> CellColumn:
    if column.type == "date":
        values = tuple(_day(value) for value in values)
    return CellColumn(name=column.name, type=column.type, values=values)


def _day(value: Any) -> datetime.date:
    return datetime.date.fromordinal(value) if isinstance(value, int) else datetime.date.fromisoformat(value)


def _binned(column: Column, lower: int, upper: int) -> CellColumn:
    """Bins of a whole width, so that every bin of a whole number has as many values, save the last."""
    width = -(-(upper - lower + 1) // MOST_CELLS)
    return CellColumn(name=column.name, type=column.type, lower=lower, upper=upper, width=width)
