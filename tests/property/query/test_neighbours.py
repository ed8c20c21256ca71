"""One unit added or removed moves the engine's exact sums by at most the declared sensitivity, on every engine.

The rows are made to hurt: many rows a unit, extreme values, NULL, NaN, infinities, whole numbers at the ends of
int64, keys in several scripts, keys that were not declared.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import zip_longest
from pathlib import Path
from typing import Any

import ibis
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sfumato.query import Policy, Table, bounding, parse_query, policy_from_dict, sanitizing
from sfumato.query.aggregates import measures_for
from sfumato.query.engines import Engine, open_engine
from sfumato.query.measures import BoundedSum, Counted, Measure
from sfumato.query.plan import scope, touched_unit

Load = Callable[[pd.DataFrame], Engine]


@pytest.fixture
def one_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every engine picks the same of a person's groups, by the hash that all of them have, and rounds alike."""
    monkeypatch.setattr(bounding, "OWN_HASH", ())
    monkeypatch.setattr(bounding, "_dither", lambda units, salt: ibis.literal(0, "int64"))


CITIES = ["Delft", "München", "東京", "O'Hara", "e\u0301"]

QUERIES = [
    "SELECT COUNT(*), AVG(age), COUNT(DISTINCT person) FROM t",
    "SELECT SUM(income), SUM(big), VARIANCE(income), COUNT(age) FROM t WHERE age >= 18 OR NOT city = 'Delft'",
    "SELECT city, COUNT(*), AVG(income), SUM(age), STDDEV(big), COUNT(DISTINCT person) FROM t GROUP BY city",
    "SELECT city, flag, SUM(age * income - 5), COUNT(flag) FROM t WHERE big > -1000000000 GROUP BY city, flag",
    "SELECT BIN(income, 4), AVG(CASE WHEN flag THEN age ELSE -age / 4 END) FROM t GROUP BY BIN(income, 4)",
    "SELECT town, COUNT(*), COUNT(DISTINCT person) FROM t WHERE city LIKE 'M%' OR town IS NULL GROUP BY town",
    "SELECT city, MEDIAN(income), QUANTILE(age, 0.9) FROM t GROUP BY city",
    "SELECT flag AND age > 7, COUNT(*) FILTER (WHERE income > 3), AVG(flag) FROM t GROUP BY flag AND age > 7",
    "SELECT AVG(n), COUNT(*), SUM(s), MEDIAN(m), COUNT(DISTINCT person) FROM (SELECT person, COUNT(*) AS n, "
    "SUM(income) AS s, MIN(age) AS m FROM t WHERE age >= 1 GROUP BY person)",
    "SELECT flagged, COUNT(*), STDDEV(mean), COUNT(often) FROM (SELECT person, AVG(income) AS mean, "
    "LEAST(COUNT(DISTINCT town), 4) AS often, BOOL_OR(flag) AS flagged FROM t GROUP BY person) "
    "WHERE often >= 1 OR flagged GROUP BY flagged",
]
# Which of a person's rows comes first, where two are as early, is the engine's choice.
OF_THE_FIRST = (
    "SELECT home, COUNT(*), AVG(n) FROM (SELECT person, ARG_MIN(city, age) AS home, ARG_MAX(age, big) AS n "
    "FROM t GROUP BY person) GROUP BY home"
)


def policy(rows: int, groups: int) -> Policy:
    return policy_from_dict(
        {
            "table": {"name": "t", "source": "t.csv"},
            "unit": {"column": "person", "rows": rows, "groups": groups},
            "budget": {"epsilon": 1, "delta": 1e-6},
            "columns": {
                "age": {"type": "integer", "lower": 0, "upper": 120},
                "big": {"type": "integer", "lower": -(2**40), "upper": 2**45},
                "income": {"type": "real", "lower": -10.5, "upper": 1e6},
                "city": {"type": "text", "categories": CITIES},
                "town": {"type": "text"},
                "flag": {"type": "boolean"},
            },
        }
    )


