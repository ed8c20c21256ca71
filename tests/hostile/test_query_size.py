"""How long a question may be: planning is linear in its text, and limits are told before anything is spent.

What planning does is counted in function calls, not in seconds: the same on every machine, and however busy.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sfumato.accounting import Budget
from sfumato.policy import Unit
from sfumato.query import Column, Policy, QueryRefused, Table, parse_query
from sfumato.query.aggregates import FUNCTIONS
from sfumato.query.expressions import MOST_NESTED
from sfumato.query.reading import MOST_AGGREGATES, MOST_BRACKETS
from sfumato.query.release import add_noise
from sfumato.randomness import SecretStream

POLICY = Policy(
    table="t",
    source="t.csv",
    columns={
        "x": Column(name="x", type="integer", lower=0, upper=120),
        "y": Column(name="y", type="real", lower=0, upper=1),
        "b": Column(name="b", type="boolean"),
        "city": Column(name="city", type="text", categories=("p", "q")),
        "day": Column(name="day", type="date"),
    },
    budget=Budget(epsilon=1e6, delta=1e-6),
    unit=Unit(column="person", rows=2, groups=2),
)
ROWS = pd.DataFrame(
    {
        "person": [1, 1, 2, 3],
        "x": [1, 2, None, 4],
        "y": [0.5, None, 1.0, 0.0],
        "b": [True, False, None, True],
        "city": ["p", "q", "p", None],
        "day": [None, None, None, None],
    }
)


def where(condition: str) -> str:
    return f"SELECT COUNT(*) FROM t WHERE {condition}"


def total(expression: str) -> str:
    return f"SELECT SUM({expression}) FROM t"


GROUPED = "SELECT city, COUNT(*) AS n FROM t GROUP BY city"
LONG: dict[str, Callable[[int], str]] = {
    "AND": lambda n: where(" AND ".join(f"x > {i % 100}" for i in range(n))),
    "OR of AND": lambda n: where(" OR ".join(f"(x = {i % 100} AND b)" for i in range(n))),
    "IN": lambda n: where(f"x IN ({', '.join(str(i % 100) for i in range(n))})"),
    "BETWEEN": lambda n: where(" AND ".join("x + 1 BETWEEN 3 AND 50" for _ in range(n))),
    "CASE": lambda n: total(f"CASE {' '.join(f'WHEN x = {i % 99} THEN {i % 7}' for i in range(n))} END"),
    "CASE of": lambda n: total(f"CASE x {' '.join(f'WHEN {i % 99} THEN {i % 7}' for i in range(n))} END"),
    "GREATEST": lambda n: total(f"GREATEST({', '.join(['x'] * n)})"),
    "COALESCE": lambda n: total(f"COALESCE({', '.join(['x'] * n)})"),
    "HAVING": lambda n: f"{GROUPED} HAVING " + " AND ".join(f"COUNT(*) > {i}" for i in range(n)),
    "HAVING by name": lambda n: f"{GROUPED} HAVING " + " OR ".join(f"n = {i}" for i in range(n)),
    "ORDER BY": lambda n: f"{GROUPED} ORDER BY {', '.join(['n + 1'] * n)}",
    "windows": lambda n: GROUPED.replace(
        " AS n", "".join(f", SUM(COUNT(*)) OVER () + {i} AS w{i}" for i in range(n))
    ),
    "HAVING of a person": lambda n: (
        "SELECT AVG(s) FROM (SELECT person, SUM(x) AS s FROM t GROUP BY person HAVING "
        + " AND ".join(f"COUNT(*) > {i % 2}" for i in range(n))
        + ")"
    ),
    "refused": lambda n: where(" AND ".join(["x > 3"] * (n - 1) + ["nobody = 1"])),
}
DEEP: dict[str, Callable[[int], str]] = {
    "::": lambda n: total("x" + "::DOUBLE" * n),
    "NOT": lambda n: where("NOT " * n + "b"),
    "minus": lambda n: total("- " * n + "x"),
    "plus": lambda n: total(" + ".join(["x"] * n)),
    "times": lambda n: total(" * ".join(["y"] * n)),
    "brackets": lambda n: where("(" * n + "b" + ")" * n),
    "CASE in CASE": lambda n: total("CASE WHEN b THEN 1 ELSE " * n + "0" + " END" * n),
    "CASE as condition": lambda n: total("CASE WHEN " * n + "b" + " THEN b END" * n),
    "ROUND": lambda n: total("ROUND(" * n + "y" + ", 1)" * n),
    "POWER": lambda n: total("POWER(" * n + "y" + ", 2)" * n),
    "NULLIF": lambda n: total("NULLIF(" * n + "x" + ", 1)" * n),
    "ABS of a count": lambda n: f"SELECT {'ABS(' * n}COUNT(*){')' * n} AS n FROM t",
    "SELECT": lambda n: "SELECT n FROM (" * n + "SELECT COUNT(*) AS n FROM t" + ")" * n,
    "WITH": lambda n: (
        "WITH a0 AS (SELECT COUNT(*) AS n FROM t)"
        + "".join(f", a{i + 1} AS (SELECT n FROM a{i})" for i in range(n))
        + f" SELECT n FROM a{n}"
    ),
    "CAST": lambda n: where("CAST(" * n + "1" + " AS INT)" * n + " = 1"),
    "lists": lambda n: where("[" * n + "1" + "]" * n + " = 1"),
    "INTERVAL": lambda n: where("INTERVAL " * n + "1"),
}


def calls(work: Callable[[], Any]) -> int:
    """How many functions a piece of work calls, Python's and C's."""
    count = 0

    def seen(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def plan(sql: str) -> None:
    try:
        parse_query(sql, POLICY)
    except QueryRefused:
        return


@pytest.mark.keeps_out(
    "A short question that takes minutes to plan: a chain of casts, `HAVING`, `CASE` or sub-queries"
)
@pytest.mark.parametrize("name", LONG)
def test_planning_is_linear_in_the_text(name: str) -> None:
    make, sizes = LONG[name], (25, 50, 100, 200)
    plan(make(sizes[0]))  # what is imported on the way
    counted = [calls(lambda n=n: plan(make(n))) for n in sizes]
    for (size, before), (larger, after) in itertools.pairwise(zip(sizes, counted, strict=True)):
        assert after - before < 1.3 * (larger - size) * counted[-1] / sizes[-1], counted
        assert after < 2.3 * before, counted


@pytest.mark.keeps_out("Groups of many keys whose SQL doubles with each key")
def test_compiling_is_linear_in_the_keys() -> None:
    dry, counted = Table(POLICY, None), []
    for n in (4, 8, 12):
        planned = dry.plan(where("b") + " GROUP BY " + ", ".join(f"x > {i}" for i in range(n)), epsilon=1.0)
        dry.expected(planned)
        counted.append(calls(lambda planned=planned: dry.expected(planned)))
    assert counted[2] - counted[1] < 1.5 * (counted[1] - counted[0]), counted


@pytest.mark.keeps_out(
    "A short question that takes minutes to plan: a chain of casts, `HAVING`, `CASE` or sub-queries"
)
@pytest.mark.parametrize("name", DEEP)
@pytest.mark.parametrize("depth", [12, 24, 60, 900])
def test_no_depth_is_dear_or_ends_in_an_error(name: str, depth: int) -> None:
    sql, dry = DEEP[name](depth), Table(POLICY, None)

    def ask() -> None:
        try:
            dry.plan(sql, epsilon=1.0)
        except QueryRefused as refused:
            assert refused.reason  # noqa: PT017 - most are refused; any other error fails the test

    ask()
    assert calls(ask) < 2_000_000


@pytest.mark.keeps_out(
    "A short question that takes minutes to plan: a chain of casts, `HAVING`, `CASE` or sub-queries"
)
def test_limits_are_told() -> None:
    many = ", ".join(f"SUM(x * {i + 1}) AS s{i}" for i in range(MOST_AGGREGATES + 1))
    for sql, words in {
        f"SELECT {many} FROM t": f"at most {MOST_AGGREGATES} aggregates",
        DEEP["brackets"](MOST_BRACKETS + 1): f"more than {MOST_BRACKETS} levels",
        DEEP["times"](MOST_NESTED + 2): f"more than {MOST_NESTED} levels",
        DEEP["SELECT"](9): "more than 8 SELECTs",
        DEEP["POWER"](16): "repetitions counted",
        where("b") + " GROUP BY " + ", ".join(f"x > {i}" for i in range(21)): "more than 20 keys of GROUP BY",
        "SELECT COUNT(*) FROM t " + " ".join(f"JOIN t a{i} ON 1 = 1" for i in range(13)): "more than 12 JOINs",
    }.items():
        with pytest.raises(QueryRefused, match=words):
            Table(POLICY, None).plan(sql, epsilon=1.0)


def test_what_is_as_deep_as_allowed_compiles() -> None:
    dry = Table(POLICY, None)
    for name in ("times", "plus", "ROUND", "CASE in CASE", "NOT", "::"):
        deepest = 0
        for depth in range(4, 60, 2):
            try:
                planned = dry.plan(DEEP[name](depth), epsilon=1.0)
            except QueryRefused:
                break
            deepest, last = depth, planned
        assert deepest >= 8
        assert dry.expected(last)


# ---- constants, and all other kinds of expression, in every aggregate

KINDS = [
    "x", "y", "b", "city", "day", "1", "2.5", "-3", "'a'", "TRUE", "NULL", "DATE '2020-01-01'", "1 < 2",
    "1 + 2 * 3", "NULL IS NULL", "x / 0", "COALESCE(NULL, 3)", "CASE WHEN b THEN 1 END", "NULLIF(1, 1)",
    "YEAR(DATE '2020-01-01')", "'a' LIKE 'a%'", "GREATEST(1, 2)",
]  # fmt: skip
OF_ROWS = [
    "COUNT({})", "COUNT(DISTINCT {})", "COUNT_IF({})", "SUM({})", "AVG({})", "MEDIAN({})", "STDDEV_POP({})",
    "COVAR_POP(x, {})", "COUNT(*) FILTER (WHERE {})", "SUM({}) FILTER (WHERE b)",
]  # fmt: skip
OF_A_PERSON = [
    "COUNT({})", "COUNT(DISTINCT {})", "COUNT_IF({})", "SUM({})", "AVG({})", "MIN({})", "MAX({})",
    "BOOL_OR({})", "BOOL_AND({})", "ARG_MIN({}, day)", "ARG_MAX(x, {})",
]  # fmt: skip


def answered(dry: Table, expressions: list[str], sql: str) -> list[str]:
    """Those with which a question is not refused: nothing else may come of planning it."""
    found = []
    for one in expressions:
        try:
            dry.plan(sql.format(one), epsilon=1.0)
        except QueryRefused:
            continue
        found.append(one)
    return found


@pytest.mark.keeps_out(
    "A dry run that passes, and a question that ends in an error of Python: a constant, or NULL, in "
    "an aggregate"
)
@pytest.mark.parametrize(
    ("aggregates", "one", "all_of"),
    [
        (OF_ROWS, "SELECT {} AS v FROM t", "SELECT {} FROM t"),
        (
            OF_A_PERSON,
            "SELECT COUNT(v) FROM (SELECT person, {} AS v FROM t GROUP BY person)",
            "SELECT COUNT(v0) FROM (SELECT person, {} FROM t GROUP BY person)",
        ),
    ],
)
def test_what_is_planned_is_compiled_and_run(aggregates: list[str], one: str, all_of: str) -> None:
    """Every aggregate of every kind of expression is refused by its text, or has an answer."""
    asked = Table(POLICY, None, data=ROWS)
    pairs = [aggregate.format(kind) for aggregate, kind in itertools.product(aggregates, KINDS)]
    found = answered(asked, pairs, one)
    assert "COUNT(b)" in found
    assert len(found) < len(pairs)
    for start in range(0, len(found), 40):
        some = [f"{value} AS v{place}" for place, value in enumerate(found[start : start + 40])]
        planned = asked.plan(all_of.format(", ".join(some)), epsilon=1.0)
        assert asked.expected(planned)
        ready = asked.ready(planned)
        groups, parts = asked._release(planned.query, planned.price, asked._fetched(ready.compiled))
        assert len(groups) == 1
        assert len(list(parts)) == 1


@pytest.mark.keeps_out(
    "A dry run that passes, and a question that ends in an error of Python: a constant, or NULL, in "
    "an aggregate"
)
@pytest.mark.parametrize("value", ["SUM(1)", "COUNT(DISTINCT 1)", "BOOL_AND(TRUE)", "MIN(DATE '2020-01-01')"])
def test_a_constant_of_a_person_has_an_answer_or_a_reason(value: str) -> None:
    asked = Table(POLICY, None, data=ROWS)
    sql = f"SELECT v, COUNT(*) FROM (SELECT person, {value} AS v FROM t GROUP BY person) GROUP BY v"
    try:
        planned = asked.plan(sql, epsilon=1.0)
    except QueryRefused as refused:
        assert refused.reason  # noqa: PT017
    else:
        assert asked.exact_sums(planned.query, salt="s").sums


# ---- noisy numbers


@pytest.mark.keeps_out("A question whose noise takes minutes, or all memory")
def test_the_numbers_of_a_plan_are_those_that_are_drawn() -> None:
    asked = Table(POLICY, None, data=ROWS)
    examples = [example for function in FUNCTIONS for example in function.examples]
    for sql in (*(f"SELECT {one} FROM t" for one in examples), "SELECT MEDIAN(y) + COUNT(*) FROM t"):
        planned = asked.plan(sql, epsilon=1.0)
        exact = asked.exact_sums(planned.query, salt="s")
        _, (noisy,) = asked._release(planned.query, planned.price, exact)
        drawn = sum(
            sum(map(np.size, one.tree.levels)) if one.tree is not None else one.parts.size for one in noisy
        )
        assert planned.price.numbers == drawn, sql
        simulated = 1 if planned.query.post is None else 1 + 200  # as few as these are simulated so often
        assert planned.values in (drawn, drawn * simulated) if drawn < 1000 else planned.values >= drawn


@pytest.mark.keeps_out("A question whose noise takes minutes, or all memory")
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT BIN(y, 5000), MEDIAN(y) FROM t GROUP BY BIN(y, 5000)",
        "SELECT BIN(y, 1000), MEDIAN(y) + 1 FROM t GROUP BY BIN(y, 1000)",  # each simulated 20 times
        "SELECT BIN(y, 10000), BIN(x, 100), COUNT(*) FROM t GROUP BY BIN(y, 10000), BIN(x, 100)",
    ],
)
def test_too_many_noisy_numbers_are_refused_before_the_charge(sql: str) -> None:
    with pytest.raises(QueryRefused, match=r"noisy numbers|groups"):
        Table(POLICY, None, data=ROWS).plan(sql, epsilon=1e-6)


class _Seen(SecretStream):
    """A stream that keeps how much was drawn at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def discrete_laplace(self, scale: float, size: int) -> Any:
        self.sizes.append(size)
        return super().discrete_laplace(scale, size)


