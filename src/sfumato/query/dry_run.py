"""Expected errors of an answer, and of one with fewer rows and groups of a person, from declared facts."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sfumato.errors import TooMuchNoise
from sfumato.policy import Policy, Unit
from sfumato.query.aggregates import function_of
from sfumato.query.plan import Aggregate, Query, public_keys
from sfumato.query.pricing import Price

DEFAULT_SIZE = 1000


@dataclass(frozen=True, kw_only=True)
class ExpectedError:
    """Half the width of a column's 95% interval, if a group has about `rows` rows (None: any number).

    Attributes:
        column: The column of the answer.
        half_width: Half the width of its 95% interval.
        in_units_of: Its unit, in words.
        rows: The size of a group for which it holds; None if it holds for any.
        of_a_group: The largest value that a group can have, where it is relative to that.
        covers_all: The half-width from which the interval holds every value that such a group can have.
    """

    column: str
    half_width: float
    in_units_of: str
    rows: float | None
    of_a_group: float = 0.0
    covers_all: float = math.inf

    @property
    def says_nothing(self) -> bool:
        """Whether the noise is as large as anything that it could hide."""
        return self.half_width >= self.covers_all

    def lost(self, share: float) -> float:
        """The most that counts and sums lose if a share of a group's rows is left out."""
        return share * self.of_a_group


def expected_errors(
    query: Query, cost: Price, policy: Policy, *, kept: float = 1.0
) -> tuple[ExpectedError, ...]:
    """The expected error of each aggregate of a query.

    Counts and sums do not depend on the data. For averages, variances and quantiles it takes the size of a
    group: public_size shared by the public groups, or 1,000 rows, of which a share is `kept`. Quantiles are
    given as a share of the ranks.
    """
    keys = public_keys(query, policy)
    declared = policy.public_size is not None and keys is not None
    rows = (policy.public_size or 0) / expected_groups(keys, policy) if declared else DEFAULT_SIZE
    return _of_each(query, cost, rows, kept)


def warn_of_noise(query: Query, cost: Price, policy: Policy, *, stacklevel: int) -> None:
    """Warn where an answer will say practically nothing, by declared facts alone: size, bounds and groups.

    A group is taken to have its share of the declared size; where groups are not declared, all of it.
    """
    keys = public_keys(query, policy)
    if policy.public_size is None:
        return
    rows = policy.public_size / expected_groups(keys or [], policy)
    lost = [each for each in _of_each(query, cost, rows, 1.0) if each.says_nothing]
    if lost:
        columns = ", ".join(f"{each.column} (± {each.half_width:,.4g})" for each in lost)
        warnings.warn(
            f"the noise covers all that these can be in a group of average size, {rows:,.0f} rows, of which "
            f"they will say practically nothing: {columns}; ask with a larger epsilon, or for fewer groups (a "
            "dry run shows the error for nothing)",
            TooMuchNoise,
            stacklevel=stacklevel + 1,
        )


def expected_groups(keys: Sequence[Sequence[object]] | None, policy: Policy) -> int:
    """How many groups a query has; where they are not declared, as many as the declared size may hold."""
    return max(1, (policy.public_size or DEFAULT_SIZE) if keys is None else math.prod(map(len, keys)))


def _of_each(query: Query, cost: Price, rows: float, kept: float) -> tuple[ExpectedError, ...]:
    found = []
    for output in query.outputs:
        if not isinstance(output.value, Aggregate):
            continue
        aggregate, function = output.value, function_of(output.value)
        pairs = zip(cost.measures, cost.noises, strict=True)
        measure, noise = next(pair for pair in pairs if function.answers(aggregate, pair[0]))
        error = function.expected(aggregate, measure, noise, kept * rows)
        found.append(
            ExpectedError(
                column=output.name,
                half_width=error.half_width,
                in_units_of=error.in_units_of,
                rows=kept * rows if error.sized else None,
                of_a_group=rows * error.of_a_row,
                covers_all=error.covers_all,
            )
        )
    return tuple(found)


_STEPS = (1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000)
_MOST_OPTIONS = 6


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A query's expected errors, if a person counted with so many rows and groups.

    Attributes:
        rows: How many rows of a person would count.
        groups: In how many groups.
        errors: The expected error of each column.
        left_out: The share of rows that would not count, if everybody had as many rows, in as many groups,
            as the policy allows now.
        best: True for the least error, with the loss of counts and sums included.
    """

    rows: int
    groups: int
    errors: tuple[ExpectedError, ...]
    left_out: float
    best: bool = False

    def to_json(self) -> dict[str, Any]:
        errors = [
            {"column": item.column, "half_width": item.half_width, "unit": item.in_units_of, "rows": item.rows}
            for item in self.errors
        ]
        named = {"rows": self.rows, "groups": self.groups, "left_out": self.left_out, "best": self.best}
        return {**named, "expected_errors": errors}

    @property
    def badness(self) -> float:
        """The geometric mean of all columns' errors, in logarithms."""
        sizes = [item.half_width + item.lost(self.left_out) for item in self.errors]
        return math.fsum(math.log(max(size, 1e-300)) for size in sizes) / len(sizes)


Expect = Callable[[Policy, float], tuple[ExpectedError, ...]]
"""The expected errors under a policy, if a share of its rows counts."""


def trials(policy: Policy, *, grouped: bool, expect: Expect) -> tuple[Trial, ...]:
    """Every sensible choice of unit.rows and unit.groups up to the declared ones; one of them is the best."""
    unit = policy.unit
    found = []
    for rows in _options(unit.rows):
        for groups in _options(min(unit.groups, rows)) if grouped else [min(unit.groups, rows)]:
            kept = _kept(unit, rows, groups if grouped else unit.groups)
            tried = replace(policy, unit=replace(unit, rows=rows, groups=groups))
            found.append(Trial(rows=rows, groups=groups, errors=expect(tried, kept), left_out=1 - kept))
    least = min(found, key=lambda item: item.badness)
    return tuple(replace(item, best=item is least) for item in found)


def _options(most: int) -> list[int]:
    steps = [step for step in _STEPS if step < most]
    return [*steps[-_MOST_OPTIONS:], most]


def _kept(unit: Unit, rows: int, groups: int) -> float:
    """The share of a full unit's rows that count, if they are spread evenly over its groups."""
    return min(rows, unit.rows * groups / unit.groups) / unit.rows
