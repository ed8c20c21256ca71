"""A join tells of nobody more than its price says.

One person's rows must not reach another person's joined rows, must not grow without bound in a join, and must
not decide whether a query is answered. Each attack below tries one of these.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import ibis
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sfumato.errors import DataUnavailable, InvalidInput, SfumatoError
from sfumato.ledger import Ledger
from sfumato.query import Policy, QueryRefused, Table, bounding, choosing, parse_query, policy_from_dict
from sfumato.query import table as table_module
from sfumato.query.aggregates import measures_for
from sfumato.query.engines import Engine, open_engine
from sfumato.query.measures import Counted, Measure
from sfumato.query.plan import public_keys, scope, touched_unit
from sfumato.query.rows import early_sums

PEOPLE = ["p1", "p2", "p|3", "ü"]
CITIES = ["Delft", "東京", "O'Hara"]
REGIONS = pa.table({"city": [*CITIES, None, "nowhere"], "region": ["north", "south", "north", "south", None]})


def policy(rows: int = 3, groups: int = 2, of_people: int = 1) -> Policy:
    return policy_from_dict(
        {
            "tables": {
                "visits": {
                    "source": "visits.parquet",
                    "columns": {
                        "days": {"type": "integer", "lower": 0, "upper": 30},
                        "cost": {"type": "real", "lower": -10.5, "upper": 1e6},
                        "city": {"type": "text", "categories": CITIES},
                    },
                },
                "people": {
                    "source": "people.parquet",
                    "unit": "id",
                    "rows": of_people,
                    "columns": {
                        "age": {"type": "integer", "lower": 0, "upper": 120},
                        "city": {"type": "text"},
                        "ill": {"type": "boolean"},
                    },
                },
            },
            "public": {
                "regions": {
                    "source": "regions.parquet",
                    "key": "city",
                    "columns": {
                        "city": {"type": "text"},
                        "region": {"type": "text", "categories": ["north", "south"]},
                    },
                }
            },
            "unit": {"column": "person", "rows": rows, "groups": groups},
            "budget": {"epsilon": 1e6, "delta": 1e-6},
        }
    )


ON = "visits v JOIN people p ON v.person = p.id"
QUERIES = [
    f"SELECT COUNT(*), AVG(days), SUM(cost), COUNT(DISTINCT v.person) FROM {ON}",
    "SELECT region, COUNT(*), SUM(cost), AVG(days) FROM visits JOIN regions USING (city) GROUP BY region",
    f"SELECT p.city, COUNT(*), STDDEV(cost) FROM {ON} WHERE age >= 18 OR ill GROUP BY p.city",
    f"SELECT ill, v.city, MEDIAN(days), COUNT(DISTINCT p.city) FROM {ON} GROUP BY ill, v.city",
    "SELECT r.region, COUNT(p.age), SUM(days * p.age) FROM people p LEFT JOIN visits v ON v.person = p.id "
    "LEFT JOIN regions r ON p.city = r.city GROUP BY r.region",
    "SELECT COUNT(*), CORR(a.days, b.days) FROM visits a JOIN visits b ON a.person = b.person",
    "SELECT AVG(n), SUM(s), COUNT_IF(old) FROM (SELECT v.person, COUNT(*) AS n, SUM(cost) AS s, "
    f"BOOL_OR(age > 60) AS old FROM {ON} LEFT JOIN regions USING (city) GROUP BY v.person)",
    "SELECT ill, COUNT(*) FROM people GROUP BY ill",
]
# In the sixth, city is a column of both tables: which one is compared must be said.
QUERIES[6] = QUERIES[6].replace("regions USING (city)", "regions r ON r.city = v.city")

VISIT = st.fixed_dictionaries(
    {
        "person": st.sampled_from([*PEOPLE, None]),
        "days": st.one_of(st.none(), st.integers(-5, 40), st.sampled_from([-(2**63), 2**63 - 1])),
        "cost": st.one_of(st.none(), st.floats(-100, 2e6), st.sampled_from([math.nan, math.inf, 5e-324])),
        "city": st.sampled_from([*CITIES, "nowhere", "", None]),
    }
)
PERSON = st.fixed_dictionaries(
    {
        "id": st.sampled_from([*PEOPLE, None]),
        "age": st.one_of(st.none(), st.integers(-5, 130), st.sampled_from([-(2**63), 2**63 - 1])),
        "city": st.sampled_from([*CITIES, "nowhere", "a|b", None]),
        "ill": st.sampled_from([True, False, None]),
    }
)
TYPES = {
    "person": pa.string(), "days": pa.int64(), "cost": pa.float64(), "city": pa.string(), "id": pa.string(),
    "age": pa.int64(), "ill": pa.bool_(),
}  # fmt: skip
Rows = list[dict[str, Any]]


def arrow(rows: Rows, *names: str) -> pa.Table:
    return pa.table({name: pa.array([row[name] for row in rows], TYPES[name]) for name in names})


def data(visits: Rows, people: Rows) -> dict[str, pa.Table]:
    return {
        "visits": arrow(visits, "person", "days", "cost", "city"),
        "people": arrow(people, "id", "age", "city", "ill"),
        "regions": REGIONS,
    }


Released = list[tuple[Measure, dict[Any, list[int]]]]


def released(engine: Engine, rule: Policy, query: str) -> Released:
    """Each measure's exact numbers by group, and by cell: what noise would be added to."""
    exact = Table(rule, None, engine=engine).exact_sums(query, salt="salt")
    plan = parse_query(query, rule)
    linear = [item for item in measures_for(plan, scope(plan, rule)) if not isinstance(item, Counted)]
    found: Released = []
    for position, measure in enumerate(linear):
        numbers = {}
        for row in exact.sums:
            sums = {name: pd.array([int(value)]) for name, value in row.items() if not name.startswith("key")}
            arrays = {name: value.to_numpy(dtype="int64") for name, value in sums.items()}
            numbers[_key(row)] = measure.parts(position, arrays)[0].tolist()
        found.append((measure, numbers))
    return found + [(tree, {_key(row): [int(row["rows"])] for row in rows}) for tree, rows in exact.cells]


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(value for name, value in row.items() if name.startswith(("key", "cell")))


