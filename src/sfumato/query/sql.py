"""SQL → query plan. The text is parsed, translated node by node, and never reaches an engine.

A node without a reader is refused, with the reason and the nearest query that can be answered.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from sqlglot import errors, exp
from sqlglot.expressions import Expr

from sfumato.policy import Policy
from sfumato.query.aggregates import derived, is_aggregate, is_derived, measures_for, parse_aggregate
from sfumato.query.expressions import ColumnValue, Expression, check_values, columns_of, condition, translated
from sfumato.query.names import Names, Source, inlined, parse_from, quoted, sub_query
from sfumato.query.plan import (
    MOST_BINS,
    Aggregate,
    AnyKey,
    ComputedKey,
    GroupKey,
    Output,
    PerPerson,
    Query,
    check_key,
    key_type,
    parse_per_person,
    person_policy,
    public_keys,
    scope,
    some_values,
)
from sfumato.query.postprocessing import Places, PostProcessing, check, from_select, over_answer
from sfumato.query.reading import (
    MOST_AGGREGATES,
    MOST_TEXT,
    QueryRefused,
    as_sql,
    constant,
    function,
    nearest_query,
    ordinal,
    parsed,
    parts,
    shown,
    unaliased,
    whole_constant,
)

_REFUSED_CLAUSES = {
    "distinct": "SELECT DISTINCT is not answered: it would show single people's values",
    "laterals": "LATERAL is not answered: one person's rows could be multiplied without bound",
    "sample": "samples are not answered: all rows count anyway",
}


def parse_query(text: str, policy: Policy) -> Query:
    """Return the plan of one SELECT over the policy's tables.

    Args:
        text: The SQL.
        policy: The policy of the tables.

    Raises:
        QueryRefused: If it cannot be answered privately.

    >>> from sfumato.accounting import Budget
    >>> from sfumato.policy import Column, Policy
    >>> age = Column(name="age", type="integer", lower=0, upper=120)
    >>> policy = Policy(table="people", source="people.csv", columns={"age": age}, budget=Budget(epsilon=3))
    >>> [output.name for output in parse_query("SELECT COUNT(*) AS n FROM people", policy).outputs]
    ['n']
    """
    try:
        select = _single_select(text, policy)
    except QueryRefused as refused:
        raise _with_quotes(text, policy) or refused from None
    try:
        return _planned(select, policy)
    except QueryRefused as refused:
        found = _with_quotes(text, policy)
        if found is None:
            nearest = nearest_query(select, refused, lambda other: _refusal(as_sql(other), policy))
            found = QueryRefused(refused.reason, nearest=nearest or _count(policy))
        raise found from None


def _refusal(text: str, policy: Policy) -> QueryRefused | None:
    """Why a text is refused; None if it is answered."""
    try:
        _planned(_single_select(text, policy), policy)
    except QueryRefused as found:
        return found
    return None


def _with_quotes(text: str, policy: Policy) -> QueryRefused | None:
    """Why a query is refused that names a column with blanks as it is; None if quotes do not help."""
    every = [one.columns for one in (policy, *policy.tables.values())]
    every += [one.columns for one in policy.public.values()]
    names = {name for columns in every for name in columns if quoted(name) != name}
    found, wrong = text, []
    for name in sorted(names, key=len, reverse=True):
        written = re.compile(rf'(?<!["\w]){re.escape(name)}(?!["\w])', re.IGNORECASE)
        repaired = written.sub(lambda match, name=name: quoted(name), found)  # type: ignore[misc]
        wrong += [quoted(name)] if repaired != found else []
        found = repaired
    if not wrong or len(found) > MOST_TEXT or _refusal(found, policy) is not None:
        return None
    return QueryRefused(f"a name such as {wrong[0]} is written in double quotes", nearest=found)


def _single_select(text: str, policy: Policy) -> exp.Select:
    nearest = _count(policy)
    if len(text) > MOST_TEXT or not _is_text(text):
        raise QueryRefused(f"a query has at most {MOST_TEXT} characters of Unicode text", nearest=nearest)
    try:
        statements = parsed(text)
    except errors.SqlglotError as error:
        raise QueryRefused(f"this is not SQL: {str(error).splitlines()[0]}", nearest=nearest) from None
    if len(statements) != 1:
        raise QueryRefused(f"one statement at a time, got {len(statements)}", nearest=nearest)
    if not isinstance(statements[0], exp.Select):
        raise QueryRefused(f"only SELECT is answered, got {statements[0].key.upper()}", nearest=nearest)
    return statements[0]


def _is_text(text: str) -> bool:
    """Whether an engine could be sent it: no half of a surrogate pair."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _count(policy: Policy) -> str:
    return f"SELECT COUNT(*) FROM {quoted(policy.private_names[0])}"


