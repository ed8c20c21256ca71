"""Measures: whole numbers that an engine adds up, of which one unit moves a known amount.

A measure knows all of its own part: which values it takes of a row, how they are added up for each unit, how a
unit is held within its rows, which numbers come out, and by how much one unit moves them. Most are sums that
one query adds up together; `Counted` ones have a query of their own.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import ibis
import numpy as np
import numpy.typing as npt

from sfumato.policy import Policy, Unit
from sfumato.query.expressions import Expression, Range, Value, public_bounds, steps, whole, whole_quotient
from sfumato.query.reading import QueryRefused

Integers = npt.NDArray[np.int64]
UNIT = "unit"
ROWS, UNITS, CELL, KEPT, DITHER = "rows", "units", "cell", "kept", "dither"
_MOST_CELLS = 1024


class Measure(ABC):
    """Numbers to which noise is added; the defaults are those of a measure that reads no value of a row.

    `letters` begin the names of its sums, beside n of the number of rows that have a value.
    """

    levels = 1  # how many times a unit's contribution is released
    numbers = 1  # how many noisy numbers a group has
    letters: ClassVar[str] = ""

    def row_values(self, position: int, rows: Value, policy: Policy) -> dict[str, Value]:
        """The columns that are computed on each row, by name."""
        return {}

    def row_reach(self, position: int) -> dict[str, int]:
        """The largest value of each of those columns; they hold whole numbers from 0 on, or NULL."""
        return {}

    def row_totals(self, position: int, rows: Value) -> dict[str, Value]:
        """Their sums, for each unit and group."""
        return {}

    def unit_totals(self, position: int, units: Value) -> dict[str, Value]:
        """A unit's totals as if it had `kept` of its `rows`."""
        if f"n{position}" not in units.columns:
            return {}
        names = [f"{letter}{position}" for letter in self.letters if f"{letter}{position}" in units.columns]
        return _scaled(units, f"n{position}", names)

    @abstractmethod
    def parts(self, position: int, exact: Mapping[str, Integers]) -> Integers:
        """The whole numbers that are released, from the engine's sums; (groups, numbers)."""

    @abstractmethod
    def sensitivity(self, unit: Unit) -> int:
        """By how much one unit moves the numbers, in L1 (of one level)."""

    def moved(self, unit: Unit) -> int:
        """How many numbers one unit moves at worst, each by an equal part of that.

        One, unless it cannot move a single number by all of it: of noise with log-concave density, the same
        distance in one number is dearer than in several (see mechanisms.Laplace).
        """
        return 1

    def absorbed(self, other: Measure, policy: Policy) -> Measure | None:
        """A measure that stands for this one and the other, at the price of one."""
        return self if self == other else None


class Counted(Measure):
    """A measure with a query of its own: counts for each group and cell; a unit has as many as its rows."""

    of: Expression
    cells: int
    distinct = False  # whether different values are counted, not rows

    @abstractmethod
    def cell(self, rows: Value, policy: Policy) -> Value:
        """The value that is counted on each row; NULL is not."""

    def parts(self, position: int, exact: Mapping[str, Integers]) -> Integers:
        raise TypeError("counted by a query of its own")

    def sensitivity(self, unit: Unit) -> int:
        return unit.rows


@dataclass(frozen=True)
class Fixed:
    """Numbers in [lower, upper] in steps of a grid: ⌊(x − lower) / grid⌋ runs from 0 to span."""

    lower: float
    upper: float
    grid: float

    @property
    def span(self) -> int:
        return max(1, math.floor((self.upper - self.lower) / self.grid))

    @property
    def first(self) -> int:
        """For sums about zero: ⌊x / grid⌋ runs from first to last."""
        return math.floor(self.lower / self.grid)

    @property
    def last(self) -> int:
        return math.floor(self.upper / self.grid)

    def steps(self, of: Expression, rows: Value, policy: Policy) -> Value:
        return steps(of, self.grid, 0, self.span, rows, policy, origin=self.lower)


