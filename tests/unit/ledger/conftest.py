"""Every test that asks for `place` runs on SQLite and on a real PostgreSQL server."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sfumato.ledger.store import STORES

Tamper = Callable[[str], None]


@pytest.fixture(scope="session")
def postgres_server(postgres_url: str) -> str:
    """The URL of a server of our own."""
    pytest.importorskip("psycopg", reason="install it with: pip install 'sfumato[postgres]'")
    return postgres_url.replace("postgres://", "postgresql://")


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: a killed process, unlike a power cut, loses nothing it wrote."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory, prefix="sfumato-ledger-") as folder:
        yield Path(folder)


@pytest.fixture(params=list(STORES))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a ledger may be made: once in every registered store. A new store needs a line in `places`."""
    places = {
        "sqlite": lambda: str(tmp_path / "ledger.db"),
        "postgres": lambda: f"{request.getfixturevalue('postgres_server')}?ledger={uuid.uuid4()}",
    }
    return places[request.param]()


@pytest.fixture
def tamper(place: str) -> Tamper:
    """Runs SQL behind the ledger's back; {table} stands for its table, {mine} for the condition on its rows."""

    def on_sqlite(sql: str) -> None:
        with sqlite3.connect(place) as connection:
            connection.executescript(
                "DROP TRIGGER IF EXISTS entries_stay; DROP TRIGGER IF EXISTS entries_remain"
            )
            connection.execute(sql.replace("{table}", "entries").replace("{mine}", "1 = 1"))
            ((count,),) = connection.execute("SELECT count(*) FROM entries").fetchall()
            connection.execute(f"PRAGMA user_version = {count}")
        connection.close()

    def on_postgres(sql: str) -> None:
        import psycopg

        url, _, name = place.partition("?ledger=")
        with psycopg.connect(url) as connection:
            connection.execute("ALTER TABLE sfumato_ledger DISABLE TRIGGER ALL")
            changed = sql.replace("{table}", "sfumato_ledger").replace("{mine}", f"ledger = '{name}'")
            connection.execute(changed.encode())
            connection.execute("ALTER TABLE sfumato_ledger ENABLE TRIGGER ALL")

    return on_postgres if place.startswith("postgresql") else on_sqlite