@pytest.mark.keeps_out("A question whose noise takes minutes, or all memory")
def test_noise_is_drawn_in_parts() -> None:
    stream = _Seen()
    asked = Table(POLICY, None, data=ROWS, sampler=stream)
    planned = asked.plan(
        "SELECT BIN(x, 100), MEDIAN(y) FROM t GROUP BY BIN(x, 100)", epsilon=1.0, noise="laplace"
    )
    exact = asked.exact_sums(planned.query, salt="s")
    groups, parts = asked._release(planned.query, planned.price, exact, at_once=20_000)
    counts = np.concatenate([noisy[0].tree.levels[-1] for noisy in parts if noisy[0].tree is not None])
    assert len(groups) == len(counts) == 100
    assert sum(stream.sizes) == planned.values > 100_000
    assert max(stream.sizes) <= 20_000
    whole = add_noise(planned.price, *_at_once(asked, exact, groups), SecretStream())
    assert whole[0].tree is not None
    assert counts.shape == whole[0].tree.levels[-1].shape


def _at_once(asked: Table, exact: Any, groups: Any) -> tuple[Any, Any]:
    from sfumato.query.shaping import by_group, cells_by_group

    cells = [cells_by_group(found, groups, ["key0"], tree.cells) for tree, found in exact.cells]
    return by_group(exact.sums, groups, ["key0"]), cells
