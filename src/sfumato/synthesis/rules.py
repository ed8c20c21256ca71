"""Public rules of every row: columns that follow from others, and combinations that cannot be.

The policy's section [synthesis] declares both. A column that follows is neither measured nor modelled: it is
looked up after the draw, for nothing. Rows with an impossible combination are drawn again. Both are
post-processing.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato.errors import InvalidInput
from sfumato.synthesis.cells import CellColumn

Integers = npt.NDArray[np.int64]
Cells = Mapping[str, Integers]


@dataclass(frozen=True)
class Follows:
    """`column` is `cells[place]` wherever `given` is in the cell `place`."""

    column: CellColumn
    given: str
    cells: tuple[int, ...]


@dataclass(frozen=True)
class Rules:
    """The rules of every row.

    >>> age = CellColumn(name="age", type="integer", values=(10, 40))
    >>> married = CellColumn(name="married", type="boolean", values=(False, True))
    >>> rules = Rules.of({"impossible": [{"age": {"upper": 15}, "married": True}]}, [age, married])
    >>> rules.possible({"age": np.array([0, 0, 1]), "married": np.array([0, 1, 1])}).tolist()
    [True, False, True]
    """

    follows: tuple[Follows, ...] = ()
    impossible: tuple[Mapping[str, tuple[int, ...]], ...] = ()

    @classmethod
    def of(cls, declared: Mapping[str, Any], columns: Sequence[CellColumn]) -> Rules:
        """The rules of a policy's section [synthesis] for these columns, before anything is spent.

        Raises:
            InvalidInput: a name is not a column's, a value is not one of its values, or a lookup has gaps.
        """
        known = {column.name: column for column in columns}
        found = _table("follows", declared.get("follows", {}))
        follows = tuple(_follows(name, _table(f"follows.{name}", each), known) for name, each in found.items())
        looked_up = {one.column.name for one in follows}
        for one in follows:
            if one.given in looked_up:
                raise InvalidInput(
                    f"expected synthesis.follows.{one.column.name}.given to be a column that is learned, got "
                    f"{one.given!r}, which follows from another; name that one"
                )
        listed = declared.get("impossible", [])
        if not isinstance(listed, list):
            raise InvalidInput(f"expected a list of combinations at synthesis.impossible, got {listed!r}")
        combinations = [_table("impossible", each) for each in listed]
        return cls(follows, tuple(_combination(each, known) for each in combinations))

    def only(self, names: Collection[str]) -> Rules:
        """The rules of which all columns are among these."""
        follows = tuple(one for one in self.follows if {one.column.name, one.given} <= set(names))
        return Rules(follows, tuple(each for each in self.impossible if set(each) <= set(names)))

    @property
    def looked_up(self) -> tuple[CellColumn, ...]:
        return tuple(one.column for one in self.follows)

    def complete(self, cells: Cells) -> dict[str, Integers]:
        """The cells with those that follow from them."""
        return {**cells, **{one.column.name: np.array(one.cells)[cells[one.given]] for one in self.follows}}

    def possible(self, cells: Cells) -> npt.NDArray[np.bool_]:
        """Which rows have no impossible combination."""
        found = np.ones(len(next(iter(cells.values()))), dtype=np.bool_)
        for combination in self.impossible:
            every = [np.isin(cells[name], places) for name, places in combination.items()]
            found &= ~np.logical_and.reduce(every)
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "follows": [
                {"column": one.column.to_json(), "given": one.given, "cells": list(one.cells)}
                for one in self.follows
            ],
            "impossible": [{name: list(places) for name, places in each.items()} for each in self.impossible],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], columns: Sequence[CellColumn]) -> Rules:
        """As `to_json` wrote it for a model of these columns; ValueError elsewhere."""
        sizes = {column.name: column.size for column in columns}
        follows = tuple(
            Follows(CellColumn.from_json(one["column"]), one["given"], tuple(one["cells"]))
            for one in data["follows"]
        )
        every = {**sizes, **{one.column.name: one.column.size for one in follows}}
        for one in follows:
            if len(one.cells) != sizes[one.given] or one.column.name in sizes:
                raise ValueError("follows")
            _check_places(one.cells, one.column.size)
        impossible = tuple({name: tuple(at) for name, at in each.items()} for each in data["impossible"])
        for each in impossible:
            for name, places in each.items():
                _check_places(places, every[name])
        return cls(follows, impossible)


def _check_places(places: Sequence[int], size: int) -> None:
    if any(type(place) is not int or not 0 <= place < size for place in places):
        raise ValueError("places")


def _follows(name: str, declared: Mapping[str, Any], known: Mapping[str, CellColumn]) -> Follows:
    where = f"synthesis.follows.{name}"
    if set(declared) != {"given", "values"}:
        raise InvalidInput(f"expected given and values in {where}, got {', '.join(declared) or 'neither'}")
    column, given = _column(where, name, known), _column(f"{where}.given", declared["given"], known)
    values = _table(f"follows.{name}.values", declared["values"])
    if given.values is None:
        raise InvalidInput(f"expected {given.name} in {where} to have categories, got bins; declare categories")
    labels = [given.label(cell) for cell in range(given.missing)]
    gaps = [label for label in labels if label not in values]
    if gaps or len(values) > len(labels):
        strangers = [label for label in values if label not in labels]
        raise InvalidInput(
            f"expected one value of {name} for each value of {given.name} in {where}.values, got "
            f"{', '.join(gaps) or 'none'} missing and {', '.join(strangers) or 'none'} unknown"
        )
    cells = [_cell(where, column, values[label]) for label in labels]
    return Follows(column, given.name, (*cells, column.missing))


def _combination(declared: Mapping[str, Any], known: Mapping[str, CellColumn]) -> dict[str, tuple[int, ...]]:
    if len(declared) < 2:
        raise InvalidInput(
            f"expected two columns or more in each part of synthesis.impossible, got {', '.join(declared)}; "
            "what one column cannot hold is said by its categories or bounds"
        )
    found = {
        name: _places(_column("synthesis.impossible", name, known), value) for name, value in declared.items()
    }
    empty = [name for name, places in found.items() if not places]
    if empty:
        raise InvalidInput(
            f"expected values of {', '.join(empty)} in synthesis.impossible, got none; a bin counts if it lies "
            "wholly between lower and upper"
        )
    if all(set(places) >= set(range(known[name].missing)) for name, places in found.items()):
        raise InvalidInput(
            f"expected a part of all combinations of {', '.join(found)} in synthesis.impossible, got all; "
            "then no row is possible"
        )
    return found


def _places(column: CellColumn, value: Any) -> tuple[int, ...]:
    """The cells of a value, of several, or of those that lie wholly in {lower, upper}."""
    if not isinstance(value, Mapping):
        values = value if isinstance(value, list) else [value]
        return tuple(_cell("synthesis.impossible", column, each) for each in values)
    if set(value) - {"lower", "upper"} or column.type in ("text", "boolean"):
        raise InvalidInput(
            f"expected a value, a list or lower and upper of {column.name} in synthesis.impossible, got {value}"
        )
    limits = {end: _limit(column, limit) for end, limit in value.items()}
    low, high = limits.get("lower", -math.inf), limits.get("upper", math.inf)
    ends = [_ends(column, cell) for cell in range(column.missing)]
    return tuple(cell for cell, (first, last) in enumerate(ends) if first >= low and last <= high)


def _ends(column: CellColumn, cell: int) -> tuple[float, float]:
    if column.values is not None:
        return _number(column.values[cell]), _number(column.values[cell])
    first = column.lower + cell * column.width
    step = 0 if column.type == "real" else 1  # whole numbers and days: the next bin begins one later
    return first, min(first + column.width - step, column.upper)


def _number(value: Any) -> float:
    return float(value.toordinal() if isinstance(value, datetime.date) else value)


def _limit(column: CellColumn, value: Any) -> float:
    """A day of a column of days, and a number of one of numbers."""
    kinds = datetime.date if column.type == "date" else int | float
    if not isinstance(value, kinds) or isinstance(value, bool | datetime.datetime):
        wanted = "a day" if column.type == "date" else "a number"
        raise InvalidInput(
            f"expected {wanted} as lower or upper of {column.name} in synthesis.impossible, got {value!r}"
        )
    return _number(value)


def _cell(where: str, column: CellColumn, value: Any) -> int:
    same = [item for item in column.values or () if item == value and type(item) is type(value)]
    if column.values is None or not same:
        raise InvalidInput(f"expected a value of {column.name} in {where}, got {value!r}")
    return column.values.index(value)


def _column(where: str, name: Any, known: Mapping[str, CellColumn]) -> CellColumn:
    if not isinstance(name, str) or name not in known:
        raise InvalidInput(
            f"expected a column that is synthesized in {where}, got {name!r}; they are {', '.join(known)}"
        )
    return known[name]


def _table(where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidInput(f"expected a table of names and values at synthesis.{where}, got {value!r}")
    return value
