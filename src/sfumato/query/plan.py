"""A query as a frozen plan: its aggregates, its keys, and the sub-query that makes one row of each person.

The values that the sub-query computes from a person's own rows make a table of one row a person, with bounds
that follow from the policy: a count, or a sum, is clipped to the reach of `unit.rows` rows, or to the bounds
that LEAST(COUNT(*), 20) says. The outer query is asked of that table like of any other, with one row a person.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlglot import exp
from sqlglot.expressions import Expr

from sfumato import _validate
from sfumato.errors import InvalidInput
from sfumato.policy import Column, Key, Policy, Unit
from sfumato.query.expressions import (
    CONDITION,
    DATE,
    FINEST,
    LARGEST,
    NUMBER,
    TEXT,
    ColumnValue,
    Expression,
    Range,
    Value,
    check_values,
    column_name,
    columns_of,
    condition,
    public_bounds,
    steps,
    translated,
)
from sfumato.query.names import Joined, Names, rows_policy
from sfumato.query.numbers import as_number
from sfumato.query.postprocessing import PostProcessing
from sfumato.query.reading import MOST_AGGREGATES, QueryRefused, constant, parts, shown, unaliased

MOST_GROUPS = 100_000  # rows of an answer: 10 µs and a KiB each
MOST_BINS = 10_000


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

    @property
    def of(self) -> Expression:
        return ColumnValue(self.column)


@dataclass(frozen=True)
class ComputedKey:
    """An expression to group by, and how the query writes it."""

    of: Expression
    column: str

    bins = None


AnyKey = GroupKey | ComputedKey


@dataclass(frozen=True)
class Output:
    """One column of the answer: an aggregate, or the key at a position in `keys`."""

    name: str
    value: Aggregate | int


@dataclass(frozen=True)
class PersonValue:
    """One number, text, date or truth about a person, from the person's own rows."""

    name: str
    function: str
    of: Expression | None = None
    by: Expression | None = None
    least: float | None = None
    most: float | None = None


ADDED_UP = ("count", "count_if", "distinct", "sum")
"""Functions of a person's rows that reach further the more rows there are."""
_PRESENT = PersonValue("the person's rows", "count")  # where nothing is computed: the person is counted alone


@dataclass(frozen=True)
class PerPerson:
    """The inner query: the values computed for each person, and the rows they come from.

    `having` is a condition on the values, some of which are there for it alone.
    """

    values: tuple[PersonValue, ...]
    where: Expression | None = None
    having: Expression | None = None


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
    order: tuple[tuple[int, bool], ...] = ()
    limit: int | None = None
    post: PostProcessing | None = None
    per_person: PerPerson | None = None
    joined: Joined | None = None

    @property
    def aggregates(self) -> tuple[Aggregate, ...]:
        return tuple(output.value for output in self.outputs if isinstance(output.value, Aggregate))

    @property
    def key_names(self) -> list[str]:
        """The names of the keys in the engine's rows."""
        return [f"key{i}" for i in range(len(self.keys))]


def columns_used(query: Query) -> set[str]:
    """The columns that a query reads of its rows."""
    if query.per_person is not None:
        return set(columns_of((query.per_person.values, query.per_person.where)))
    return set(columns_of((query.aggregates, query.where, tuple(key.of for key in query.keys))))


def scope(query: Query, policy: Policy) -> Policy:
    """The policy of the table that a query's aggregates see: with a sub-query, that of one row a person."""
    rows = rows_policy(query.joined, policy)
    return rows if query.per_person is None else person_policy(query.per_person, rows)


def touched_unit(query: Query, policy: Policy) -> Unit:
    """The unit of a policy in a query: it counts in no more groups than the query has."""
    keys = public_keys(query, policy)
    groups = policy.unit.groups if keys is None else math.prod(len(values) for values in keys)
    return replace(policy.unit, groups=min(policy.unit.groups, max(1, groups)))