def parse_condition(text: str, policy: Policy) -> Expression:
    """A condition as WHERE takes it."""
    try:
        (node,) = parsed(text)
    except (errors.SqlglotError, ValueError):
        raise QueryRefused(
            f"this is not a condition in SQL: {text}", nearest="age >= 18 AND city = 'Delft'"
        ) from None
    return condition(node, Names(policy=policy, table=policy.table))


# ---- from SELECT to the plan


def _planned(select: exp.Select, policy: Policy, *, post: bool = False) -> Query:
    """The plan of a SELECT; with `post`, as something that another SELECT can be computed from."""
    select = inlined(select)
    nested = sub_query(select)
    if nested is None:
        return _flat(select, policy, post=post)
    outer, inner, name = nested
    _check_clauses(outer, policy)
    persons = _one_row_a_person(inner, policy)
    if persons is not None:
        found, source = persons
        flat = _flat(outer, replace(person_policy(found, source.names.policy), table=name), post=post)
        return replace(flat, per_person=found, joined=source.joined)
    if not _has_aggregate(inner):
        raise QueryRefused(
            "a sub-query makes one row of each person (SELECT person, COUNT(*) AS n … GROUP BY person) or is "
            "an answer with an aggregate such as COUNT, SUM or AVG"
        )
    query = _planned(inner, policy, post=True)
    assert query.post is not None
    return checked(replace(query, post=over_answer(outer, name, query.post)), policy)


def _one_row_a_person(inner: exp.Select, policy: Policy) -> tuple[PerPerson, Source] | None:
    if inner.args.get("with_") or sub_query(inner) is not None or inner.args.get("group") is None:
        return None
    _check_clauses(inner, policy)
    source = parse_from(inner, policy)
    found = parse_per_person(inner, source.names)
    return None if found is None else (found, source)


def _flat(select: exp.Select, policy: Policy, *, post: bool = False) -> Query:
    _check_clauses(select, policy)
    afterwards = ("having", "qualify", "order", "limit", "offset")
    where, group, items = parts(select, "where", "group", "expressions", "from_", "joins", *afterwards)[:3]
    source = parse_from(select, policy)
    names = source.names
    keys = _keys(group, items, names)
    filtered = None if where is None else condition(parts(where, "this")[0], names)
    query = Query(outputs=(), keys=keys, where=filtered, joined=source.joined)
    computed = any(_is_computed_from(keys, unaliased(item)[0], names) for item in items)
    if not post and not computed and _is_plain(select, items):
        outputs = _outputs(items, keys, names)
        order, limit = _order(select.args.get("order"), outputs), select.args.get("limit")
        return checked(
            replace(query, outputs=outputs, order=order, limit=whole_constant(limit, "LIMIT")), policy
        )
    outputs, processing = _post_processed(select, items, keys, names)
    return checked(replace(query, outputs=outputs, post=processing), policy)


def _check_clauses(select: exp.Select, policy: Policy) -> None:
    for clause, reason in _REFUSED_CLAUSES.items():
        if select.args.get(clause):
            plain = select.copy()
            plain.set(clause, None)
            raise QueryRefused(reason, nearest=as_sql(plain))
    if any(node is not select for node in select.find_all(exp.Query, exp.Subquery)):
        raise QueryRefused(
            "sub-queries are answered in FROM, for each person, and nowhere else: elsewhere their effect on "
            "one person's rows is not bounded",
            nearest=_count(policy),
        )


def _is_plain(select: exp.Select, items: list[Expr]) -> bool:
    """Whether only keys and aggregates are shown, in the order of some of them."""
    if any(select.args.get(name) for name in ("having", "qualify", "offset")):
        return False
    named = [unaliased(item) for item in items]
    names = {alias.lower() or _plain_name(node) for node, alias in named}
    order = select.args.get("order")
    ordered = [item.this for item in order.expressions] if order is not None else []
    simple = all(constant(node) is not None or _plain_name(node) in names for node in ordered)
    return simple and all(
        (is_aggregate(node) and not is_derived(node)) or not _has_aggregate(node) for node, _ in named
    )


