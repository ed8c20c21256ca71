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
    """Half the width of a column's 95% interval, if a group has about `rows` rows (None: whatever it has).

    Attributes:
        column: The column of the answer.
        half_width: Half the width of its 95% interval.
        in_units_of: What it is measured in, in words.
        rows: The size of a group for which it holds; None if it holds for any.
        of_a_group: The largest value that a group can have, where it is relative to that.
    """

    column: str
    half_width: float
    in_units_of: str
    rows: float | None
    of_a_group: float = 0.0

    def lost(self, share: float) -> float:
        """What is missing at most if a share of a group's rows is left out: of counts and sums."""
        return share * self.of_a_group


def expected_errors(
    query: Query, cost: Price, policy: Policy, *, kept: float = 1.0
) -> tuple[ExpectedError, ...]:
    """The expected error of each aggregate of a query.

    Counts and sums do not depend on the data. For averages, variances and quantiles it takes the size of a
    group: public_size shared by the public groups, or 1,000 rows, of which a share is `kept`. Quantiles are
    given as a share of the ranks.
    """
    rows = _rows_per_group(query, policy)
    return tuple(
        _expected(output.name, output.value, cost, rows, kept)
        for output in query.outputs
        if isinstance(output.value, Aggregate)
    )


def _rows_per_group(query: Query, policy: Policy) -> float:
    keys = public_keys(query, policy)
    if policy.public_size is None or keys is None:
        return DEFAULT_SIZE
    return policy.public_size / math.prod(len(values) for values in keys)


def _expected(name: str, aggregate: Aggregate, cost: Price, rows: float, kept: float) -> ExpectedError:
    function = function_of(aggregate)
    for measure, noise in zip(cost.measures, cost.noises, strict=True):
        if function.answers(aggregate, measure):
            error = function.expected(aggregate, measure, noise, kept * rows)
            return ExpectedError(
                column=name,
                half_width=error.half_width,
                in_units_of=error.in_units_of,
                rows=kept * rows if error.sized else None,
                of_a_group=rows * error.of_a_row,
            )
    raise TypeError(aggregate.function)
