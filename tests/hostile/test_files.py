"""Files made to break, or to be read through whether a query works: one row never touches another."""

from __future__ import annotations

import datetime
import gzip
import json
import logging
import os
import stat
import struct
import time
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sfumato.datasets.private_copy import PrivateCopy
from sfumato.errors import DataCorrupted, DataError, DataUnavailable, InvalidInput, SfumatoError
from sfumato.ledger import Ledger
from sfumato.local import ReportedColumn, TablePlan, read_people, read_table_plan
from sfumato.query import Policy, Table, draft_policy, policy_from_dict
from sfumato.query.check import check_file
from sfumato.query.draft import columns_of
from sfumato.query.engines import open_engine
from sfumato.randomness import SecretStream

ROWS = 2000
GOOD = b"".join(b"p%d,%d,Delft\n" % (person, person % 100) for person in range(ROWS))
HEADER = b"person,age,city\n"
NO_NOISE = 2000.0


def policy(source: Path, **table: object) -> Policy:
    return policy_from_dict(
        {
            "table": {"name": "people", "source": str(source), **table},
            "unit": {"column": "person"},
            "budget": {"epsilon": 1e9},
            "columns": {
                "age": {"type": "integer", "lower": 0, "upper": 100},
                "city": {"type": "text", "categories": ["Delft", "NA"]},
            },
        }
    )


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.open(tmp_path / "people.db", budget=policy(Path("people.csv")).budget)


def counted(source: Path, ledger: Ledger, sql: str = "SELECT COUNT(*) FROM people") -> int:
    return int(Table(policy(source), ledger).ask(sql, epsilon=NO_NOISE).rows[0][0])


ATTACKS = {
    "an unclosed quote": b'"x,1,Delft\n',
    "a quote in the middle that opens nothing": b'x"y,"1,Delft\n',
    "a newline inside quotes": b'"x\ny",1,Delft\n',
    "Latin-1": b"J\xe9,1,Delft\n",
    "half a character": b"J\xc3,1,Delft\n",
    "a zero byte": b"x\0,1,Delft\n",
    "UTF-16": "x,1,Delft".encode("utf-16-le") + b"\n",
    "a lone carriage return": b"x\ry,1,Delft\n",
    "too few values": b"x,1\n",
    "too many values": b"x,1,Delft,,,\n",
    "a very long line": b"x," + b"1" * 3_000_000 + b",Delft\n",
    "a number that is none": b"x,1e999999999,Delft\n",
}


@pytest.mark.keeps_out(
    "An unclosed quote, a line break or an odd byte of one row swallows others, or stops every query"
)
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
@pytest.mark.parametrize("place", ["first", "last"])
def test_one_line_moves_a_count_by_one_at_most(
    attack: bytes, place: str, tmp_path: Path, ledger: Ledger
) -> None:
    """An unclosed quote took 20,000 rows with it; a newline in quotes or a Latin-1 byte stopped every query."""
    path = tmp_path / "people.csv"
    path.write_bytes(HEADER + (attack + GOOD if place == "first" else GOOD + attack))
    assert counted(path, ledger) in (ROWS, ROWS + 1)
    assert counted(path, ledger, "SELECT COUNT(age) FROM people WHERE city = 'Delft'") in (ROWS, ROWS + 1)


_bytes = st.one_of(
    st.binary(max_size=80),
    st.lists(st.sampled_from([b'"', b",", b"\n", b"\r", b"\xff", b"\0", b"p1,5,Delft", b"1e400"])).map(
        b"".join
    ),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=_bytes)
def test_a_charged_query_succeeds_on_any_bytes(text: bytes, tmp_path: Path, ledger: Ledger) -> None:
    """What is charged is answered: whether a query works says nothing about any row."""
    path = tmp_path / "any.csv"
    path.write_bytes(text)
    rules = policy(path, header=False, fields=["person", "age", "city"])
    sql = "SELECT city, COUNT(*), AVG(age) FROM people WHERE age > 3 GROUP BY city"
    assert len(Table(rules, ledger).ask(sql, epsilon=1.0).rows) == 2