def _is_computed_from(keys: tuple[AnyKey, ...], node: Expr, names: Names) -> bool:
    """Whether it is no key itself, but reads nothing except keys: age * 12 where age is grouped by."""
    columns = [] if type(node) is exp.Column or _has_aggregate(node) else list(node.find_all(exp.Column))
    try:
        return (
            bool(columns) and _key(node, names) not in keys and {_key(one, names) for one in columns} <= {*keys}
        )
    except QueryRefused:
        return False


def _has_aggregate(node: Expr) -> bool:
    return any(is_aggregate(item) or isinstance(item, exp.Window) for item in node.walk())


def _post_processed(
    select: exp.Select, items: list[Expr], keys: tuple[AnyKey, ...], names: Names
) -> tuple[tuple[Output, ...], PostProcessing]:
    """Aggregates are collected wherever they stand; the rest becomes SQL over them."""
    asked: dict[Aggregate, tuple[int, Output]] = {}

    def place(node: Expr) -> str | Expr | None:
        if is_derived(node):
            return derived(node)
        if is_aggregate(node):
            found = parse_aggregate(node, names)
            if found not in asked:
                asked[found] = len(asked), Output(_shown_name(node, names), found)
            return f"a{asked[found][0]}"
        if _has_aggregate(node) or not node.find(exp.Column) or isinstance(node, exp.Ordered | exp.Order):
            return None
        try:
            key = _key(node, names)
        except QueryRefused:
            return None
        return f"k{keys.index(key)}" if key in keys else None

    nodes = [unaliased(item) for item in items]
    places = Places(find=place, aliases={alias.lower(): node for node, alias in nodes if alias})
    shown_items = [(node, alias or _shown_name(node, names)) for node, alias in nodes]
    post = from_select(select, shown_items, places, filtered="having")
    shown_keys = (Output(f"k{number}", number) for number in range(len(keys)))
    return (*shown_keys, *(output for _, output in asked.values())), post


# ---- keys and outputs


def _keys(group: Expr | None, items: list[Expr], names: Names) -> tuple[AnyKey, ...]:
    keys: tuple[AnyKey, ...] = ()
    if group is not None:
        if any(value for name, value in group.args.items() if name != "expressions"):
            raise QueryRefused(
                "GROUP BY takes a list of columns; ROLLUP, CUBE, GROUPING SETS and ALL do not work here"
            )
        keys = tuple(_key(_resolve_alias(node, items), names) for node in parts(group, "expressions")[0])
    histograms = [function(unaliased(item)[0], "HISTOGRAM") for item in items]
    keys += tuple(_binned(found, names) for found in histograms if found is not None)
    if len(set(keys)) < len(keys):
        raise QueryRefused("the same key is grouped by twice")
    return keys


def _key(node: Expr, names: Names) -> AnyKey:
    """A column, BIN(column, bins), or any expression with whole numbers, texts, dates or truths."""
    binned = function(node, "BIN")
    if binned is not None:
        return _binned(binned, names)
    found = translated(node, names)
    if isinstance(found, ColumnValue):
        if names.policy.columns[found.name].type != "real":
            return GroupKey(found.name)
        raise QueryRefused(
            f"column {found.name} is real, and nearly every value is one person's",
            nearest=names.example(by=f"BIN({names.written(found.name)}, 10)"),
        )
    if not any(True for _ in columns_of(found)):
        raise QueryRefused(
            f"GROUP BY takes columns, got {shown(node)}, which is the same on every row",
            nearest=names.example_group_by(),
        )
    return ComputedKey(found, as_sql(node).lower())


def _binned(arguments: list[Expr], names: Names) -> GroupKey:
    if len(arguments) != 2:
        raise QueryRefused("BIN and HISTOGRAM take a column and the number of bins")
    column, bins = names.column(arguments[0]), ordinal(arguments[1], MOST_BINS)
    if bins is None:
        raise QueryRefused(f"the number of bins is a whole number from 1 to {MOST_BINS}")
    return GroupKey(column.name, bins)


