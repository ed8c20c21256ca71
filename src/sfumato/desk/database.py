"""What the desk itself must remember: people, requests, questions, jobs; in SQLite or PostgreSQL.

Budgets are not here. They are in the ledgers, which alone decide what may be spent.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
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
    false,
    func,
    inspect,
    select,
    true,
)
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError, SQLAlchemyError

from sfumato.desk.together import Together, Waiting
from sfumato.errors import DataUnavailable, InvalidInput, Refused
from sfumato.postgres import PINNED, check_own, connect, found_in, without_parameters

METADATA = MetaData()
Change = Callable[[Connection], Any]
"""What writes something into the database."""
PATIENCE = 60.0
"""Seconds to wait for another process's transaction in SQLite."""
_ALWAYS = ("trail", "grants", "shares")  # tables by which a desk's schema is known


def _id() -> Column[int]:
    return Column("id", Integer, primary_key=True, autoincrement=True)


def _account(**options: Any) -> Column[int]:
    return Column("account", ForeignKey("accounts.id"), **options)


identity = Table("identity", METADATA, Column("id", String(32), primary_key=True))  # of this desk: one row
serving = Table("serving", METADATA, Column("id", String(32), primary_key=True))  # empty: for a server's lock
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
    Column("epoch", Integer),  # how often the password changed or the account was closed; None is 0
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
    Column("epoch", Integer),  # of the account, when it was made
)
sessions = Table(
    "sessions",
    METADATA,
    Column("digest", LargeBinary, primary_key=True),
    _account(nullable=False),
    Column("csrf", String(64), nullable=False),
    Column("created", Float, nullable=False),
    Column("seen", Float, nullable=False),
    Column("epoch", Integer),  # of the account, when its password was verified
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
    Column("name", String(512), primary_key=True),  # in the ledger too, unless it was taken there
    Column("origin", String(80)),  # the id by which the ledger knows it; None of an older desk's shares
    Column("grant", ForeignKey("grants.id"), nullable=False),
    Column("request", ForeignKey("requests.id")),  # whose approval planned it
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
    Column("decided_by", ForeignKey("accounts.id")),
    Column("created", Float, nullable=False),
    Column("decided", Float),
)
proposals = Table(
    "proposals",
    METADATA,
    _id(),
    Column("act", String(16), nullable=False),
    Column("words", JSON, nullable=False),  # its parameters
    Column("digest", String(64), nullable=False, index=True),  # of both
    Column("title", Text, nullable=False),
    Column("first", ForeignKey("accounts.id"), nullable=False),  # the officer who proposed it
    Column("second", ForeignKey("accounts.id")),  # the one who confirmed it
    Column("half", Text),  # of a password, until it is confirmed
    Column("state", String(16), nullable=False),
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
    Column("origin", String(80)),  # by which its ledger knows what it reserved; None of an older desk's jobs
    Column("folder", String(80)),  # of its newest try, below that of all runs
)
_UNPAID = {questions: false(), jobs: false(), shares: shares.c.made.is_(False)}
"""Rows for which a ledger has not paid, of the tables of those for which it may have."""


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
        self._leased, self._held = False, ExitStack()
        self._soon: Together[Change] = Together(self._write_all, name="desk database")
        try:
            self._make_first()
            with self.write() as connection:  # two desks that start together do not both make the tables
                METADATA.create_all(connection)
                self._add_columns(connection)
            self.id = self._known_id()
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

    def _add_columns(self, connection: Connection) -> None:
        """Add the columns that the database of an older version lacks; they are empty in its rows."""
        found, names = inspect(connection), self.engine.dialect.identifier_preparer
        for table in METADATA.sorted_tables:
            known = {column["name"] for column in found.get_columns(table.name, schema=self._schema)}
            for column in (one for one in table.columns if one.name not in known):
                kind = column.type.compile(self.engine.dialect)
                words = f"ADD COLUMN {names.format_column(column)} {kind}"
                connection.exec_driver_sql(f"ALTER TABLE {self._named(table)} {words}")

    @property
    def _schema(self) -> str | None:
        translated: dict[None, str] = self.engine.get_execution_options().get("schema_translate_map", {})
        return translated.get(None)

    def _named(self, table: Table) -> str:
        names = self.engine.dialect.identifier_preparer
        place = "" if self._schema is None else f"{names.quote_identifier(self._schema)}."
        return place + names.format_table(table)

    def _known_id(self) -> str:
        with self.read() as connection:
            known: str | None = connection.execute(select(identity.c.id)).scalar()
        if known is not None:
            return known
        with self.write() as connection:
            known = connection.execute(select(identity.c.id)).scalar() or secrets.token_hex(8)
            connection.execute(identity.delete())
            connection.execute(identity.insert().values(id=known))
        return known

    def mend_references(self) -> list[str]:
        """Mend rows that refer to rows that are gone, as edits by other programs leave them; say so.

        A reference that may be empty is emptied, and a token whose allocation is gone is revoked. A row that
        must refer to something is deleted, unless a ledger may have paid for it. PostgreSQL checks every
        transaction, and so has none.
        """
        found: list[str] = []
        if self.engine.dialect.name != "sqlite":
            return found
        with self.write() as connection:
            connection.exec_driver_sql("PRAGMA defer_foreign_keys = ON")
            for table in METADATA.sorted_tables:  # parents first: what is emptied or deleted leaves no new ones
                for key in sorted(table.foreign_keys, key=lambda key: bool(key.parent.nullable)):
                    column, parent = key.parent, key.column
                    gone = column.is_not(None) & column.not_in(select(parent))
                    count = connection.execute(select(func.count()).select_from(table).where(gone)).scalar()
                    if not count:
                        continue
                    if column.nullable:
                        revoked = {"revoked": True} if table is tokens else {}
                        connection.execute(table.update().where(gone).values({column.name: None} | revoked))
                        done = "emptied"
                    else:
                        gone &= _UNPAID.get(table, true())
                        kept = count - connection.execute(table.delete().where(gone)).rowcount
                        done = f"deleted, {kept} kept" if kept else "deleted"
                    found.append(f"{count} of {table.name} to {parent.table.name} ({done})")
        return [f"the desk's database referred to rows that are gone: {', '.join(found)}"] if found else found

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
        """Look something up; holds nobody back."""
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Alone among all threads and processes; on disk at the end, or undone."""
        with self._writing, _explained(), self.engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                # It takes the privilege to change the table: no other role can hold writers up.
                connection.exec_driver_sql(f"LOCK TABLE {self._named(identity)} IN EXCLUSIVE MODE")
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