def check_neighbours(engine: Engine, others: Engine, rule: Policy, query: str) -> Released:
    """All rows of one person come or go: each measure moves by at most its sensitivity, in L1."""
    plan = parse_query(query, rule)
    unit = touched_unit(plan, scope(plan, rule))
    everyone = released(engine, rule, query)
    for (measure, one), (_, two) in zip(everyone, released(others, rule, query), strict=True):
        pairs = [zip_longest(one.get(key, ()), two.get(key, ()), fillvalue=0) for key in {*one, *two}]
        moved = sum(abs(a - b) for pair in pairs for a, b in pair)
        assert moved <= measure.sensitivity(unit), measure
    return everyone


def without(visits: Rows, people: Rows, person: str) -> dict[str, pa.Table]:
    return data(
        [row for row in visits if row["person"] != person], [row for row in people if row["id"] != person]
    )


@pytest.mark.keeps_out("A join that lets one person's rows reach those of others, or grow without bound")
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    visits=st.lists(VISIT, max_size=12),
    people=st.lists(PERSON, max_size=8),
    person=st.sampled_from(PEOPLE),
    limits=st.sampled_from([(1, 1, 1), (3, 2, 1), (2, 1, 3), (5, 5, 2)]),
    query=st.sampled_from(QUERIES),
)
def test_one_person_moves_a_join_by_at_most_the_sensitivity(
    visits: Rows, people: Rows, person: str, limits: tuple[int, int, int], query: str
) -> None:
    rule = policy(*limits)
    everyone = open_engine(rule, data=data(visits, people))
    check_neighbours(everyone, open_engine(rule, data=without(visits, people, person)), rule, query)


