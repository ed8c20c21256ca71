"""Keys of GROUP BY: their public values, their SQL, and their labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sfumato.policy import Key, Policy
from sfumato.query.expressions.base import (
    CONDITION,
    NUMBER,
    ColumnValue,
    Expression,
    Value,
    column_name,
    public_bounds,
    steps_above,
)
from sfumato.query.reading import QueryRefused

MOST_GROUPS = 100_000  # rows of an answer: 10 µs and a KiB each
MOST_BINS = 10_000


@dataclass(frozen=True)
class GroupKey:
    """A column to group by; a numeric one in equal bins over its public bounds.

    Args:
        column: The column to group by.
        bins: How many equal bins a number is put into, over its public bounds; None for a column with
            categories.

    >>> GroupKey("age", bins=12)
    GroupKey(column='age', bins=12)
    """

    column: str
    bins: int | None = None


@dataclass(frozen=True)
class ComputedKey:
    """An expression to group by, and how the query writes it."""

    of: Expression
    column: str


AnyKey = GroupKey | ComputedKey


def expression_of(key: AnyKey) -> Expression:
    return key.of if isinstance(key, ComputedKey) else ColumnValue(key.column)


def public_values(keys: Sequence[AnyKey], policy: Policy) -> tuple[tuple[Key, ...], ...] | None:
    """For each key its public values; None if one has none, so that keys must be selected privately."""
    values = [_values(key, policy) for key in keys]
    known = [item for item in values if item is not None]
    if math.prod(len(item) for item in known) > MOST_GROUPS:
        raise QueryRefused(f"the query has more than {MOST_GROUPS:,} groups; group by fewer columns or bins")
    return tuple(known) if len(known) == len(values) else None


def _values(key: AnyKey, policy: Policy) -> tuple[Key, ...] | None:
    if isinstance(key, GroupKey) and key.bins is not None:
        return tuple(range(key.bins))
    return expression_of(key).values(policy)


def check_key(key: AnyKey, policy: Policy) -> None:
    """Refuse bins out of range, and bins of a column without bounds."""
    if isinstance(key, GroupKey) and key.bins is not None:
        if not 1 <= key.bins <= MOST_BINS:
            raise QueryRefused(f"the number of bins is a whole number from 1 to {MOST_BINS}")
        public_bounds(ColumnValue(key.column), policy)


def key_value(key: AnyKey, table: Value, policy: Policy) -> Value:
    """A group's key as text, whole number or boolean."""
    of = expression_of(key)
    if isinstance(key, GroupKey) and key.bins is not None:
        found = public_bounds(of, policy)
        return steps_above(of, found.low, (found.high - found.low) / key.bins, key.bins - 1, table, policy)
    value = table[column_name(of.name, policy)] if isinstance(of, ColumnValue) else of.sql(table, policy)
    if value.type().is_date():
        return value.cast("string")
    return value.cast("int64") if value.type().is_floating() else value


def label(key: AnyKey, value: Key, policy: Policy) -> Key:
    """A key as the answer shows it: bins by their ends."""
    if isinstance(key, ComputedKey) or key.bins is None:
        return value
    found = ColumnValue(key.column).range(policy)
    width, number = (found.high - found.low) / key.bins, int(value)
    end = "]" if number == key.bins - 1 else ")"
    return f"[{found.low + number * width:g}, {found.low + (number + 1) * width:g}{end}"


def ungrouped(key: AnyKey, policy: Policy) -> str | None:
    """Which rows are in no group, in words; None if every row is in one. A fact of the query and the policy."""
    of = expression_of(key)
    if not of.may_be_missing():
        return None
    column = policy.columns.get(of.name) if isinstance(of, ColumnValue) else None
    listed = column is not None and column.categories is not None
    return f"{key.column} is missing" + (" or not among its categories" if listed else "")


def key_type(key: AnyKey, policy: Policy) -> type:
    """The type of a shown key: a text (a date is one, and a bin), a whole number, or true and false."""
    if isinstance(key, GroupKey) and key.bins is not None:
        return str
    kind = expression_of(key).kind(policy)
    return {NUMBER: int, CONDITION: bool}.get(str(kind), str)


def some_values(key: AnyKey, policy: Policy) -> tuple[Key, ...]:
    """Values that a key can be shown as, from public facts: those at the ends, where they have an order."""
    kind = key_type(key, policy)
    if kind is int:
        found = expression_of(key).range(policy)
        return int(found.low), int(found.high)
    if kind is bool:
        return False, True
    known = public_values([key], policy)
    values = ("a", "") if known is None else (known[0][0], known[0][-1])
    return tuple(str(label(key, value, policy)) for value in values)