def _invalid_texts(path: Path) -> Path:
    texts = pa.array([b"Delft"] * ROWS + [b"\xff\xfe", None], type=pa.binary()).view(pa.string())
    ages = pa.array(range(ROWS + 2), type=pa.int64())
    names = pa.array([f"p{place}" for place in range(ROWS + 2)])
    pq.write_table(pa.table({"city": texts, "Age": ages, "person": names}), path)
    return path


@pytest.mark.keeps_out(
    "An unclosed quote, a line break or an odd byte of one row swallows others, or stops every query"
)
def test_an_invalid_text_in_parquet_is_its_own_trouble(tmp_path: Path, ledger: Ledger) -> None:
    path = _invalid_texts(tmp_path / "people.parquet")
    assert counted(path, ledger) == ROWS + 2
    assert counted(path, ledger, "SELECT COUNT(*) FROM people WHERE city = 'Delft'") == ROWS
    assert check_file(path, policy(path)).to_json()["problems"][0]["first"] == [ROWS + 1]
    table = Table(policy(path), ledger, data=pq.read_table(path))  # handed over, it is no different
    assert table.ask("SELECT COUNT(*) FROM people WHERE city = 'Delft'", epsilon=NO_NOISE).rows[0][0] == ROWS


def changed(path: Path, old: bytes, new: bytes) -> None:
    """Overwrite bytes among the values of a file, and not what it says of them; DuckDB sums up every block."""
    content = bytearray(path.read_bytes())
    place = content.rindex(old) if path.suffix == ".duckdb" else content.index(old)
    content[place : place + len(old)] = new
    if path.suffix == ".duckdb":
        start = 12288 + (place - 12288 >> 18 << 18)
        words = np.frombuffer(bytes(content[start + 8 : start + (1 << 18)]), np.uint64)
        mixed = np.bitwise_xor.reduce(words * np.uint64(0xBF58476D1CE4E5B9)) ^ np.uint64(5381)
        content[start : start + 8] = struct.pack("<Q", int(mixed))
    path.write_bytes(content)


def stored(path: Path, city: str = "Delft") -> Path:
    """100 people with an age below 100, in one block without compression."""
    ages = [77, *range(99)]
    if path.suffix == ".parquet":
        columns = {"person": [f"p{place}" for place in range(100)], "age": ages, "city": [city] * 100}
        pq.write_table(pa.table(columns), path, compression="NONE", use_dictionary=False)
    else:
        with duckdb.connect(str(path)) as connection:
            connection.execute("PRAGMA force_compression = 'uncompressed'")
            connection.execute(
                "CREATE TABLE people AS SELECT 'p' || i AS person, (CASE WHEN i = 0 THEN 77 ELSE i - 1 END)"
                f"::BIGINT AS age, '{city}' AS city FROM range(100) r(i)"
            )
    return path


@pytest.mark.keeps_out(
    "The smallest and largest value that a Parquet or DuckDB file states for a column, by which the "
    "engine leaves a clip out; NaN, of which Parquet's know nothing"
)
@pytest.mark.parametrize("ending", ["parquet", "duckdb"])
def test_what_a_file_says_of_its_values_is_not_believed(ending: str, tmp_path: Path, ledger: Ledger) -> None:
    """Where the largest age is said to be 98, DuckDB left the clip at 100 out: a sum of 10¹²."""
    path = stored(tmp_path / f"people.{ending}")
    changed(path, struct.pack("<3q", 77, 0, 1), struct.pack("<3q", 10**12, 0, 1))
    assert abs(counted(path, ledger, "SELECT SUM(age) FROM people") - 4851 - 100) < 3
    assert counted(path, ledger, "SELECT COUNT(*) FROM people WHERE age = 100") == 1


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_parquet_file_of_odd_bytes_is_refused_when_it_is_opened_or_read(
    changes: list[tuple[float, int]], tmp_path: Path
) -> None:
    path = stored(tmp_path / "people.parquet")
    content = bytearray(path.read_bytes())
    for place, value in changes:
        content[int(place * (len(content) - 1))] = value
    path.write_bytes(content)
    rules = policy(path)
    try:
        engine = open_engine(rules)
    except SfumatoError:
        return
    assert engine.fetch(engine.prepare(engine.declared(rules)))