def _spread(of: Expression, policy: Policy) -> Range:
    found = public_bounds(of, policy)
    if found.low == found.high:
        raise QueryRefused("the expression is a constant; there is nothing private in it", nearest="COUNT(*)")
    return found


def fixed_point(
    of: Expression, policy: Policy, *, bits: int, whole_steps: bool = False, about_zero: bool = False
) -> Fixed:
    """The finest power-of-two grid, or 1 for whole numbers, with at most 2**bits steps."""
    found = _spread(of, policy)
    reach = found.size if about_zero else found.high - found.low
    coarsest = math.ldexp(1.0, math.frexp(reach)[1] - bits)
    return Fixed(found.low, found.high, max(1.0, coarsest) if whole_steps and found.whole else coarsest)


@dataclass(frozen=True)
class Moments(Measure):
    """Counts and power sums of one expression; of no expression: the number of rows.

    With z = (x − lower)/(upper − lower) in fixed point of span R, a row adds to these whole numbers:
    degree 0: (1); degree 1: R·(1−z, z); degree 2: R·((1−z)², 2z(1−z), z²); and, with `missing`, R for a NULL in
    a number of its own. They are never negative and one row's add up to R, so that the L1 sensitivity of all of
    them together is rows · R, as if only one had been asked (a partition of unity). Counts, sums, averages and
    variances are linear in them, or ratios of such.
    """

    of: Expression | None
    degree: int
    missing: bool
    fixed: Fixed
    letters = "shl"

    @property
    def span(self) -> int:
        return self.fixed.span if self.degree else 1

    @property
    def numbers(self) -> int:  # type: ignore[override]
        return self.degree + 1 + self.missing

    def row_values(self, position: int, rows: Value, policy: Policy) -> dict[str, Value]:
        if self.of is None:
            return {}
        if self.degree == 0:
            return {f"x{position}": self.of.sql(rows, policy).notnull().ifelse(1, ibis.null("int64"))}
        return {f"x{position}": self.fixed.steps(self.of, rows, policy)}

    def row_reach(self, position: int) -> dict[str, int]:
        return {} if self.of is None else {f"x{position}": self.span}

    def row_totals(self, position: int, rows: Value) -> dict[str, Value]:
        if self.of is None:
            return {}
        value = rows[f"x{position}"]
        found = {f"n{position}": value.count()}
        if self.degree == 1:
            found[f"s{position}"] = total(value)
        if self.degree == 2:
            found[f"h{position}"] = total(_square_over(value, self.span))
            found[f"l{position}"] = total(_square_over(whole(self.span) - value, self.span))
        return found

    def parts(self, position: int, exact: Mapping[str, Integers]) -> Integers:
        if self.of is None:
            return exact[ROWS][:, None]
        count = exact[f"n{position}"]
        mass = count * self.span
        if self.degree == 0:
            parts = [count]
        elif self.degree == 1:
            parts = [mass - exact[f"s{position}"], exact[f"s{position}"]]
        else:
            low, high = exact[f"l{position}"], exact[f"h{position}"]
            parts = [low, mass - low - high, high]
        if self.missing:
            parts.append((exact[ROWS] - count) * self.span)
        return np.stack(parts, axis=1)

    def sensitivity(self, unit: Unit) -> int:
        return unit.rows * self.span

    def absorbed(self, other: Measure, policy: Policy) -> Measure | None:
        """Rows ride on any moments, sums and lower moments on those of the same expression."""
        if self == other or (isinstance(other, BoundedSum) and other.of == self.of and self.degree > 0):
            return self
        if not isinstance(other, Moments):
            return None
        if other.of is None and self.of is not None:
            return replace(self, missing=True)
        if other.of == self.of and other.degree <= self.degree:
            return replace(self, missing=self.missing or other.missing)
        return None