# ---- keys


def public_keys(query: Query, policy: Policy) -> tuple[tuple[Key, ...], ...] | None:
    """For each key its public values; None if one has none, so that keys must be selected privately."""
    return _public_values(query.keys, policy)


def _public_values(keys: Sequence[AnyKey], policy: Policy) -> tuple[tuple[Key, ...], ...] | None:
    values = [key.of.values(policy) if key.bins is None else tuple(range(key.bins)) for key in keys]
    known = [item for item in values if item is not None]
    if math.prod(len(item) for item in known) > MOST_GROUPS:
        raise QueryRefused(f"the query has more than {MOST_GROUPS:,} groups; group by fewer columns or bins")
    return tuple(known) if len(known) == len(values) else None


def check_key(key: AnyKey, policy: Policy) -> None:
    """Refuse bins out of range, and bins of a column without bounds."""
    if key.bins is not None:
        if not 1 <= key.bins <= MOST_BINS:
            raise QueryRefused(f"the number of bins is a whole number from 1 to {MOST_BINS}")
        public_bounds(key.of, policy)


def key_value(key: AnyKey, table: Value, policy: Policy) -> Value:
    """A group's key as text, whole number or boolean."""
    of = key.of
    if key.bins is not None:
        found = public_bounds(of, policy)
        width = (found.high - found.low) / key.bins
        return steps(of, width, 0, key.bins - 1, table, policy, origin=found.low)
    value = table[column_name(of.name, policy)] if isinstance(of, ColumnValue) else of.sql(table, policy)
    if value.type().is_date():
        return value.cast("string")
    return value.cast("int64") if value.type().is_floating() else value


def label(key: AnyKey, value: Key, policy: Policy) -> Key:
    """A key as the answer shows it: bins by their ends."""
    if key.bins is None:
        return value
    found = key.of.range(policy)
    width, number = (found.high - found.low) / key.bins, int(value)
    end = "]" if number == key.bins - 1 else ")"
    return f"[{found.low + number * width:g}, {found.low + (number + 1) * width:g}{end}"


def ungrouped_rows(query: Query, policy: Policy) -> tuple[str, ...]:
    """Which rows are in no group, in words, from the query and the policy; nothing if all are in one."""
    seen, found = scope(query, policy), []
    for key in query.keys:
        if key.of.may_be_missing():
            column = seen.columns.get(key.of.name) if isinstance(key.of, ColumnValue) else None
            listed = column is not None and column.categories is not None
            found.append(f"{key.column} is missing" + (" or not among its categories" if listed else ""))
    return tuple(found)


def key_type(key: AnyKey, policy: Policy) -> type:
    """The type of a shown key: a text (a date is one, and a bin), a whole number, or true and false."""
    kind = None if key.bins is not None else key.of.kind(policy)
    return {NUMBER: int, CONDITION: bool}.get(str(kind), str)


def some_values(key: AnyKey, policy: Policy) -> tuple[Key, ...]:
    """Values that a key can be shown as, from public facts: those at the ends, where they have an order."""
    kind = key_type(key, policy)
    if kind is int:
        found = key.of.range(policy)
        return int(found.low), int(found.high)
    if kind is bool:
        return False, True
    known = _public_values([key], policy)
    values = ("a", "") if known is None else (known[0][0], known[0][-1])
    return tuple(str(label(key, value, policy)) for value in values)


# ---- one row of each person

_FUNCTIONS: dict[type[Expr], str] = {
    exp.Count: "count", exp.Sum: "sum", exp.Avg: "avg", exp.Min: "min", exp.Max: "max", exp.ArgMin: "first",
    exp.ArgMax: "last", exp.LogicalOr: "any", exp.LogicalAnd: "all", exp.CountIf: "count_if",
}  # fmt: skip


