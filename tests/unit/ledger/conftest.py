"""Every test that asks for `place` runs on SQLite and on a real PostgreSQL server."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import sqlite3
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sfumato.ledger.store import STORES

Tamper = Callable[[str], None]


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a server of our own, on a free port of this machine, in a temporary folder."""
    pytest.importorskip("psycopg", reason="install it with: pip install 'sfumato[postgres]'")
    programs = _server_programs()
    folder = Path(tempfile.mkdtemp(prefix="sfumato-postgres-"))
    account = _account(folder)
    try:
        yield from _serve(programs, folder, account)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _server_programs() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    named = shutil.which("postgres")
    if named is None and not found:
        pytest.skip("no PostgreSQL server here; on Debian or Ubuntu: apt-get install postgresql")
    return (Path(named) if named else found[-1]).resolve().parent


def _account(folder: Path) -> str | None:
    """The server refuses to run as root, so root runs it as somebody else."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    account = "postgres" if "postgres" in names else "nobody"
    shutil.chown(folder, account)
    return account


def _serve(programs: Path, folder: Path, account: str | None) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    data = folder / "data"
    rights = {"user": account, "extra_groups": []} if account else {}
    subprocess.run(
        [programs / "initdb", "-D", data, "-A", "trust", "-U", "sfumato", "--no-sync"],
        check=True, capture_output=True, cwd=folder, **rights,
    )  # fmt: skip
    options = [
        f"port={port}",
        "listen_addresses=127.0.0.1",
        "unix_socket_directories=",
        "log_min_messages=fatal",
    ]
    switches = [part for option in options for part in ("-c", option)]
    server = subprocess.Popen(
        [programs / "postgres", "-D", data, *switches],
        cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **rights,
    )  # fmt: skip
    try:
        url = f"postgresql://sfumato@127.0.0.1:{port}/postgres"
        _await(url)
        yield url
    finally:
        server.send_signal(signal.SIGQUIT)  # at once: the folder goes as well
        server.wait(timeout=30)


def _await(url: str) -> None:
    import psycopg

    deadline = time.monotonic() + 30
    while True:
        try:
            psycopg.connect(url, connect_timeout=5).close()
            return
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: a killed process, unlike a power cut, loses nothing it wrote."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory, prefix="sfumato-ledger-") as folder:
        yield Path(folder)


@pytest.fixture(params=[kind.name for kind in STORES])
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
