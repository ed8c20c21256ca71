"""SQL → query plan. The text is parsed, translated node by node, and never reaches an engine.

A node without a reader is refused, with the reason and the nearest query that can be answered.
"""

from __future__ import annotations

import re
from dataclasses import replace

from sqlglot import errors, exp
from sqlglot.expressions import Expr

from sfumato.policy import Policy
from sfumato.query.aggregates import DERIVED, is_aggregate, measures_for, parse_aggregate
from sfumato.query.expressions.base import (
    ColumnValue,
    Expression,
    check_values,
    columns_of,
    condition,
    translated,
)
from sfumato.query.joining import Source, inlined, parse_from, sub_query
from sfumato.query.keys import MOST_BINS, AnyKey, ComputedKey, GroupKey, check_key, key_type, some_values
from sfumato.query.names import Names, quoted
from sfumato.query.nearest import nearest_query
from sfumato.query.per_person import PerPerson, parse_per_person, person_policy
from sfumato.query.plan import Aggregate, Output, Query, public_keys, scope
from sfumato.query.postprocessing import (
    Places,
    PostProcessing,
    check,
    from_select,
    over_answer,
)
from sfumato.query.reading import (
    MOST_AGGREGATES,
    MOST_TEXT,
    QueryRefused,
    constant,
    function,
    parsed,
    parts,
    shown,
    whole_constant,
)

_REFUSED_CLAUSES = {
    "distinct": "SELECT DISTINCT is not answered: it would show single people's values",
    "laterals": "LATERAL is not answered: one person's rows could be multiplied without bound",
    "sample": "samples are not answered: all rows count anyway",
}