def moments(of: Expression | None, degree: int, policy: Policy) -> Moments:
    """The moments of an expression up to a degree; squares are exact, and no sum overflows."""
    if of is None or degree == 0:
        return Moments(of, 0, False, Fixed(0, 1, 1))
    # Squares are divided by the span, and units with too many rows are scaled down: rounded down to whole
    # steps, both would shrink whole numbers noticeably, so that these need a fine grid too.
    whole_steps = degree == 1 and policy.unit.column is None
    fixed = fixed_point(of, policy, bits=30 if degree == 1 else 26, whole_steps=whole_steps)
    return Moments(of, degree, False, fixed)


@dataclass(frozen=True)
class BoundedSum(Measure):
    """The sum of one expression over the rows that count: one number, of steps from first to last a row."""

    of: Expression
    fixed: Fixed
    letters = "s"

    @property
    def largest(self) -> int:
        return max(abs(self.fixed.first), abs(self.fixed.last))

    def row_values(self, position: int, rows: Value, policy: Policy) -> dict[str, Value]:
        first, last = self.fixed.first, self.fixed.last
        found = steps(self.of, self.fixed.grid, first, last, rows, policy)
        return {f"x{position}": found - whole(first)}  # never negative: scaled alike on every engine

    def row_reach(self, position: int) -> dict[str, int]:
        return {f"x{position}": self.fixed.last - self.fixed.first}

    def row_totals(self, position: int, rows: Value) -> dict[str, Value]:
        value = rows[f"x{position}"]
        return {f"n{position}": value.count(), f"s{position}": total(value)}

    def parts(self, position: int, exact: Mapping[str, Integers]) -> Integers:
        return (exact[f"s{position}"] + exact[f"n{position}"] * self.fixed.first)[:, None]

    def sensitivity(self, unit: Unit) -> int:
        return unit.rows * self.largest


def bounded_sum(of: Expression, policy: Policy) -> BoundedSum:
    whole_steps = policy.unit.column is None  # units with too many rows are scaled down, as for moments
    return BoundedSum(of, fixed_point(of, policy, bits=30, whole_steps=whole_steps, about_zero=True))


@dataclass(frozen=True)
class UnitCount(Measure):
    """How many units there are; one unit moves the number of each of its groups by one."""

    def parts(self, position: int, exact: Mapping[str, Integers]) -> Integers:
        return exact[UNITS][:, None]

    def sensitivity(self, unit: Unit) -> int:
        return unit.touched_groups

    def moved(self, unit: Unit) -> int:
        return unit.touched_groups


@dataclass(frozen=True)
class Products(Measure):
    """Two expressions together, where neither is NULL: R²·((1−x)(1−y), x(1−y), (1−x)y, xy) of a row.

    Whole numbers that are never negative and add up to R², so that the L1 sensitivity is rows · R²; averages of
    x, y and xy, and so the covariance, are ratios of their sums.
    """

    of: Expression
    other: Expression
    fixed: Fixed
    other_fixed: Fixed
    numbers = 4
    letters = "pqrs"

    @property
    def span(self) -> int:
        return self.fixed.span * self.other_fixed.span

    def row_values(self, position: int, rows: Value, policy: Policy) -> dict[str, Value]:
        one, other = self.fixed.steps(self.of, rows, policy), self.other_fixed.steps(self.other, rows, policy)
        return {f"x{position}": one, f"y{position}": other}

    def row_reach(self, position: int) -> dict[str, int]:
        return {f"x{position}": self.fixed.span, f"y{position}": self.other_fixed.span}

    def row_totals(self, position: int, rows: Value) -> dict[str, Value]:
        x, y = rows[f"x{position}"], rows[f"y{position}"]
        not_x, not_y = whole(self.fixed.span) - x, whole(self.other_fixed.span) - y
        products = zip(self.letters, (not_x * not_y, x * not_y, not_x * y, x * y), strict=True)
        return {f"n{position}": (x * y).count()} | {f"{name}{position}": total(one) for name, one in products}

    def parts(self, position: int, exact: Mapping[str, Integers]) -> Integers:
        return np.stack([exact[f"{letter}{position}"] for letter in self.letters], axis=1)

    def sensitivity(self, unit: Unit) -> int:
        return unit.rows * self.span