ROW = st.fixed_dictionaries(
    {
        "person": st.sampled_from(["p1", "p2", "p3", "p|4", "ü"]),
        "age": st.one_of(st.none(), st.integers(-5, 130), st.sampled_from([-(2**63), 2**63 - 1])),
        "big": st.one_of(st.none(), st.sampled_from([-(2**63), 2**63 - 1, 2**45, 2**53 + 1, -(2**40), 7])),
        "income": st.one_of(
            st.none(),
            st.floats(-100, 2e6),
            st.sampled_from([math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, -0.0, 0.1]),
        ),
        "city": st.one_of(st.none(), st.sampled_from([*CITIES, "é", "Nowhere", "", "delft"])),
        "town": st.one_of(st.none(), st.sampled_from(["a", "ß", "Ω", " a", "a "])),
        "flag": st.one_of(st.none(), st.booleans()),
    }
)


def frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    columns = {name: [row[name] for row in rows] for name in ("person", "city", "town", "flag", "age", "big")}
    data = pd.DataFrame({name: pd.Series(columns[name], dtype="object") for name in ("person", "city", "town")})
    data = data.astype("string")
    data["flag"] = pd.array(columns["flag"], dtype="boolean")
    data["age"] = pd.array(columns["age"], dtype="Int64")
    data["big"] = pd.array(columns["big"], dtype="Int64")
    # Arrow keeps NULL and NaN apart, which NumPy's doubles do not.
    income = pa.chunked_array([pa.array([row["income"] for row in rows], pa.float64())])
    data["income"] = pd.arrays.ArrowExtensionArray(income)
    return data


@dataclass(frozen=True)
class Released:
    """What noise would be added to: each measure's numbers by group, each level-free tree by group and cell."""

    parts: list[tuple[Measure, dict[Any, tuple[int, ...]]]]

    @classmethod
    def of(cls, engine: Engine, rule: Policy, query: str) -> Released:
        exact = Table(rule, None, engine=engine).exact_sums(query, salt="salt")
        plan = parse_query(query, rule)
        measures = measures_for(plan, scope(plan, rule))
        linear = [measure for measure in measures if not isinstance(measure, Counted)]
        parts: list[tuple[Measure, dict[Any, tuple[int, ...]]]] = []
        for position, measure in enumerate(linear):
            numbers = {}
            for row in exact.sums:
                sums = {
                    name: np.array([int(value)]) for name, value in row.items() if not name.startswith("key")
                }
                numbers[_key(row)] = tuple(measure.parts(position, sums)[0].tolist())
            parts.append((measure, numbers))
        parts += [(tree, {_key(row): (int(row["rows"]),) for row in found}) for tree, found in exact.cells]
        return cls(parts)

    def distances(self, other: Released) -> list[tuple[Measure, int]]:
        """For each measure, by how much its numbers differ in L1; a group that is not there has zeros."""
        found = []
        for (measure, one), (_, two) in zip(self.parts, other.parts, strict=True):
            pairs = [zip_longest(one.get(key, ()), two.get(key, ()), fillvalue=0) for key in {*one, *two}]
            found.append((measure, sum(abs(a - b) for pair in pairs for a, b in pair)))
        return found


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(value for name, value in row.items() if name.startswith(("key", "cell")))


def without(engine: Engine, person: str) -> Engine:
    return Engine(engine.name, engine.connection, engine.raw.filter(engine.raw["person"] != person))


def check_neighbours(engine: Engine, person: str, rule: Policy, query: str) -> list[tuple[Measure, int]]:
    everyone, others = Released.of(engine, rule, query), Released.of(without(engine, person), rule, query)
    distances = everyone.distances(others)
    plan = parse_query(query, rule)
    unit = touched_unit(plan, scope(plan, rule))
    for measure, distance in distances:
        assert distance <= measure.sensitivity(unit), measure
    return distances


PEOPLE = ["p1", "p2", "p3", "p|4", "ü"]


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    rows=st.lists(ROW, max_size=14),
    person=st.sampled_from(PEOPLE),
    limits=st.sampled_from([(1, 1), (2, 1), (3, 2), (5, 5)]),
    query=st.sampled_from([*QUERIES, OF_THE_FIRST]),
)
def test_one_unit_moves_the_sums_by_at_most_the_sensitivity(
    duckdb_engine: Load, rows: list[dict[str, Any]], person: str, limits: tuple[int, int], query: str
) -> None:
    check_neighbours(duckdb_engine(frame(rows)), person, policy(*limits), query)


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(rows=st.lists(ROW, min_size=4, max_size=14), query=st.sampled_from([*QUERIES, OF_THE_FIRST]))
def test_postgresql_keeps_the_same_bounds(
    postgres_engine: Load, rows: list[dict[str, Any]], query: str
) -> None:
    check_neighbours(postgres_engine(frame(rows)), rows[0]["person"], policy(3, 2), query)