@pytest.mark.keeps_out(
    "The smallest and largest value that a Parquet or DuckDB file states for a column, by which the "
    "engine leaves a clip out; NaN, of which Parquet's know nothing"
)
@pytest.mark.parametrize("kind", ["integer", "real"])
def test_nan_is_no_value_in_parquet(kind: str, tmp_path: Path, ledger: Ledger) -> None:
    """The largest value of a Parquet file leaves NaN out: the clip was left out, and the paid query failed."""
    path = tmp_path / "people.parquet"
    ages = pa.array([1.0, float("nan"), 7.0])
    pq.write_table(pa.table({"person": ["a", "b", "c"], "age": ages, "city": ["NA"] * 3}), path)
    rules = policy(path)
    rules = replace(rules, columns={**rules.columns, "age": replace(rules.columns["age"], type=kind)})
    ((total, count),) = Table(rules, ledger).ask("SELECT SUM(age), COUNT(age) FROM people", epsilon=4000).rows
    assert (round(total), count) == (8, 2)


@pytest.mark.keeps_out(
    "A text that is not UTF-8 in an ENUM column or in a DuckDB file, at which a paid query stops"
)
def test_an_invalid_text_in_an_enum_or_in_a_duckdb_file_is_its_own_trouble(
    tmp_path: Path, ledger: Ledger
) -> None:
    texts = [b"Delft"] * ROWS + [b" \xff ", None]
    people = pa.array([f"p{place}" for place in range(ROWS + 2)])
    columns = {"person": people, "age": pa.array(range(ROWS + 2)), "city": pa.array(texts).view(pa.string())}
    path = tmp_path / "people.parquet"
    pq.write_table(pa.table(columns), path, store_schema=False)
    # Of the footer's entry for the column: a text becomes an ENUM, which Arrow reads as bytes.
    changed(path, b"\x18\x04city\x25\x00\x4c\x1c", b"\x18\x04city\x25\x08\x4c\x4c")
    assert pq.read_schema(path).field("city").type == pa.binary()
    for ending in ("parquet", "duckdb"):
        path = tmp_path / f"people.{ending}"
        if ending == "duckdb":
            changed(stored(path, city="Delft"), b"DelftDelft", b"Delf\xffDelft")
        people_there = ROWS + 2 if ending == "parquet" else 100
        in_delft = ROWS if ending == "parquet" else 99
        assert counted(path, ledger) == people_there
        assert counted(path, ledger, "SELECT COUNT(*) FROM people WHERE city = 'Delft'") == in_delft
        found = check_file(path, policy(path)).to_json()
        assert found["rows"] == people_there
        assert found["problems"][0]["lines"] == 1


PATTERNS = [
    "*.parquet",
    "?.parquet",
    "[a].parquet",
    "a.parquet",
    "*?/x.parquet",
    "data[2024]/a.parquet",
    "{a,b}/x.pq",
]


@pytest.mark.keeps_out("A file name that the engine takes for a pattern; links by which a person counts twice")
@pytest.mark.parametrize("name", PATTERNS)
def test_a_name_that_there_is_is_no_pattern(name: str, tmp_path: Path, ledger: Ledger) -> None:
    """DuckDB took *.parquet for a pattern: every person of other files beside it was counted."""
    for path, people in ((tmp_path / "bb/x.parquet", 50), (tmp_path / "a.parquet", 70), (tmp_path / name, 5)):
        path.parent.mkdir(exist_ok=True)
        columns = {"person": [f"p{place}" for place in range(people)], "age": 1, "city": "NA"}
        pd.DataFrame(columns).to_parquet(path)
    assert counted(tmp_path / name, ledger) == 5
    assert counted(tmp_path / name, ledger) == 5  # from the copy


