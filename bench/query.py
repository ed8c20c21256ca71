"""Private queries against the same queries without privacy, and against OpenDP on Polars, in one run.

    python bench/query.py            10 million rows
    python bench/query.py --large    also 100 million rows: is it linear, and is memory flat?
    python bench/query.py --growth   time and memory by rows alone

Everything that is compared takes turns in one process, DuckDB on one thread, and is measured in CPU time, which
other work on the machine moves little. The private times include parsing, the charge to a ledger on disk, noise
and intervals. OpenDP's path needs polars (see its extra of the same name) and is left out with a line that says
so.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb
import ibis
import numpy as np

from sfumato.datasets.clean import clean_copy, text_rows
from sfumato.datasets.text_table import TextForm
from sfumato.ledger import Ledger
from sfumato.query import Policy, Table, parse_query, policy_from_dict

ROWS = 10_000_000
TEXT_ROWS = 1_000_000
ROUNDS = 7
CITIES = [f"city{i}" for i in range(20)]
WHOLE = "SELECT city, AVG(age) FROM people GROUP BY city"
JOIN = "SELECT city, AVG(visits.age) FROM visits JOIN people USING (person) GROUP BY city"
REAL = "SELECT city, AVG(income) FROM people GROUP BY city"


def make_rows(path: Path, rows: int, *, rows_a_person: int = 1) -> None:
    """Synthetic people, drawn by DuckDB from hashes: nobody's data."""
    duckdb.sql(
        f"""COPY (SELECT i // {rows_a_person} AS person, (hash(i) % 101)::INTEGER AS age,
                         'city' || (hash(i * 7) % 20) AS city, (hash(i * 3) % 100000) / 10.0::DOUBLE AS income
                  FROM range({rows}) t(i)) TO '{path}' (FORMAT parquet)"""
    )


def policy(path: Path, **unit: Any) -> Policy:
    return policy_from_dict(
        {
            "table": {"name": "people", "source": str(path)},
            "unit": unit,
            "budget": {"epsilon": 1e6},
            "columns": {
                "age": {"type": "integer", "lower": 0, "upper": 100},
                "income": {"type": "real", "lower": 0, "upper": 10_000},
                "city": {"type": "text", "categories": CITIES},
            },
        }
    )


@dataclass(frozen=True)
class Times:
    """Seconds of CPU."""

    least: float
    median: float