def _resolve_alias(node: Expr, items: list[Expr]) -> Expr:
    """GROUP BY 1, and GROUP BY an alias of the SELECT list."""
    number = ordinal(node, len(items))
    if number is not None:
        return unaliased(items[number - 1])[0]
    if type(node) is exp.Column and not node.table:
        for inside, alias in map(unaliased, items):
            if alias and alias.lower() == node.name.lower():
                return inside
    return node


def _outputs(items: list[Expr], keys: tuple[AnyKey, ...], names: Names) -> tuple[Output, ...]:
    outputs: list[Output] = []
    for item in items:
        node, alias = unaliased(item)
        histogram = function(node, "HISTOGRAM")
        if histogram is not None:
            key = _binned(histogram, names)
            outputs += [Output(key.column, keys.index(key)), Output(alias or "count", Aggregate("count"))]
        else:
            outputs.append(Output(alias or _shown_name(node, names), _output_value(node, keys, names)))
    return tuple(outputs)


def _output_value(node: Expr, keys: tuple[AnyKey, ...], names: Names) -> Aggregate | int:
    if node.is_star:
        raise QueryRefused("SELECT * is not answered: single rows are never shown")
    if is_aggregate(node):
        return parse_aggregate(node, names)
    key = _key(node, names)
    if key not in keys:
        raise QueryRefused(
            f"{shown(node)} is neither grouped by nor in an aggregate, and single rows are never shown",
            nearest=names.example_for(key.column) if isinstance(key, GroupKey) else "",
        )
    return keys.index(key)


_HELD = "sfumato_held_"  # stands for a column while the rest of an expression is put in small letters


def _shown_name(node: Expr, names: Names) -> str:
    """The name of a column of the answer where the query gives none: columns as the policy spells them."""
    root = exp.Paren(this=node.copy())
    spelled: list[str] = []
    for column in list(root.find_all(exp.Column)):
        try:
            declared = names.column(column).name
        except QueryRefused:
            declared = column.name if not isinstance(column.this, exp.Star) else "*"
        own = declared if names.tables is None else declared.partition(".")[2] or declared
        if column.table and type(node) is not exp.Column:  # of two joined tables both may have it
            own = f"{column.table.lower()}.{own}"
        column.set("table", None)
        column.set("this", exp.to_identifier(f"{_HELD}{len(spelled)}_"))
        spelled.append(own)
    return re.sub(rf"{_HELD}(\d+)_", lambda found: spelled[int(found[1])], _plain_name(root.this))


def _plain_name(node: Expr) -> str:
    """An expression in small letters, as names are compared."""
    return node.name.lower() if type(node) is exp.Column else as_sql(node).lower().replace('"', "")


def _order(order: Expr | None, outputs: tuple[Output, ...]) -> tuple[tuple[int, bool], ...]:
    """ORDER BY sorts the noisy answer, so it takes its columns only."""
    by_name = {output.name.lower(): position for position, output in enumerate(outputs)}
    found = []
    for item in parts(order, "expressions")[0] if order is not None else ():
        node, descending = parts(item, "this", "desc")
        number = ordinal(node, len(outputs))
        position = by_name.get(_plain_name(node)) if number is None else number - 1
        if position is None:
            raise QueryRefused(f"ORDER BY takes columns of the answer: {', '.join(by_name)}")
        found.append((position, bool(descending)))
    return tuple(found)


# ---- checked before the charge


def checked(query: Query, policy: Policy) -> Query:
    """The query, if every aggregate and every key has its needs met in the policy."""
    policy = scope(query, policy)
    if not query.aggregates:
        raise QueryRefused("a query needs an aggregate such as COUNT, SUM or AVG; single rows are never shown")
    if len(set(query.aggregates)) > MOST_AGGREGATES:
        raise QueryRefused(
            f"a query has at most {MOST_AGGREGATES} aggregates, which share its ε; ask for less at a time"
        )
    _check_columns(query, policy)
    if Aggregate("count_units") in query.aggregates and policy.unit.column is None:
        raise QueryRefused("every row is one person; ask for COUNT(*)")
    shown_names = query.post.names if query.post is not None else [output.name for output in query.outputs]
    if len({name.lower() for name in shown_names}) < len(shown_names):
        raise QueryRefused("two columns of the answer have the same name; give them different names with AS")
    for key in query.keys:
        check_key(key, policy)
    public_keys(query, policy)
    measures_for(query, policy)
    check_values([query.where, *(one for item in query.aggregates for one in (item.of, item.other))], policy)
    check_values([key.of for key in query.keys], policy)
    if query.post is not None:
        types = [key_type(key, policy) for key in query.keys]
        check(query.post, [some_values(key, policy) for key in query.keys], len(query.aggregates), types)
    return query