def hard_rows() -> list[dict[str, Any]]:
    """A fixed table with every kind of trouble, and one person in most of it."""
    values = {
        "age": [None, -5, 0, 17, 18, 120, 130, -(2**63), 2**63 - 1],
        "big": [None, -(2**63), 2**63 - 1, 2**45, 2**53 + 1, 7],
        "income": [None, math.nan, math.inf, -math.inf, 1e308, 5e-324, -0.0, 0.1, 999_999.9, 123.456],
        "city": [*CITIES, None, "é", "Nowhere", ""],
        "town": ["a", "ß", None, "Ω", " a"],
        "flag": [True, None, False],
        "person": ["p1", "p1", "p1", "p2", "p3", "p|4", "ü"],
    }
    step = {name: 1 if name == "person" else 7 for name in values}
    return [
        {name: options[i * step[name] % len(options)] for name, options in values.items()} for i in range(40)
    ]


@pytest.mark.parametrize("query", QUERIES)
def test_postgresql_gives_the_same_sums_as_duckdb(
    one_hash: None, duckdb_engine: Load, postgres_engine: Load, query: str
) -> None:
    rule, data = policy(3, 2), frame(hard_rows())
    assert Released.of(postgres_engine(data), rule, query) == Released.of(duckdb_engine(data), rule, query)


# Starting Spark and planning on it costs seconds each, so that a few queries ask for everything.
SPARK_QUERIES = [
    "SELECT city, flag, COUNT(*), COUNT(DISTINCT person), AVG(age), SUM(big), STDDEV(income) "
    "FROM t WHERE (age >= 18 OR NOT city = 'Delft') AND town IS NOT NULL GROUP BY city, flag",
    "SELECT BIN(big, 5), QUANTILE(income, 0.9) FROM t WHERE city LIKE '%e%' OR flag GROUP BY BIN(big, 5)",
]


@pytest.mark.slow
@pytest.mark.parametrize("query", SPARK_QUERIES)
def test_spark_gives_the_same_sums_as_duckdb_within_the_same_bounds(
    one_hash: None, duckdb_engine: Load, spark_engine: Load, query: str
) -> None:
    rule, data = policy(3, 2), frame(hard_rows())
    spark = spark_engine(data)
    assert Released.of(spark, rule, query) == Released.of(duckdb_engine(data), rule, query)
    assert any(distance > 0 for _, distance in check_neighbours(spark, "p1", rule, query))


TEXT = (
    "person,age,big,income,city,town,flag\n"
    "p1,30,7,1e1,Delft,a,true\n"
    "p2,abc,1_000,1_0,Delft,a,maybe\n"
    "p3, 40,0x10,inf,München,a,\n"
    "p4,9999999999999999999999999,1d,nan,東京,a,1\n"
    "p5,-1.5,+5,.5,Delft,a,F\n"
    "p6,60.9,1e3,-5,Delft,a,NO\n"
)


@pytest.mark.slow
def test_spark_reads_text_as_duckdb_does(spark_engine: Load, tmp_path: Path) -> None:
    """From the same CSV file, opened by name as the command line does."""
    (tmp_path / "t.csv").write_text(TEXT, encoding="utf-8")
    rule = replace(policy(3, 2), source=str(tmp_path / "t.csv"))
    spark, duck = (open_engine(rule, name=name, master="local[1]") for name in ("spark", "duckdb"))
    query = "SELECT flag, COUNT(age), COUNT(big), COUNT(income), SUM(age), SUM(big) FROM t GROUP BY flag"
    found = Released.of(duck, rule, query)
    assert Released.of(spark, rule, query) == found
    # Ages 30, 10²⁵, −1.5 and 60.9 are numbers, p2's and p3's are not; flags are true twice, false twice.
    assert found.parts[0][1] == {(True,): (2,), (False,): (2,)}