@pytest.mark.keeps_out("A file name that the engine takes for a pattern; links by which a person counts twice")
def test_a_folder_is_read_once(tmp_path: Path, ledger: Ledger) -> None:
    """Links doubled every row, and data[2024] was no folder."""
    folder = tmp_path / "data[2024]"
    (folder / "more").mkdir(parents=True)
    stored(folder / "more" / "people.parquet")
    (folder / "again.parquet").symlink_to(folder / "more" / "people.parquet")
    (folder / "linked").symlink_to(folder / "more")
    (folder / "hard.parquet").hardlink_to(folder / "more" / "people.parquet")
    (folder / "nowhere.parquet").symlink_to(tmp_path / "nothing")
    for _ in range(2):  # the second time copies lie below the folder
        assert open_engine(policy(folder)).raw.count().execute() == 100


@pytest.mark.keeps_out("A file that was checked, and is another one when it is read")
def test_a_file_that_is_replaced_after_it_was_checked(tmp_path: Path, ledger: Ledger) -> None:
    """A Parquet file was checked, and the file of its name was read after the charge."""
    path = stored(tmp_path / "people.parquet")
    table = Table(policy(path), ledger)
    ready = table.ready(table.plan("SELECT COUNT(*) FROM people", epsilon=NO_NOISE))
    charge = table._charge(ready.planned.price, ready.planned.purpose)
    path.write_bytes(b"something else")
    assert round(table.answer(ready, charge, ledger=ledger).rows[0][0]) == 100


@pytest.mark.keeps_out("A file that was checked, and is another one when it is read")
def test_a_duckdb_file_with_a_log_beside_it_is_refused(tmp_path: Path, ledger: Ledger) -> None:
    """Rows in the log are in no file that has a stamp."""
    path = stored(tmp_path / "people.duckdb")
    (tmp_path / "people.duckdb.wal").touch()
    with pytest.raises(DataUnavailable, match="close it"):
        counted(path, ledger)
    assert ledger.epsilon_spent == 0


@pytest.mark.keeps_out("Minutes before a refusal, spent on columns that the policy does not name")
def test_columns_that_are_not_declared_cost_nothing(tmp_path: Path, ledger: Ledger) -> None:
    """A Parquet file of 100,000 columns took three minutes, before any refusal."""
    path = tmp_path / "people.parquet"
    more = {f"more{place}": pa.array([1]) for place in range(5000)}
    pq.write_table(pa.table({"Person": ["a"], "AGE": [1], **more, "x": [[1]]}), path)
    before = time.process_time()
    with pytest.raises(InvalidInput, match=r"a column city in the table, got Person, AGE, .*, …;"):
        counted(path, ledger)
    pq.write_table(pa.table({"Person": ["a"], "AGE": [1], "city": ["NA"], **more, "x": [[1]]}), path)
    assert open_engine(policy(path)).raw.columns == ("age", "city", "person")
    assert len(columns_of(path, header=None)) == 5004
    assert time.process_time() - before < 3
    assert ledger.epsilon_spent == 0


@pytest.mark.parametrize("value", [[1], {"a": 1}, datetime.time(1)], ids=str)
def test_a_declared_column_of_lists_is_refused(value: object, tmp_path: Path, ledger: Ledger) -> None:
    path = tmp_path / "people.parquet"
    pq.write_table(pa.table({"person": ["a"], "age": [value], "city": ["NA"]}), path)
    with pytest.raises(InvalidInput, match="column age to hold"):
        counted(path, ledger)
    assert ledger.epsilon_spent == 0


