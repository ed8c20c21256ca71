"""Sub-queries that make one row of each person, against pandas when noise vanishes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sfumato.ledger import Ledger
from sfumato.query import QueryRefused, Table, parse_query, policy_from_dict
from sfumato.query.aggregates import measures_for
from sfumato.query.plan import scope, touched_unit

POLICY = policy_from_dict(
    {
        "table": {"name": "visits", "source": "visits.csv"},
        "unit": {"column": "person", "rows": 6, "groups": 2},
        "budget": {"epsilon": 1e6},
        "columns": {
            "days": {"type": "integer", "lower": 0, "upper": 30},
            "ward": {"type": "text", "categories": ["heart", "lung", "eye"]},
            "day": {"type": "date"},
            "urgent": {"type": "boolean"},
        },
    }
)
PLENTY = 2000.0


def visits() -> pd.DataFrame:
    rows = [
        {
            "person": f"p{person}",
            "days": (7 * person + visit) % 31,
            "ward": ["heart", "lung", "eye"][(person + visit) % 3],
            "day": pd.Timestamp("2024-01-01") + pd.Timedelta(days=(person * 13 + visit * 5) % 300),
            "urgent": (person + visit) % 4 == 0,
        }
        for person in range(300)
        for visit in range(1 + person % 5)
    ]
    return pd.DataFrame(rows)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(POLICY, Ledger.open(tmp_path / "l.db", budget=POLICY.budget), data=visits())


def rows(table: Table, sql: str) -> tuple[tuple[Any, ...], ...]:
    return table.ask(sql, epsilon=PLENTY).rows


def test_averages_and_counts_of_people(table: Table) -> None:
    counts = visits().groupby("person").size()
    inner = "SELECT person, COUNT(*) AS n FROM visits GROUP BY person"
    sql = f"SELECT AVG(n), COUNT_IF(n >= 3), COUNT(*) FROM ({inner})"
    ((mean, often, people),) = rows(table, sql)
    assert mean == pytest.approx(counts.mean(), abs=0.05)
    assert (often, people) == ((counts >= 3).sum(), len(counts))


def test_with_is_the_same(table: Table) -> None:
    sql = (
        "WITH p AS (SELECT person, COUNT(*) AS n FROM visits WHERE days > 3 GROUP BY person) "
        "SELECT n, COUNT(DISTINCT p.person) AS people FROM p WHERE p.n < 5 GROUP BY n"
    )
    data = visits()
    counts = data[data.days > 3].groupby("person").size()
    found = dict(rows(table, sql))
    assert all(found[n] == (counts == n).sum() for n in range(1, 5))


def test_the_first_and_the_last_of_each_person(table: Table) -> None:
    sql = (
        "SELECT first, COUNT(*) AS n, AVG(DATE_DIFF('day', began, ended)) AS stay FROM (SELECT person, "
        "ARG_MIN(ward, day) AS first, MIN(day) AS began, MAX(day) AS ended FROM visits GROUP BY person) "
        "GROUP BY first"
    )
    data = visits().sort_values("day", kind="stable")
    first = data.groupby("person").ward.first().value_counts()
    found = {row[0]: row[1] for row in rows(table, sql)}
    # Two visits of one person never fall on the same day here.
    assert found == first.to_dict()


def test_a_count_is_clipped_where_the_query_or_the_policy_says(table: Table) -> None:
    sql = "SELECT AVG(n) FROM (SELECT person, LEAST(COUNT(*), 2) AS n FROM visits GROUP BY person)"
    ((mean,),) = rows(table, sql)
    assert mean == pytest.approx(np.minimum(visits().groupby("person").size(), 2).mean(), abs=0.05)
    plan = parse_query(sql, POLICY)
    policy = scope(plan, POLICY)
    (measure,) = measures_for(plan, policy)
    reach = measure.sensitivity(touched_unit(plan, policy)) * measure.fixed.grid
    assert reach == 2  # one row, from 0 to 2


def test_sums_of_a_person(table: Table) -> None:
    inner = "SELECT person, SUM(days) AS s, BOOL_OR(urgent) AS u FROM visits GROUP BY person"
    sql = f"SELECT SUM(s) FROM ({inner}) WHERE u"
    data = visits()
    urgent = data.groupby("person").urgent.any()
    total = data.groupby("person").days.sum()[urgent].sum()
    ((found,),) = rows(table, sql)
    assert found == pytest.approx(total, abs=20)


def test_having_keeps_people_by_what_they_are(table: Table) -> None:
    data = visits().groupby("person").agg(n=("days", "size"), days=("days", "sum"), most=("days", "max"))
    inner = "SELECT person, COUNT(*) AS n FROM visits GROUP BY person"
    for having, kept in (
        ("COUNT(*) >= 3", data[data.n >= 3]),
        ("n >= 3", data[data.n >= 3]),
        (
            "NOT (SUM(days) > 30 OR MAX(days) < 9) AND n < 4",
            data[(data.days <= 30) & (data.most >= 9) & (data.n < 4)],
        ),
    ):
        ((people, total),) = rows(table, f"SELECT COUNT(*), SUM(n) FROM ({inner} HAVING {having})")
        assert people == len(kept), having
        # Laplace noise of scale 6 / 1000: 0.3 is reached once in e⁵⁰ times.
        assert total == pytest.approx(kept.n.sum(), abs=0.3), having


def test_people_are_counted_without_anything_else(table: Table) -> None:
    counts = visits().groupby("person").size()
    for having, kept in (("", counts), (" HAVING COUNT(*) >= 3", counts[counts >= 3])):
        inner = f"SELECT person FROM visits GROUP BY person{having}"
        ((people,),) = rows(table, f"SELECT COUNT(*) FROM ({inner})")
        assert people == len(kept)


COUNTS = "(SELECT person, COUNT(*) AS n FROM visits GROUP BY person"
REFUSED = {
    "SELECT AVG(n) FROM (SELECT days AS n FROM visits GROUP BY ward)": "one row of each person",
    "SELECT AVG(n) FROM (SELECT person, COUNT(*) AS n, SUM(days) N FROM visits GROUP BY person)": "same name",
    "SELECT AVG(n) FROM (SELECT person, ward, COUNT(*) AS n FROM visits GROUP BY person, ward)": "person alone",
    "SELECT AVG(n) FROM (SELECT person, COUNT(*) FROM visits GROUP BY person)": "a name",
    "SELECT AVG(n) FROM (SELECT person, days AS n FROM visits GROUP BY person)": "for each person",
    f"SELECT n FROM {COUNTS})": "single rows",
    f"SELECT AVG(days) FROM {COUNTS})": "no column days",
    f"SELECT person, COUNT(*) FROM {COUNTS}) GROUP BY person": "only be",
    f"SELECT AVG(n) FROM {COUNTS} LIMIT 5)": "LIMIT",
    f"SELECT AVG(n) FROM {COUNTS} HAVING days > 2)": "no column days",
    f"SELECT AVG(n) FROM {COUNTS} HAVING MAX(ward) = 'eye')": "sort texts",
    "SELECT AVG(n) FROM (SELECT person, MAX(ward) AS n FROM visits GROUP BY person)": "sort texts",
    "WITH a AS (SELECT 1), b AS (SELECT 2) SELECT COUNT(*) FROM a": "names b",
}


@pytest.mark.parametrize("sql", REFUSED)
def test_what_is_not_one_row_a_person_is_refused(sql: str) -> None:
    with pytest.raises(QueryRefused, match=REFUSED[sql]):
        parse_query(sql, POLICY)


def test_people_with_too_many_rows_do_not_shrink_an_average_of_whole_numbers(tmp_path: Path) -> None:
    """Scaled down to two rows, one urgent visit of five is two fifths of a visit, not none."""
    few = dataclasses.replace(POLICY, unit=dataclasses.replace(POLICY.unit, rows=2))
    table = Table(few, Ledger.open(tmp_path / "few.db", budget=few.budget), data=visits())
    seen = visits().groupby("person").agg(urgent=("urgent", "mean"), count=("urgent", "size"))
    weights = seen["count"].clip(upper=2)
    expected = (seen["urgent"] * weights).sum() / weights.sum()
    ((share, of_case),) = rows(table, "SELECT AVG(urgent), AVG(CASE WHEN urgent THEN 1 ELSE 0 END) FROM visits")
    assert share == pytest.approx(expected, abs=0.005)
    assert of_case == pytest.approx(expected, abs=0.005)