def products(of: Expression, other: Expression, policy: Policy) -> Products:
    fixed, other_fixed = (fixed_point(item, policy, bits=15) for item in (of, other))
    return Products(of, other, fixed, other_fixed)


@dataclass(frozen=True)
class Cells(Counted):
    """How many values lie in each cell of a public grid, as a tree of counts: for quantiles."""

    of: Expression
    lower: float
    upper: float
    cells: int
    whole: bool

    @property
    def shape(self) -> tuple[int, int]:
        """(children of a node, levels): those that make the rank's variance, levels³·(children − 1), least."""
        options = [(math.ceil(self.cells ** (1 / levels) - 1e-9), levels) for levels in range(1, 7)]
        return min(options, key=lambda option: option[1] ** 3 * (option[0] - 1))

    @property
    def levels(self) -> int:  # type: ignore[override]
        return self.shape[1]

    @property
    def numbers(self) -> int:  # type: ignore[override]
        children, levels = self.shape
        return sum(children**level for level in range(1, levels + 1))

    @property
    def width(self) -> float:
        return (self.upper - self.lower) / (self.cells - 1 if self.whole else self.cells)

    def edges(self, cell: Any) -> tuple[Any, Any]:
        """The least and the largest value in a cell, or in many; a whole number has a cell of its own."""
        low = self.lower + cell * self.width
        return low, low if self.whole else np.minimum(self.upper, self.lower + (cell + 1) * self.width)

    def cell(self, rows: Value, policy: Policy) -> Value:
        return steps(self.of, self.width, 0, self.cells - 1, rows, policy, origin=self.lower)


def cells(of: Expression, policy: Policy) -> Cells:
    found = _spread(of, policy)
    values = (found.high - found.low) / found.grid + 1
    if found.whole and values <= _MOST_CELLS and values.is_integer():
        return Cells(of, found.low, found.high, int(values), True)
    return Cells(of, found.low, found.high, _MOST_CELLS, False)


@dataclass(frozen=True)
class DifferentValues(Counted):
    """How many different values an expression has; a unit brings in at most as many as its rows count."""

    of: Expression
    cells: int = 1
    distinct = True

    def cell(self, rows: Value, policy: Policy) -> Value:
        return self.of.sql(rows, policy)


def total(value: Value) -> Value:
    return value.sum().coalesce(0).cast("int64")


def _square_over(value: Value, span: int) -> Value:
    """⌊v²/R⌋ through doubles: v² < 2⁵³ is exact, and the quotient is rounded alike on every engine."""
    double = value.cast("float64")
    return (double * double / whole(span).cast("float64")).floor().cast("int64")


def _scaled(units: Value, count_name: str, names: list[str]) -> dict[str, Value]:
    """A unit's values count in proportion to its rows: as many of their mean as are kept.

    How many that is need not be a whole number. `DITHER`, a number of the unit's own from 0 to below its rows,
    rounds it up or down so that over many units nothing is lost.
    """
    count, kept, rows = units[count_name], units[KEPT], units[ROWS]
    # Of all its rows it is `count`; CASE would be slower.
    kept_count = whole_quotient(count * kept + units[DITHER], rows)
    return {count_name: kept_count} | {name: _share(units[name], count, kept_count) for name in names}


def _share(value: Value, count: Value, kept: Value) -> Value:
    """⌊value · kept / count⌋ without overflow: the quotient and the remainder are scaled apart."""
    divisor = ibis.greatest(count, whole(1))
    return whole_quotient(value, divisor) * kept + whole_quotient((value % divisor) * kept, divisor)