def parse_per_person(select: exp.Select, names: Names) -> PerPerson | None:
    """The inner query, if it groups by the person and nothing else; None if it does not group by the person."""
    group = select.args.get("group")
    nodes = list(parts(group, "expressions")[0]) if group is not None else []
    if not any(names.is_unit(node) for node in nodes):
        return None
    if len(nodes) != 1:
        raise QueryRefused(
            "a sub-query groups by the person alone; make the rest values of the person, as BOOL_OR(ill) AS "
            "ill, MIN(age) AS age or ARG_MIN(ward, day) AS ward, and group by them outside"
        )
    items, where, having = parts(select, "expressions", "where", "having", "group", "from_", "joins")[:3]
    values = [_value(item, names) for item in items if not names.is_unit(item)]
    kept = None if where is None else condition(parts(where, "this")[0], names)
    inner = PerPerson(tuple(values) or (_PRESENT,), kept)
    inner = inner if having is None else _with_having(inner, parts(having, "this")[0], names)
    check_values([kept, *(one for value in inner.values for one in (value.of, value.by))], names.policy)
    return inner


def _with_having(inner: PerPerson, having: Expr, names: Names) -> PerPerson:
    """HAVING is a condition on a person's values; aggregates in it are values without a name."""
    values = list(inner.values)

    def named(node: Expr) -> Expr:
        if type(node) not in _FUNCTIONS:
            return node
        found = _person_value(node, names)
        same = next((value.name for value in values if replace(value, name="") == found), None)
        if same is None:
            same = f"{shown(node).lower()} of HAVING {len(values)}"
            values.append(replace(found, name=same))
        return exp.column(exp.to_identifier(same, quoted=True))

    node = having.copy().transform(named)
    inner = replace(inner, values=tuple(values))
    policy = person_policy(inner, names.policy)
    kept = condition(node, Names(policy=policy, table="", tally=names.tally))
    check_values([kept], policy)
    return replace(inner, having=kept)


def _value(item: Expr, names: Names) -> PersonValue:
    node, alias = unaliased(item)
    if not alias:
        raise QueryRefused(f"give {shown(item)} a name in the sub-query: {shown(item)} AS n")
    limits: dict[type[Expr], float] = {}
    while type(node) in (exp.Least, exp.Greatest):
        first, others = parts(node, "this", "expressions")
        limit = constant(others[0]) if others and len(others) == 1 else None
        if limit is None:
            raise QueryRefused(f"{shown(node)} is not answered: bound it by a constant, as LEAST(COUNT(*), 20)")
        limits.setdefault(type(node), limit)
        node = first
    least, most = limits.get(exp.Greatest), limits.get(exp.Least)
    return replace(_person_value(node, names), name=alias, least=least, most=most)


def _person_value(node: Expr, names: Names) -> PersonValue:
    function = _FUNCTIONS.get(type(node))
    if function is None:
        raise QueryRefused(
            f"{shown(node)} is not answered for each person; there are COUNT, COUNT_IF, SUM, AVG, MIN, MAX, "
            "ARG_MIN, ARG_MAX, BOOL_OR and BOOL_AND, with LEAST and GREATEST around them"
        )
    if function in ("first", "last"):
        of, by = (translated(item, names) for item in parts(node, "this", "expression"))
        return PersonValue("", function, of, by)
    inside = parts(node, "this", "expressions" if function == "count" else "this")[0]
    if function == "count":
        return _count(inside, names)
    if function in ("any", "all", "count_if"):
        return PersonValue("", function, condition(inside, names))
    found = translated(inside, names)
    if function in ("sum", "avg") or found.kind(names.policy) == CONDITION:
        found = as_number(found, inside, names)
    if found.kind(names.policy) == TEXT:
        instead = _in_time(node, names)
        raise QueryRefused(f"{shown(node)} is not answered: engines sort texts differently{instead}")
    return PersonValue("", function, found)


