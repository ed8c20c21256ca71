"""What fewer rows and groups of a person would do to a query's error: from declared facts alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from sfumato.policy import Policy, Unit
from sfumato.query.dry_run import ExpectedError

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
        best: True for the least error, what is left out of counts and sums included.
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
