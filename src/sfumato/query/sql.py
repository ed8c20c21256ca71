"""SQL → query plan. The text is parsed, translated node by node, and never reaches an engine.

What has no translation is refused, with the reason and the nearest query that can be answered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import sqlglot
from sqlglot import errors, exp
from sqlglot.expressions import Expr

from sfumato.query.conditions import translate_condition, translate_number
from sfumato.query.expressions import Condition, columns_of
from sfumato.query.names import Names
from sfumato.query.plan import Aggregate, GroupKey, Output, Query, measures_for, public_keys
from sfumato.query.policy import Policy
from sfumato.query.refusal import QueryRefused

_MOST_TEXT = 20_000
_CLAUSES = {"expressions", "from_", "where", "group", "order", "limit", "kind"}
_REFUSED_CLAUSES = {
    "joins": "joins are not answered: one person's rows could be multiplied without bound",
    "with_": "WITH is not answered: only one declared table can be asked",
    "having": "HAVING is not answered: it would choose groups by their private values",
    "distinct": "SELECT DISTINCT is not answered: it would show single people's values",
    "qualify": "window functions are not answered: they show single rows",
    "laterals": "LATERAL is not answered: one person's rows could be multiplied without bound",
    "offset": "OFFSET is not answered; use ORDER BY and LIMIT",
    "sample": "samples are not answered: all rows count anyway",
}


def parse_query(text: str, policy: Policy) -> Query:
    """The plan of one SELECT over the policy's table, or QueryRefused."""
    select = _single_select(text, policy)
    _check_clauses(select, policy)
    names = Names(policy=policy, table=_table_name(select, policy))
    keys = _keys(select, names)
    outputs = _outputs(select, keys, names)
    where = select.args.get("where")
    query = Query(
        outputs=outputs,
        keys=keys,
        where=None if where is None else translate_condition(where.this, names),
        order=_order(select, outputs),
        limit=_limit(select),
    )
    return checked(query, policy)


def checked(query: Query, policy: Policy) -> Query:
    """The query, if every aggregate and every key has what it needs in the policy."""
    if not query.aggregates:
        raise QueryRefused(
            "a query needs an aggregate such as COUNT, SUM or AVG; single rows are never shown",
            nearest=f"SELECT COUNT(*) FROM {policy.table}",
        )
    _check_columns(query, policy)
    if len({output.name for output in query.outputs}) < len(query.outputs):
        raise QueryRefused("two columns of the answer have the same name; give them different names with AS")
    public_keys(query, policy)
    measures_for(query, policy)
    return query


def _check_columns(query: Query, policy: Policy) -> None:
    read = {key.column for key in query.keys} | set(columns_of(query.where))
    for aggregate in query.aggregates:
        read |= set(columns_of(aggregate.of))
    unknown = sorted(read - policy.columns.keys())
    if unknown:
        raise QueryRefused(
            f"there is no column {', '.join(unknown)} in the policy, which has {', '.join(policy.columns)}",
            nearest=f"SELECT COUNT(*) FROM {policy.table}",
        )
    if Aggregate("count_units") in query.aggregates and policy.unit.column is None:
        raise QueryRefused("every row is one person", nearest=f"SELECT COUNT(*) FROM {policy.table}")


def parse_condition(text: str, policy: Policy) -> Condition:
    """A condition as WHERE takes it."""
    try:
        node = sqlglot.parse_one(text, read="duckdb")
    except (errors.SqlglotError, RecursionError):
        raise QueryRefused(
            f"this is not a condition in SQL: {text}", nearest="age >= 18 AND city = 'Delft'"
        ) from None
    return translate_condition(node, Names(policy=policy, table=policy.table))


def _single_select(text: str, policy: Policy) -> exp.Select:
    nearest = f"SELECT COUNT(*) FROM {policy.table}"
    if len(text) > _MOST_TEXT:
        raise QueryRefused(f"a query has at most {_MOST_TEXT} characters", nearest=nearest)
    try:
        statements = [item for item in sqlglot.parse(text, read="duckdb") if item is not None]
    except (errors.SqlglotError, RecursionError) as error:
        reason = str(error).splitlines()[0] if isinstance(error, errors.SqlglotError) else "too deeply nested"
        raise QueryRefused(f"this is not SQL: {reason}", nearest=nearest) from None
    if len(statements) != 1:
        raise QueryRefused(f"one statement at a time, got {len(statements)}", nearest=nearest)
    select = statements[0]
    if not isinstance(select, exp.Select):
        raise QueryRefused(f"only SELECT is answered, got {select.key.upper()}", nearest=nearest)
    return select


def _check_clauses(select: exp.Select, policy: Policy) -> None:
    for clause, value in select.args.items():
        if not value or (clause in _CLAUSES and clause != "kind"):
            continue
        plain = select.copy()
        plain.set(clause, None)
        has_subquery = plain.find(exp.Subquery) or plain.find(exp.Exists)
        nearest = f"SELECT COUNT(*) FROM {policy.table}" if has_subquery else plain.sql(dialect="duckdb")
        reason = _REFUSED_CLAUSES.get(clause, f"the clause {clause.strip('_').upper()} is not answered")
        raise QueryRefused(reason, nearest=nearest)
    if select.find(exp.Subquery) or any(node is not select for node in select.find_all(exp.Query)):
        raise QueryRefused(
            "sub-queries are not answered: their effect on one person's rows is not bounded; use WHERE",
            nearest=f"SELECT COUNT(*) FROM {policy.table}",
        )