def hard_rows() -> tuple[Rows, Rows]:
    visits = [
        {
            "person": [*PEOPLE, "p1", "p1", None][i % 7],
            "days": [None, -5, 3, 31, 2**63 - 1, 7][i % 6],
            "cost": [math.nan, 3.5, math.inf, None, 0.1][i % 5],
            "city": [*CITIES, "nowhere", None][i % 5],
        }
        for i in range(40)
    ]
    people = [
        {
            "id": [*PEOPLE, "p1", None, "p1"][i % 7],
            "age": [10, 130, None, 61, -(2**63)][i % 5],
            "city": [*CITIES, None][i % 4],
            "ill": [True, None, False][i % 3],
        }
        for i in range(20)
    ]
    return visits, people


def with_one_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """What engines hash by themselves is the same on all: the order of groups, and how shares are rounded."""
    monkeypatch.setattr(bounding, "OWN_HASH", ())
    monkeypatch.setattr(bounding, "_dither", lambda units, salt: ibis.literal(0, "int64"))


@pytest.mark.parametrize("query", QUERIES)
def test_postgresql_joins_as_duckdb_does(
    query: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with_one_hash(monkeypatch)
    pytest.importorskip("psycopg")
    # As text, numbers look different there: where rows with some are picked by a hash, all of them are kept.
    rule, rows = policy(1000 if "visits b" in query else 3, 2, 2), data(*hard_rows())
    server = ibis.connect(postgres_url)
    for name in ("visits", "people"):
        server.create_table(name, rows[name], overwrite=True)
    tables = {name: replace(one, source=postgres_url) for name, one in rule.tables.items()}
    there = replace(rule, source=postgres_url, tables=tables)
    engine = open_engine(there, data={"regions": REGIONS, **dict.fromkeys(tables)})
    assert engine.name == "postgres"
    assert released(engine, there, query) == released(open_engine(rule, data=rows), rule, query)


@pytest.mark.keeps_out("A join with two tables of which no column is read, which ends in an error of a library")
def test_two_partners_without_columns_are_two_tables() -> None:
    rule, rows = policy(1000, 2, 2), data(*hard_rows())
    table = Table(rule, None, data=rows)
    on = "visits v JOIN people p ON v.person = p.id"
    one, two = (
        int(table.exact_sums(f"SELECT COUNT(*) FROM {joined}", salt="s").sums[0]["rows"])
        for joined in (on, f"{on} JOIN people q ON v.person = q.id")
    )
    assert 0 < one < two <= 2 * one


@pytest.mark.slow
def test_spark_joins_as_duckdb_does(
    spark_engine: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from pyarrow import parquet

    with_one_hash(monkeypatch)
    monkeypatch.chdir(tmp_path)
    rule = policy(3, 2, 2)
    for name, rows in data(*hard_rows()).items():
        parquet.write_table(rows, tmp_path / f"{name}.parquet")
    spark, duck = (open_engine(rule, name=name, master="local[1]") for name in ("spark", "duckdb"))
    assert released(spark, rule, QUERIES[4]) == released(duck, rule, QUERIES[4])


def test_a_join_is_what_pandas_says() -> None:
    visits, people = hard_rows()
    rule = policy(1000, 100, 1000)
    frames = {name: table.to_pandas() for name, table in data(visits, people).items()}
    joined = frames["visits"].dropna(subset="person").merge(frames["people"], left_on="person", right_on="id")
    engine = open_engine(rule, data=data(visits, people))
    ((_, counts),) = released(engine, rule, f"SELECT p.city, COUNT(*) FROM {ON} GROUP BY p.city")
    assert {key[0]: count for key, (count,) in counts.items()} == joined.city_y.value_counts().to_dict()
    regions = frames["visits"].dropna(subset="person").merge(frames["regions"].dropna(), on="city")
    ((_, counts),) = released(
        engine, rule, "SELECT region, COUNT(*) FROM visits JOIN regions USING (city) GROUP BY region"
    )
    assert {key[0]: count for key, (count,) in counts.items()} == regions.region.value_counts().to_dict()


EARLY = [
    "SELECT p.city, COUNT(*), AVG(days), SUM(cost) FROM visits v JOIN people p ON v.person = p.id "
    "WHERE days > 1 AND age < 100 GROUP BY p.city",
    "SELECT region, COUNT(DISTINCT v.person), COUNT(days) FROM visits v LEFT JOIN people p ON v.person = p.id "
    "LEFT JOIN regions r ON p.city = r.city GROUP BY region",
    "SELECT ill, VARIANCE(days), MEDIAN(days) FROM visits v JOIN people p ON v.person = p.id GROUP BY ill",
    "SELECT SUM(cost) FROM visits v JOIN people p ON v.person = p.id WHERE ill",
]


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    visits=st.lists(VISIT, max_size=12),
    people=st.lists(PERSON, max_size=8),
    person=st.sampled_from(PEOPLE),
    limits=st.sampled_from([(1, 1, 1), (3, 2, 1)]),
    query=st.sampled_from(EARLY),
)
def test_sums_before_the_join_are_those_after_it(
    visits: Rows, people: Rows, person: str, limits: tuple[int, int, int], query: str
) -> None:
    """The cheaper order of work moves by no more, and gives the same numbers."""
    rule = policy(*limits)
    everyone = open_engine(rule, data=data(visits, people))
    others = open_engine(rule, data=without(visits, people, person))
    early = check_neighbours(everyone, others, rule, query)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_module, "early_sums", lambda *_, **__: None)
        # DuckDB may count some of a person's rows where sums count all of them by their mean.
        patch.setattr(choosing, "applies", lambda *_: False)
        assert released(everyone, rule, query) == early