def _in_time(node: Expr, names: Names) -> str:
    """A remedy for the least or largest text: that of the row with the first or last day, or number."""
    columns = list(names.policy.columns.values())
    days = [column for column in columns if column.type == "date"]
    by = next(iter(days or [column for column in columns if column.numeric]), None)
    if by is None:
        return ""
    function = "ARG_MIN" if type(node) is exp.Min else "ARG_MAX"
    return f"; that of one row of a person is {function}({shown(node.this)}, {names.written(by.name)})"


def _count(inside: Expr | None, names: Names) -> PersonValue:
    if inside is None or isinstance(inside, exp.Star) or constant(inside) is not None:
        return PersonValue("", "count")
    if not isinstance(inside, exp.Distinct):
        return PersonValue("", "count", translated(inside, names))
    columns = parts(inside, "expressions")[0]
    if len(columns) != 1:
        raise QueryRefused("COUNT(DISTINCT …) takes one expression")
    return PersonValue("", "distinct", translated(columns[0], names))


def person_policy(inner: PerPerson, policy: Policy) -> Policy:
    """The policy of the table with one row a person."""
    if len(inner.values) > MOST_AGGREGATES:
        raise QueryRefused(
            f"a sub-query has at most {MOST_AGGREGATES} values of a person; ask for less at a time"
        )
    if len({value.name.lower() for value in inner.values}) < len(inner.values):
        raise QueryRefused("two values of the sub-query have the same name; give them different names with AS")
    try:
        columns = {value.name: _column(value, policy) for value in inner.values}
        unit = Unit(column=policy.unit.column, rows=1, groups=1)
        # Made anew: how the source is written down is not how this table is.
        return Policy(
            table=policy.table, source=policy.source, columns=columns, budget=policy.budget, unit=unit
        )
    except InvalidInput as error:
        raise QueryRefused(f"the sub-query cannot be asked: {error}") from None


def _column(value: PersonValue, policy: Policy) -> Column:
    kind, name, of = person_kind(value, policy), value.name, value.of
    if kind == NUMBER:
        found = person_range(value, policy)
        low, high = (None, None) if found.high - found.low >= LARGEST else (found.low, found.high)
        return Column(name=name, type="integer" if found.whole else "real", lower=low, upper=high)
    if kind == CONDITION:
        return Column(name=name, type="boolean")
    assert of is not None
    if kind == DATE:
        first, last = of.days(policy)
        declared = (first, last) != (datetime.date.min, datetime.date.max) and first < last
        return Column(
            name=name, type="date", lower=first if declared else None, upper=last if declared else None
        )
    values = _public_values([ComputedKey(of, name)], policy)
    return Column(name=name, type="text", categories=None if values is None else values[0])


def person_kind(value: PersonValue, policy: Policy) -> str:
    if value.function in ("any", "all"):
        return CONDITION
    if value.function in ("min", "max", "first", "last"):
        assert value.of is not None
        return value.of.kind(policy) or NUMBER
    return NUMBER


def person_range(value: PersonValue, policy: Policy) -> Range:
    """A count or a sum reaches as far as `unit.rows` rows, unless the query says how far."""
    rows = float(policy.unit.rows)
    if value.function in ("count", "count_if", "distinct"):
        found = Range(0.0, rows, 1.0)
    else:
        assert value.of is not None
        found = value.of.range(policy)
    if value.function == "sum":
        found = Range(rows * min(found.low, 0.0), rows * max(found.high, 0.0), found.grid)
    if value.function == "avg":
        found = Range(found.low, found.high, min(found.grid, FINEST))
    low = found.low if value.least is None else value.least
    high = found.high if value.most is None else value.most
    if not low < high or max(abs(low), abs(high)) > LARGEST:
        raise QueryRefused(
            f"{value.name} lies between {low:g} and {high:g}; LEAST and GREATEST say what it can reach"
        )
    whole_bounds = low.is_integer() and high.is_integer()
    return Range(low, high, 1.0 if found.whole and whole_bounds else FINEST)