def _table_name(select: exp.Select, policy: Policy) -> str:
    source = select.args.get("from_")
    table = source.this if source is not None else None
    nearest = f"SELECT COUNT(*) FROM {policy.table}"
    if not isinstance(table, exp.Table) or not isinstance(table.this, exp.Identifier):
        raise QueryRefused(
            f"only the table {policy.table} can be asked, not a function or a file", nearest=nearest
        )
    extra = [key for key, value in table.args.items() if value and key not in ("this", "alias")]
    if extra or table.name.lower() != policy.table.lower():
        raise QueryRefused(f"only the table {policy.table} can be asked", nearest=nearest)
    return table.alias_or_name


def _keys(select: exp.Select, names: Names) -> tuple[GroupKey, ...]:
    group = select.args.get("group")
    keys: tuple[GroupKey, ...] = ()
    if group is not None:
        if any(value for name, value in group.args.items() if name != "expressions"):
            raise QueryRefused(
                "GROUP BY takes a list of columns; ROLLUP, CUBE, GROUPING SETS and ALL do not work here"
            )
        keys = tuple(_key(node, select, names) for node in group.expressions)
    histograms = [_histogram(item.unalias()) for item in select.expressions]
    binned = tuple(names.binned(*found) for found in histograms if found is not None)
    if len(set(keys + binned)) < len(keys + binned):
        raise QueryRefused("the same key is grouped by twice")
    return keys + binned


def _key(node: Expr, select: exp.Select, names: Names) -> GroupKey:
    node = _resolve_alias(node, select)
    if isinstance(node, exp.Anonymous) and node.name.upper() == "BIN" and len(node.expressions) == 2:
        return names.binned(*node.expressions)
    if isinstance(node, exp.Column):
        return names.key(node)
    raise QueryRefused(
        f"GROUP BY takes columns or BIN(column, bins), got {node.sql(dialect='duckdb')}",
        nearest=names.example_group_by(),
    )


def _resolve_alias(node: Expr, select: exp.Select) -> Expr:
    """GROUP BY 1, and GROUP BY an alias of the SELECT list."""
    if isinstance(node, exp.Literal) and node.name.isdigit() and 1 <= int(node.name) <= len(select.expressions):
        return select.expressions[int(node.name) - 1].unalias()
    if isinstance(node, exp.Column) and not node.table:
        for item in select.expressions:
            if isinstance(item, exp.Alias) and item.alias.lower() == node.name.lower():
                return item.this
    return node


def _histogram(node: Expr) -> tuple[Expr, Expr] | None:
    """HISTOGRAM(x, n) is short for BIN(x, n) and COUNT(*), grouped by BIN(x, n)."""
    if isinstance(node, exp.Anonymous) and node.name.upper() == "HISTOGRAM" and len(node.expressions) == 2:
        return node.expressions[0], node.expressions[1]
    return None


def _outputs(select: exp.Select, keys: tuple[GroupKey, ...], names: Names) -> tuple[Output, ...]:
    outputs: list[Output] = []
    for item in select.expressions:
        node = item.unalias()
        name = item.alias or node.sql(dialect="duckdb").lower().replace('"', "")
        histogram = _histogram(node)
        if histogram is not None:
            key = names.binned(*histogram)
            outputs += [Output(key.column, keys.index(key)), Output(item.alias or "count", Aggregate("count"))]
        else:
            outputs.append(Output(name, _output_value(node, keys, names)))
    return tuple(outputs)


def _output_value(node: Expr, keys: tuple[GroupKey, ...], names: Names) -> Aggregate | int:
    if isinstance(node, exp.Column) and not isinstance(node.this, exp.Star):
        return _key_position(names.key(node, grouped=False), keys, names)
    if isinstance(node, exp.Anonymous) and node.name.upper() == "BIN" and len(node.expressions) == 2:
        return _key_position(names.binned(*node.expressions), keys, names)
    if node.is_star:
        raise QueryRefused(
            "SELECT * is not answered: single rows are never shown", nearest=names.example_count()
        )
    return translate_aggregate(node, names)


def _key_position(key: GroupKey, keys: tuple[GroupKey, ...], names: Names) -> int:
    if key not in keys:
        raise QueryRefused(
            f"column {key.column} is neither grouped by nor in an aggregate, and single rows are never shown",
            nearest=names.example_for(key.column),
        )
    return keys.index(key)


@dataclass(frozen=True)
class _Function:
    name: str
    needs_level: bool = False


