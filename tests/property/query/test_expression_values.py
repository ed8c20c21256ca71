"""What each expression is on one row, worked out by hand, on DuckDB and PostgreSQL."""

from __future__ import annotations

import datetime
from collections.abc import Callable

import pandas as pd
import pytest
import sqlglot

from sfumato.query import policy_from_dict
from sfumato.query.engines import Engine
from sfumato.query.expressions import translated
from sfumato.query.names import Names

POLICY = policy_from_dict(
    {
        "table": {"name": "t", "source": "t.csv"},
        "budget": {"epsilon": 1},
        "columns": {
            "age": {"type": "integer", "lower": 0, "upper": 120},
            "cost": {"type": "real", "lower": -100, "upper": 100},
            "name": {"type": "text"},
            "day": {"type": "date"},
            "ill": {"type": "boolean"},
            "gone": {"type": "real", "lower": 0, "upper": 1},
        },
    }
)
# One row: age 37, cost -2.5, name 'Anna', Thursday 29 February 2024, ill, and nothing in gone.
VALUES = {
    "age + 3 * 2": 43,
    "age % 10": 7,
    "age // 10": 3,
    "age / (age - 37)": None,
    "ABS(cost)": 2.5,
    "FLOOR(cost)": -3,
    "CEIL(cost)": -2,
    "ROUND(cost)": -2,
    "ROUND(age, -1)": 40,
    "ROUND(cost * 1.5, 1)": -3.7,
    "POWER(cost, 2)": 6.25,
    "SQRT(age + 12)": 7,
    "LN(cost)": None,
    "LOG10(GREATEST(age, 100))": 2,
    "EXP(GREATEST(LEAST(cost, 0), -3) * 0)": 1,
    "COALESCE(gone, 0.5)": 0.5,
    "NULLIF(age, 37)": None,
    "CASE WHEN age < 18 THEN 1 WHEN age < 65 THEN 2 ELSE 3 END": 2,
    "CASE age WHEN 37 THEN 5 END": 5,
    "CASE WHEN gone > 0 THEN 1 END": None,
    "EXTRACT(year FROM day)": 2024,
    "EXTRACT(quarter FROM day)": 1,
    "MONTH(day)": 2,
    "EXTRACT(week FROM day)": 9,
    "EXTRACT(dow FROM day)": 4,
    "EXTRACT(isodow FROM day)": 4,
    "DATE_PART('doy', day)": 60,
    "DATE_DIFF('day', DATE '2024-01-01', day)": 59,
    "DATE_TRUNC('month', day)": datetime.date(2024, 2, 1),
    "DATE_TRUNC('week', day)": datetime.date(2024, 2, 26),
    "LOWER(name)": "anna",
    "name LIKE 'A__a'": True,
    "name LIKE 'a%'": False,
    "name ILIKE 'a%'": True,
    "name IN ('Bob', 'Anna')": True,
    "age NOT BETWEEN 30 AND 40": False,
    "gone > 0": None,
    "gone IS NULL AND ill": True,
    "(gone > 0) IS TRUE": False,
    "day >= '2024-02-29'": True,
    "ill = FALSE": False,
}


@pytest.mark.parametrize("load", ["duckdb_engine", "postgres_engine"])
def test_the_value_on_a_row(load: str, request: pytest.FixtureRequest) -> None:
    row = pd.DataFrame({"age": [37], "cost": [-2.5], "name": ["Anna"], "ill": [True]})
    row["gone"] = pd.array([None], "Float64")
    row["day"] = pd.to_datetime(["2024-02-29"])
    loaded: Callable[[pd.DataFrame], Engine] = request.getfixturevalue(load)
    engine = loaded(row)
    table, names = engine.declared(POLICY), Names(policy=POLICY, table="t")
    columns = {
        f"e{i}": translated(sqlglot.parse_one(text, read="duckdb"), names).sql(table, POLICY)
        for i, text in enumerate(VALUES)
    }
    (found,) = engine.fetch(engine.prepare(table.select(**columns)))
    for (text, expected), value in zip(VALUES.items(), found.values(), strict=True):
        close = pytest.approx(expected, abs=1e-9) if isinstance(expected, int | float) else expected
        assert value == close, text
