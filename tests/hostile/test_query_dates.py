"""Days that no calendar has, and values that no type fits: none of them decides whether a question is answered.

A Parquet file with one time of 2⁶² milliseconds was refused before the charge, question after question, as the
engine looked at the largest value while it planned. A frame of objects had the type that its rows suggested.
"""

from __future__ import annotations

import datetime
import math
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import ibis
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from sfumato.datasets.lines import in_calendar, is_in_calendar, limits
from sfumato.errors import DataError, InvalidInput
from sfumato.ledger import Ledger
from sfumato.query import Policy, Table, policy_from_dict
from sfumato.query.engines import Engine
from sfumato.query.sources import given_rows

SQL = [
    "SELECT COUNT(*), AVG(EXTRACT(year FROM seen)) FROM t WHERE seen > '2000-01-01'",
    "SELECT AVG(DATE_DIFF('day', seen, DATE '2020-01-01')) FROM t",
]
UNITS = [("s", 2**40), ("ms", 2**62), ("us", 2**62), ("us", 2**63 - 1), ("ns", 2**62)]


def policy(source: str = "t.csv") -> Policy:
    seen = {"type": "date", "lower": datetime.date(1900, 1, 1), "upper": datetime.date(2099, 12, 31)}
    return policy_from_dict(
        {
            "table": {"name": "t", "source": source},
            "budget": {"epsilon": 1e6},
            "columns": {"age": {"type": "integer", "lower": 0, "upper": 120}, "seen": seen},
        }
    )


def times(unit: str, odd: int) -> pa.Table:
    """Four rows, of which one holds an odd time, one its opposite, and one none."""
    second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    moments = pa.array([odd, -odd, None, 1_600_000_000 * second], pa.int64())
    return pa.table({"age": [20, 30, 40, 50], "seen": moments.cast(pa.timestamp(unit))})


def check_answered(folder: Path, rule: Policy, *, questions: int = len(SQL), **table: Any) -> None:
    """Each question is answered and charged, whatever the rows."""
    with Ledger.open(folder / "l.db", budget=rule.budget) as ledger:
        asked = Table(rule, ledger, **table)
        for number, sql in enumerate(SQL[:questions], 1):
            asked.ask(sql, epsilon=100.0)
            assert ledger.epsilon_spent == pytest.approx(100 * number)


@pytest.mark.keeps_out("A date that no calendar has, in one row, stops every query before it is charged")
@pytest.mark.parametrize(("unit", "odd"), UNITS)
def test_odd_times_in_parquet(tmp_path: Path, unit: str, odd: int) -> None:
    parquet.write_table(times(unit, odd), tmp_path / "t.parquet")
    check_answered(tmp_path, policy(str(tmp_path / "t.parquet")))


@pytest.mark.parametrize(("unit", "odd"), [*UNITS, ("s", 2**62)])
def test_odd_times_in_memory(tmp_path: Path, unit: str, odd: int) -> None:
    check_answered(tmp_path, policy(), data=times(unit, odd))


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_odd_times_in_a_frame(tmp_path: Path, unit: str) -> None:
    seen = np.array([2**62, -(2**62), 0], dtype="int64").astype(f"datetime64[{unit}]")
    check_answered(tmp_path, policy(), data=pd.DataFrame({"age": [1, 2, 3], "seen": pd.Series(seen)}))


@pytest.mark.parametrize(("unit", "odd"), [*UNITS, ("s", 2**62)])
def test_odd_times_in_a_duckdb_file(tmp_path: Path, unit: str, odd: int) -> None:
    rows = times(unit, odd)  # noqa: F841 - DuckDB finds it by its name
    with duckdb.connect(str(tmp_path / "t.duckdb")) as connection:
        connection.execute("CREATE TABLE t AS SELECT * FROM rows")
    check_answered(tmp_path, policy(str(tmp_path / "t.duckdb")))


