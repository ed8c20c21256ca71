"""The same questions on the three engines, against pandas: twelve values, with noise that vanishes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sfumato.ledger import Ledger
from sfumato.query import QueryRefused, Table, parse_query, policy_from_dict

POLICY = policy_from_dict(
    {
        "table": {"name": "people", "source": "people.csv"},
        "budget": {"epsilon": 1e9},
        "columns": {
            "age": {"type": "integer", "lower": 0, "upper": 100},
            "income": {"type": "real", "lower": 0, "upper": 1000},
            "city": {"type": "text", "categories": ["Delft", "Utrecht", "Nowhere"]},
            "born": {"type": "date", "lower": date(1999, 1, 1), "upper": date(2002, 12, 31)},
            "smoker": {"type": "boolean"},
        },
    }
)
EPSILON = 1e4  # of five shares each: noise of scale 0.5 on a sum of incomes, which are up to 1,000
BY_CITY = """
    SELECT city, COUNT(*) AS n, AVG(age) AS age, SUM(income) AS income, STDDEV(age) AS spread,
           COUNT_IF(smoker) AS smokers, AVG(CASE WHEN age >= 50 THEN 1 ELSE 0 END) AS old
    FROM people WHERE city LIKE 'U%' GROUP BY city ORDER BY city
"""
IN_ALL = """
    SELECT COUNT(income) AS known, COUNT(DISTINCT age) AS ages, MEDIAN(age) AS half,
           AVG(EXTRACT(month FROM born)) AS month, AVG(DATE_DIFF('day', born, DATE '2002-01-01')) AS days,
           SUM(COALESCE(income, 10) + (age % 7)) AS mixed
    FROM people WHERE born BETWEEN '2000-03-01' AND '2001-02-01' AND NOT (age BETWEEN 20 AND 29)