def test_types_of_a_duckdb_file_that_parquet_has_not(tmp_path: Path, ledger: Ledger) -> None:
    path = tmp_path / "people.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(
            "CREATE TABLE people AS SELECT uuid() AS person, (i::HUGEINT << 70) AS age, "
            "'Delft'::ENUM ('Delft', 'NA') AS city, [1] AS more FROM range(100) r(i)"
        )
    assert counted(path, ledger, "SELECT COUNT(*) FROM people WHERE city = 'Delft' AND age = 100") == 99


def test_parts_of_other_types_are_refused_before_the_charge(tmp_path: Path, ledger: Ledger) -> None:
    """Read as one table, a text in the second part stopped the query after it was paid for."""
    columns = {"person": ["a"], "city": ["Delft"]}
    pd.DataFrame({**columns, "age": [1]}).to_parquet(tmp_path / "a.parquet")
    pd.DataFrame({**columns, "age": ["old"]}).to_parquet(tmp_path / "b.parquet")
    with pytest.raises(InvalidInput, match="column types"):
        counted(tmp_path / "*.parquet", ledger)
    assert ledger.epsilon_spent == 0
    pd.DataFrame({**columns, "age": [7]}).to_parquet(tmp_path / "b.parquet")
    assert counted(tmp_path / "*.parquet", ledger) == 1  # one person


def test_a_view_of_a_duckdb_file_is_refused(tmp_path: Path, ledger: Ledger) -> None:
    """A view may fail at some rows; a table holds what it holds."""
    path = tmp_path / "people.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(
            "CREATE TABLE t AS SELECT 'p' || i AS person, 'x' AS age, 'NA' AS city FROM range(9) r(i)"
        )
        connection.execute("CREATE VIEW people AS SELECT person, age::INT AS age, city FROM t")
    with pytest.raises(InvalidInput, match="table people"):
        counted(path, ledger)
    assert ledger.epsilon_spent == 0
    with duckdb.connect(str(path)) as connection:
        connection.execute("DROP VIEW people; ALTER TABLE t RENAME TO people")
    assert counted(path, ledger, "SELECT COUNT(*) FROM people WHERE city = 'NA'") == 9


def test_a_damaged_archive_is_refused_before_the_charge(tmp_path: Path, ledger: Ledger) -> None:
    path = tmp_path / "people.csv.gz"
    path.write_bytes(gzip.compress(HEADER + GOOD))
    assert counted(path, ledger) == ROWS
    spent = ledger.epsilon_spent
    whole = gzip.compress(HEADER + GOOD)
    for damaged in (whole[:-2000], whole[:2000] + b"\xff" * 500 + whole[2500:], b"no archive"):
        path.write_bytes(damaged)
        with pytest.raises(DataCorrupted):
            counted(path, ledger)
    assert ledger.epsilon_spent == spent


@pytest.mark.keeps_out(
    "A file without a header: the first person becomes the column names, in a policy or an error"
)
def test_no_message_quotes_the_first_line(tmp_path: Path, ledger: Ledger) -> None:
    """Without a header the first line is somebody's, and it was printed as "the columns"."""
    path = tmp_path / "people.csv"
    path.write_text("Jan Kees,4711,Delft\n")
    with pytest.raises(InvalidInput) as caught:
        counted(path, ledger)
    assert "4711" not in str(caught.value)
    assert "Jan" not in str(caught.value)
    assert ledger.epsilon_spent == 0