def test_odd_days_in_parquet(tmp_path: Path) -> None:
    days = pa.array([2**31 - 1, -(2**31), 2**31 - 2, 0, None], pa.int32()).cast(pa.date32())
    parquet.write_table(pa.table({"age": range(5), "seen": days}), tmp_path / "t.parquet")
    check_answered(tmp_path, policy(str(tmp_path / "t.parquet")))


def test_odd_times_of_the_old_kind_in_parquet(tmp_path: Path) -> None:
    """INT96 is converted by the copy, as every engine has its own idea of what overflows."""
    place = tmp_path / "t.parquet"
    parquet.write_table(times("us", 2**62), place, use_deprecated_int96_timestamps=True)
    check_answered(tmp_path, policy(str(place)))


ODD = ["infinity", "-infinity", "294276-12-31", "4713-01-01 BC", "2020-02-29", None]


@pytest.mark.parametrize("kind", ["timestamp", "timestamptz", "date"])
def test_odd_times_in_postgresql(tmp_path: Path, postgres_url: str, kind: str) -> None:
    psycopg = pytest.importorskip("psycopg", reason="pip install 'sfumato[postgres]'")
    with psycopg.connect(postgres_url, autocommit=True) as server:
        server.execute("DROP TABLE IF EXISTS odd_times")
        server.execute(f"CREATE TABLE odd_times (age integer, seen {kind})")
        for age, moment in enumerate(ODD):
            server.execute(f"INSERT INTO odd_times VALUES ({age}, %s::{kind})", [moment])
        server.execute("ANALYZE odd_times")
    connection = ibis.connect(postgres_url)
    check_answered(tmp_path, policy(), engine=Engine("postgres", connection, connection.table("odd_times")))


@pytest.mark.slow
def test_odd_times_on_spark(tmp_path: Path, spark_engine: Callable[[pd.DataFrame], Engine]) -> None:
    session = spark_engine(pd.DataFrame({"x": [1]})).connection._session
    parquet.write_table(times("ms", 2**62), tmp_path / "t.parquet")
    check_answered(
        tmp_path, policy(str(tmp_path / "t.parquet")), questions=1, engine="spark", master="local[1]"
    )
    assert session.sparkContext.master == "local[1]"  # the one of the tests was taken, and is still there