def compare(works: Mapping[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, Times]:
    """Each in turn, after one round to warm up."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(rounds + 1):
        for name, work in works.items():
            start = time.process_time()
            work()
            if turn:
                times[name].append(time.process_time() - start)
    return {name: Times(min(values), statistics.median(values)) for name, values in times.items()}


def show(title: str, times: Mapping[str, Times], base: str, *, target: str = "") -> None:
    print(f"{title}{'  (' + target + ')' if target else ''}")
    for name, found in times.items():
        ratios = found.least / times[base].least, found.median / times[base].median
        print(f"  {name:<30} {1e3 * found.median:9.1f} ms   least {ratios[0]:6.2f}x   median {ratios[1]:6.2f}x")


def plainly(**views: str) -> duckdb.DuckDBPyConnection:
    """DuckDB without privacy, on one thread."""
    connection = duckdb.connect()
    connection.execute("SET threads = 1")
    for name, query in views.items():
        connection.execute(f"CREATE VIEW {name} AS {query}")
    return connection


def on_one_thread(rules: Policy, ledger: Ledger) -> Table:
    table = Table(rules, ledger)
    connect = duckdb.connect
    single = lambda config: connect(config=config | {"threads": 1})  # noqa: E731
    with mock.patch.object(duckdb, "connect", single):  # an open connection's settings are locked
        table._connected()
    return table


def bounded(table: Table, sql: str) -> Callable[[], object]:
    """The sums of a query before noise."""
    text = table._compiled(parse_query(sql, table.policy), "s").sums
    return lambda: table._connected().connection.con.sql(text).fetchall()


def one_row_a_person(folder: Path) -> None:
    path = folder / "one.parquet"
    make_rows(path, ROWS)
    rules = policy(path)
    connection = plainly(people=f"SELECT * FROM '{path}'")
    with Ledger.open(folder / "one.db", budget=rules.budget) as ledger:
        table = on_one_thread(rules, ledger)
        for title, sql in (("whole numbers", WHOLE), ("real numbers", REAL)):
            times = compare(
                {
                    "DuckDB, no privacy": lambda sql=sql: connection.sql(sql).fetchall(),  # type: ignore[misc]
                    "private": lambda sql=sql: table.ask(sql, epsilon=1.0),  # type: ignore[misc]
                }
            )
            show(
                f"{ROWS:,} rows, one a person, AVG by city, {title}",
                times,
                "DuckDB, no privacy",
                target="at most 1.8x",
            )
        against_opendp(path, table)


def many_rows_a_person(folder: Path) -> None:
    path = folder / "many.parquet"
    make_rows(path, ROWS, rows_a_person=5)
    rules = policy(path, column="person", rows=5, groups=3)
    with Ledger.open(folder / "many.db", budget=rules.budget) as ledger:
        table = on_one_thread(rules, ledger)
        connection = plainly(people=f"SELECT * FROM '{path}'")
        times = compare(
            {
                "DuckDB, no bounds, no privacy": lambda: connection.sql(WHOLE).fetchall(),
                "bounded SQL, no noise": bounded(table, WHOLE),
                "private": lambda: table.ask(WHOLE, epsilon=1.0),
            },
            rounds=3,
        )
    title = f"{ROWS:,} rows, five a person, AVG by city"
    show(title, times, "DuckDB, no bounds, no privacy", target="at most 40x")


def make_people(path: Path, people: int) -> None:
    """One row a person, drawn as `make_rows` draws."""
    duckdb.sql(
        f"""COPY (SELECT i AS person, (hash(i) % 101)::INTEGER AS age, 'city' || (hash(i * 7) % 20) AS city
                  FROM range({people}) t(i)) TO '{path}' (FORMAT parquet)"""
    )


def joined_policy(visits: Path, people: Path) -> Policy:
    days = {"type": "integer", "lower": 0, "upper": 100}
    city = {"type": "text", "categories": CITIES}
    return policy_from_dict(
        {
            "tables": {
                "visits": {"source": str(visits), "columns": {"age": days}},
                "people": {"source": str(people), "rows": 1, "groups": 1, "columns": {"city": city}},
            },
            "unit": {"column": "person", "rows": 4, "groups": 2},
            "budget": {"epsilon": 1e6},
        }
    )


def a_join(folder: Path, rows: int, people: int) -> None:
    """Visits with people on the person, against the plain join: the sums, and all that is around them."""
    visits, persons = folder / f"visits{rows}.parquet", folder / f"people{people}.parquet"
    make_rows(visits, rows, rows_a_person=rows // people)
    make_people(persons, people)
    rules = joined_policy(visits, persons)
    plain = plainly(visits=f"SELECT person, age FROM '{visits}'", people=f"SELECT * FROM '{persons}'")
    with Ledger.open(folder / "join.db", budget=rules.budget) as ledger:
        table = on_one_thread(rules, ledger)
        times = compare(
            {
                "DuckDB, no privacy": lambda: plain.sql(JOIN).fetchall(),
                "bounded SQL, no noise": bounded(table, JOIN),
                "private": lambda: table.ask(JOIN, epsilon=1.0),
            },
            rounds=3,
        )
    title = f"{rows:,} visits joined with {people:,} people, AVG by city"
    show(title, times, "DuckDB, no privacy", target="at most 2.5x")


def a_text_file(folder: Path) -> None:
    """The clean copy of a text file, each line judged by itself, against DuckDB's own conversion."""
    source, text, copy = folder / "text.parquet", folder / "text.csv", folder / "copy.parquet"
    make_rows(source, TEXT_ROWS, rows_a_person=5)
    columns = ("person", "age", "city", "income")
    plain = f"SELECT * FROM read_csv('{text}', all_varchar=true, header=true)"
    for title, quotes in (("", ""), (", texts in quotes", ", FORCE_QUOTE (city)")):
        duckdb.sql(f"COPY (SELECT * FROM '{source}') TO '{text}' (FORMAT csv, HEADER{quotes})")

        def clean() -> None:
            shutil.rmtree(folder / ".sfumato", ignore_errors=True)
            rows = partial(text_rows, text, TextForm(), columns)
            clean_copy(text, "bench", rows, report=lambda tally: None)

        works = {
            "DuckDB, to Parquet": lambda: duckdb.sql(f"COPY ({plain}) TO '{copy}' (FORMAT parquet)"),
            "DuckDB, reading alone": lambda: duckdb.sql(f"SELECT max(COLUMNS(*)) FROM ({plain})").fetchall(),
            "clean copy": clean,
        }
        megabytes = text.stat().st_size / 1e6
        show(
            f"{TEXT_ROWS:,} lines of text, {megabytes:.0f} MB{title}",
            compare(works, rounds=3),
            "DuckDB, to Parquet",
        )


def against_opendp(path: Path, table: Table) -> None:
    try:
        import opendp.prelude as dp
        import polars as pl
    except ImportError:
        print("OpenDP on Polars: left out, polars is not installed (pip install 'opendp[polars]')")
        return
    dp.enable_features("contrib")
    size = {"max_length": ROWS, "max_groups": len(CITIES)}
    queries = ROUNDS + 60
    context = dp.Context.compositor(
        data=pl.scan_parquet(path),
        privacy_unit=dp.unit_of(contributions=1),
        privacy_loss=dp.loss_of(epsilon=float(queries)),
        split_evenly_over=queries,
        margins=[dp.polars.Margin(**size), dp.polars.Margin(by=["city"], invariant="keys", **size)],
    )

    def other() -> Any:
        query = context.query().group_by("city").agg(pl.col("age").fill_null(0).dp.mean((0, 100)))
        return query.release().collect()

    times = compare({"OpenDP on Polars": other, "private": lambda: table.ask(WHOLE, epsilon=1.0)}, rounds=3)
    show("the same query and guarantee, ε = 1, public cities", times, "private", target="OpenDP not faster")
    truth = dict(duckdb.sql(f"SELECT city, AVG(age) FROM '{path}' GROUP BY city").fetchall())
    ours = [row[1] - truth[row[0]] for _ in range(3) for row in table.ask(WHOLE, epsilon=1.0).rows]
    theirs = [row["age"] - truth[row["city"]] for _ in range(3) for row in other().to_dicts()]
    deviation = [math.sqrt(float(np.mean(np.square(errors)))) for errors in (ours, theirs)]
    print(
        f"  root mean square error of an average: private {deviation[0]:.2e}, OpenDP {deviation[1]:.2e}", end=""
    )
    print(f" ({deviation[1] / deviation[0]:.1f}x)")


GROWTH = """
import json, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from query import WHOLE, policy
from sfumato.ledger import Ledger
from sfumato.query import Table
path, folder = Path(sys.argv[1]), Path(sys.argv[2])
many = int(sys.argv[4]) > 1
rules = policy(path, **({"column": "person", "rows": int(sys.argv[4]), "groups": 3} if many else {}))
with Ledger.open(folder / (path.stem + ".db"), budget=rules.budget) as ledger:
    table = Table(rules, ledger)
    table.ask(WHOLE, epsilon=1.0)
    start = time.perf_counter()
    table.ask(WHOLE, epsilon=1.0)
    seconds = time.perf_counter() - start
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(json.dumps([seconds, int(status["VmHWM"].split()[0]) / 1024]))
"""


def growth(folder: Path, sizes: list[int], *, rows_a_person: int) -> None:
    """Time and peak memory; with many rows a person, a row is held for each person, so that it grows."""
    print(f"how it grows: {rows_a_person} row(s) a person, AVG by city, each in a process of its own")
    for rows in sizes:
        path = folder / f"rows{rows}of{rows_a_person}.parquet"
        make_rows(path, rows, rows_a_person=rows_a_person)
        command = [
            sys.executable,
            "-W",
            "ignore",
            "-c",
            GROWTH,
            str(path),
            str(folder),
            str(Path(__file__).parent),
            str(rows_a_person),
        ]
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        seconds, megabytes = json.loads(found.splitlines()[-1])
        pace = f"{1e3 * seconds:9.1f} ms {1e9 * seconds / rows:7.1f} ns a row"
        print(f"  {rows:>13,} rows {pace} {megabytes:7.0f} MB")
        path.unlink()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--large", action="store_true", help="also 100 million rows")
    options.add_argument("--growth", action="store_true", help="time and memory by rows, and nothing else")
    chosen = options.parse_args()
    sizes = [1_000_000, 10_000_000, *([100_000_000] if chosen.large else [])]
    print(f"{os.cpu_count()} cores, {platform.machine()}; duckdb {duckdb.__version__}, ibis {ibis.__version__}")
    with tempfile.TemporaryDirectory(prefix="sfumato-bench-") as name:
        folder = Path(name)
        if not chosen.growth:
            one_row_a_person(folder)
            many_rows_a_person(folder)
            a_join(folder, ROWS, ROWS // 10)
            a_text_file(folder)
        for rows_a_person in (1, 5):
            growth(folder, sizes, rows_a_person=rows_a_person)


if __name__ == "__main__":
    main()
