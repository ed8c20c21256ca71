"""The desk's own records (accounts, requests, questions, jobs) in SQLite or PostgreSQL; no budgets."""

from __future__ import annotations

import fcntl
import os
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

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
    inspect,
    select,
)
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError, SQLAlchemyError

from sfumato.errors import DataUnavailable, InvalidInput, Refused
from sfumato.postgres import PINNED, check_own, connect, found_in, without_parameters

_T = TypeVar("_T")
METADATA = MetaData()
Change = Callable[[Connection], Any]
"""A function that writes into the database."""
PATIENCE = 60.0
"""Seconds to wait for another process's transaction in SQLite."""
MOST_AT_ONCE = 64
"""Waiting items that share one turn of a thread."""
_ALWAYS = ("trail", "grants", "shares")  # tables by which a desk's schema is known


# Tables


def _table(name: str, *columns: Column[Any], numbered: bool = True) -> Table:
    first = [Column("id", Integer, primary_key=True, autoincrement=True)] if numbered else []
    return Table(name, METADATA, *first, *columns)


def _needed(name: str, kind: Any, **options: Any) -> Column[Any]:
    return Column(name, kind, nullable=False, **options)


def _one_of(table: str, *, name: str = "", **options: Any) -> Column[Any]:
    """Return a column that refers to a row of another table; it is named after it, in the singular."""
    return Column(name or table.removesuffix("s"), ForeignKey(f"{table}.id"), **options)


identity = _table(
    "identity", Column("id", String(32), primary_key=True), numbered=False
)  # of this desk: one row
serving = _table("serving", Column("id", String(32), primary_key=True), numbered=False)  # for a server's lock
accounts = _table(
    "accounts",
    _needed("name", String(64)),
    _needed("key", String(256), unique=True),  # the name as it is compared
    _needed("role", String(16)),
    _needed("team", String(64)),
    Column("password", Text),  # argon2; None where the account signs in with the provider
    Column("subject", Text, unique=True),  # at the OpenID provider
    _needed("disabled", Boolean, default=False),
    _needed("created", Float),
    _needed("epoch", Integer, default=0),  # how often the password changed or the account was closed
)
tokens = _table(
    "tokens",
    _one_of("accounts", nullable=False),
    _needed("digest", LargeBinary, unique=True),
    _needed("purpose", Text),
    _one_of("grants"),
    _needed("created", Float),
    _needed("revoked", Boolean, default=False),
    _needed("epoch", Integer),  # of the account, when the token was made
)
sessions = _table(
    "sessions",
    Column("digest", LargeBinary, primary_key=True),
    _one_of("accounts", nullable=False),
    _needed("csrf", String(64)),
    _needed("created", Float),
    _needed("seen", Float),
    _needed("epoch", Integer),  # of the account, when its password was verified
    numbered=False,
)
failures = _table(
    "failures",
    Column("key", String(256), primary_key=True),
    _needed("tries", Integer),
    _needed("until", Float),
    numbered=False,
)
trail = _table(
    "trail",
    Column("sequence", Integer, primary_key=True, autoincrement=False),
    _needed("digest", LargeBinary),
    _needed("text", LargeBinary),
    numbered=False,
)
grants = _table(
    "grants",
    _needed("dataset", String(256)),  # the first table of the policy
    _needed("team", String(64)),
    _needed("purpose", Text),
    _needed("epsilon", Float),  # of each period
    _needed("period", String(16)),
    _needed("created", Float),
)
shares = _table(
    "shares",
    Column("dataset", String(256), primary_key=True),
    Column("name", String(512), primary_key=True),  # in the ledger too, unless it was taken there
    _needed("origin", String(80)),  # the id by which the ledger knows it
    _one_of("grants", nullable=False),
    _one_of("requests"),  # whose approval planned it
    _needed("epsilon", Float),
    _needed("begins", Float),
    Column("ends", Float),
    _needed("said", Text),  # who approved it and why, for the ledger
    _needed("made", Boolean, default=False),  # whether the ledger has set it aside
    numbered=False,
)
requests = _table(
    "requests",
    _one_of("accounts", nullable=False),
    _needed("dataset", String(256)),
    _one_of("grants"),  # the one to enlarge; None for a new one
    _needed("team", String(64)),
    _needed("purpose", Text),
    _needed("epsilon", Float),
    _needed("period", String(16)),
    _needed("periods", Integer),
    _needed("reason", Text),
    _needed("state", String(16)),
    _one_of("accounts", name="decided_by"),
    _needed("created", Float),
    Column("decided", Float),
)
proposals = _table(
    "proposals",
    _needed("act", String(16)),
    _needed("words", JSON),  # its parameters
    _needed("digest", String(64), index=True),  # of act, parameters and title
    _needed("title", Text),
    _one_of("accounts", name="first", nullable=False),  # the officer who proposed it
    _one_of("accounts", name="second"),  # the one who confirmed it
    Column("half", Text),  # of a password, until the act is confirmed
    _needed("state", String(16)),
    _needed("created", Float),
    Column("decided", Float),
)
questions = _table(
    "questions",
    _one_of("accounts", nullable=False),
    _needed("team", String(64), index=True),
    _needed("dataset", String(256)),
    _one_of("grants"),
    _needed("sql", Text),
    _needed("epsilon", Float),
    _needed("state", String(16)),
    Column("answer", JSON),
    _needed("asked", Float),
)
saved = _table(
    "saved",
    _one_of("accounts", nullable=False),
    _needed("team", String(64), index=True),
    _needed("dataset", String(256)),
    _needed("title", String(128)),
    _needed("sql", Text),
)
paces = _table(
    "paces", Column("kind", String(256), primary_key=True), _needed("ticks", Integer), numbered=False
)
jobs = _table(
    "jobs",
    _one_of("accounts", nullable=False),
    _needed("team", String(64), index=True),
    _needed("dataset", String(256)),
    _needed("kind", String(16)),
    _needed("words", JSON),  # the chosen options
    Column("share", String(512)),  # of the ledger; None where nothing is spent
    _needed("epsilon", Float),
    _needed("state", String(16), index=True),
    Column("progress", Float),
    Column("result", JSON),
    Column("sentence", Text),  # the reason of a failure, for officers
    _needed("tries", Integer, default=0),
    _needed("crashes", Integer, default=0),  # tries that ended without reporting how
    _needed("created", Float),
    Column("started", Float),
    Column("ended", Float),
    _needed("origin", String(80)),  # the id by which its ledger knows the amounts that it reserved
    Column("folder", String(80)),  # of its newest try, in the folder of all runs
)


