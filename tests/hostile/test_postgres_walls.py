"""Another role of a PostgreSQL database: it changes no table that is asked, and holds up no writer.

`holder` asks and pays, `mallory` may connect and create objects, `friend` may make others members of her role,
and `tester` is a superuser.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sfumato import postgres
from sfumato.accounting import Relation, pure
from sfumato.desk.database import Database
from sfumato.errors import DataUnavailable, InvalidInput, LedgerError
from sfumato.ledger import Budget, Ledger
from sfumato.query import Policy, Table, policy_from_dict
from sfumato.query.engines import open_engine

psycopg = pytest.importorskip("psycopg", reason="pip install 'sfumato[postgres]'")
Address = Callable[[str], str]
SUM = "SELECT SUM(n) FROM {}"


@pytest.fixture
def base(postgres_url: str) -> Iterator[Address]:
    """The address of a database for a role; the holder has a table of the numbers 1 to 9 in it."""
    with psycopg.connect(postgres_url, autocommit=True) as server:
        server.execute("DROP DATABASE IF EXISTS walls WITH (FORCE)")
        for role in ("holder", "mallory", "friend"):
            if not server.execute("SELECT FROM pg_roles WHERE rolname = %s", [role]).fetchall():
                server.execute(f"CREATE ROLE {role} LOGIN".encode())
        server.execute("GRANT mallory TO friend WITH ADMIN OPTION; REVOKE mallory FROM holder CASCADE")
        server.execute("CREATE DATABASE walls")

    def address(role: str) -> str:
        return postgres_url.replace("tester", role).replace("/postgres", "/walls")

    run(
        address("tester"),
        "GRANT ALL ON SCHEMA public TO holder, mallory",
        "CREATE SCHEMA hers AUTHORIZATION mallory",
        "GRANT USAGE ON SCHEMA hers TO holder",
    )
    run(address("holder"), "CREATE TABLE public.people AS SELECT n FROM generate_series(1, 9) n")
    yield address
    with psycopg.connect(postgres_url, autocommit=True) as server:
        server.execute("DROP DATABASE IF EXISTS walls WITH (FORCE)")


def run(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as server:
        for statement in statements:
            server.execute(statement.encode())


def ledger_at(base: Address, role: str = "holder", **more: str) -> str:
    words = "&".join(f"{name}={value}" for name, value in more.items())
    return base(role).replace("postgres://", "postgresql://") + ("?" + words if words else "")


def policy(base: Address, table: str, role: str = "holder", **more: str) -> Policy:
    return policy_from_dict(
        {
            "table": {"name": table, "source": base(role), **more},
            "budget": {"epsilon": 1},
            "columns": {"n": {"type": "integer", "lower": 0, "upper": 9}},
        }
    )


def charge(ledger: Ledger, epsilon: float = 0.125) -> None:
    ledger.charge(pure(epsilon), purpose="a wall", relation=Relation.ADD_REMOVE, unit="record")


def exact(rule: Policy) -> Any:
    ((row,),) = [Table(rule, None).exact_sums(f'SELECT SUM(n) FROM "{rule.table}"', salt="s").sums]
    return sorted(row.values())[-1]


@pytest.mark.keeps_out(
    "A table of PostgreSQL whose owner, or that of a part or schema, adds an index that runs code as "
    "the role that asks, after every look at it"
)
def test_a_table_in_the_hands_of_another_role_is_refused_before_the_charge(
    base: Address, tmp_path: Path
) -> None:
    """Its owner may give it an index that runs code as the holder, after any look at the table."""
    run(base("friend"), "GRANT mallory TO holder")
    run(
        base("tester"),
        "CREATE TABLE whole (n int) PARTITION BY RANGE (n); ALTER TABLE whole OWNER TO holder",
        "CREATE TABLE part PARTITION OF whole FOR VALUES FROM (0) TO (99); ALTER TABLE part OWNER TO mallory",
        "CREATE TABLE parent (n int); CREATE TABLE child () INHERITS (parent)",
        "ALTER TABLE parent OWNER TO holder; ALTER TABLE child OWNER TO mallory",
        "CREATE TABLE given (n int); ALTER TABLE given OWNER TO mallory",
        "CREATE TABLE hers.inside (n int); ALTER TABLE hers.inside OWNER TO holder",
        "GRANT SELECT ON whole, parent, given, hers.inside TO holder",
    )
    with Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=1)) as ledger:
        for role, table in [*(("holder", table) for table in TABLES), ("tester", "given")]:
            asked = Table(policy(base, table, role), ledger)
            with pytest.raises(InvalidInput, match=r"of the role mallory; .* table\.owner"):
                asked.ask(f'SELECT SUM(n) FROM "{table}"', epsilon=0.5)
        assert ledger.epsilon_spent == 0
    for table in TABLES:
        assert open_engine(policy(base, table, owner="mallory"))
        with pytest.raises(InvalidInput, match="role mallory"):
            open_engine(policy(base, table, owner="nobody"))
    run(base("tester"), "REVOKE mallory FROM holder", "GRANT mallory TO holder")
    assert open_engine(policy(base, "given"))
    with pytest.raises(InvalidInput, match=r"table\.owner"):
        replace(policy(base, "given", owner="mallory"), source="given.csv")


TABLES = ("whole", "parent", "given", "hers.inside")
SPY = """
CREATE SEQUENCE hers.called; GRANT ALL ON hers.called TO holder;
CREATE FUNCTION hers.spy(n int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS
    $$ BEGIN PERFORM nextval('hers.called'); RETURN n; END $$;
CREATE TABLE hers.later AS SELECT 5 AS n; GRANT SELECT ON hers.later TO holder
"""


def test_why_an_owner_must_be_trusted(base: Address) -> None:
    """Sabotage: the policy trusts the owner, who then adds an index to the table that was looked at."""
    run(base("mallory"), SPY)
    table = Table(policy(base, "hers.later", owner="mallory"), None)
    table.prepare()
    run(base("mallory"), "CREATE INDEX ON hers.later (hers.spy(1), n); ALTER SEQUENCE hers.called RESTART")
    assert table.exact_sums('SELECT SUM(n) FROM "hers.later"', salt="s").sums
    with psycopg.connect(base("tester")) as server:
        assert server.execute("SELECT is_called FROM hers.called").fetchone() == (True,)


@pytest.mark.keeps_out(
    "A table of another role that is taken for the ledger, the desk or the table that is asked"
)
def test_tables_of_other_roles_are_not_mistaken_for_ours(base: Address) -> None:
    run(base("mallory"), "CREATE TABLE hers.people (n int)", "GRANT SELECT ON hers.people TO holder")
    assert exact(policy(base, "people")) == 45
    ours = ledger_at(base)
    copied = "CREATE TABLE hers.{0} AS SELECT 1 AS ledger; GRANT ALL ON hers.{0} TO holder"
    run(base("mallory"), copied.format("sfumato_ledger"))
    with pytest.raises(LedgerError, match=r"of the role mallory; .* schema=NAME"):  # is it ours that was moved?
        Ledger.open(ours, budget=Budget(epsilon=1))
    with Ledger.open(ledger_at(base, schema="public"), budget=Budget(epsilon=1)) as ledger:
        charge(ledger)
    with Ledger.open(ours) as ledger:
        assert ledger.epsilon_spent == 0.125
    address = ours.replace("postgresql", "postgresql+psycopg")
    Database(address).close()
    run(base("mallory"), *(copied.format(name) for name in ("trail", "grants", "shares")))
    Database(address).close()
    run(base("tester"), "CREATE SCHEMA more AUTHORIZATION mallory; GRANT ALL ON SCHEMA more TO holder")
    for _ in range(2):  # its owner may drop what is made in it
        with pytest.raises(InvalidInput, match="role mallory"):
            Database(f"{address}?schema=more")
        with pytest.raises(LedgerError, match="role mallory"):
            Ledger.open(ledger_at(base, schema="more"), budget=Budget(epsilon=1))


@pytest.mark.keeps_out("One person's long texts that stop every paid query, or fill the memory")
def test_a_long_text_of_one_person_stops_no_question(base: Address, tmp_path: Path) -> None:
    """PostgreSQL's btrim fails at 135 million characters; a text of more than 1,000 is no category."""
    url = base("holder")
    run(
        url,
        "CREATE TABLE wards AS SELECT 'heart' AS ward FROM generate_series(1, 9)",
        "INSERT INTO wards VALUES (' heart '), (repeat(' ', 996) || 'heart')",
        "INSERT INTO wards SELECT repeat(' ', 135000000) || 'heart'",
        "ALTER ROLE holder SET statement_timeout = '1ms'",
        "ALTER ROLE holder SET quote_all_identifiers = on",
    )
    for more in (0, 20):
        wards = {"type": "text", "categories": ["heart", *(f"w{i}" for i in range(more))]}
        rule = policy_from_dict(
            {
                "table": {"name": "wards", "source": url},
                "budget": {"epsilon": 1},
                "columns": {"ward": wards},
            }
        )
        found = Table(rule, None).exact_sums("SELECT COUNT(*) FROM wards WHERE ward = 'heart'", salt="s")
        assert [row["rows"] for row in found.sums] == [10]
    run(base("tester"), "ALTER ROLE holder RESET ALL")


@pytest.mark.keeps_out("A database whose encoding lets bytes of one row raise, or have another length")
@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_in_another_encoding_is_refused(base: Address, postgres_url: str, encoding: str) -> None:
    name = f"walls_{encoding.lower()}"
    made = f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
    run(postgres_url, f"DROP DATABASE IF EXISTS {name}", made)
    url = postgres_url.replace("/postgres", f"/{name}")
    run(url, "CREATE TABLE people (n int)")
    rule = policy(lambda role: url, "people", "tester")
    with pytest.raises(DataUnavailable, match=f"server_encoding=UTF8, got '{encoding}'; .* ENCODING 'UTF8'"):
        open_engine(rule)
    with pytest.raises(LedgerError, match="server_encoding=UTF8"):
        Ledger.open(url, budget=Budget(epsilon=1))
    with pytest.raises(DataUnavailable, match="server_encoding=UTF8"):
        Database(url.replace("postgres://", "postgresql+psycopg://"))
    run(postgres_url, f"DROP DATABASE {name}", "ALTER ROLE holder SET client_encoding = 'LATIN1'")
    assert postgres.connect(base("holder")).info.encoding == "utf-8"
    run(postgres_url, "ALTER ROLE holder RESET client_encoding")


@pytest.mark.keeps_out("A foreign key of another role that holds up every charge")
@pytest.mark.keeps_out(
    "Locks that any role may take, or that nobody waits for with an end: one connection stops ledger and desk"
)
def test_no_other_role_holds_writers_up(base: Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks that anybody may take are not asked for; those that are waited for end in a sentence."""
    monkeypatch.setitem(postgres.PINNED, "lock_timeout", "500ms")
    ours, names = ledger_at(base), [b"sfumato default", b"sfumato data set people", b"sfumato data set "]
    keys = [int.from_bytes(hashlib.sha256(name).digest()[:8], signed=True) for name in names]
    with psycopg.connect(base("mallory"), autocommit=True) as other:
        for key in (0, 7203, *keys):
            other.execute("SELECT pg_advisory_lock(%s)", [key])
        ledger = Ledger.create(ours, Budget(epsilon=1), dataset="people")
        charge(ledger)
        desk = Database(ours.replace("postgresql", "postgresql+psycopg"))
        with desk.write() as connection:
            connection.exec_driver_sql("SELECT 1")
        run(base("holder"), "GRANT SELECT ON people, sfumato_ledger, identity TO mallory")
        run(base("holder"), "GRANT REFERENCES ON sfumato_ledger TO mallory")
        other.execute("CREATE TABLE hers.x (l text, s bigint, FOREIGN KEY (l, s) REFERENCES sfumato_ledger)")
        other.execute("BEGIN")
        for statement in (
            "SELECT FROM sfumato_ledger FOR KEY SHARE",
            "LOCK TABLE sfumato_ledger IN ROW SHARE MODE",
            "LOCK TABLE identity IN ROW SHARE MODE",
            "LOCK TABLE people IN ROW SHARE MODE",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege), other.transaction():
                other.execute(statement.encode())
        other.execute("LOCK TABLE people, sfumato_ledger, identity IN ACCESS SHARE MODE")
        charge(ledger)
        other.execute("INSERT INTO hers.x SELECT ledger, sequence FROM sfumato_ledger")
        charge(ledger)
        Ledger.create(ledger_at(base, ledger="second"), Budget(epsilon=1)).close()
        with desk.write() as connection:
            connection.exec_driver_sql("SELECT 1")
        other.execute("ROLLBACK")
    table = Table(policy(base, "people"), Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=1)))
    table.ask(SUM.format("people"), epsilon=0.25)
    with psycopg.connect(base("tester")) as administrator:
        administrator.execute("LOCK TABLE people, sfumato_ledger, identity IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(LedgerError, match="lock_timeout=500ms; try again"):
            charge(ledger)
        with pytest.raises(DataUnavailable, match="lock_timeout=500ms, and nothing was written"), desk.write():
            pass
        with pytest.raises(DataUnavailable, match="lock_timeout=500ms before anything was charged"):
            table.ask(SUM.format("people"), epsilon=0.25)
        administrator.rollback()
    table.ask(SUM.format("people"), epsilon=0.25)
    assert table.ledger.epsilon_spent == 0.5
    charge(ledger)
    assert ledger.epsilon_spent == 0.5
    desk.close()


@pytest.mark.keeps_out(
    "Locks that any role may take, or that nobody waits for with an end: one connection stops ledger and desk"
)
def test_a_writer_needs_the_privilege_to_update(base: Address) -> None:
    shared = ledger_at(base, "tester", schema="public")
    Ledger.open(shared, budget=Budget(epsilon=1)).close()
    run(base("tester"), "GRANT SELECT, INSERT ON sfumato_ledger TO holder")
    with Ledger.open(ledger_at(base)) as ledger:
        with pytest.raises(LedgerError, match="needs SELECT, INSERT and UPDATE"):
            charge(ledger)
        run(base("tester"), "GRANT UPDATE ON sfumato_ledger TO holder")
        charge(ledger)
    with pytest.raises(psycopg.errors.RaiseException, match="never changed"):
        run(base("holder"), "UPDATE sfumato_ledger SET sequence = 7")


@pytest.mark.keeps_out(
    "Locks that any role may take, or that nobody waits for with an end: one connection stops ledger and desk"
)
def test_many_make_one_ledger_and_one_desk_and_ledgers_do_not_wait_for_each_other(base: Address) -> None:
    ours = ledger_at(base)

    def make(_: int) -> str:
        with Ledger.open(ours, budget=Budget(epsilon=1)) as ledger:
            charge(ledger, 2**-4)
        desk = Database(ours.replace("postgresql", "postgresql+psycopg"))
        desk.close()
        return desk.id

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(make, range(8)))) == 1
    with (
        Ledger.open(ours) as ledger,
        Ledger.open(ledger_at(base, ledger="other"), budget=Budget(epsilon=1)) as other,
    ):
        assert ledger.epsilon_spent == 0.5
        with ledger._store.transaction():
            charge(other)
        assert other.verify()


@pytest.mark.keeps_out(
    "One lost connection after which a table never answers, or a charge that it took, unsaid"
)
def test_a_lost_connection_is_made_anew_and_a_charge_that_it_took_is_told(
    base: Address, tmp_path: Path
) -> None:
    query = SUM.format("people")
    with Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=10)) as ledger:
        table = Table(policy(base, "people"), ledger)

        def cut() -> None:
            run(
                base("tester"),
                f"SELECT pg_terminate_backend({table._engine.connection.con.info.backend_pid}, 5000)",
            )

        for _ in range(2):
            assert table.ask(query, epsilon=1).rows
            cut()
        ready = table.ready(table.plan(query, epsilon=1))
        cut()
        with pytest.raises(DataUnavailable, match=r"connection .* was lost, .* stays spent"):
            table.answer(ready, table._charge(ready.planned.price, "lost"), ledger=ledger)
        assert ledger.epsilon_spent == 3
        assert table.ask(query, epsilon=1).rows
        cut()
        run(base("tester"), "ALTER TABLE people OWNER TO mallory; GRANT SELECT ON people TO holder")
        with pytest.raises(InvalidInput, match="role mallory"):  # the checks are made anew as well
            table.ask(query, epsilon=1)
        assert ledger.epsilon_spent == 4


def test_a_public_table_that_the_server_does_not_take_is_refused_in_a_sentence(base: Address) -> None:
    columns = {"w": {"type": "text"}, "region": {"type": "text", "categories": ["n"]}}
    regions = {"source": "regions.parquet", "key": "w", "columns": columns}
    rule = policy_from_dict(
        {
            "table": {"name": "people", "source": base("holder")},
            "budget": {"epsilon": 1},
            "columns": {"n": {"type": "integer", "lower": 0, "upper": 9}, "w": {"type": "text"}},
            "public": {"regions": regions},
        }
    )
    run(base("holder"), "ALTER TABLE people ADD COLUMN w text")
    for words in ("a\0b", "a"):
        if words == "a":
            run(base("tester"), "REVOKE TEMP ON DATABASE walls FROM PUBLIC, holder")
        data = {"people": None, "regions": pa.table({"w": [words], "region": ["n"]})}
        with pytest.raises(DataUnavailable, match="regions cannot be copied to the postgres engine"):
            open_engine(rule, data=data)