"""


def people() -> pd.DataFrame:
    i = np.arange(400)
    return pd.DataFrame(
        {
            "age": i % 101,
            "income": np.where(i % 10 == 0, np.nan, i * 2.5 % 1000),
            "city": np.where(i % 4 == 0, "Delft", "Utrecht"),
            "born": pd.to_datetime("2000-01-01") + pd.to_timedelta(i, unit="D"),
            "smoker": i % 3 == 0,
        }
    )


def utrecht() -> tuple[float, ...]:
    group = people().query("city == 'Utrecht'")
    old = (group.age >= 50).mean()
    return len(group), group.age.mean(), group.income.sum(), group.age.std(), group.smoker.sum(), old


def in_all() -> tuple[float, ...]:
    rows = people()
    rows = rows[rows.born.between("2000-03-01", "2001-02-01") & ~rows.age.between(20, 29)]
    mixed = (rows.income.fillna(10) + rows.age % 7).sum()
    days = (pd.Timestamp("2002-01-01") - rows.born).dt.days.mean()
    return rows.income.count(), rows.age.nunique(), rows.age.median(), rows.born.dt.month.mean(), days, mixed


@pytest.mark.parametrize("engine", ["duckdb_engine", "postgres_engine", "spark_engine"])
def test_the_engines_agree_with_pandas(tmp_path: Path, request: pytest.FixtureRequest, engine: str) -> None:
    load: Callable[[pd.DataFrame], Any] = request.getfixturevalue(engine)
    with Ledger.open(tmp_path / "l.db", budget=POLICY.budget) as ledger:
        table = Table(POLICY, ledger, engine=load(people()))
        cities = {row[0]: row[1:] for row in table.ask(BY_CITY, epsilon=EPSILON).rows}
        (values,) = table.ask(IN_ALL, epsilon=EPSILON).rows
    assert (cities["Delft"][0], cities["Nowhere"][0]) == (0, 0)  # LIKE leaves nobody there
    assert cities["Utrecht"] == pytest.approx(utrecht(), rel=1e-3, abs=0.05)
    # The middle of an interval between two neighbours, and a grid of cells, may differ by one year.
    assert values[2] == pytest.approx(in_all()[2], abs=1)
    others = [(*row[:2], *row[3:]) for row in (values, in_all())]
    assert others[0] == pytest.approx(others[1], rel=1e-3, abs=0.05)


@pytest.mark.keeps_out("`a + b % 7` answered as `(a + b) % 7`")
@pytest.mark.parametrize("number", ["age + age % 7", "age - age % 7", "age % 7 * 2", "1 + age % 7"])
def test_a_remainder_that_the_parser_binds_wrongly_is_refused(number: str) -> None:
    """Engines read age + (age % 7), the parser (age + age) % 7: an answer would be to another question."""
    with pytest.raises(QueryRefused, match="brackets"):
        parse_query(f"SELECT SUM({number}) FROM people", POLICY)


@pytest.mark.parametrize("number", ["age + (age % 7)", "(age + age) % 7", "MOD(age + age, 7)", "age % 7 + 1"])
def test_a_remainder_in_brackets_is_answered(number: str) -> None:
    parse_query(f"SELECT SUM({number}) FROM people", POLICY)


@pytest.mark.parametrize("engine", ["duckdb_engine", "postgres_engine", "spark_engine"])
def test_blanks_around_a_category_do_not_count(
    tmp_path: Path, request: pytest.FixtureRequest, engine: str
) -> None:
    """Spaces go and nothing else does, on every engine; what is not declared then counts as missing."""
    cities = [
        "Delft",
        " Delft",
        "Delft ",
        "  Delft  ",
        "Delft\t",
        "\nDelft",
        "Del ft",
        "delft",
        "\u00a0Delft",
        None,
    ]
    smokers = ["Y", "n", " y ", "NO", "T", "f", "maybe", "1", "", None]
    rows = pd.DataFrame(
        {"city": cities * 40, "smoker": smokers * 40, "age": 1, "income": 1.0, "born": "2000-01-01"}
    )
    rows["born"] = pd.to_datetime(rows.born)
    load: Callable[[pd.DataFrame], Any] = request.getfixturevalue(engine)
    with Ledger.open(tmp_path / "l.db", budget=POLICY.budget) as ledger:
        table = Table(POLICY, ledger, engine=load(rows.astype({"city": "string", "smoker": "string"})))

        def asked(sql: str) -> dict[Any, int]:
            return {row[0]: row[1] for row in table.ask(sql, epsilon=100.0).rows}

        by_city = asked("SELECT city, COUNT(*) AS n FROM people GROUP BY city")
        known = asked("SELECT COALESCE(city, 'unknown') AS c, COUNT(*) AS n FROM people GROUP BY c")
        smoking = asked("SELECT smoker, COUNT(*) AS n FROM people GROUP BY smoker")
        (counts,) = table.ask(
            "SELECT COUNT(city) AS n, COUNT_IF(city IS NULL) AS m, COUNT_IF(city <> 'Utrecht') AS k "
            "FROM people",
            epsilon=100.0,
        ).rows
    assert by_city == {"Delft": 160, "Utrecht": 0, "Nowhere": 0}
    assert known == {**by_city, "unknown": 240}
    assert smoking == {True: 160, False: 120}
    assert counts == (160, 240, 160)


def test_categories_with_blanks_of_their_own_are_compared_as_they_are(tmp_path: Path) -> None:
    column = {"type": "text", "categories": [" a", "a"]}
    table = {"name": "t", "source": "t.csv"}
    policy = policy_from_dict({"table": table, "budget": {"epsilon": 1e9}, "columns": {"x": column}})
    with Ledger.open(tmp_path / "l.db", budget=policy.budget) as ledger:
        asked = Table(policy, ledger, data=pd.DataFrame({"x": [" a", "a", "a", "a "]}))
        rows = asked.ask("SELECT x, COUNT(*) FROM t GROUP BY x", epsilon=100.0).rows
    assert rows == ((" a", 1), ("a", 2))


def test_many_categories_are_trimmed_too(tmp_path: Path) -> None:
    column = {"type": "text", "categories": [f"c{i}" for i in range(40)]}
    table = {"name": "t", "source": "t.csv"}
    policy = policy_from_dict({"table": table, "budget": {"epsilon": 1e9}, "columns": {"x": column}})
    with Ledger.open(tmp_path / "l.db", budget=policy.budget) as ledger:
        asked = Table(policy, ledger, data=pd.DataFrame({"x": ["c7", "c7 ", " c7", "c70"]}))
        rows = dict(asked.ask("SELECT x, COUNT(*) FROM t GROUP BY x", epsilon=100.0).rows)
    assert rows["c7"] == 3


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("city", "Rows whose city is missing or not among its categories are in no group."),
        ("smoker", "Rows whose smoker is missing are in no group."),
        ("BIN(age, 4)", "Rows whose age is missing are in no group."),
        ("COALESCE(city, 'unknown')", None),
        ("CASE WHEN age > 50 THEN 'old' ELSE 'young' END", None),
        ("CASE WHEN age > 50 THEN 'old' END", "are in no group"),
    ],
)
def test_rows_without_a_group_are_told_of(tmp_path: Path, key: str, words: str | None) -> None:
    with Ledger.open(tmp_path / "l.db", budget=POLICY.budget) as ledger:
        table = Table(POLICY, ledger, data=people())
        notes = table.ask(f"SELECT {key} AS k, COUNT(*) AS n FROM people GROUP BY k", epsilon=1.0).notes
    found = [note for note in notes if "no group" in note]
    assert (words is None) == (not found)
    assert words is None or words in found[0]
