"""Bounds for a column that has none: from a noisy histogram over powers of two, the cells that are not empty.

Google's and OpenDP's "approximate bounds" do the same: Wilson et al. 2020, "Differentially private SQL with
bounded user contribution", section 5.1.1.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import ibis
import numpy as np

from sfumato.policy import Policy
from sfumato.query.expressions import ColumnValue, Value, whole
from sfumato.query.measures import Counted, Integers
from sfumato.query.noise import WholeNoise
from sfumato.query.reading import QueryRefused

WIDEST = 2.0**51
"""Bounds of ± this are given where noise hides every cell: the widest that a policy can declare."""

_LARGEST_POWER, _SMALLEST_POWER = 50, -20
_NEAR_ZERO = 8.0  # an end this many times nearer to 0 than the other becomes 0
_ONE_WRONG = 0.001  # the chance that any empty cell is taken for one with rows


@dataclass(frozen=True)
class Magnitudes(Counted):
    """How many rows of a column lie between one power of two and the next, on both sides of 0."""

    of: ColumnValue
    smallest_power: int

    @property
    def edges(self) -> tuple[float, ...]:
        """The ends of the cells: a cell holds its left end; the outermost reach out as far as numbers do."""
        above = [2.0**power for power in range(self.smallest_power, _LARGEST_POWER + 1)]
        return (-WIDEST, *(-edge for edge in reversed(above)), 0.0, *above, WIDEST)

    @property
    def cells(self) -> int:  # type: ignore[override]
        return len(self.edges) - 1

    def cell(self, rows: Value, policy: Policy) -> Value:
        value = self.of.sql(rows, policy).cast("float64")
        return ibis.cases((value.notnull(), _found(value, self.edges, 0, self.cells)))


def _found(value: Value, edges: tuple[float, ...], first: int, last: int) -> Value:
    """The cell of a value among those from `first` to before `last`, by halving: eight comparisons a row."""
    if last - first == 1:
        return whole(first)
    middle = (first + last) // 2
    edge = ibis.literal(repr(edges[middle])).cast("float64")
    return ibis.ifelse(value < edge, _found(value, edges, first, middle), _found(value, edges, middle, last))


def table_and_column(name: str, policy: Policy, table: str | None = None) -> tuple[Policy, str]:
    """The policy of the one table that is meant, and the column's name: `cost`, or `visits.cost`."""
    before, dot, after = name.partition(".")
    if table is None and dot and policy.tables and policy.private(before) is not None:
        return policy.one_table(before), after
    return policy.one_table(table, having=[name]), name


def magnitudes(name: str, policy: Policy) -> Magnitudes:
    column = policy.column(name)
    if column is None or not column.numeric:
        known = ", ".join(item.name for item in policy.columns.values() if item.numeric)
        raise QueryRefused(
            f"bounds are found for a column of numbers, and {name} is none of {policy.table}; there are: "
            + known
        )
    return Magnitudes(ColumnValue(column.name), 0 if column.type == "integer" else _SMALLEST_POWER)


@dataclass(frozen=True, kw_only=True)
class ApproximateBounds:
    """Bounds that were found privately. `found` is false where noise hid everything, and they are ±2⁵¹.

    A few rows may lie outside: a range of values shows once it has more rows than noise alone would give it.

    Attributes:
        table: The table, where the policy has several; else None.
        column: The column.
        type: Its type, as the policy has it.
        lower: The lower bound.
        upper: The upper bound.
        found: False where noise hid everything; the bounds are then ±2⁵¹.
        epsilon: Their cost.
        delta: Their δ.
        epsilon_spent: The ε of the ledger after it.
        epsilon_left: The largest further ε that the ledger would accept.
    """

    column: str
    type: str
    lower: float
    upper: float
    found: bool
    epsilon: float
    delta: float
    epsilon_spent: float
    epsilon_left: float
    table: str | None = None

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary, as `sfumato query bounds --json` prints it."""
        return dict(vars(self))

    def to_toml(self) -> str:
        """The column's section of a policy, for the holder to write in."""
        where = "columns" if self.table is None else f"tables.{_key(self.table)}.columns"
        ends = [int(end) if self.type == "integer" else end for end in (self.lower, self.upper)]
        return f'[{where}.{_key(self.column)}]\ntype = "{self.type}"\nlower = {ends[0]}\nupper = {ends[1]}'


def _key(name: str) -> str:
    """A key of TOML: bare where it can be."""
    return name if name.isidentifier() and name.isascii() else json.dumps(name, ensure_ascii=False)


def bounds_from(measure: Magnitudes, counts: Integers, noise: WholeNoise) -> tuple[float, float, bool]:
    """The outer edges of the first and the last cell that noise alone would hardly have filled."""
    filled = np.flatnonzero(counts >= noise.rarely(_ONE_WRONG / measure.cells))
    if len(filled) == 0:
        return -WIDEST, WIDEST, False
    lower, upper = measure.edges[filled[0]], measure.edges[filled[-1] + 1]
    # The cells next to 0 are narrow and may hide a few rows; to reach down to 0 costs little noise.
    lower = 0.0 if 0 < lower <= upper / _NEAR_ZERO else lower
    upper = 0.0 if 0 > upper >= lower / _NEAR_ZERO else upper
    return lower, upper, True
