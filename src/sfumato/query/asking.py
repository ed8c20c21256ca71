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
from sfumato.query.expressions.base import ColumnValue
from sfumato.query.keys import AnyKey, GroupKey
from sfumato.query.plan import Aggregate, Output, Query
from sfumato.query.sql import checked, parse_condition


def count(column: str | None = None) -> Aggregate:
    """Count rows, or those that have a value in a column.

    Args:
        column: The column; None to count all rows.

    Returns:
        The aggregate, for `select`.

    >>> count().function
    'count'
    """
    return Aggregate("count", _value(column))


def count_units() -> Aggregate:
    """Count people.

    Returns:
        The aggregate, for `select`.

    >>> count_units().function
    'count_units'
    """
    return Aggregate("count_units")


def total(column: str) -> Aggregate:
    """Add a column up.

    Args:
        column: A column of numbers with bounds.

    Returns:
        The aggregate, for `select`.

    >>> total("age").function
    'sum'
    """
    return Aggregate("sum", _value(column))


def mean(column: str) -> Aggregate:
    """Average a column.

    Args:
        column: A column of numbers with bounds.

    Returns:
        The aggregate, for `select`.

    >>> mean("age").function
    'avg'
    """
    return Aggregate("avg", _value(column))


def variance(column: str) -> Aggregate:
    """Take the variance of a column.

    Args:
        column: A column of numbers with bounds.

    Returns:
        The aggregate, for `select`.

    >>> variance("age").function
    'var'
    """
    return Aggregate("var", _value(column))


def deviation(column: str) -> Aggregate:
    """Take the standard deviation of a column.

    Args:
        column: A column of numbers with bounds.

    Returns:
        The aggregate, for `select`.

    >>> deviation("age").function
    'stddev'
    """
    return Aggregate("stddev", _value(column))


def median(column: str) -> Aggregate:
    """Take the median of a column.

    Args:
        column: A column of numbers with bounds.

    Returns:
        The aggregate, for `select`.

    >>> median("age").level
    0.5
    """
    return quantile(column, 0.5)


def quantile(column: str, level: float) -> Aggregate:
    """Take a quantile of a column.

    Args:
        column: A column of numbers with bounds.
        level: The share of rows below it, between 0 and 1.

    Returns:
        The aggregate, for `select`.

    Raises:
        QueryRefused: If the level is 0 or 1: the least and the largest value are single people's.

    >>> quantile("age", 0.9).level
    0.9
    """
    return Aggregate("quantile", _value(column), level)


def _value(column: str | None) -> ColumnValue | None:
    return None if column is None else ColumnValue(column)


def select(
    policy: Policy, *aggregates: Aggregate, by: Sequence[str | AnyKey] = (), where: str | None = None
) -> Query:
    """Put a query together in Python.

    Args:
        policy: The policy of the table.
        aggregates: The aggregates of each group.
        by: Columns to group by, or `GroupKey`s with bins.
        where: A condition in SQL.

    Returns:
        The query, for `Table.ask`.

    Raises:
        QueryRefused: If it cannot be answered privately.

    >>> from sfumato.accounting import Budget
    >>> from sfumato.policy import Column
    >>> age = Column(name="age", type="integer", lower=0, upper=120)
    >>> policy = Policy(table="people", source="people.csv", columns={"age": age}, budget=Budget(epsilon=3))
    >>> [output.name for output in select(policy, mean("age"), where="age >= 18").outputs]
    ['avg_age']
    """
    keys = tuple(GroupKey(key) if isinstance(key, str) else key for key in by)
    outputs = [Output(key.column, position) for position, key in enumerate(keys)]
    outputs += [Output(_name(aggregate), aggregate) for aggregate in aggregates]
    condition = None if where is None else parse_condition(where, policy)
    return checked(Query(outputs=tuple(outputs), keys=keys, where=condition), policy)


def _name(aggregate: Aggregate) -> str:
    column = f"_{aggregate.of.name}" if isinstance(aggregate.of, ColumnValue) else ""
    level = f"_{aggregate.level:g}" if aggregate.function == "quantile" else ""
    return aggregate.function + column + level