def parse_query(text: str, policy: Policy) -> Query:
    """Turn one SELECT over the policy's tables into a plan.

    Args:
        text: The SQL.
        policy: The policy of the tables.

    Returns:
        The query.

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
        raise _with_quotes(text, policy) or _with_a_way_out(refused, select, policy) from None


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
    if not wrong or len(found) > MOST_TEXT:
        return None
    try:
        _planned(_single_select(found, policy), policy)
    except QueryRefused:
        return None
    return QueryRefused(f"a name such as {wrong[0]} is written in double quotes", nearest=found)


def _planned(select: exp.Select, policy: Policy, *, post: bool = False) -> Query:
    """The plan of a SELECT; with `post`, as something that another SELECT can be computed from."""
    select = inlined(select)
    nested = sub_query(select)
    if nested is None:
        return _flat(select, policy, post=post)
    outer, inner, name = nested
    _check_clauses(outer, policy)
    persons = _one_row_a_person(inner, policy)
    if persons is None:
        query = _planned_answer(inner, policy)
        assert query.post is not None
        return checked(replace(query, post=over_answer(outer, name, query.post)), policy)
    found, source = persons
    flat = _flat(outer, replace(person_policy(found, source.names.policy), table=name), post=post)
    return replace(flat, per_person=found, joined=source.joined)


def _one_row_a_person(inner: exp.Select, policy: Policy) -> tuple[PerPerson, Source] | None:
    if inner.args.get("with_") or sub_query(inner) is not None or inner.args.get("group") is None:
        return None
    _check_clauses(inner, policy)
    source = parse_from(inner, policy)
    found = parse_per_person(inner, source.names)
    return None if found is None else (found, source)


def _planned_answer(inner: exp.Select, policy: Policy) -> Query:
    if not _has_aggregate(inner):
        raise QueryRefused(
            "a sub-query makes one row of each person (SELECT person, COUNT(*) AS n … GROUP BY person) or is "
            "an answer with an aggregate such as COUNT, SUM or AVG"
        )
    return _planned(inner, policy, post=True)


def _flat(select: exp.Select, policy: Policy, *, post: bool = False) -> Query:
    _check_clauses(select, policy)
    where, group, items = parts(select, "where", "group", "expressions", "from_", "joins", *_AFTERWARDS)[:3]
    source = parse_from(select, policy)
    names = source.names
    keys = _keys(group, items, names)
    filtered = None if where is None else condition(parts(where, "this")[0], names)
    computed = any(_is_computed_from(keys, _unaliased(item)[0], names) for item in items)
    if not post and not computed and _is_plain(select, items):
        outputs = _outputs(items, keys, names)
        order, limit = (
            _order(select.args.get("order"), outputs),
            whole_constant(select.args.get("limit"), "LIMIT"),
        )
        query = Query(outputs=outputs, keys=keys, where=filtered, order=order, limit=limit)
        return checked(replace(query, joined=source.joined), policy)
    outputs, afterwards = _post_processed(select, items, keys, names)
    query = Query(outputs=outputs, keys=keys, where=filtered, post=afterwards, joined=source.joined)
    return checked(query, policy)


_AFTERWARDS = ("having", "qualify", "order", "limit", "offset")


def _is_plain(select: exp.Select, items: list[Expr]) -> bool:
    """Whether only keys and aggregates are shown, in the order of some of them."""
    if any(select.args.get(name) for name in ("having", "qualify", "offset")):
        return False
    nodes = [_unaliased(item)[0] for item in items]
    names = {_unaliased(item)[1].lower() or _plain_name(node) for item, node in zip(items, nodes, strict=True)}
    order = select.args.get("order")
    ordered = [item.this for item in order.expressions] if order is not None else []
    simple = all(constant(node) is not None or _plain_name(node) in names for node in ordered)
    return simple and all(_stands_alone(node) or not _has_aggregate(node) for node in nodes)


def _is_computed_from(keys: tuple[AnyKey, ...], node: Expr, names: Names) -> bool:
    """Whether it is no key itself, but reads nothing except keys: age * 12 where age is grouped by."""
    columns = [] if type(node) is exp.Column or _has_aggregate(node) else list(node.find_all(exp.Column))
    try:
        return (
            bool(columns) and _key(node, names) not in keys and {_key(one, names) for one in columns} <= {*keys}
        )
    except QueryRefused:
        return False


def _stands_alone(node: Expr) -> bool:
    return is_aggregate(node) and type(node) not in DERIVED


def _has_aggregate(node: Expr) -> bool:
    return any(is_aggregate(item) or isinstance(item, exp.Window) for item in node.walk())


def _post_processed(
    select: exp.Select, items: list[Expr], keys: tuple[AnyKey, ...], names: Names
) -> tuple[tuple[Output, ...], PostProcessing]:
    """Aggregates are collected wherever they stand; the rest becomes SQL over them."""
    asked: dict[Aggregate, tuple[int, str]] = {}
    texts = {key: place for place, key in enumerate(keys)}

    def key_place(node: Expr) -> int | None:
        if _has_aggregate(node) or not node.find(exp.Column) or isinstance(node, exp.Ordered | exp.Order):
            return None
        try:
            return texts.get(_key(node, names))
        except QueryRefused:
            return None

    def aggregate_place(node: Expr) -> int:
        found = parse_aggregate(node, names)
        if found not in asked:
            asked[found] = len(asked), _shown_name(node, names)
        return asked[found][0]

    nodes = [_unaliased(item) for item in items]
    aliases = {alias.lower(): node for node, alias in nodes if alias}
    places = Places(
        key=key_place, aggregate=aggregate_place, is_aggregate=is_aggregate, derived=DERIVED, aliases=aliases
    )
    shown_items = [(node, alias or _shown_name(node, names)) for node, alias in nodes]
    post = from_select(select, shown_items, places, filtered="having")
    outputs = [Output(f"k{place}", place) for place in range(len(keys))]
    return (*outputs, *(Output(text, item) for item, (_, text) in asked.items())), post


def _with_a_way_out(refused: QueryRefused, select: exp.Select, policy: Policy) -> QueryRefused:
    """The refusal with the nearest query that would be answered, if there is one."""

    def attempt(other: exp.Select) -> QueryRefused | None:
        try:
            _planned(_single_select(other.sql(dialect="duckdb"), policy), policy)
        except QueryRefused as found:
            return found
        return None

    return QueryRefused(refused.reason, nearest=nearest_query(select, refused, attempt))


def checked(query: Query, policy: Policy) -> Query:
    """The query, if every aggregate and every key has its needs met in the policy."""
    policy = scope(query, policy)
    if not query.aggregates:
        raise QueryRefused(
            "a query needs an aggregate such as COUNT, SUM or AVG; single rows are never shown",
            nearest=f"SELECT COUNT(*) FROM {quoted(policy.table)}",
        )
    if len(set(query.aggregates)) > MOST_AGGREGATES:
        raise QueryRefused(
            f"a query has at most {MOST_AGGREGATES} aggregates, which share its ε; ask for less at a time"
        )
    _check_columns(query, policy)
    shown_names = query.post.names if query.post is not None else [output.name for output in query.outputs]
    if len({name.lower() for name in shown_names}) < len(shown_names):
        raise QueryRefused("two columns of the answer have the same name; give them different names with AS")
    for key in query.keys:
        check_key(key, policy)
    public_keys(query, policy)
    measures_for(query, policy)
    check_values([query.where, *(one for item in query.aggregates for one in (item.of, item.other))], policy)
    check_values([key.of for key in query.keys if isinstance(key, ComputedKey)], policy)
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
            nearest=f"SELECT COUNT(*) FROM {quoted(policy.table)}",
        )
    if Aggregate("count_units") in query.aggregates and policy.unit.column is None:
        raise QueryRefused("every row is one person", nearest=f"SELECT COUNT(*) FROM {quoted(policy.table)}")


def parse_condition(text: str, policy: Policy) -> Expression:
    """A condition as WHERE takes it."""
    try:
        (node,) = parsed(text)
    except (errors.SqlglotError, ValueError):
        raise QueryRefused(
            f"this is not a condition in SQL: {text}", nearest="age >= 18 AND city = 'Delft'"
        ) from None
    return condition(node, Names(policy=policy, table=policy.table))


def _single_select(text: str, policy: Policy) -> exp.Select:
    nearest = f"SELECT COUNT(*) FROM {quoted(policy.table)}"
    if len(text) > MOST_TEXT or (not text.isprintable() and not _is_text(text)):
        raise QueryRefused(f"a query has at most {MOST_TEXT} characters of Unicode text", nearest=nearest)
    try:
        statements = parsed(text)
    except errors.SqlglotError as error:
        raise QueryRefused(f"this is not SQL: {str(error).splitlines()[0]}", nearest=nearest) from None
    if len(statements) != 1:
        raise QueryRefused(f"one statement at a time, got {len(statements)}", nearest=nearest)
    select = statements[0]
    if not isinstance(select, exp.Select):
        raise QueryRefused(f"only SELECT is answered, got {select.key.upper()}", nearest=nearest)
    return select


def _is_text(text: str) -> bool:
    """Whether an engine could be sent it: no half of a surrogate pair."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _check_clauses(select: exp.Select, policy: Policy) -> None:
    for clause, reason in _REFUSED_CLAUSES.items():
        if select.args.get(clause):
            plain = select.copy()
            plain.set(clause, None)
            raise QueryRefused(reason, nearest=plain.sql(dialect="duckdb"))
    if select.find(exp.Subquery) or any(node is not select for node in select.find_all(exp.Query)):
        raise QueryRefused(
            "sub-queries are answered in FROM, for each person, and nowhere else: elsewhere their effect on "
            "one person's rows is not bounded",
            nearest=f"SELECT COUNT(*) FROM {quoted(policy.table)}",
        )