def inserted(connection: Connection, table: Table, **values: Any) -> int:
    """Add a row, and return its number."""
    made = connection.execute(table.insert().values(**values))
    assert made.inserted_primary_key is not None
    return int(made.inserted_primary_key[0])


# One thread for many


@dataclass(frozen=True)
class Waiting(Generic[_T]):
    """An item that waits for a thread, and the future of its outcome."""

    wanted: _T
    outcome: Future[Any] = field(default_factory=Future)


class Together(Generic[_T]):
    """One thread that takes all waiting items at once, in their order, so that they share one transaction.

    Args:
        work: Handles the items, and sets each outcome, at once or later.
        name: Name of the thread.
    """

    def __init__(self, work: Callable[[Sequence[Waiting[_T]]], None], *, name: str) -> None:
        self._work = work
        self._waiting: deque[Waiting[_T]] = deque()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    def __len__(self) -> int:
        return len(self._waiting)

    def submit(self, wanted: _T) -> Future[Any]:
        waiting = Waiting(wanted)
        waiting.outcome.set_running_or_notify_cancel()  # an asker who leaves stops nothing
        self._waiting.append(waiting)
        self._thread.submit(self._turn)
        return waiting.outcome

    def first(self, work: Callable[[], None]) -> Future[None]:
        """Run other work in the thread, before all items that are submitted later."""
        return self._thread.submit(work)

    def _turn(self) -> None:
        taken = [self._waiting.popleft() for _ in range(min(len(self._waiting), MOST_AT_ONCE))]
        try:
            if taken:  # an earlier turn may have taken them all
                self._work(taken)
        except BaseException as error:
            for one in taken:
                if not one.outcome.done():
                    one.outcome.set_exception(error)

    def close(self) -> None:
        """Finish all waiting items, and end the thread."""
        self._thread.shutdown(wait=True)


# The database