@pytest.mark.keeps_out(
    "A file without a header: the first person becomes the column names, in a policy or an error"
)
@pytest.mark.parametrize(
    "first", ["Jan Kees,4711,Delft", "Jan Kees,Delft,feverish", "Jan,2000-01-01,yes", ",,", "Jan,Jan,Jan"]
)
def test_a_draft_never_holds_the_first_persons_values(first: str, tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_text(f"{first}\nPiet,Delft,well\n")
    with pytest.raises(InvalidInput, match="--no-header") as caught:
        draft_policy(path)
    draft = draft_policy(path, header=False)
    for value in first.split(","):
        assert not value or value not in draft.text + str(caught.value) + "".join(draft.blanks)
    assert 'fields = ["c1", "c2", "c3"]' in draft.text


def test_what_a_message_of_the_engine_would_quote_stays_inside(tmp_path: Path, ledger: Ledger) -> None:
    """Arrow has no complex numbers, and its message quotes one."""
    odd = pd.DataFrame({"person": ["a", "b"], "age": [1, 4711j], "city": ["NA", "b"]})
    with pytest.raises(DataError) as caught:
        Table(policy(Path("none.csv")), ledger, data=odd).ask("SELECT COUNT(*) FROM people", epsilon=1.0)
    assert "4711" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert ledger.epsilon_spent == 0


def test_the_clean_copy_is_the_holders_alone(tmp_path: Path, ledger: Ledger) -> None:
    path = tmp_path / "people.csv"
    path.write_bytes(HEADER + GOOD)
    counted(path, ledger)
    folder = tmp_path / ".sfumato"
    (copy,) = folder.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert pq.read_schema(copy).names == ["age", "city", "person"]  # and nothing that the policy does not name


@pytest.mark.keeps_out("A private copy removed between the charge and the reading")
def test_a_copy_is_never_stale(tmp_path: Path, ledger: Ledger) -> None:
    path = tmp_path / "people.csv"
    path.write_bytes(HEADER + GOOD)
    table = Table(policy(path), ledger)
    sql = "SELECT COUNT(*) FROM people"
    assert table.ask(sql, epsilon=NO_NOISE).rows[0][0] == ROWS
    path.write_bytes(HEADER + GOOD + b"new,1,Delft\n")
    assert table.ask(sql, epsilon=NO_NOISE).rows[0][0] == ROWS + 1
    copies = sorted((tmp_path / ".sfumato").iterdir(), key=lambda copy: copy.stat().st_mtime)
    assert len(copies) == 2  # another process may have been charged for a question to the older one
    os.utime(copies[1], (time.time() - 100_000,) * 2)
    os.utime(copies[0], (time.time() - 200_000,) * 2)
    os.utime(path, (time.time() - 300_000,) * 2)
    path.write_bytes(HEADER + GOOD)
    assert table.ask(sql, epsilon=NO_NOISE).rows[0][0] == ROWS
    assert [copy.exists() for copy in copies] == [False, True]


@pytest.mark.keeps_out("One person's long texts that stop every paid query, or fill the memory")
@pytest.mark.parametrize("ending", ["parquet", "delta.parquet", "duckdb"])
def test_many_long_texts_are_cut_before_they_are_held_together(
    ending: str, tmp_path: Path, ledger: Ledger
) -> None:
    """2,200 rows of a million characters: in one column they are more than Arrow holds."""
    path, many = tmp_path / f"people.{ending}", 3 if ending == "delta.parquet" else 2200
    if ending == "duckdb":
        long = "repeat('é', 500001) AS person, 3 AS age, repeat(' ', 1000) || 'NA' AS city"
        with duckdb.connect(str(path)) as connection:
            short = "'p' || i AS person, 3 AS age, 'Delft' AS city"
            connection.execute(f"CREATE TABLE people AS SELECT {short} FROM range(50) r(i)")
            connection.execute(f"INSERT INTO people SELECT {long} FROM range({many})")
    else:
        of = pa.array([*range(50), *[50] * many], pa.int32())
        texts = {
            "person": pa.DictionaryArray.from_arrays(of, [*(f"p{i}" for i in range(50)), "é" * 500_000]),
            "city": pa.DictionaryArray.from_arrays(
                pa.array([*[0] * 50, *[1] * many], pa.int32()), ["Delft", " " * 999_998 + "NA"]
            ),
        }
        how = {}
        if ending == "delta.parquet":  # of which Arrow makes no dictionary
            texts = {name: column.dictionary_decode() for name, column in texts.items()}
            how = {"person": "DELTA_BYTE_ARRAY", "city": "DELTA_LENGTH_BYTE_ARRAY"}
        rows = pa.table({**texts, "age": [3] * (50 + many)})
        pq.write_table(rows, path, use_dictionary=not how, column_encoding=how or None)
    assert counted(path, ledger) == 50
    assert counted(path, ledger, "SELECT COUNT_IF(city = 'NA') FROM people") == 0
    (copy,) = (tmp_path / ".sfumato").iterdir()
    assert len(pq.read_table(copy)["person"][-1].as_py()) == 1001  # by which a longer text is told


def test_a_change_within_one_tick_of_the_clock_is_seen(tmp_path: Path, ledger: Ledger) -> None:
    """Of the same size, at the same time: a copy made in that very moment is not trusted."""
    path = tmp_path / "people.csv"
    path.write_bytes(HEADER + b"a,10,NA\n")
    first = PrivateCopy.of(path, "way")
    first.write([pa.table({"a": [1]})])
    os.utime(first.path, ns=(0, max(first.source.modified, first.source.changed) + 1_000_000))
    assert not first.is_made()
    first.write([pa.table({"a": [1]})])
    os.utime(first.path, ns=(0, max(first.source.modified, first.source.changed) + 10**9))
    assert first.is_made()


def test_a_copy_that_somebody_else_put_there_is_not_read(tmp_path: Path, ledger: Ledger, monkeypatch) -> None:
    """A link in the place of the private folder leads elsewhere: the user's own cache is taken."""
    monkeypatch.setenv("SFUMATO_CACHE", str(tmp_path / "cache"))
    (tmp_path / "theirs").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / ".sfumato").symlink_to(tmp_path / "theirs")
    path = tmp_path / "data" / "people.csv"
    path.write_bytes(HEADER + GOOD)
    assert counted(path, ledger) == ROWS
    assert not list((tmp_path / "theirs").iterdir())
    assert len(list((tmp_path / "cache" / "private").iterdir())) == 1


