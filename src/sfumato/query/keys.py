"""What a query groups by: which values a key can have, how it is computed, and how it is shown."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass

from sfumato.policy import Key, Policy
from sfumato.query.compilation import Value, column_name, compiled, steps_above
from sfumato.query.expressions import (
    CONDITION,
    DATE,
    NUMBER,
    TEXT,
    Cased,
    Choice,
    ColumnValue,
    DateExpression,
    Day,
    Expression,
    FirstOf,
    Missing,
    Nothing,
    Number,
    Text,
    Truncated,
    kind_of,
)
from sfumato.query.ranges import days_of, public_bounds, range_of, truncated
from sfumato.query.refusal import QueryRefused

MOST_GROUPS = 100_000  # rows of an answer: 10 µs and a KiB each
MOST_KEYS = 1_000  # so many values of a computed key are listed, from public facts alone
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
    return _possible(expression_of(key), policy)


def _possible(of: Expression, policy: Policy) -> tuple[Key, ...] | None:
    """Every value an expression can have, where public facts list them."""
    if isinstance(of, ColumnValue) and policy.columns[of.name].categories is not None:
        return policy.columns[of.name].categories
    kind = kind_of(of, policy)
    if kind == CONDITION:
        return False, True
    if kind == TEXT:
        return _texts(of, policy)
    if kind == DATE:
        return _days(of, policy)  # type: ignore[arg-type]
    found = range_of(of, policy)
    if not found.whole:
        raise QueryRefused(
            "a key is a whole number, a text, a date or a condition: nearly every real number is one person's; "
            "group by BIN(column, 10), FLOOR or ROUND"
        )
    return found.values(MOST_KEYS)


def possible_texts(of: Expression, policy: Policy) -> tuple[Key, ...] | None:
    """Every text that an expression can be, where categories list them."""
    return _possible(of, policy) if kind_of(of, policy) == TEXT else None


def _texts(of: Expression, policy: Policy) -> tuple[Key, ...] | None:
    if isinstance(of, Text):
        return (of.value,)
    if isinstance(of, Choice | FirstOf):
        lists = [_possible(item, policy) for item in of.values if not isinstance(item, Nothing)]
        known = [item for item in lists if item is not None]
        return (
            tuple(dict.fromkeys(value for item in known for value in item))
            if len(known) == len(lists)
            else None
        )
    values = _possible(of.of, policy) if isinstance(of, Cased) else None
    if values is None or not all(str(value).isascii() for value in values):
        return None
    change = str.lower if isinstance(of, Cased) and of.case == "lower" else str.upper
    return tuple(dict.fromkeys(change(str(value)) for value in values))


def _days(of: DateExpression, policy: Policy) -> tuple[Key, ...] | None:
    if not _has_declared_days(of, policy):
        return None
    first, last = days_of(of, policy)
    unit = of.unit if isinstance(of, Truncated) else "day"
    if (last - first).days / {"year": 365, "quarter": 90, "month": 28, "week": 7, "day": 1}[unit] >= MOST_KEYS:
        return None
    days = [first + datetime.timedelta(number) for number in range((last - first).days + 1)]
    return tuple(dict.fromkeys(truncated(unit, day).isoformat() for day in days))


def _has_declared_days(of: DateExpression, policy: Policy) -> bool:
    inside = of.of if isinstance(of, Truncated) else of
    return isinstance(inside, ColumnValue) and policy.columns[inside.name].days is not None


def check_key(key: AnyKey, policy: Policy) -> None:
    """Refuse what is no key, and bins of what has no bounds."""
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
    value = table[column_name(of.name, policy)] if isinstance(of, ColumnValue) else compiled(of, table, policy)
    if value.type().is_date():
        return value.cast("string")
    return value.cast("int64") if value.type().is_floating() else value


def label(key: AnyKey, value: Key, policy: Policy) -> Key:
    """A key as the answer shows it: bins by their ends."""
    if isinstance(key, ComputedKey) or key.bins is None:
        return value
    found = range_of(ColumnValue(key.column), policy)
    width, number = (found.high - found.low) / key.bins, int(value)
    end = "]" if number == key.bins - 1 else ")"
    return f"[{found.low + number * width:g}, {found.low + (number + 1) * width:g}{end}"


def ungrouped(key: AnyKey, policy: Policy) -> str | None:
    """Which rows are in no group, in words; None if every row is in one. A fact of the query and the policy."""
    of = expression_of(key)
    if not _may_be_missing(of):
        return None
    column = policy.columns.get(of.name) if isinstance(of, ColumnValue) else None
    listed = column is not None and column.categories is not None
    return f"{key.column} is missing" + (" or not among its categories" if listed else "")


def _may_be_missing(of: Expression) -> bool:
    if isinstance(of, Text | Number | Day | Missing):
        return False
    if isinstance(of, FirstOf):
        return all(map(_may_be_missing, of.values))
    if isinstance(of, Choice):
        return any(map(_may_be_missing, of.values))
    return True


def key_type(key: AnyKey, policy: Policy) -> type:
    """What a key is shown as: a text (a date is one, and a bin), a whole number, or true and false."""
    if isinstance(key, GroupKey) and key.bins is not None:
        return str
    kind = kind_of(expression_of(key), policy)
    return {NUMBER: int, CONDITION: bool}.get(str(kind), str)


def some_values(key: AnyKey, policy: Policy) -> tuple[Key, ...]:
    """Values that a key can be shown as, from public facts: those at the ends, of what has an order."""
    kind = key_type(key, policy)
    if kind is int:
        found = range_of(expression_of(key), policy)
        return int(found.low), int(found.high)
    if kind is bool:
        return False, True
    known = public_values([key], policy)
    values = ("a", "") if known is None else (known[0][0], known[0][-1])
    return tuple(str(label(key, value, policy)) for value in values)
