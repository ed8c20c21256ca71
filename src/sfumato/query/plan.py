"""A query as a frozen plan: what is asked, and what has to be measured to answer it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from sfumato import _validate
from sfumato.query.expressions import Condition, Expression
from sfumato.query.keys import AnyKey, public_values
from sfumato.query.per_person import PerPerson, person_policy
from sfumato.query.policy import Key, Policy, Unit
from sfumato.query.postprocessing import PostProcessing
from sfumato.query.ranges import public_bounds
from sfumato.query.refusal import QueryRefused

FUNCTIONS = (
    "count", "count_units", "sum", "avg", "var", "var_pop", "stddev", "stddev_pop", "quantile",
)  # fmt: skip
_MOST_CELLS = 1024
_MOMENTS = {"avg": 1, "var": 2, "var_pop": 2, "stddev": 2, "stddev_pop": 2}


@dataclass(frozen=True)
class Aggregate:
    """One number for each group. `of` is None for COUNT(*) and for counting units."""

    function: str
    of: Expression | None = None
    level: float = 0.5

    def __post_init__(self) -> None:
        _validate.one_of("function", self.function, FUNCTIONS)
        if not 0 < _validate.real("level", self.level) < 1:
            raise QueryRefused(
                f"a quantile's level lies between 0 and 1, got {self.level:g}; the least and the largest "
                "value are single people's",
                nearest="QUANTILE(column, 0.01) or QUANTILE(column, 0.99)",
            )


@dataclass(frozen=True)
class Output:
    """One column of the answer: an aggregate, or the key at a position in `keys`."""

    name: str
    value: Aggregate | int


@dataclass(frozen=True, kw_only=True)
class Query:
    """What is asked, in terms of the policy's columns; made from SQL or in Python."""

    outputs: tuple[Output, ...]
    keys: tuple[AnyKey, ...] = ()
    where: Condition | None = None
    order: tuple[tuple[int, bool], ...] = ()  # (output, descending)
    limit: int | None = None
    post: PostProcessing | None = None  # computed from the outputs, which it shows instead
    per_person: PerPerson | None = None  # the sub-query that makes one row of each person

    @property
    def aggregates(self) -> tuple[Aggregate, ...]:
        return tuple(output.value for output in self.outputs if isinstance(output.value, Aggregate))


def scope(query: Query, policy: Policy) -> Policy:
    """The policy of the table that a query's aggregates see: with a sub-query, that of one row a person."""
    return policy if query.per_person is None else person_policy(query.per_person, policy)


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


@dataclass(frozen=True)
class Moments:
    """Counts and power sums of one expression; of no expression: the number of rows.

    With z = (x − lower)/(upper − lower) in fixed point of span R, a row adds to these whole numbers:
    degree 0: (1); degree 1: R·(1−z, z); degree 2: R·((1−z)², 2z(1−z), z²); and, with `missing`, R for a NULL in
    a number of its own. They are never negative and one row's add up to R, so that the L1 sensitivity of all of
    them together is rows · R, as if only one had been asked (a partition of unity). Counts, sums, averages and
    variances are linear in them or ratios of what is.
    """

    of: Expression | None
    degree: int
    missing: bool
    fixed: Fixed

    @property
    def span(self) -> int:
        return self.fixed.span if self.degree else 1


@dataclass(frozen=True)
class ClippedSum:
    """The sum of one expression, clipped for each unit to what its rows can reach."""

    of: Expression
    fixed: Fixed

    @property
    def largest(self) -> int:
        return max(abs(self.fixed.first), abs(self.fixed.last))


@dataclass(frozen=True)
class UnitCount:
    """How many units there are."""