def test_what_was_left_out_is_told_to_the_private_log_alone(tmp_path: Path, ledger: Ledger) -> None:
    path = tmp_path / "people.csv"
    path.write_bytes(HEADER + GOOD + b'"x,1,Delft\n"y,1,Delft\n')
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    log = logging.getLogger("sfumato.private.query")
    log.addHandler(handler)
    try:
        answer = Table(policy(path), ledger).ask("SELECT COUNT(*) FROM people", epsilon=NO_NOISE)
    finally:
        log.removeHandler(handler)
    assert "2 lines left out" in records[0].getMessage()
    assert not log.propagate
    assert "lines" not in json.dumps(answer.to_json())


@pytest.mark.keeps_out('A category such as "NA" read as no value')
def test_only_the_policy_says_what_is_missing(tmp_path: Path, ledger: Ledger) -> None:
    """The category NA (Namibia) was read as no value."""
    path = tmp_path / "people.csv"
    path.write_bytes(HEADER + b"a,1,NA\nb,2,\nc,?,nan\n")
    assert counted(path, ledger, "SELECT COUNT(city) FROM people WHERE city = 'NA'") == 1
    assert counted(path, ledger, "SELECT COUNT(city) FROM people") == 1  # nan is a text, and no declared city
    rows = open_engine(policy(path, missing=["", "NA"])).raw.to_pyarrow().to_pylist()
    assert [row["city"] for row in rows] == [None, None, "nan"]
    plan = read_table_plan(_local_policy(tmp_path), epsilon=1.0)
    assert plan.columns[1].encode(list(read_people(path, plan)["city"])).tolist() == [1, 0, 2]


def _local_policy(folder: Path) -> Path:
    place = folder / "local.toml"
    place.write_text(
        "[budget]\nepsilon = 1.0\n"
        '[unit]\ncolumn = "person"\n[columns.age]\ntype = "integer"\nlower = 0\nupper = 100\n'
        '[columns.city]\ntype = "text"\ncategories = ["Delft", "NA", "nan"]\n'
    )
    return place


