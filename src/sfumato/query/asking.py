"""The same questions in Python, without SQL.

>>> from sfumato.accounting import Budget
>>> from sfumato.policy import Column
>>> age = Column(name="age", type="integer", lower=0, upper=120)
>>> city = Column(name="city", type="text", categories=("Delft", "Utrecht"))
>>> columns = {"age": age, "city": city}
>>> policy = Policy(table="people", source="people.csv", columns=columns, budget=Budget(epsilon=3))
>>> query = select(policy, count(), mean("age"), by=["city"], where="age >= 18")
>>> [output.name for output in query.outputs]
['city', 'count', 'avg_age']
"""

from __future__ import annotations

from collections.abc import Sequence

from sfumato.policy import Policy
from sfumato.query.expressions import ColumnValue
from sfumato.query.keys import AnyKey, GroupKey
from sfumato.query.plan import Aggregate, Output, Query
from sfumato.query.sql import checked, parse_condition


def count(column: str | None = None) -> Aggregate:
    """How many rows, or how many of them have a value in `column`."""
    return Aggregate("count", _value(column))


def count_units() -> Aggregate:
    """How many people."""
    return Aggregate("count_units")


def total(column: str) -> Aggregate:
    return Aggregate("sum", _value(column))


def mean(column: str) -> Aggregate:
    return Aggregate("avg", _value(column))


def variance(column: str) -> Aggregate:
    return Aggregate("var", _value(column))


def deviation(column: str) -> Aggregate:
    return Aggregate("stddev", _value(column))


def median(column: str) -> Aggregate:
    return quantile(column, 0.5)


def quantile(column: str, level: float) -> Aggregate:
    return Aggregate("quantile", _value(column), level)


def _value(column: str | None) -> ColumnValue | None:
    return None if column is None else ColumnValue(column)


def select(
    policy: Policy, *aggregates: Aggregate, by: Sequence[str | AnyKey] = (), where: str | None = None
) -> Query:
    """The query that asks for `aggregates`, for each group of `by`, where a condition in SQL holds."""
    keys = tuple(GroupKey(key) if isinstance(key, str) else key for key in by)
    outputs = [Output(key.column, position) for position, key in enumerate(keys)]
    outputs += [Output(_name(aggregate), aggregate) for aggregate in aggregates]
    condition = None if where is None else parse_condition(where, policy)
    return checked(Query(outputs=tuple(outputs), keys=keys, where=condition), policy)


def _name(aggregate: Aggregate) -> str:
    column = f"_{aggregate.of.name}" if isinstance(aggregate.of, ColumnValue) else ""
    level = f"_{aggregate.level:g}" if aggregate.function == "quantile" else ""
    return aggregate.function + column + level