def _check_columns(query: Query, policy: Policy) -> None:
    read = {key.column for key in query.keys if isinstance(key, GroupKey)} | set(columns_of(query.where))
    for aggregate in query.aggregates:
        read |= {*columns_of(aggregate.of), *columns_of(aggregate.other)}
    unknown = sorted(read - policy.columns.keys())
    if unknown:
        raise QueryRefused(
            f"there is no column {', '.join(unknown)} in the policy, which has {', '.join(policy.columns)}",
            nearest=_count(policy),
        )


# ---- the same questions in Python, without SQL


def count(column: str | None = None) -> Aggregate:
    """Return the count of rows, or of those that have a value in a column.

    Args:
        column: The column; None to count all rows.

    >>> count().function
    'count'
    """
    return Aggregate("count", None if column is None else ColumnValue(column))


def count_units() -> Aggregate:
    """Return the count of people.

    >>> count_units().function
    'count_units'
    """
    return Aggregate("count_units")


def total(column: str) -> Aggregate:
    """Return the sum of a column.

    Args:
        column: A column of numbers with bounds.

    >>> total("age").function
    'sum'
    """
    return Aggregate("sum", ColumnValue(column))


def mean(column: str) -> Aggregate:
    """Return the average of a column.

    Args:
        column: A column of numbers with bounds.

    >>> mean("age").function
    'avg'
    """
    return Aggregate("avg", ColumnValue(column))


def variance(column: str) -> Aggregate:
    """Return the variance of a column.

    Args:
        column: A column of numbers with bounds.

    >>> variance("age").function
    'var'
    """
    return Aggregate("var", ColumnValue(column))


def deviation(column: str) -> Aggregate:
    """Return the standard deviation of a column.

    Args:
        column: A column of numbers with bounds.

    >>> deviation("age").function
    'stddev'
    """
    return Aggregate("stddev", ColumnValue(column))


def median(column: str) -> Aggregate:
    """Return the median of a column.

    Args:
        column: A column of numbers with bounds.

    >>> median("age").level
    0.5
    """
    return quantile(column, 0.5)


def quantile(column: str, level: float) -> Aggregate:
    """Return a quantile of a column.

    Args:
        column: A column of numbers with bounds.
        level: The share of rows below it, between 0 and 1.

    Raises:
        QueryRefused: If the level is 0 or 1: the least and the largest value are single people's.

    >>> quantile("age", 0.9).level
    0.9
    """
    return Aggregate("quantile", ColumnValue(column), level)


def select(
    policy: Policy, *aggregates: Aggregate, by: Sequence[str | AnyKey] = (), where: str | None = None
) -> Query:
    """Return a query that is put together in Python, for `Table.ask`.

    Args:
        policy: The policy of the table.
        aggregates: The aggregates of each group.
        by: Columns to group by, or `GroupKey`s with bins.
        where: A condition in SQL.

    Raises:
        QueryRefused: If it cannot be answered privately.

    >>> from sfumato.accounting import Budget
    >>> from sfumato.policy import Column
    >>> age = Column(name="age", type="integer", lower=0, upper=120)
    >>> policy = Policy(table="people", source="people.csv", columns={"age": age}, budget=Budget(epsilon=3))
    >>> [output.name for output in select(policy, count(), mean("age"), where="age >= 18").outputs]
    ['count', 'avg_age']
    """
    keys = tuple(GroupKey(key) if isinstance(key, str) else key for key in by)
    outputs = [Output(key.column, position) for position, key in enumerate(keys)]
    for item in aggregates:
        column = f"_{item.of.name}" if isinstance(item.of, ColumnValue) else ""
        level = f"_{item.level:g}" if item.function == "quantile" else ""
        outputs.append(Output(item.function + column + level, item))
    kept = None if where is None else parse_condition(where, policy)
    return checked(Query(outputs=tuple(outputs), keys=keys, where=kept), policy)