def test_only_sums_that_are_the_same_are_made_before_the_join() -> None:
    rule = policy(3, 2, 1)
    engine = open_engine(rule, data=data(*hard_rows()))

    def is_early(sql: str, rule: Policy) -> bool:
        plan = parse_query(sql, rule)
        rows = scope(plan, rule)
        asked = bounding.Bounding(plan, measures_for(plan, rows), rows, public_keys(plan, rows), "s")
        return early_sums(engine, asked, rule) is not None

    assert all(is_early(sql, rule) for sql in EARLY)
    assert not any(is_early(sql, policy(3, 2, 2)) for sql in EARLY)  # several partners of a person
    others = [f"SELECT SUM(age) FROM {ON}", f"SELECT COUNT(*) FROM {ON} WHERE days > age"]
    for other in (QUERIES[1], *QUERIES[3:7], *others):
        assert not is_early(other, rule), other


def test_rows_without_a_partner_stay_in_a_left_join() -> None:
    visits, _ = hard_rows()
    engine = open_engine(policy(1000, 2, 1), data=data(visits, []))
    for kind, expected in (("JOIN", 0), ("LEFT JOIN", sum(row["person"] is not None for row in visits))):
        sql = f"SELECT COUNT(*) FROM visits v {kind} people p ON v.person = p.id"
        ((_, counts),) = released(engine, policy(1000, 2, 1), sql)
        assert counts[()] == [expected]


@pytest.mark.keeps_out("A join that lets one person's rows reach those of others, or grow without bound")
def test_a_person_does_not_multiply_in_a_join() -> None:
    """70,000 rows on both sides would be 4.9 billion joined rows, whose sum leaves 64 bits."""
    visit, person = hard_rows()[0][0], hard_rows()[1][0]
    rule = policy(3, 2, 2)
    engine = open_engine(rule, data=data([visit] * 70_000, [{**person, "id": "p1"}] * 70_000))
    inner = "SELECT v.person, LEAST(COUNT(*), 1000000) AS n FROM visits v JOIN people p ON v.person = p.id"
    sql = f"SELECT SUM(n) FROM ({inner} GROUP BY v.person)"
    ((measure, sums),) = released(engine, rule, sql)
    assert sums[()][0] * measure.fixed.grid == 140_000  # type: ignore[attr-defined]


