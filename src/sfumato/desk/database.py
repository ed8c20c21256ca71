"""What the desk itself must remember: people, requests, questions, jobs; in SQLite or PostgreSQL.

Budgets are not here. They are in the ledgers, which alone decide what may be spent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Connection,
    Engine,
    Float,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    create_engine,
    event,
    text,
)

from sfumato.desk.together import Together, Waiting
from sfumato.postgres import check_own, connect, found_in, without_parameters

METADATA = MetaData()
Change = Callable[[Connection], Any]
"""What writes something into the database."""
PATIENCE = 60.0
"""Seconds to wait for another process's transaction."""
_ALWAYS = ("trail", "grants", "shares")  # tables by which a desk's schema is known
_WRITERS = 7203  # the number of the lock that writers of a PostgreSQL database take


def _id() -> Column[int]:
    return Column("id", Integer, primary_key=True, autoincrement=True)


def _account(**options: Any) -> Column[int]:
    return Column("account", ForeignKey("accounts.id"), **options)


accounts = Table(
    "accounts",
    METADATA,
    _id(),
    Column("name", String(64), nullable=False),
    Column("key", String(256), nullable=False, unique=True),  # the name as it is compared
    Column("role", String(16), nullable=False),
    Column("team", String(64), nullable=False),
    Column("password", Text),  # argon2; None signs in elsewhere
    Column("subject", Text, unique=True),  # who it is for an OpenID provider
    Column("disabled", Boolean, nullable=False, default=False),
    Column("created", Float, nullable=False),
)
tokens = Table(
    "tokens",
    METADATA,
    _id(),
    _account(nullable=False),
    Column("digest", LargeBinary, nullable=False, unique=True),
    Column("purpose", Text, nullable=False),
    Column("grant", ForeignKey("grants.id")),
    Column("created", Float, nullable=False),
    Column("revoked", Boolean, nullable=False, default=False),
)
sessions = Table(
    "sessions",
    METADATA,
    Column("digest", LargeBinary, primary_key=True),
    _account(nullable=False),
    Column("csrf", String(64), nullable=False),
    Column("created", Float, nullable=False),
    Column("seen", Float, nullable=False),
)
failures = Table(
    "failures",
    METADATA,
    Column("key", String(256), primary_key=True),
    Column("tries", Integer, nullable=False),
    Column("until", Float, nullable=False),
)
trail = Table(
    "trail",
    METADATA,
    Column("sequence", Integer, primary_key=True, autoincrement=False),
    Column("digest", LargeBinary, nullable=False),
    Column("text", LargeBinary, nullable=False),
)
grants = Table(
    "grants",
    METADATA,
    _id(),
    Column("dataset", String(256), nullable=False),  # the first table of the policy
    Column("team", String(64), nullable=False),
    Column("purpose", Text, nullable=False),
    Column("epsilon", Float, nullable=False),  # of each period
    Column("period", String(16), nullable=False),
    Column("created", Float, nullable=False),
)
shares = Table(
    "shares",
    METADATA,
    Column("dataset", String(256), primary_key=True),
    Column("name", String(512), primary_key=True),  # in the ledger
    Column("grant", ForeignKey("grants.id"), nullable=False),
    Column("epsilon", Float, nullable=False),
    Column("begins", Float, nullable=False),
    Column("ends", Float),  # None: whenever
    Column("said", Text, nullable=False),  # who approved it and why, for the ledger
    Column("made", Boolean, nullable=False, default=False),  # whether the ledger has set it aside
)
requests = Table(
    "requests",
    METADATA,
    _id(),
    _account(nullable=False),
    Column("dataset", String(256), nullable=False),
    Column("grant", ForeignKey("grants.id")),  # the one to enlarge; None for a new one
    Column("team", String(64), nullable=False),
    Column("purpose", Text, nullable=False),
    Column("epsilon", Float, nullable=False),
    Column("period", String(16), nullable=False),
    Column("periods", Integer, nullable=False),
    Column("reason", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("first", ForeignKey("accounts.id")),  # the officer who approved first, where two must
    Column("decided_by", ForeignKey("accounts.id")),
    Column("created", Float, nullable=False),
    Column("decided", Float),
)
questions = Table(
    "questions",
    METADATA,
    _id(),
    _account(nullable=False),
    Column("team", String(64), nullable=False, index=True),
    Column("dataset", String(256), nullable=False),
    Column("grant", ForeignKey("grants.id")),
    Column("sql", Text, nullable=False),
    Column("epsilon", Float, nullable=False),
    Column("state", String(16), nullable=False),
    Column("answer", JSON),
    Column("asked", Float, nullable=False),
)
saved = Table(
    "saved",
    METADATA,
    _id(),
    _account(nullable=False),
    Column("team", String(64), nullable=False, index=True),
    Column("dataset", String(256), nullable=False),
    Column("title", String(128), nullable=False),
    Column("sql", Text, nullable=False),
)
paces = Table(
    "paces",
    METADATA,
    Column("kind", String(256), primary_key=True),
    Column("ticks", Integer, nullable=False),
)
jobs = Table(
    "jobs",
    METADATA,
    _id(),
    _account(nullable=False),
    Column("team", String(64), nullable=False, index=True),
    Column("dataset", String(256), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("words", JSON, nullable=False),  # what was chosen, by option
    Column("share", String(512)),  # of the ledger; None where nothing is spent
    Column("epsilon", Float, nullable=False),
    Column("state", String(16), nullable=False, index=True),
    Column("progress", Float),
    Column("result", JSON),
    Column("sentence", Text),  # why it failed: for officers
    Column("tries", Integer, nullable=False, default=0),
    Column("crashes", Integer, nullable=False, default=0),  # tries that ended by themselves without a word
    Column("created", Float, nullable=False),
    Column("started", Float),
    Column("ended", Float),
)


def inserted(connection: Connection, table: Table, **values: Any) -> int:
    """Add a row; its number."""
    made = connection.execute(table.insert().values(**values))
    assert made.inserted_primary_key is not None
    return int(made.inserted_primary_key[0])


class Database:
    """Transactions that are durable when they end; one writer at a time.

    Args:
        address: An SQLAlchemy address of SQLite or PostgreSQL.
    """

    def __init__(self, address: str) -> None:
        self.engine = _engine(address)
        self._writing = threading.Lock()
        self._soon: Together[Change] = Together(self._write_all, name="desk database")
        with self.write() as connection:  # two desks that start together do not both make the tables
            METADATA.create_all(connection)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Look something up; holds nobody back."""
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Alone among all threads and processes; on disk at the end, or undone."""
        with self._writing, self.engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_catalog.pg_advisory_xact_lock(:key)"), {"key": _WRITERS})
            yield connection

    def soon(self, change: Change) -> Future[Any]:
        """Write something together with whatever else waits; what it found, once it is on disk.

        Args:
            change: Writes through the connection that it is given. It may be called again if what it was
                written together with failed.
        """
        return self._soon.submit(change)

    def _write_all(self, waiting: Sequence[Waiting[Change]]) -> None:
        try:
            with self.write() as connection:
                found = [one.wanted(connection) for one in waiting]
        except Exception as error:
            if len(waiting) == 1:
                waiting[0].outcome.set_exception(error)
            else:  # nothing was written: what is not to blame is written by itself
                for one in waiting:
                    self._write_all([one])
            return
        for one, result in zip(waiting, found, strict=True):
            one.outcome.set_result(result)

    def close(self) -> None:
        self._soon.close()
        self.engine.dispose()


def _engine(address: str) -> Engine:
    if not address.startswith("sqlite"):
        return _on_postgres(address.replace("postgresql+psycopg", "postgresql", 1))
    engine = create_engine(address, connect_args={"timeout": PATIENCE, "check_same_thread": False})
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "begin", _begin)
    return engine


def _on_postgres(address: str) -> Engine:
    """The tables lie in the schema that has them, or that `schema=NAME` names, or else in `public`."""
    url, own = without_parameters(address, "schema")
    names = [table.name for table in METADATA.sorted_tables]

    def connected() -> Any:
        connection = connect(url)
        connection.autocommit = False
        return connection

    with connect(url) as connection:
        remedy = "add schema=NAME to the address of the desk's database"
        found = found_in(connection, _ALWAYS, own.get("schema"), remedy)
        schema = found[0] if found else own.get("schema", "public")
        for name in names:
            for table in (found_in(connection, [name], schema, remedy) or ("", []))[1]:
                check_own(connection, table, f"{schema}.{name}")
    return create_engine(
        "postgresql+psycopg://",
        creator=connected,
        pool_pre_ping=True,
        execution_options={"schema_translate_map": {None: schema}},
    )


def _prepare(connection: Any, record: object) -> None:
    connection.isolation_level = None  # transactions begin where we say, and not at the first change
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin(connection: Connection) -> None:
    if connection.get_execution_options().get("isolation_level") != "AUTOCOMMIT":
        connection.exec_driver_sql("BEGIN IMMEDIATE")
