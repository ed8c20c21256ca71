"""A query as a frozen plan."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from sfumato import _validate
from sfumato.policy import Key, Policy, Unit
from sfumato.query.expressions.base import Expression, columns_of
from sfumato.query.joining import Joined, rows_policy
from sfumato.query.keys import AnyKey, expression_of, public_values, ungrouped
from sfumato.query.per_person import PerPerson, person_policy
from sfumato.query.postprocessing import PostProcessing
from sfumato.query.reading import QueryRefused


@dataclass(frozen=True)
class Aggregate:
    """One number for each group. `count`, `mean` and the like make them.

    Args:
        function: The aggregate's name, such as "avg".
        of: The expression it is computed of; None for COUNT(*) and for people.
        level: The level of a quantile, between 0 and 1.
        other: The second column of a covariance.
    """

    function: str
    of: Expression | None = None
    level: float = 0.5
    other: Expression | None = None

    def __post_init__(self) -> None:
        if not 0 < _validate.real("level", self.level) < 1:
            meant = f"for {self.level:g}% write {self.level / 100:g}; " if 1 < self.level < 100 else ""
            raise QueryRefused(
                f"a quantile's level lies between 0 and 1, got {self.level:g}; {meant}the least and the "
                "largest value are single people's",
                nearest="QUANTILE(column, 0.01) or QUANTILE(column, 0.99)",
            )


@dataclass(frozen=True)
class Output:
    """One column of the answer: an aggregate, or the key at a position in `keys`."""

    name: str
    value: Aggregate | int


@dataclass(frozen=True, kw_only=True)
class Query:
    """A question in terms of the policy's columns. `parse_query` makes one from SQL, `select` in Python.

    Attributes:
        outputs: The columns of the answer.
        keys: The keys that rows are grouped by.
        where: Which rows count.
        order: (position of an output, whether descending), for each column to sort by.
        limit: How many rows of the answer are shown.
        post: The computation from the noisy outputs, shown in their place.
        per_person: The sub-query that makes one row of each person.
        joined: The table that is read, and the joins to it; None for the policy's first.
    """

    outputs: tuple[Output, ...]
    keys: tuple[AnyKey, ...] = ()
    where: Expression | None = None
    order: tuple[tuple[int, bool], ...] = ()  # (output, descending)
    limit: int | None = None
    post: PostProcessing | None = None  # computed from the outputs, which it shows instead
    per_person: PerPerson | None = None  # the sub-query that makes one row of each person
    joined: Joined | None = None

    @property
    def aggregates(self) -> tuple[Aggregate, ...]:
        return tuple(output.value for output in self.outputs if isinstance(output.value, Aggregate))


def columns_used(query: Query) -> set[str]:
    """The columns that a query reads of its rows."""
    if query.per_person is not None:
        return set(columns_of((query.per_person.values, query.per_person.where)))
    keys = tuple(expression_of(key) for key in query.keys)
    return set(columns_of((query.aggregates, query.where, keys)))


def scope(query: Query, policy: Policy) -> Policy:
    """The policy of the table that a query's aggregates see: with a sub-query, that of one row a person."""
    rows = rows_policy(query.joined, policy)
    return rows if query.per_person is None else person_policy(query.per_person, rows)


def public_keys(query: Query, policy: Policy) -> tuple[tuple[Key, ...], ...] | None:
    """For each key its public values; None if one has none, so that keys must be selected privately."""
    return public_values(query.keys, policy)


def ungrouped_rows(query: Query, policy: Policy) -> tuple[str, ...]:
    """Which rows are in no group of a query, in words; nothing if all are in one."""
    seen = scope(query, policy)
    return tuple(words for key in query.keys if (words := ungrouped(key, seen)) is not None)


def touched_unit(query: Query, policy: Policy) -> Unit:
    """The unit of a policy in a query: it counts in no more groups than the query has."""
    keys = public_keys(query, policy)
    groups = policy.unit.groups if keys is None else math.prod(len(values) for values in keys)
    return replace(policy.unit, groups=min(policy.unit.groups, max(1, groups)))