@pytest.mark.keeps_out("Rows or groups with one hash, among which the order of the file decides")
def test_which_rows_of_a_person_are_joined_does_not_depend_on_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows whose hashes a hostile person has made equal: what comes first in the file must not decide."""
    monkeypatch.setattr(bounding, "_turn", lambda units, names, salt: ibis.literal("same"))
    visits, people = hard_rows()
    for rule in (policy(2, 1, 1), policy(2, 1, 2)):
        for query in (QUERIES[2], QUERIES[3], QUERIES[6]):
            one, two = (
                released(open_engine(rule, data=data(visits[::step], people[::step])), rule, query)
                for step in (1, -1)
            )
            assert one == two


REFUSED = {
    f"SELECT COUNT(*) FROM {ON} AND v.days > 3": "the person and nothing else",
    "SELECT COUNT(*) FROM visits v JOIN people p ON v.city = p.city": "the person and nothing else",
    "SELECT COUNT(*) FROM visits v JOIN people p ON v.person <> p.id": "the person and nothing else",
    "SELECT COUNT(*) FROM visits v JOIN people p ON v.person = v.person": "the person and nothing else",
    "SELECT COUNT(*) FROM visits v JOIN people p ON TRUE": "the person and nothing else",
    "SELECT COUNT(*) FROM visits v, people p": "the person and nothing else",
    "SELECT COUNT(*) FROM visits v, people p WHERE v.person = p.id": "the person and nothing else",
    "SELECT COUNT(*) FROM visits v JOIN people p USING (person)": "the person and nothing else",
    "SELECT COUNT(*) FROM visits v CROSS JOIN people p": "INNER or LEFT",
    "SELECT COUNT(*) FROM visits v RIGHT JOIN people p ON v.person = p.id": "INNER or LEFT",
    "SELECT COUNT(*) FROM visits v FULL JOIN people p ON v.person = p.id": "INNER or LEFT",
    "SELECT COUNT(*) FROM visits v SEMI JOIN people p ON v.person = p.id": "INNER or LEFT",
    "SELECT COUNT(*) FROM visits v ANTI JOIN people p ON v.person = p.id": "INNER or LEFT",
    "SELECT COUNT(*) FROM visits v NATURAL JOIN people p": "INNER or LEFT",
    "SELECT COUNT(*) FROM visits v POSITIONAL JOIN people p": "",
    "SELECT COUNT(*) FROM visits v ASOF JOIN people p ON v.person = p.id": "INNER or LEFT",
    "SELECT COUNT(*) FROM visits v JOIN LATERAL (SELECT 1) p ON TRUE": "",
    "SELECT COUNT(*) FROM visits v JOIN (SELECT * FROM people) p ON v.person = p.id": "",
    "SELECT COUNT(*) FROM visits JOIN read_csv('/etc/passwd') r ON TRUE": "policy declares",
    "SELECT COUNT(*) FROM visits JOIN secrets s ON visits.person = s.person": "policy declares",
    "SELECT COUNT(*) FROM regions": "only the tables",
    "SELECT COUNT(*) FROM regions r LEFT JOIN visits v ON r.city = v.city": "only the tables",
    "SELECT COUNT(*) FROM visits v JOIN regions r ON v.city <> r.city": "on its key",
    "SELECT COUNT(*) FROM visits v JOIN regions r ON v.city = r.region": "on its key",
    "SELECT COUNT(*) FROM visits v JOIN regions r ON r.city = r.city": "on its key",
    "SELECT COUNT(*) FROM visits v JOIN regions r ON v.days = r.city": "one type",
    "SELECT COUNT(*) FROM visits v JOIN regions r ON v.person = r.city": "only be counted",
    "SELECT COUNT(*) FROM visits v JOIN regions v ON v.city = v.city": "another name",
    f"SELECT AVG(city) FROM {ON}": "v.city or p.city",
    f"SELECT AVG(q.days) FROM {ON}": "not in the table",
    f"SELECT v.person, COUNT(*) FROM {ON} GROUP BY v.person": "only be counted",
    f"SELECT person, COUNT(*) FROM {ON} GROUP BY person": "only be counted",
    f"SELECT p.id, COUNT(*) FROM {ON} GROUP BY p.id": "only be counted",
    "SELECT COUNT(DISTINCT p.id) FROM visits v LEFT JOIN people p ON v.person = p.id": "says who a row",
}


@pytest.mark.keeps_out("A join that lets one person's rows reach those of others, or grow without bound")
@pytest.mark.parametrize("sql", REFUSED)
def test_every_other_join_is_refused_in_a_sentence(sql: str) -> None:
    with pytest.raises(QueryRefused) as refusal:
        parse_query(sql, policy())
    assert REFUSED[sql] in str(refusal.value)
    if refusal.value.nearest.startswith("SELECT"):
        assert parse_query(refusal.value.nearest, policy()).aggregates


SIDES = st.sampled_from(["", "LEFT", "RIGHT", "FULL", "CROSS", "SEMI", "ANTI", "NATURAL", "ASOF"])
TABLES = st.sampled_from(["people", "regions", "visits", "other", "(SELECT 1)"])
CONDITIONS = st.sampled_from(
    ["", "ON a.person = b.id", "ON a.person = b.person", "ON a.city = b.city", "ON a.days < b.age", "ON TRUE",
     "USING (person)", "USING (city)", "USING (city, person)", "ON a.person = b.id OR a.days = b.age"]
)  # fmt: skip


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(side=SIDES, table=TABLES, on=CONDITIONS, rows=st.tuples(st.lists(VISIT, max_size=4), st.just([])))
def test_whatever_is_joined_is_answered_or_refused_before_the_charge(
    side: str, table: str, on: str, rows: tuple[Rows, Rows], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """By the text and the policy alone: with rows or without, the outcome is the same."""
    rule = policy()
    sql = f"SELECT COUNT(*) FROM visits a {side} JOIN {table} b {on}"
    outcomes = set()
    for tables in (data(*rows), data([], [])):
        place = tmp_path_factory.mktemp("join") / "l.db"
        with Ledger.open(place, budget=rule.budget) as ledger:
            try:
                Table(rule, ledger, data=tables).ask(sql, epsilon=1.0)
                outcomes.add("answered")
            except QueryRefused as refused:
                outcomes.add(str(refused))
                assert not ledger.charges()
    assert len(outcomes) == 1


@pytest.mark.keeps_out("A public table with a key twice, by which every row counts twice")
def test_a_public_key_that_occurs_twice_is_refused_as_it_is_read() -> None:
    """Every row would count twice where each row is one person, and nothing bounds it after the join."""
    columns = {"city": {"type": "integer", "lower": 0, "upper": 9}}
    rule = policy_from_dict(
        {
            "table": {"name": "t", "source": "t.csv"},
            "budget": {"epsilon": 1},
            "columns": columns,
            "public": {"towns": {"source": "towns.csv", "key": "city", "columns": columns}},
        }
    )
    rows = pd.DataFrame({"city": [1, 9]})
    sql = "SELECT COUNT(*) FROM t JOIN towns USING (city)"
    for twice in ([1, 2, 1], [8, 9, 12]):  # 12 lies beyond the bounds, and is read as 9
        table = Table(rule, None, data={"t": rows, "towns": pd.DataFrame({"city": twice})})
        with pytest.raises(InvalidInput, match="each value of city once"):
            table.exact_sums(sql, salt="s")
    once = Table(rule, None, data={"t": rows, "towns": pd.DataFrame({"city": [1, 2, 12]})})
    assert once.exact_sums(sql, salt="s").sums[0]["rows"] == 2


def test_a_public_file_is_read_again_when_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rule = policy_from_dict(
        {
            "table": {"name": "t", "source": "t.csv"},
            "budget": {"epsilon": 1e6},
            "columns": {"city": {"type": "text", "categories": ["A", "B"]}},
            "public": {
                "towns": {
                    "source": "towns.csv",
                    "key": "city",
                    "columns": {"city": {"type": "text"}, "big": {"type": "boolean"}},
                }
            },
        }
    )
    sql = "SELECT COUNT_IF(big) FROM t JOIN towns USING (city)"
    Path("t.csv").write_text("city\nA\nA\nB\n")
    with pytest.raises(DataUnavailable, match=r"public\.towns"):
        Table(rule, None).exact_sums(sql, salt="s")
    Path("towns.csv").write_text("city,big\nA,yes\nB,no\n")
    table = Table(rule, None)
    assert table.exact_sums(sql, salt="s").sums[0]["rows"] == 3
    Path("towns.csv").write_text("city,big\nA,yes\n")
    assert table.exact_sums(sql, salt="s").sums[0]["rows"] == 2
    Path("towns.csv").write_text("city,big\nA,yes\nA,no\n")
    with pytest.raises(InvalidInput, match="once"):
        table.exact_sums(sql, salt="s")


def test_people_stored_in_two_types_are_refused_before_the_charge(tmp_path: Path) -> None:
    rule = policy()
    visits, people = hard_rows()
    tables = data(visits, people)
    numbers = pa.array(range(len(people)), pa.int64())
    tables["people"] = tables["people"].set_column(0, "id", numbers)
    with Ledger.open(tmp_path / "l.db", budget=rule.budget) as ledger:
        with pytest.raises(InvalidInput, match="one type on both sides, got string and int64"):
            Table(rule, ledger, data=tables).ask(f"SELECT COUNT(*) FROM {ON}", epsilon=1.0)
        assert not ledger.charges()


BROKEN: dict[str, Callable[[dict[str, Any]], Any]] = {
    "got tables, columns": lambda d: d.update(columns={"age": {"type": "integer"}}),
    "got tables, table": lambda d: d.update(table={"source": "t.csv"}),
    "unit.column": lambda d: (d.update(unit={}), d["tables"]["people"].pop("unit")),
    "upper and lower case": lambda d: d["public"].update(VISITS=d["public"]["regions"]),
    "public.regions.key to be one of its columns": lambda d: d["public"]["regions"].update(key="town"),
    "tables.people.source": lambda d: d["tables"]["people"].pop("source"),
    "to hold only": lambda d: d["tables"]["people"].update(rowz=3),
}


@pytest.mark.parametrize("said", BROKEN)
def test_a_policy_that_contradicts_itself_is_refused(said: str) -> None:
    declared: dict[str, Any] = {
        "tables": {
            "visits": {"source": "v.csv", "columns": {"days": {"type": "integer"}}},
            "people": {"source": "p.csv", "unit": "id", "columns": {"age": {"type": "integer"}}},
        },
        "public": {
            "regions": {"source": "r.csv", "key": "city", "columns": {"city": {"type": "text"}}},
        },
        "unit": {"column": "person"},
        "budget": {"epsilon": 1},
    }
    policy_from_dict(declared)
    BROKEN[said](declared)
    with pytest.raises(SfumatoError, match=said.replace(".", r"\.")):
        policy_from_dict(declared)


def test_tables_have_their_own_limits_and_a_join_has_the_units() -> None:
    rule = policy(3, 2, 1)
    alone, joined = (parse_query(f"SELECT COUNT(*) FROM {source}", rule) for source in ("people", ON))
    assert scope(alone, rule).unit.rows == 1
    assert scope(joined, rule).unit.rows == 3
    too_many = policy(3, 2, 1001)
    with pytest.raises(QueryRefused, match="1,001 partners"):
        parse_query(f"SELECT COUNT(*) FROM {ON}", too_many)
