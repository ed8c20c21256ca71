"""How wrong an answer would be: from the query and the policy alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sfumato.policy import Policy
from sfumato.query.aggregates import function_of
from sfumato.query.plan import Aggregate, Query, public_keys
from sfumato.query.pricing import Price

DEFAULT_SIZE = 1000


@dataclass(frozen=True, kw_only=True)
class ExpectedError:
    """Half the width of a column's 95% interval, if a group has about `rows` rows (None: whatever it has)."""

    column: str
    half_width: float
    in_units_of: str
    rows: float | None


def expected_errors(query: Query, cost: Price, policy: Policy) -> tuple[ExpectedError, ...]:
    """The expected error of each aggregate of a query.

    Counts and sums do not depend on the data. For averages, variances and quantiles it takes the size of a
    group: public_size shared by the public groups, or 1,000 rows. Quantiles are given as a share of the ranks.
    """
    rows = _rows_per_group(query, policy)
    return tuple(
        _expected(output.name, output.value, cost, rows)
        for output in query.outputs
        if isinstance(output.value, Aggregate)
    )


def _rows_per_group(query: Query, policy: Policy) -> float:
    keys = public_keys(query, policy)
    if policy.public_size is None or keys is None:
        return DEFAULT_SIZE
    return policy.public_size / math.prod(len(values) for values in keys)


def _expected(name: str, aggregate: Aggregate, cost: Price, rows: float) -> ExpectedError:
    function = function_of(aggregate)
    for measure, noise in zip(cost.measures, cost.noises, strict=True):
        if function.answers(aggregate, measure):
            error = function.expected(aggregate, measure, noise, rows)
            return ExpectedError(
                column=name,
                half_width=error.half_width,
                in_units_of=error.in_units_of,
                rows=rows if error.sized else None,
            )
    raise TypeError(aggregate.function)
