"""Questions are planned on a database without rows, which knows every table that they are asked of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ibis
import pandas as pd
import pytest

from sfumato.query.engines import Engine
from sfumato.query.sources import without_rows

ROWS = pd.DataFrame({"person": ["p1", "p2", "p3"], "x": [1, 2, 3]})


def a_view(connection: Any, raw: Any) -> Any:
    return connection.create_view("seen", raw.filter(raw["x"] > 1))


def temporary(connection: Any, raw: Any) -> Any:
    return connection.create_table("t", raw.filter(raw["x"] > 1), temp=True)


def in_a_schema(connection: Any, raw: Any) -> Any:
    connection.create_database('odd "name')
    return connection.create_table("far", raw.filter(raw["x"] > 1), database='odd "name')


ASKED: dict[str, Callable[[Any, Any], Any]] = {
    "a filter": lambda _, raw: raw.filter(raw["x"] > 1),
    "its own join": lambda _, raw: raw.join(raw.filter(raw["x"] > 1).select("person").view(), "person"),
    "a view": a_view,
    "a temporary table": temporary,
    "a schema": in_a_schema,
}


@pytest.mark.parametrize("asked", ASKED)
def test_the_tables_below_an_expression_are_known(asked: str) -> None:
    connection = ibis.duckdb.connect()
    raw = ASKED[asked](connection, connection.create_table("raw", ROWS))
    engine = Engine("duckdb", connection, raw)
    assert engine.fetch(engine.prepare(raw.agg(total=raw["x"].sum()))) == [{"total": 5}]


def test_tables_are_there_once_and_have_no_rows() -> None:
    connection = ibis.duckdb.connect()
    raw = connection.create_table("raw", ROWS)
    empty = without_rows(connection.con, [raw, raw.filter(raw["x"] > 1), raw.select("x")])
    assert empty.execute("SELECT table_name, column_count FROM duckdb_tables()").fetchall() == [("raw", 2)]
    assert empty.execute("SELECT COUNT(*) FROM raw").fetchall() == [(0,)]