@pytest.mark.keeps_out("Local reports of one person for each of their rows, certified for the person")
def test_a_person_with_400_rows_makes_one_report(tmp_path: Path) -> None:
    """400 rows of one person were 400 reports, at ε = 1 each, under a certificate that said person."""
    path = tmp_path / "people.csv"
    path.write_bytes(HEADER + b"jan,0,Delft\n" * 400 + b"piet,100,NA\n" + b",50,NA\n" * 7)
    plan = read_table_plan(_local_policy(tmp_path), epsilon=4000.0)
    reports = plan.randomise(read_people(path, plan), SecretStream())
    # At ε = 2000 a column, noise of scale 0.05: jan, piet, and all rows of nobody as one person.
    assert sorted(np.rint(reports["age"] / 5).tolist()) == [0, 10, 20]
    assert {len(values) for values in reports.values()} == {3}


def test_the_row_that_is_reported_is_chosen_by_a_coin(tmp_path: Path) -> None:
    """Of two rows either is taken for about 200 of 400 people; outside 120 to 280 with a chance of 1e-15."""
    frame = pd.DataFrame({"person": np.repeat(np.arange(400), 2), "age": [0, 100] * 400})
    age = ReportedColumn(name="age", epsilon=2000.0, lower=0, upper=100)
    plan = TablePlan(columns=(age,), unit_column="person")
    reports = plan.randomise(frame, SecretStream())
    assert len(reports["age"]) == 400
    assert 120 < np.count_nonzero(reports["age"] > 50) < 280
    with pytest.raises(InvalidInput, match="person"):
        plan.randomise(frame[["age"]], SecretStream())


def test_a_line_that_cannot_be_read_is_reported_like_any_other(tmp_path: Path) -> None:
    """Left out, its owner would be the one who is seen to be missing."""
    path = tmp_path / "people.csv"
    path.write_bytes(HEADER + b"a,1,NA\n" + b'b,"2,NA\n' + b"c,3\n")
    plan = read_table_plan(_local_policy(tmp_path), epsilon=1.0)
    assert len(read_people(path, plan)) == 3


def test_parquet_rows_come_under_their_own_names(tmp_path: Path) -> None:
    """Columns come in the file's order, not in the policy's."""
    path = tmp_path / "people.parquet"
    pd.DataFrame({"city": ["NA"], "person": ["a"], "age": [7]}).to_parquet(path)
    found = read_people(path, read_table_plan(_local_policy(tmp_path), epsilon=1.0))
    assert found.to_dict("list") == {"age": [7], "city": ["NA"], "person": ["a"]}


@pytest.mark.skipif(os.name == "nt", reason="folders cannot be made read-only there")
def test_a_changing_file_is_not_half_read(tmp_path: Path, ledger: Ledger, monkeypatch) -> None:
    from sfumato.datasets import clean

    path = tmp_path / "people.csv"
    path.write_bytes(HEADER + GOOD)
    rows_of = clean.rows_of

    def while_written(*arguments: object, **options: object):
        yield from rows_of(*arguments, **options)  # type: ignore[arg-type]
        path.write_bytes(HEADER)

    monkeypatch.setattr(clean, "rows_of", while_written)
    with pytest.raises(DataError, match="changed while"):
        counted(path, ledger)
    assert ledger.epsilon_spent == 0
    assert not list((tmp_path / ".sfumato").iterdir())


def test_a_second_column_of_the_same_name_is_refused(tmp_path: Path, ledger: Ledger) -> None:
    """Which of Age and age is read is the engine's choice: the one that was looked through must be it."""
    path = tmp_path / "people.parquet"
    invalid = pa.array([b"\xff"], type=pa.binary()).view(pa.string())
    pq.write_table(pa.table({"person": ["a"], "Age": [1], "city": invalid, "City": ["NA"]}), path)
    with pytest.raises(InvalidInput, match="once"):
        counted(path, ledger)
    assert ledger.epsilon_spent == 0