def _keys(group: Expr | None, items: list[Expr], names: Names) -> tuple[AnyKey, ...]:
    keys: tuple[AnyKey, ...] = ()
    if group is not None:
        if any(value for name, value in group.args.items() if name != "expressions"):
            raise QueryRefused(
                "GROUP BY takes a list of columns; ROLLUP, CUBE, GROUPING SETS and ALL do not work here"
            )
        keys = tuple(_key(_resolve_alias(node, items), names) for node in parts(group, "expressions")[0])
    histograms = [function(_unaliased(item)[0], "HISTOGRAM") for item in items]
    binned = tuple(_binned(found, names) for found in histograms if found is not None)
    if len(set(keys + binned)) < len(keys + binned):
        raise QueryRefused("the same key is grouped by twice")
    return keys + binned


def _key(node: Expr, names: Names) -> AnyKey:
    """A column, BIN(column, bins), or any expression with whole numbers, texts, dates or truths."""
    binned = function(node, "BIN")
    if binned is not None:
        return _binned(binned, names)
    found = translated(node, names)
    if isinstance(found, ColumnValue) and names.policy.columns[found.name].type == "real":
        bins = f"BIN({names.written(found.name)}, 10)"
        raise QueryRefused(
            f"column {found.name} is real, and nearly every value is one person's",
            nearest=names.example_count().replace("COUNT(*)", f"{bins}, COUNT(*)", 1) + f" GROUP BY {bins}",
        )
    if isinstance(found, ColumnValue):
        return GroupKey(found.name)
    if not any(True for _ in columns_of(found)):
        raise QueryRefused(
            f"GROUP BY takes columns, got {shown(node)}, which is the same on every row",
            nearest=names.example_group_by(),
        )
    return ComputedKey(found, node.sql(dialect="duckdb").lower())