_AGGREGATES: dict[type[Expr], _Function] = {
    exp.Sum: _Function("sum"),
    exp.Avg: _Function("avg"),
    exp.Variance: _Function("var"),
    exp.VariancePop: _Function("var_pop"),
    exp.Stddev: _Function("stddev"),
    exp.StddevSamp: _Function("stddev"),
    exp.StddevPop: _Function("stddev_pop"),
    exp.Median: _Function("quantile"),
    exp.Quantile: _Function("quantile", needs_level=True),
    exp.ApproxQuantile: _Function("quantile", needs_level=True),
    exp.PercentileCont: _Function("quantile", needs_level=True),
    exp.PercentileDisc: _Function("quantile", needs_level=True),
}


def translate_aggregate(node: Expr, names: Names) -> Aggregate:
    """One aggregate of the SELECT list."""
    special: dict[type[Expr], Callable[[Expr, Names], Aggregate]] = {
        exp.Count: _count,
        exp.WithinGroup: _within_group,
    }
    if type(node) in special:
        return special[type(node)](node, names)
    function = _AGGREGATES.get(type(node))
    if function is None:
        raise _no_such_aggregate(node, names)
    if isinstance(node.this, exp.Distinct):
        raise QueryRefused(
            f"{node.sql(dialect='duckdb')} is not answered: which values occur is private",
            nearest=f"SELECT {node.key.upper()}(…) without DISTINCT",
        )
    of = translate_number(node.this, names)
    if not function.needs_level:
        return Aggregate(function.name, of)
    level = node.args.get("quantile") or node.args.get("expression")
    return Aggregate(function.name, of, _level(level))


def _no_such_aggregate(node: Expr, names: Names) -> QueryRefused:
    text = node.sql(dialect="duckdb")
    if isinstance(node, exp.Max | exp.Min) and isinstance(node.this, exp.Column):
        level = "0.99" if isinstance(node, exp.Max) else "0.01"
        nearest = f"SELECT QUANTILE({node.this.name}, {level}) FROM {names.policy.table}"
        return QueryRefused(f"{text} is not answered: it is one person's value", nearest=nearest)
    if isinstance(node, exp.Window):
        reason = f"{text} is not answered: window functions show single rows"
    elif isinstance(node, exp.Filter):
        reason = (
            f"{text} is not answered; put the condition in WHERE, or use SUM(CASE WHEN … THEN 1 ELSE 0 END)"
        )
    else:
        reason = (
            f"{text} is not answered; there are COUNT, COUNT(DISTINCT unit), SUM, AVG, VARIANCE, STDDEV, "
            "MEDIAN, QUANTILE and HISTOGRAM, of a column or of +, -, *, / and CASE on columns"
        )
    return QueryRefused(reason, nearest=names.example_count())


def _count(node: Expr, names: Names) -> Aggregate:
    inside = node.this
    if node.expressions:
        raise QueryRefused("COUNT takes one column", nearest=names.example_count())
    if isinstance(inside, exp.Star) or (isinstance(inside, exp.Literal) and not inside.is_string):
        return Aggregate("count")
    if not isinstance(inside, exp.Distinct):
        return Aggregate("count", names.countable(inside))
    if len(inside.expressions) == 1 and names.is_unit(inside.expressions[0]):
        return Aggregate("count_units")
    unit = names.policy.unit.column
    nearest = f"SELECT COUNT(DISTINCT {unit}) FROM {names.policy.table}" if unit else names.example_count()
    raise QueryRefused("COUNT(DISTINCT …) is answered for the privacy unit only", nearest=nearest)


def _within_group(node: Expr, names: Names) -> Aggregate:
    inside, order = node.this, node.args["expression"].expressions
    if not isinstance(inside, exp.PercentileCont | exp.PercentileDisc) or len(order) != 1:
        raise _no_such_aggregate(node, names)
    level = _level(inside.this)
    level = 1 - level if order[0].args.get("desc") else level
    return Aggregate("quantile", translate_number(order[0].this, names), level)


def _level(node: Expr | None) -> float:
    if not isinstance(node, exp.Literal) or node.is_string:
        raise QueryRefused("a quantile's level is a number between 0 and 1", nearest="QUANTILE(column, 0.5)")
    return float(node.name)


def _order(select: exp.Select, outputs: tuple[Output, ...]) -> tuple[tuple[int, bool], ...]:
    """ORDER BY sorts the noisy answer, so it takes its columns only."""
    order = select.args.get("order")
    if order is None:
        return ()
    by_name = {output.name.lower(): position for position, output in enumerate(outputs)}
    found = []
    for item in order.expressions:
        position = by_name.get(item.this.sql(dialect="duckdb").lower().replace('"', ""))
        if (
            isinstance(item.this, exp.Literal)
            and item.this.name.isdigit()
            and int(item.this.name) <= len(outputs)
        ):
            position = int(item.this.name) - 1
        if position is None or position < 0:
            raise QueryRefused(f"ORDER BY takes columns of the answer: {', '.join(by_name)}")
        found.append((position, bool(item.args.get("desc"))))
    return tuple(found)


def _limit(select: exp.Select) -> int | None:
    limit = select.args.get("limit")
    if limit is None:
        return None
    number = limit.args.get("expression")
    if not isinstance(number, exp.Literal) or not number.name.isdigit():
        raise QueryRefused("LIMIT takes a whole number")
    return int(number.name)