def test_postgresql_is_opened_by_its_address(postgres_engine: Load, postgres_url: str) -> None:
    data = frame(hard_rows())
    engine = postgres_engine(data)
    engine.connection.create_table("t", data, overwrite=True)
    rule = replace(policy(3, 2), source=postgres_url)
    assert Released.of(open_engine(rule), rule, QUERIES[0]) == Released.of(engine, rule, QUERIES[0])


@pytest.mark.parametrize("load", ["duckdb_engine", "postgres_engine"])
def test_sums_are_what_exact_arithmetic_says(load: str, request: pytest.FixtureRequest) -> None:
    """With room for every row nothing is bounded away: clip, floor and add up, in exact fractions."""
    rows = hard_rows()
    rule = policy(1000, 5)
    engine = request.getfixturevalue(load)(frame(rows))
    query = "SELECT COUNT(*), COUNT(income), SUM(income), SUM(big) FROM t"
    (_, counts), (income, incomes), (big, bigs) = Released.of(engine, rule, query).parts
    known = [row["income"] for row in rows if row["income"] is not None and not math.isnan(row["income"])]
    assert counts[()] == (len(known), len(rows) - len(known))
    for measure, column, found in ((income, known, incomes), (big, [row["big"] for row in rows], bigs)):
        assert isinstance(measure, BoundedSum)
        fixed = measure.fixed
        clipped = [min(max(value, fixed.lower), fixed.upper) for value in column if value is not None]
        assert found[()] == (sum(math.floor(Fraction(value) / Fraction(fixed.grid)) for value in clipped),)


def test_the_bound_is_reached(duckdb_engine: Load) -> None:
    """The sensitivity has no slack: somebody moves every measure by exactly that much."""
    rule = policy(3, 2)
    extreme = {
        "person": "p1",
        "age": 200,
        "big": 2**62,
        "income": 1e9,
        "city": "Delft",
        "town": "a",
        "flag": True,
    }
    rows = [extreme] * 2 + [{**extreme, "city": "München"}] * 5
    engine = duckdb_engine(frame(rows))
    for measure, distance in check_neighbours(engine, "p1", rule, QUERIES[2]):
        assert distance == measure.sensitivity(rule.unit), measure


def test_a_unit_with_too_many_rows_counts_as_its_mean(duckdb_engine: Load) -> None:
    rows = [{**hard_rows()[0], "person": "p1", "age": age} for age in (10, 20, 30, 40, 51)]
    released = Released.of(duckdb_engine(frame(rows)), policy(2, 1), "SELECT AVG(age) FROM t")
    ((_, numbers),) = released.parts
    # Five rows with sum 151 count as two: 151·2/5 = 60.4 above 0, and 2·120 − 60.4 below 120, in fine steps.
    steps = 2**23  # in one year: ages up to 120 in 30 bits
    above = 151 * steps * 2 // 5
    assert numbers[()] == (2 * 120 * steps - above, above)


@pytest.mark.keeps_out("The clipped copy discarded")
def test_a_pipeline_without_bounds_is_caught(duckdb_engine: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sabotage: rows are counted without limit."""
    monkeypatch.setattr(bounding, "_bounded_units", lambda units, *_: units.mutate(kept=units["rows"]))
    engine = duckdb_engine(frame([{**hard_rows()[0], "person": "p1"}] * 9))
    with pytest.raises(AssertionError):
        check_neighbours(engine, "p1", policy(3, 2), QUERIES[0])


def test_clipping_that_turns_null_into_a_bound_is_caught(
    duckdb_engine: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sabotage: LEAST and GREATEST skip NULLs, which the exact arithmetic notices."""
    import ibis

    monkeypatch.setattr(
        sanitizing, "clip", lambda value, lower, upper: ibis.greatest(ibis.least(value, upper), lower)
    )
    rows = [{**hard_rows()[0], "age": None}] * 3
    released = Released.of(duckdb_engine(frame(rows)), policy(9, 1), "SELECT COUNT(*), AVG(age) FROM t")
    ((_, numbers),) = released.parts
    assert numbers[()][-1] == 0  # nobody is missing any more