@pytest.mark.keeps_out("A date that no calendar has, in one row, stops every query before it is charged")
def test_planning_looks_at_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be read at all, since the check of files is off, still does not show before the charge."""
    from sfumato.datasets import clean

    place = tmp_path / "t.parquet"
    parquet.write_table(times("ms", 2**62), place)
    monkeypatch.setattr(clean, "plain", lambda rows, tally: rows)
    rule = policy(str(place))
    with Ledger.open(tmp_path / "l.db", budget=rule.budget) as ledger:
        with pytest.raises(DataError):
            Table(rule, ledger).ask(SQL[0], epsilon=1.0)
        assert ledger.epsilon_spent == pytest.approx(1.0)


MOMENTS = [pa.timestamp("s"), pa.timestamp("ms", "UTC"), pa.timestamp("us"), pa.date64(), pa.date32()]


@given(kind=st.sampled_from(MOMENTS), values=st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=5))
def test_times_are_moved_into_the_calendar(kind: pa.DataType, values: list[int | None]) -> None:
    whole = pa.int32() if kind == pa.date32() else pa.int64()
    stored = [None if value is None else value >> (64 - whole.bit_width) for value in values]
    column = pa.chunked_array([pa.array(stored, whole).cast(kind)])
    low, high = limits(kind)  # type: ignore[misc]
    moved = in_calendar(column)
    assert moved.type == kind
    assert is_in_calendar(moved)
    assert is_in_calendar(column) == all(value is None or low <= value <= high for value in stored)
    clipped = [None if value is None else min(max(value, low), high) for value in stored]
    assert moved.cast(whole).to_pylist() == clipped


OBJECTS = [
    None, 1, -1, 0, 2**80, 10**400, True, False, 2.5, math.nan, math.inf, "7", "x", "", "1e5", "true",
    "2020-02-30", "2020-02-29", "\ud800", b"x", b"\xff", Decimal("1.5"), Decimal("sNaN"), Decimal("1e999"),
    np.int8(3), np.float32(1.5), np.bool_(True), np.datetime64("2020-01-01"), np.datetime64("NaT"),
    np.datetime64(2**62, "s"), pd.NaT, pd.NA, pd.Timestamp("2020-01-01"), datetime.date(2020, 1, 1),
    datetime.datetime(2020, 1, 1, 5), datetime.time(5), [1], {"a": 1}, object(), 1j, uuid.UUID(int=5), (1, 2),
    pd.Timedelta("1D"),
]  # fmt: skip
KINDS = ["integer", "real", "text", "boolean", "date"]


def of_kind(kind: str) -> Policy:
    return policy_from_dict(
        {
            "table": {"name": "t", "source": "t.csv"},
            "unit": {"column": "person", "rows": 2, "groups": 1},
            "budget": {"epsilon": 1e6},
            "columns": {"v": {"type": kind}},
        }
    )


def frame(values: list[Any]) -> pd.DataFrame:
    return pd.DataFrame({"V": pd.Series(values, dtype=object), "person": pd.Series(values, dtype=object)})


@pytest.mark.keeps_out(
    "A data frame whose types the rows suggest, so that one value decides whether a query runs"
)
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(kind=st.sampled_from(KINDS), values=st.lists(st.sampled_from(OBJECTS), max_size=6))
def test_a_value_among_objects_is_read_by_itself(kind: str, values: list[Any]) -> None:
    """One type whatever the rows, and each value what it would be alone."""
    together = given_rows(frame(values), of_kind(kind))
    alone = [given_rows(frame([value]), of_kind(kind)) for value in values]
    assert {one.schema for one in alone} <= {together.schema}
    for name in together.column_names:
        found = [one[name].to_pylist()[0] for one in alone]
        assert list(map(repr, together[name].to_pylist())) == list(map(repr, found))


@pytest.mark.parametrize("kind", KINDS)
def test_a_frame_of_objects_is_answered_whatever_they_are(tmp_path: Path, kind: str) -> None:
    rule = of_kind(kind)
    counts = []
    with Ledger.open(tmp_path / "l.db", budget=rule.budget) as ledger:
        for values in ([], [None], OBJECTS):
            table = Table(rule, ledger, data=frame(values))
            counts.append(table.ask("SELECT COUNT(v) FROM t", epsilon=1000.0).rows[0][0])
    assert counts[:2] == [0, 0]
    assert counts[2] > 0  # type: ignore[operator]


FITTING = {
    "integer": ([3, "4", 5.5, "five", None], [3.0, 4.0, 5.5, None, None]),
    "text": (["a", 5, b"b", None], ["a", None, "b", None]),
    "boolean": ([True, 0, "yes", "perhaps", 2], [True, False, True, None, None]),
    "date": (
        [datetime.date(2020, 1, 1), "2021-05-06", "soon", pd.NaT],
        [datetime.date(2020, 1, 1), datetime.date(2021, 5, 6), None, None],
    ),
}


@pytest.mark.parametrize("kind", FITTING)
def test_what_fits_is_kept_and_the_rest_is_null(kind: str) -> None:
    values, wanted = FITTING[kind]
    assert given_rows(frame(values), of_kind(kind))["V"].to_pylist() == wanted


def test_people_among_objects_are_told_apart_by_their_text() -> None:
    people = given_rows(frame([7, "7", 7.0, "p", None, 7.5, True]), of_kind("text"))["person"]
    assert people.to_pylist() == ["7", "7", "7", "p", None, None, None]


def test_columns_that_are_not_declared_play_no_part(tmp_path: Path) -> None:
    data = pd.DataFrame({"age": [1, 2], "seen": pd.to_datetime(["2020-01-01"] * 2), "notes": [object(), [1]]})
    check_answered(tmp_path, policy(), data=data)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (pd.DataFrame({"age": [1]}), "column seen"),
        (pd.DataFrame([[1, 2, 3]], columns=["age", "Seen", "SEEN"]), "one column"),
        (5, "DataFrame"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_frame_is_said(data: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        given_rows(data, policy())
