"""One row a person: SELECT … FROM (SELECT person, COUNT(*) AS n FROM visits GROUP BY person).

The values that the inner query computes from a person's own rows make a table of one row a person, with bounds
that follow from the policy: a count, or a sum, is clipped to the reach of `unit.rows` rows, or to the bounds
that LEAST(COUNT(*), 20) says. The outer query is asked of that table like of any other, with one row a person.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import ibis
from sqlglot import exp
from sqlglot.expressions import Expr

from sfumato.errors import InvalidInput
from sfumato.policy import Column, Policy, Unit
from sfumato.query.expressions.base import (
    CONDITION,
    DATE,
    LARGEST,
    NUMBER,
    TEXT,
    Expression,
    Range,
    Value,
    check_values,
    clip,
    condition,
    double,
    translated,
    whole,
)
from sfumato.query.expressions.numbers import as_number
from sfumato.query.measures import UNIT
from sfumato.query.names import Names
from sfumato.query.reading import MOST_AGGREGATES, QueryRefused, constant, parts, shown

_FUNCTIONS: dict[type[Expr], str] = {
    exp.Count: "count", exp.Sum: "sum", exp.Avg: "avg", exp.Min: "min", exp.Max: "max", exp.ArgMin: "first",
    exp.ArgMax: "last", exp.LogicalOr: "any", exp.LogicalAnd: "all", exp.CountIf: "count_if",
}  # fmt: skip


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
    """The inner query: the values computed for each person, and the rows they come from."""

    values: tuple[PersonValue, ...]
    where: Expression | None = None
    having: Expression | None = None  # on the values, some of which are there for it alone


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
    if type(item) is not exp.Alias:
        raise QueryRefused(f"give {shown(item)} a name in the sub-query: {shown(item)} AS n")
    node, alias = parts(item, "this", "alias")
    least: float | None = None
    most: float | None = None
    while type(node) in (exp.Least, exp.Greatest):
        first, others = parts(node, "this", "expressions")
        limit = constant(others[0]) if others and len(others) == 1 else None
        if limit is None:
            raise QueryRefused(f"{shown(node)} is not answered: bound it by a constant, as LEAST(COUNT(*), 20)")
        if type(node) is exp.Least:
            most = limit if most is None else most
        else:
            least = limit if least is None else least
        node = first
    return replace(_person_value(node, names), name=alias.name, least=least, most=most)


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
    kind = _kind(value, policy)
    if kind == NUMBER:
        found = _range(value, policy)
        bounds = None if found.high - found.low >= LARGEST else (found.low, found.high)
        low, high = bounds or (None, None)
        return Column(name=value.name, type="integer" if found.whole else "real", lower=low, upper=high)
    if kind == DATE:
        assert value.of is not None
        first, last = value.of.days(policy)
        declared = (first, last) != (datetime.date(1, 1, 1), datetime.date(9999, 12, 31)) and first < last
        low_day, high_day = (first, last) if declared else (None, None)
        return Column(name=value.name, type="date", lower=low_day, upper=high_day)
    if kind == TEXT:
        return Column(name=value.name, type="text", categories=_categories(value, policy))
    return Column(name=value.name, type="boolean")


def _categories(value: PersonValue, policy: Policy) -> Any:
    from sfumato.query.keys import ComputedKey, public_values

    assert value.of is not None
    found = public_values([ComputedKey(value.of, value.name)], policy)
    return None if found is None else found[0]


def _kind(value: PersonValue, policy: Policy) -> str:
    if value.function in ("any", "all"):
        return CONDITION
    if value.function in ("min", "max", "first", "last"):
        assert value.of is not None
        return value.of.kind(policy) or NUMBER
    return NUMBER


def _range(value: PersonValue, policy: Policy) -> Range:
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
        found = Range(found.low, found.high, min(found.grid, 2.0**-92))
    low = found.low if value.least is None else value.least
    high = found.high if value.most is None else value.most
    if not low < high or max(abs(low), abs(high)) > LARGEST:
        raise QueryRefused(
            f"{value.name} lies between {low:g} and {high:g}; LEAST and GREATEST say what it can reach"
        )
    whole_bounds = low.is_integer() and high.is_integer()
    return Range(low, high, 1.0 if found.whole and whole_bounds else 2.0**-92)


_AGGREGATIONS: dict[str, Callable[[Value, Value], Value]] = {
    "min": lambda of, by: of.min(),
    "max": lambda of, by: of.max(),
    "first": lambda of, by: of.argmin(_in_order(by, of), where=of.notnull() & by.notnull()),
    "last": lambda of, by: of.argmax(_in_order(by, of), where=of.notnull() & by.notnull()),
    "any": lambda of, by: of.any(),
    "all": lambda of, by: of.all(),
    "distinct": lambda of, by: of.nunique(),
}


def _in_order(by: Value, of: Value) -> Value:
    """Rows that are as early are in the order of their values: who else is in the table decides nothing."""
    return ibis.struct({"by": by, "of": of})


def person_table(rows: Value, inner: PerPerson, policy: Policy) -> Value:
    """The declared rows, added up to one row a person, under the names c0, c1, … and unit."""
    kept = rows.filter(rows[UNIT].notnull())
    if inner.where is not None:
        kept = kept.filter(inner.where.sql(kept, policy))
    # Columns first, which the aggregates then read: a constant has a value on every row too.
    columns = {
        f"{letter}{i}": part.sql(kept, policy)
        for i, value in enumerate(inner.values)
        for letter, part in (("v", value.of), ("b", value.by))
        if part is not None
    }
    kept = kept.select(UNIT, **columns)
    found = kept.group_by(UNIT).agg(
        **{f"c{i}": _total(i, value, kept, policy) for i, value in enumerate(inner.values)}
    )
    bounded = {f"c{i}": _bounded(found[f"c{i}"], value, policy) for i, value in enumerate(inner.values)}
    persons = found.select(UNIT, **bounded)
    if inner.having is None:
        return persons
    return persons.filter(inner.having.sql(persons, person_policy(inner, policy)))


def _total(place: int, value: PersonValue, rows: Value, policy: Policy) -> Value:
    if value.of is None:
        return rows.count()
    of = rows[f"v{place}"]
    if value.function == "count":
        return of.count()
    if value.function == "count_if":
        return of.sum() if of.type().is_integer() else of.ifelse(1, 0).sum()
    if value.function in ("sum", "avg"):
        total = _exact_sum(of, value.of.range(policy))
        return total if value.function == "sum" else total / of.count().nullif(0).cast("float64")
    return _AGGREGATIONS[value.function](of, rows[f"b{place}"] if value.by is not None else None)


_HALF = 46  # bits of each of the two whole numbers that a number is taken apart into


def _exact_sum(of: Value, found: Range) -> Value:
    """The sum of a person's numbers, to the last bit the same in every order of addition.

    Sums of doubles round by the order of the rows, and that depends on who else is in the table: one person
    could tip the sums of others over a threshold. So whole numbers are added up: a number x below 2ᵉ as ⌊x/s⌋
    with s = 2ᵉ⁻⁴⁶, and the rest of it in steps of s·2⁻⁴⁶.
    """
    if found.whole:
        return _whole_sum(of)
    step = math.ldexp(1.0, math.frexp(found.size)[1] - _HALF)
    high = (of.cast("float64") * double(1 / step)).floor().cast("float64")
    low = ((of - high * double(step)) * double(2**_HALF / step)).floor()
    return _whole_sum(high) * double(step) + _whole_sum(low) * double(step / 2**_HALF)


def _whole_sum(of: Value) -> Value:
    """DuckDB and PostgreSQL add up 64 bits in wider numbers; Spark does so for decimals."""
    wide = "decimal(38, 0)" if of.get_backend().name == "pyspark" else "int64"
    return of.cast("int64").cast(wide).sum().cast("float64")


def _bounded(total: Value, value: PersonValue, policy: Policy) -> Value:
    if _kind(value, policy) != NUMBER:
        return total
    found = _range(value, policy)
    if found.whole:
        within = clip(total.cast("float64"), double(found.low), double(found.high)).floor().cast("int64")
        return clip(within, whole(int(found.low)), whole(int(found.high)))
    return found.snap(clip(total.cast("float64"), double(found.low), double(found.high)))