class Database:
    """Transactions that are durable when they end; one writer at a time.

    Args:
        address: An SQLAlchemy address of SQLite or PostgreSQL.
    """

    def __init__(self, address: str) -> None:
        self.engine = _engine(address)
        self._writing = threading.Lock()
        self._leased, self._held = False, ExitStack()
        self._soon: Together[Change] = Together(self._write_all, name="desk database")
        try:
            self._make_first()
            with self.write() as connection:  # two desks that start together do not both make the tables
                METADATA.create_all(connection)
                known: str | None = connection.execute(select(identity.c.id)).scalar()
                self.id = known or secrets.token_hex(8)
                if known is None:
                    connection.execute(identity.insert().values(id=self.id))
        except SQLAlchemyError as error:
            reason = str(error.__cause__ or error).strip().splitlines()[0]
            raise InvalidInput(
                f"expected the desk's database to be one of this program's that can be written: {reason}; "
                "restore it, or name another in desk.toml"
            ) from error

    def _make_first(self) -> None:
        """Make the table that writers lock in PostgreSQL, unless another desk makes it meanwhile."""
        try:
            with self.engine.begin() as connection:
                identity.create(connection, checkfirst=True)
                if self._schema is not None:
                    _check(connection.connection.driver_connection, self._schema, [identity.name])
        except (IntegrityError, ProgrammingError):
            if not inspect(self.engine).has_table(identity.name, schema=self._schema):
                raise

    @property
    def _schema(self) -> str | None:
        translated: dict[None, str] = self.engine.get_execution_options().get("schema_translate_map", {})
        return translated.get(None)

    def _named(self, table: Table) -> str:
        names = self.engine.dialect.identifier_preparer
        place = "" if self._schema is None else f"{names.quote_identifier(self._schema)}."
        return place + names.format_table(table)

    def orphans(self) -> list[str]:
        """Describe rows that refer to rows that are gone, as edits by other programs leave them in SQLite."""
        if self.engine.dialect.name != "sqlite":
            return []
        with self.read() as connection:
            found = {f"{row[0]} to {row[2]}" for row in connection.exec_driver_sql("PRAGMA foreign_key_check")}
        told = f"the desk's database refers to rows that are gone: {', '.join(sorted(found))}; restore a copy"
        return [told] if found else []

    def lease(self) -> None:
        """Hold the desk until the database is closed: one server at a time, so that a job runs once.

        The lock is on a file beside SQLite's, or on a table of PostgreSQL. It ends with the process or the
        connection.

        Raises:
            Refused: If another server holds it.
        """
        if self._leased:
            return
        try:
            if self.engine.dialect.name == "sqlite":
                place = f"{os.path.realpath(str(self.engine.url.database))}.serving"
                file = os.open(place, os.O_RDWR | os.O_CREAT, 0o600)
                self._held.callback(os.close, file)
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            else:
                connection = self._held.enter_context(self.engine.connect())
                connection.exec_driver_sql("SET idle_in_transaction_session_timeout = 0")
                # It takes no transaction id, and so keeps no dead rows of other tables.
                words = f"LOCK TABLE {self._named(serving)} IN SHARE UPDATE EXCLUSIVE MODE NOWAIT"
                connection.exec_driver_sql(words)
        except (BlockingIOError, OperationalError) as error:
            self._held.close()
            raise Refused(
                "expected one server for the database of a desk, got a second; stop the other, or name another "
                "database in desk.toml"
            ) from error
        self._leased = True

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Read without a transaction; no writer waits for it."""
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Write alone among all threads and processes; on disk at the end, or undone."""
        with self._writing, _explained(), self.engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                # It takes the privilege to change the table: no other role can hold writers up.
                connection.exec_driver_sql(f"LOCK TABLE {self._named(identity)} IN EXCLUSIVE MODE")
            yield connection

    def soon(self, change: Change) -> Future[Any]:
        """Apply a change together with others that wait; the future has its result once it is on disk.

        A change may be called again if one that it was written with failed.
        """
        return self._soon.submit(change)

    def _write_all(self, waiting: Sequence[Waiting[Change]]) -> None:
        try:
            with self.write() as connection:
                found = [one.wanted(connection) for one in waiting]
        except Exception as error:
            if len(waiting) == 1:
                waiting[0].outcome.set_exception(error)
            else:  # nothing was written: each is tried by itself
                for one in waiting:
                    self._write_all([one])
            return
        for one, result in zip(waiting, found, strict=True):
            one.outcome.set_result(result)

    def close(self) -> None:
        self._soon.close()
        self._held.close()
        self.engine.dispose()


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except OperationalError as error:
        if getattr(error.orig, "sqlstate", None) != "55P03":
            raise
        raise DataUnavailable(
            "the desk's database was locked by another connection for longer than "
            f"lock_timeout={PINNED['lock_timeout']}, and nothing was written; try again"
        ) from error


def _engine(address: str) -> Engine:
    if not address.startswith("sqlite"):
        return _on_postgres(address.replace("postgresql+psycopg", "postgresql", 1))
    engine = create_engine(address, connect_args={"timeout": PATIENCE, "check_same_thread": False})
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "begin", _begin)
    return engine


def _check(connection: Any, schema: str, names: Sequence[str]) -> None:
    """Refuse tables of these names that others have changed, or in a schema of another role."""
    for name in names:
        for table in (found_in(connection, [name], schema, "") or ("", []))[1]:
            check_own(connection, table, f"{schema}.{name}")


def _on_postgres(address: str) -> Engine:
    """The tables lie in the schema that has them, or that `schema=NAME` names, or else in `public`."""
    url, own = without_parameters(address, "schema")

    def connected() -> Any:
        connection = connect(url)
        connection.autocommit = False
        return connection

    with connect(url) as connection:
        remedy = "add schema=NAME to the address of the desk's database"
        found = found_in(connection, _ALWAYS, own.get("schema"), remedy)
        schema = found[0] if found else own.get("schema", "public")
        _check(connection, schema, [table.name for table in METADATA.sorted_tables])
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