def _binned(arguments: list[Expr], names: Names) -> GroupKey:
    if len(arguments) != 2:
        raise QueryRefused(
            "BIN and HISTOGRAM take a column and the number of bins", nearest=names.example_count()
        )
    column, count = names.column(arguments[0]), constant(arguments[1])
    if count is None or not count.is_integer() or not 1 <= count <= MOST_BINS:
        raise QueryRefused(f"the number of bins is a whole number from 1 to {MOST_BINS}")
    return GroupKey(column.name, int(count))


def _unaliased(item: Expr) -> tuple[Expr, str]:
    """The selected node, and the name it is given, if any."""
    if type(item) is not exp.Alias:
        return item, ""
    inside, alias = parts(item, "this", "alias")
    return inside, str(alias.name)


def _resolve_alias(node: Expr, items: list[Expr]) -> Expr:
    """GROUP BY 1, and GROUP BY an alias of the SELECT list."""
    number = constant(node)
    if number is not None and number.is_integer() and 1 <= number <= len(items):
        return _unaliased(items[int(number) - 1])[0]
    if type(node) is exp.Column and not node.table:
        for item in items:
            inside, alias = _unaliased(item)
            if alias and alias.lower() == node.name.lower():
                return inside
    return node


def _outputs(items: list[Expr], keys: tuple[AnyKey, ...], names: Names) -> tuple[Output, ...]:
    outputs: list[Output] = []
    for item in items:
        node, alias = _unaliased(item)
        histogram = function(node, "HISTOGRAM")
        if histogram is not None:
            key = _binned(histogram, names)
            outputs += [Output(key.column, keys.index(key)), Output(alias or "count", Aggregate("count"))]
        else:
            outputs.append(Output(alias or _shown_name(node, names), _output_value(node, keys, names)))
    return tuple(outputs)


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


_HELD = "sfumato_held_"  # stands for a column while the rest of an expression is put in small letters


def _plain_name(node: Expr) -> str:
    """An expression in small letters, as names are compared."""
    if type(node) is exp.Column:
        return node.name.lower()
    return node.sql(dialect="duckdb").lower().replace('"', "")


def _output_value(node: Expr, keys: tuple[AnyKey, ...], names: Names) -> Aggregate | int:
    if node.is_star:
        raise QueryRefused(
            "SELECT * is not answered: single rows are never shown", nearest=names.example_count()
        )
    if is_aggregate(node):
        return parse_aggregate(node, names)
    key = _key(node, names)
    if key not in keys:
        nearest = names.example_for(key.column) if isinstance(key, GroupKey) else names.example_count()
        raise QueryRefused(
            f"{shown(node)} is neither grouped by nor in an aggregate, and single rows are never shown",
            nearest=nearest,
        )
    return keys.index(key)


def _order(order: Expr | None, outputs: tuple[Output, ...]) -> tuple[tuple[int, bool], ...]:
    """ORDER BY sorts the noisy answer, so it takes its columns only."""
    by_name = {output.name.lower(): position for position, output in enumerate(outputs)}
    found = []
    for item in parts(order, "expressions")[0] if order is not None else ():
        node, descending = parts(item, "this", "desc")
        number = constant(node)
        position = by_name.get(_plain_name(node))
        if number is not None and number.is_integer() and 1 <= number <= len(outputs):
            position = int(number) - 1
        if position is None:
            raise QueryRefused(f"ORDER BY takes columns of the answer: {', '.join(by_name)}")
        found.append((position, bool(descending)))
    return tuple(found)