@dataclass(frozen=True)
class Cells:
    """How many values lie in each cell of a public grid, as a tree of counts: for quantiles."""

    of: Expression
    lower: float
    upper: float
    cells: int
    whole: bool

    @property
    def shape(self) -> tuple[int, int]:
        """(children of a node, levels): what makes the rank's variance, levels³·(children − 1), least."""
        options = [(math.ceil(self.cells ** (1 / levels) - 1e-9), levels) for levels in range(1, 7)]
        return min(options, key=lambda option: option[1] ** 3 * (option[0] - 1))

    @property
    def width(self) -> float:
        return (self.upper - self.lower) / (self.cells - 1 if self.whole else self.cells)

    def edges(self, cell: int) -> tuple[float, float]:
        """The least and the largest value in a cell; a whole number has a cell of its own."""
        width = self.width
        if self.whole:
            return self.lower + cell * width, self.lower + cell * width
        return self.lower + cell * width, min(self.upper, self.lower + (cell + 1) * width)


Measure = Moments | ClippedSum | UnitCount | Cells


def measures_for(query: Query, policy: Policy) -> tuple[Measure, ...]:
    """The fewest measures that answer all of a query's aggregates, each paid for with an equal share of ε."""
    asked = query.aggregates
    found: list[Measure] = []
    for of in dict.fromkeys(aggregate.of for aggregate in asked if aggregate.of is not None):
        found += _measures_of(of, [item for item in asked if item.of == of], policy)
    if Aggregate("count") in asked:
        found = _with_rows(found)
    if Aggregate("count_units") in asked:
        found.append(UnitCount())
    return tuple(found)


def _measures_of(of: Expression, asked: list[Aggregate], policy: Policy) -> list[Measure]:
    functions = {aggregate.function for aggregate in asked}
    degree = max((_MOMENTS[name] for name in functions & _MOMENTS.keys()), default=0)
    found: list[Measure] = []
    if degree or "count" in functions:
        found.append(Moments(of, degree, False, fixed_point(of, policy, degree=degree)))
    if "sum" in functions and not degree:
        found.append(ClippedSum(of, fixed_point(of, policy, degree=1, about_zero=True)))
    if "quantile" in functions:
        found.append(_cells(of, policy))
    return found


def _with_rows(found: list[Measure]) -> list[Measure]:
    """COUNT(*) rides on the first moments for nothing, once they count NULLs as well."""
    for position, measure in enumerate(found):
        if isinstance(measure, Moments):
            found[position] = Moments(measure.of, measure.degree, True, measure.fixed)
            return found
    return [Moments(None, 0, False, Fixed(0, 1, 1)), *found]


def fixed_point(of: Expression, policy: Policy, *, degree: int, about_zero: bool = False) -> Fixed:
    """The finest power-of-two grid (1 for whole numbers) on which squares are exact and no sum overflows."""
    if degree == 0:
        return Fixed(0, 1, 1)
    found = public_bounds(of, policy)
    if found.low == found.high:
        raise QueryRefused("the expression is a constant; there is nothing private in it", nearest="COUNT(*)")
    bits = 30 if degree == 1 else 26
    reach = found.size if about_zero else found.high - found.low
    coarsest = math.ldexp(1.0, math.frexp(reach)[1] - bits)
    # Squares are divided by the span, so that even whole numbers need a fine grid for degree 2.
    return Fixed(found.low, found.high, max(1.0, coarsest) if degree == 1 and found.whole else coarsest)


def _cells(of: Expression, policy: Policy) -> Cells:
    found = public_bounds(of, policy)
    if found.low == found.high:
        raise QueryRefused("the expression is a constant; there is nothing private in it", nearest="COUNT(*)")
    values = (found.high - found.low) / found.grid + 1
    if found.whole and values <= _MOST_CELLS and values.is_integer():
        return Cells(of, found.low, found.high, int(values), True)
    return Cells(of, found.low, found.high, _MOST_CELLS, False)


def public_keys(query: Query, policy: Policy) -> tuple[tuple[Key, ...], ...] | None:
    """For each key its public values; None if one has none, so that keys must be selected privately."""
    return public_values(query.keys, policy)


def touched_unit(query: Query, policy: Policy) -> Unit:
    """The unit of a policy in a query: it counts in no more groups than the query has."""
    keys = public_keys(query, policy)
    groups = policy.unit.groups if keys is None else math.prod(len(values) for values in keys)
    return replace(policy.unit, groups=min(policy.unit.groups, max(1, groups)))
