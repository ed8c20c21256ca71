"""Objects of others under every name that compiled SQL uses: no answer changes, and none of them is called.

The names are read from the SQL that a corpus of queries compiles to, on each engine; PostgreSQL's catalogue
adds those of operators. Functions, macros, operators, types, collations and views are planted under all of
them. The answers must be those of a clean database, before noise, or a refusal before a charge.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import ibis
import pytest
import sqlglot
from sqlglot import exp
from sqlglot.tokens import TokenType

from sfumato import postgres
from sfumato.desk.database import Database
from sfumato.errors import DataUnavailable, InvalidInput, LedgerError, SfumatoError
from sfumato.ledger import Budget, Ledger
from sfumato.query import Table, parse_query, policy_from_dict, sources
from sfumato.query.draft import columns_of
from sfumato.query.engines import open_engine

POLICY = policy_from_dict(
    {
        "table": {"name": "people", "source": "people.duckdb"},
        "unit": {"column": "person", "rows": 2, "groups": 2},
        "budget": {"epsilon": 1, "delta": 1e-6},
        "columns": {
            "age": {"type": "integer", "lower": 0, "upper": 120},
            "visits": {"type": "integer", "lower": 0, "upper": 50},
            "income": {"type": "real", "lower": -10.5, "upper": 1e6},
            "share": {"type": "real", "lower": 0, "upper": 1},
            "city": {"type": "text", "categories": ["Delft", "Utrecht"]},
            "town": {"type": "text"},
            "ill": {"type": "boolean"},
            "born": {"type": "date", "lower": datetime.date(1920, 1, 1), "upper": datetime.date(2020, 1, 1)},
            "seen": {"type": "date"},
        },
    }
)
ONE_ROW = replace(POLICY, unit=replace(POLICY.unit, column=None, rows=1, groups=1))
QUERIES = [
    "SELECT COUNT(*), AVG(age), SUM(income), STDDEV(share), COUNT(DISTINCT person) FROM people",
    "SELECT city, MEDIAN(income), QUANTILE(age, 0.9), COUNT(DISTINCT visits) FROM people GROUP BY city",
    "SELECT town, COUNT(*), CORR(age, share), COVAR_POP(income, age) FROM people "
    "WHERE town LIKE 'a%' OR city ILIKE '_e%' OR NOT ill GROUP BY town",
    "SELECT FLOOR(age / 10), SUM(ABS(income) * 2 - (visits % 7)), AVG(visits // 3) FROM people GROUP BY 1",
    "SELECT BIN(income, 4), SUM(CASE WHEN ill THEN age ELSE -age / 4 END) FROM people GROUP BY 1",
    "SELECT ill, SUM(SQRT(visits)), SUM(LN(1 + visits)), SUM(EXP(share)), SUM(ROUND(income, 1)), "
    "SUM(CEIL(share)), SUM(POWER(share, 2)), SUM(LOG10(age + 1)) FROM people GROUP BY ill",
    "SELECT SUM(GREATEST(age, visits)), SUM(LEAST(share, 0.5)), SUM(COALESCE(income, 0)), SUM(NULLIF(age, 40)) "
    "FROM people WHERE age BETWEEN 1 AND 90 AND visits IN (1, 2, 3, 4, 5, 6) AND income IS NOT NULL",
    "SELECT EXTRACT(year FROM born), COUNT(*) FILTER (WHERE ill), AVG(EXTRACT(dow FROM seen)) FROM people "
    "GROUP BY 1",
    "SELECT DATE_TRUNC('quarter', seen), SUM(DATE_DIFF('day', born, seen)) FROM people "
    "WHERE LOWER(town) <> 'a' AND UPPER(town) <> 'Q' AND born < '2010-01-01' GROUP BY 1",
    "SELECT AVG(n), SUM(s), COUNT(m), COUNT(*) FROM (SELECT person, COUNT(*) AS n, SUM(income) AS s, "
    "MIN(age) AS m, BOOL_OR(ill) AS f, COUNT(DISTINCT town) AS o FROM people WHERE age >= 1 GROUP BY person) "
    "WHERE f OR o >= 1",
]  # fmt: skip
ROWS = [
    (f"p{i % 25}", i % 97, i % 13, i * 37.5, (i % 9) / 8, ("Delft", "Utrecht ", None)[i % 3], "ab c"[i % 4],
     i % 5 > 2, f"19{20 + i % 70}-03-{1 + i % 28:02}", f"2021-{1 + i % 12:02}-11 10:00:00")
    for i in range(60)
]  # fmt: skip
NAMES = ("person", "age", "visits", "income", "share", "city", "town", "ill", "born", "seen")
TYPES = {
    "duckdb": (
        "VARCHAR", "TINYINT", "BIGINT", "DOUBLE", "FLOAT", "VARCHAR", "VARCHAR", "BOOLEAN", "DATE", "TIMESTAMP"
    ),
    "postgres": (
        "varchar", "int2", "int8", "float8", "float4", "varchar(20)", "char(1)", "bool", "date", "timestamptz"
    ),
}  # fmt: skip


def table_of(engine: str, name: str = "people") -> list[str]:
    """Statements that make the table; its types are those for which functions of others fit better."""
    kinds = TYPES[engine]
    defined = ", ".join(f"{column} {kind}" for column, kind in zip(NAMES, kinds, strict=True))
    rows = ", ".join(f"({', '.join(map(literal, row))})" for row in ROWS)
    return [f"CREATE TABLE {name} ({defined})", f"INSERT INTO {name} VALUES {rows}"]


def literal(value: Any) -> str:
    return "NULL" if value is None else f"'{value}'" if isinstance(value, str) else str(value)


Answers = list[Any]


def answers(
    source: str, engine: str | None = None, policy: Any = POLICY, then: Callable[[], object] = lambda: None
) -> Answers:
    """Every query's sums before noise; `then` happens when the source is open and nothing was asked."""
    rule = replace(policy, source=source)
    table = Table(rule, None, engine=open_engine(rule, name=engine, master="local[1]"))
    then()
    queries = [query for query in QUERIES if policy.unit.column or "person" not in query]
    found = [table.exact_sums(query, salt="s") for query in queries]
    return [(sorted(map(repr, one.sums)), [sorted(map(repr, rows)) for _, rows in one.cells]) for one in found]


def compiled(source: str, engine: str | None = None) -> list[str]:
    rule = replace(POLICY, source=source)
    table = Table(rule, None, engine=open_engine(rule, name=engine, master="local[1]"))
    found = [table._compiled(parse_query(query, rule), "s") for query in QUERIES]
    return [text for one in found for text in (one.sums, *(item for _, item in one.cells))]


def names_in(texts: list[str], dialect: str) -> tuple[set[str], set[str], set[str]]:
    """The functions, operators and types of SQL: words before a bracket, signs, and what is cast to."""
    functions, operators, types = set(), set(), set()
    for text in texts:
        tokens = sqlglot.tokenize(text, read=dialect)
        for token, following in itertools.pairwise(tokens):
            if following.token_type == TokenType.L_PAREN and token.text.replace("_", "").isalnum():
                functions.add(token.text.lower())
            if token.text and all(sign in "+-*/%<>=~!@#^&|?" for sign in token.text):
                operators.add(token.text)
        for node in sqlglot.parse_one(text, read=dialect).find_all(exp.DataType):
            types.add(node.sql(dialect).lower().split("(")[0])
    assert len(functions) > 20
    assert len(types) > 3
    return functions, operators, types


# --- DuckDB


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@pytest.fixture(scope="module")
def clean_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("clean") / "people.duckdb"
    with duckdb.connect(str(place)) as connection:
        for statement in table_of("duckdb"):
            connection.execute(statement)
    return place


def planted(place: Path, clean: Path, bodies: Callable[[str], str | None]) -> int:
    """The clean file with macros and types under every name; how many of them DuckDB took."""
    shutil.copy(clean, place)
    functions, operators, types = names_in(compiled(str(clean)), "duckdb")
    taken = 0
    with duckdb.connect(str(place)) as connection:
        known = {
            name for (name,) in connection.execute("SELECT function_name FROM duckdb_functions()").fetchall()
        }
        arguments = [", ".join("abcd"[:count]) for count in range(5)]
        for name in sorted((functions | operators | types) & known | functions):
            body = bodies(name)
            if body is not None:
                overloads = ", ".join(f"({listed}) AS {body if listed else '1'}" for listed in arguments)
                taken += tried(connection, f"CREATE MACRO {quoted(name)} {overloads}")
                tried(connection, f"CREATE MACRO {quoted(name + '_table')}(a) AS TABLE SELECT {body}")
        for name in types:
            taken += tried(connection, f"CREATE TYPE {quoted(name)} AS ENUM ('none')")
            tried(connection, f"CREATE TYPE {quoted(name.upper())} AS ENUM ('none')")
        tried(connection, "CREATE SCHEMA source; CREATE VIEW source.people AS SELECT error('read')")
        tried(connection, "CREATE VIEW sfumato_raw0 AS SELECT error('read')")
    return taken


def tried(connection: Any, statement: str) -> bool:
    try:
        connection.execute(statement)
    except Exception:
        return False
    return True


LIES = {"floor": "(a + 1)", "round": "(a + 1)", "lower": "concat(a, 'x')", "hash": "CAST(7 AS UBIGINT)"}
BODIES: dict[str, Callable[[str], str | None]] = {
    "raises": lambda name: "error('called')",
    "lies": LIES.get,  # each with the type that is expected
}


@pytest.mark.keeps_out(
    "A DuckDB file whose macros, generated columns or indexes compute the answer; a connection that "
    "can open other files"
)
@pytest.mark.parametrize("bodies", BODIES.values(), ids=BODIES)
def test_macros_of_a_duckdb_file_are_not_called(
    tmp_path: Path, clean_file: Path, bodies: Callable[[str], str | None]
) -> None:
    place = tmp_path / "people.duckdb"
    assert planted(place, clean_file, bodies) > 3
    for rule in (POLICY, ONE_ROW):
        assert answers(str(place), policy=rule) == answers(str(clean_file), policy=rule)
    shutil.copy(clean_file, place)  # planted when the file is open, and changed there
    later = answers(str(place), then=lambda: planted(place, clean_file, bodies))
    assert later == answers(str(clean_file))


@pytest.mark.parametrize("name", BODIES)
def test_the_macros_would_be_found_out(
    tmp_path: Path, clean_file: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sabotage: the file is opened as the main catalogue, as it once was."""
    place = tmp_path / "people.duckdb"
    planted(place, clean_file, BODIES[name])
    expected = answers(str(clean_file))

    def opened(files: list[Path]) -> Any:
        connection = ibis.duckdb.connect()
        connection.con.execute(f"ATTACH '{place}' AS source (READ_ONLY); USE source")
        return connection

    monkeypatch.setattr(sources, "open_duckdb", opened)
    if name == "lies":
        assert answers(str(clean_file)) != expected
    else:
        with pytest.raises(SfumatoError):
            answers(str(clean_file))


SOURCES = {
    "a generated column": "CREATE TABLE people (age INTEGER, {n} GENERATED ALWAYS AS "
    "(CASE WHEN age = 7 THEN error('it is Anna') ELSE age END))",
    "a generated column by a macro": "CREATE MACRO spy(a) AS a + 1; "
    "CREATE TABLE people (age INTEGER, {n} GENERATED ALWAYS AS (spy(age)))",
    "a view": "CREATE VIEW people AS SELECT 1 AS {n}",
    "a type that is none of the five": "CREATE TABLE people ({n} STRUCT(a INTEGER))",
}


@pytest.mark.keeps_out(
    "A DuckDB file whose macros, generated columns or indexes compute the answer; a connection that "
    "can open other files"
)
@pytest.mark.parametrize("source", SOURCES)
def test_what_a_duckdb_file_computes_is_refused_before_the_charge(tmp_path: Path, source: str) -> None:
    place = tmp_path / "people.duckdb"
    with duckdb.connect(str(place)) as connection:
        connection.execute(SOURCES[source].format(n="n"))
    check_refused(str(place), tmp_path)


def check_refused(source: str, folder: Path, engine: str | None = None) -> None:
    """One sentence, and nothing spent."""
    rule = policy_from_dict(
        {
            "table": {"name": "people", "source": source},
            "budget": {"epsilon": 1},
            "columns": {"n": {"type": "integer", "lower": 0, "upper": 9}},
        }
    )
    with Ledger.open(folder / "l.db", budget=rule.budget) as ledger:
        with pytest.raises(InvalidInput, match="expected"):
            Table(rule, ledger, engine=engine, master="local[1]").ask("SELECT SUM(n) FROM people", epsilon=0.5)
        assert ledger.epsilon_spent == 0


def test_a_duckdb_file_with_hostile_columns_that_are_not_asked_for_is_read(
    tmp_path: Path, clean_file: Path
) -> None:
    place = tmp_path / "people.duckdb"
    shutil.copy(clean_file, place)
    with duckdb.connect(str(place)) as connection:
        connection.execute("CREATE MACRO spy(a) AS a + 1")
        connection.execute("CREATE TYPE \"x); DROP TABLE people; --\" AS ENUM ('a')")
        connection.execute('ALTER TABLE people ADD COLUMN more "x); DROP TABLE people; --"')
        connection.execute("ALTER TABLE people ADD COLUMN later INTEGER DEFAULT 4")
        connection.execute("CREATE INDEX plain ON people (age); CREATE INDEX two ON people ((spy(age)))")
    assert answers(str(place)) == answers(str(clean_file))
    assert columns_of(place, header=None)["age"] == "integer"


@pytest.mark.keeps_out(
    "A DuckDB file whose macros, generated columns or indexes compute the answer; a connection that "
    "can open other files"
)
def test_a_connection_opens_nothing_but_its_files(tmp_path: Path, clean_file: Path) -> None:
    for name in ("mine", "theirs"):
        duckdb.sql(f"COPY (SELECT 1 AS x) TO '{tmp_path / name}.parquet'")
    asked = sources.open_duckdb([tmp_path / "mine.parquet"]).con
    assert asked.execute(f"SELECT x FROM read_parquet('{tmp_path}/mine.parquet')").fetchall() == [(1,)]
    with sources._attached(clean_file) as copied:
        for connection, statement in itertools.product(
            (asked, copied),
            (
                f"SELECT * FROM read_parquet('{tmp_path}/theirs.parquet')",
                f"COPY (SELECT 1) TO '{tmp_path}/new.csv'",
                f"ATTACH '{tmp_path}/other.duckdb' AS other",
                "SET enable_external_access = true",
                "SET threads = 1",
                "LOAD spatial",
                "DELETE FROM source.people",
            ),
        ):
            with pytest.raises(duckdb.Error):
                connection.execute(statement)


# --- PostgreSQL


@pytest.fixture
def base(postgres_url: str) -> Iterator[Callable[..., str]]:
    """A database in which `holder` has the table and `mallory` may create objects; its address for a role."""
    psycopg = pytest.importorskip("psycopg", reason="pip install 'sfumato[postgres]'")
    with psycopg.connect(postgres_url, autocommit=True) as server:
        server.execute("DROP DATABASE IF EXISTS hostile WITH (FORCE)")
        for role in ("holder", "mallory"):
            if not server.execute("SELECT FROM pg_roles WHERE rolname = %s", [role]).fetchall():
                server.execute(f"CREATE ROLE {role} LOGIN")
        server.execute("CREATE DATABASE hostile")
        server.execute("GRANT CREATE ON DATABASE hostile TO mallory")
        server.execute("ALTER ROLE holder IN DATABASE hostile SET search_path = public, pg_catalog")
        server.execute("ALTER DATABASE hostile SET standard_conforming_strings = off")

    def address(role: str = "tester") -> str:
        return postgres_url.replace("tester", role).replace("/postgres", "/hostile")

    with psycopg.connect(address(), autocommit=True) as server:
        server.execute("GRANT ALL ON SCHEMA public TO holder, mallory")
    with psycopg.connect(address("holder"), autocommit=True) as server:
        for statement in table_of("postgres"):
            server.execute(statement)
    yield address
    with psycopg.connect(postgres_url, autocommit=True) as server:
        server.execute("DROP DATABASE IF EXISTS hostile WITH (FORCE)")


def as_mallory(address: Callable[..., str]) -> Any:
    import psycopg

    return psycopg.connect(address("mallory"), autocommit=True)


PLANT = """
DO $plant$
DECLARE
    name text; one text; two text; back text; taken int := 0;
    kinds text[] := ARRAY(SELECT DISTINCT t FROM pg_catalog.unnest(%(kinds)s::text[]) t);
BEGIN
    FOREACH name IN ARRAY %(functions)s::text[] LOOP
        FOREACH one IN ARRAY kinds LOOP
            FOREACH back IN ARRAY ARRAY[''] || kinds LOOP
                BEGIN
                    EXECUTE pg_catalog.format('CREATE FUNCTION public.%%I(%%s) RETURNS %%s LANGUAGE plpgsql AS '
                        '$$ BEGIN PERFORM pg_catalog.nextval(''public.called''); RETURN NULL; END $$', name,
                        CASE back WHEN '' THEN one ELSE one || ',' || back END, one);
                    taken := taken + 1;
                EXCEPTION WHEN others THEN NULL;
                END;
            END LOOP;
        END LOOP;
    END LOOP;
    FOREACH one IN ARRAY kinds LOOP
        FOREACH two IN ARRAY kinds LOOP
            FOREACH back IN ARRAY ARRAY['bool', one] LOOP
                EXECUTE pg_catalog.format('CREATE OR REPLACE FUNCTION public.%%I(%%s, %%s) RETURNS %%s '
                    'LANGUAGE plpgsql AS '
                    '$$ BEGIN PERFORM pg_catalog.nextval(''public.called''); RETURN NULL; END $$',
                    'spy_' || back, one, two, back);
            END LOOP;
            FOREACH name IN ARRAY %(operators)s::text[] LOOP
                BEGIN
                    EXECUTE pg_catalog.format('CREATE OPERATOR public.%%s '
                        '(LEFTARG = %%s, RIGHTARG = %%s, FUNCTION = public.%%I)', name, one, two,
                        CASE WHEN name ~ '[=<>~]' THEN 'spy_bool' ELSE 'spy_' || one END);
                    taken := taken + 1;
                EXCEPTION WHEN others THEN NULL;
                END;
            END LOOP;
        END LOOP;
    END LOOP;
    FOREACH name IN ARRAY %(types)s::text[] LOOP
        BEGIN
            EXECUTE pg_catalog.format('CREATE DOMAIN public.%%I AS pg_catalog.int4 CHECK '
                '(pg_catalog.nextval(''public.called'') < 0)', name);
            taken := taken + 1;
        EXCEPTION WHEN others THEN NULL;
        END;
    END LOOP;
    FOR name IN SELECT collname FROM pg_catalog.pg_collation WHERE collname ~ '^(C|POSIX|default|en_US)' LOOP
        BEGIN
            EXECUTE pg_catalog.format('CREATE COLLATION public.%%I '
                '(provider = icu, locale = ''und-u-ks-level1'', deterministic = false)', name);
            taken := taken + 1;
        EXCEPTION WHEN others THEN NULL;
        END;
    END LOOP;
    EXECUTE pg_catalog.format('CREATE TABLE public.taken AS SELECT %%s AS n', taken);
END $plant$
"""


def plant(address: Callable[..., str]) -> int:
    """Objects of mallory's under every name: functions, operators, domains, collations; how many there are.

    PostgreSQL's own catalogue says which operators there are for the kinds of the columns, and what a function
    that is found by name alone may be called with.
    """
    import psycopg

    functions, operators, types = names_in(compiled(address("holder")), "postgres")
    kinds = sorted(
        {kind.split("(")[0] for kind in TYPES["postgres"]} | {"text", "int4", "numeric", "timestamp"}
    )
    with as_mallory(address) as server:
        known = server.execute(
            "SELECT DISTINCT oprname::text FROM pg_operator WHERE oprleft::regtype::text = ANY (ARRAY['text', "
            "'double precision', 'bigint', 'date', 'boolean'])"
        ).fetchall()
        server.execute("CREATE SEQUENCE public.called; GRANT ALL ON public.called TO PUBLIC")
        # Of PostgreSQL's own functions with these names, and what metadata queries and ledgers call.
        functions |= {
            "pg_advisory_xact_lock",
            "current_schema",
            "format_type",
            "set_config",
            "row_security_active",
        }
        values = {
            "kinds": kinds, "functions": sorted(functions), "types": sorted(types | {"bytea", "bigint", "oid"}),
            "operators": sorted(operators | {name for (name,) in known}),
        }  # fmt: skip
        psycopg.ClientCursor(server).execute(PLANT, values)
        (taken,) = server.execute("SELECT n FROM public.taken").fetchone() or (0,)
    return int(taken)


def called(address: Callable[..., str]) -> bool:
    import psycopg

    with psycopg.connect(address()) as server:
        ((found,),) = server.execute("SELECT is_called FROM public.called").fetchall()
    return bool(found)


@pytest.mark.keeps_out(
    "A function, operator or type of another role that PostgreSQL finds before its own, called with "
    "every name with the rights of the role that asks"
)
def test_functions_and_operators_of_other_roles_are_not_called(
    base: Callable[..., str], tmp_path: Path
) -> None:
    expected = answers(base("holder"))
    planted = []
    assert answers(base("holder"), then=lambda: planted.append(plant(base))) == expected
    assert planted[0] > 2000
    assert answers(base("holder")) == expected
    address = base("holder").replace("postgres://", "postgresql://")
    with Ledger.open(address, budget=Budget(epsilon=1, delta=1e-6, unit="person")) as ledger:
        assert Table(replace(POLICY, source=address), ledger).ask(QUERIES[0], epsilon=0.5)
        ledger.verify()
    desk = Database(address.replace("postgresql", "postgresql+psycopg"))
    with desk.write() as connection:
        connection.exec_driver_sql("SELECT 1")
    desk.close()
    assert not called(base)


@pytest.mark.keeps_out(
    "A function, operator or type of another role that PostgreSQL finds before its own, called with "
    "every name with the rights of the role that asks"
)
def test_they_would_be_called_on_the_path_of_the_role(
    base: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sabotage: a connection searches `public`, as it once did."""
    expected = answers(base("holder"))
    plant(base)
    monkeypatch.setattr(postgres, "PINNED", {"search_path": "public,pg_catalog"})
    try:
        differs = answers(base("holder")) != expected
    except Exception:
        differs = True
    assert differs
    assert called(base)


SPY = """
CREATE SEQUENCE called; GRANT ALL ON called TO PUBLIC;
CREATE FUNCTION spy(n int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_catalog.nextval('public.called'); RETURN n; END $$;
CREATE FUNCTION spying() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_catalog.nextval('public.called'); RETURN NEW; END $$;
DROP TABLE people;
"""
POSTGRES_SOURCES = {
    "a view": "CREATE VIEW people AS SELECT public.spy(g) AS n FROM generate_series(1, 9) g",
    "row security": "CREATE TABLE people (n int); ALTER TABLE people ENABLE ROW LEVEL SECURITY; "
    "CREATE POLICY p ON people USING (spy(n) > 0)",
    "a part that is foreign": "CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w; "
    "CREATE TABLE people (n int) PARTITION BY RANGE (n); "
    "CREATE FOREIGN TABLE part PARTITION OF people FOR VALUES FROM (1) TO (9) SERVER s",
    "parts by a function": "CREATE TABLE people (n int) PARTITION BY RANGE (spy(n))",
    "a domain": "CREATE DOMAIN years AS int CHECK (spy(VALUE) > 0); CREATE TABLE people (n years)",
    "an enum": "CREATE TYPE years AS ENUM ('1'); CREATE TABLE people (n years)",
    "a composite type": "CREATE TYPE years AS (n int); CREATE TABLE people (n years)",
    "a collation": "CREATE COLLATION odd (provider = icu, locale = 'und', deterministic = false); "
    "CREATE TABLE people (n text COLLATE odd)",
    "an index over a function": "CREATE TABLE people (n int); CREATE INDEX ON people (spy(1), n)",
    "an index with a condition": "CREATE TABLE people (n int); CREATE INDEX ON people (n) WHERE spy(1) > 0",
    "statistics of a function": "CREATE TABLE people (n int); CREATE STATISTICS st ON spy(n), n FROM people",
    "two tables": "CREATE TABLE people (n int); CREATE SCHEMA more; CREATE TABLE more.people (n int)",
}


@pytest.mark.keeps_out(
    "Code that reading a table of PostgreSQL runs: a view, row security, a part or an index by a function"
)
@pytest.mark.parametrize("source", POSTGRES_SOURCES)
def test_what_postgresql_computes_is_refused_before_the_charge(
    base: Callable[..., str], tmp_path: Path, source: str
) -> None:
    import psycopg

    with psycopg.connect(base()) as server:
        server.execute(SPY.encode())
        server.execute(POSTGRES_SOURCES[source].encode())
        server.execute("GRANT SELECT ON people TO holder; ALTER SEQUENCE called RESTART")
    check_refused(base("holder"), tmp_path)
    assert not called(base)


def test_a_table_with_code_that_reading_does_not_run_is_read(base: Callable[..., str]) -> None:
    import psycopg

    expected = answers(base("holder"))
    with psycopg.connect(base()) as server:
        server.execute(SPY.replace("DROP TABLE people;", "").encode())
        server.execute(
            "CREATE DOMAIN years AS int CHECK (spy(VALUE) > 0); ALTER TABLE people ADD COLUMN more years; "
            "ALTER TABLE people ADD CHECK (spy(1) > 0); ALTER TABLE people ALTER age SET DEFAULT spy(1); "
            "CREATE TRIGGER t BEFORE INSERT ON people FOR EACH ROW EXECUTE FUNCTION spying(); "
            "CREATE RULE r AS ON DELETE TO people DO ALSO SELECT spy(1); CREATE INDEX ON people (lower(city)); "
            "CREATE MATERIALIZED VIEW seen AS SELECT * FROM people; GRANT SELECT ON seen TO holder; "
            "ALTER SEQUENCE called RESTART"
        )
    assert answers(base("holder")) == expected
    seen = replace(POLICY, table="public.seen", source=base("holder"))
    assert len(open_engine(seen).raw.columns) == len(NAMES)
    assert not called(base)


SPOILED = {
    "a trigger": "CREATE TRIGGER more BEFORE INSERT ON {t} FOR EACH ROW EXECUTE FUNCTION spying()",
    "its trigger, for insertions": "DROP TRIGGER sfumato_ledger_stays ON {t}; "
    "CREATE TRIGGER sfumato_ledger_stays BEFORE INSERT ON {t} FOR EACH ROW EXECUTE FUNCTION spying()",
    "a rule": "CREATE RULE r AS ON INSERT TO {t} DO INSTEAD NOTHING",
    "row security": "ALTER TABLE {t} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY",
    "another owner": "ALTER TABLE {t} OWNER TO mallory",
    "a column": "ALTER TABLE {t} ADD COLUMN more int",
    "a default": "ALTER TABLE {t} ALTER about SET DEFAULT spy(1)",
    "a constraint": "ALTER TABLE {t} ADD CHECK (spy(1) > 0)",
    "an index": "CREATE INDEX ON {t} (spy(sequence::int))",
    "a part": "CREATE TABLE {s}.part () INHERITS ({t})",
    "a domain": "CREATE DOMAIN d AS text CHECK (spy(1) > 0); ALTER TABLE {t} ALTER ledger TYPE d",
    "a view": "ALTER TABLE {t} RENAME TO older; CREATE VIEW {t} AS SELECT * FROM {s}.older",
}


@pytest.mark.keeps_out(
    "A ledger's or a desk's table in PostgreSQL that another role owns, or has given a trigger or a rule"
)
def test_a_ledger_that_others_have_changed_is_refused(base: Callable[..., str]) -> None:
    import psycopg

    address = base("holder").replace("postgres://", "postgresql://")
    with psycopg.connect(base(), autocommit=True) as server:
        server.execute(SPY.encode())
        for place, statement in enumerate(SPOILED.values()):
            server.execute(f"CREATE SCHEMA s{place} AUTHORIZATION holder".encode())
            with Ledger.open(f"{address}?schema=s{place}", budget=Budget(epsilon=1)):
                pass
            with Ledger.open(f"{address}?schema=s{place}") as again:
                assert again.epsilon_spent == 0
            server.execute(statement.format(s=f"s{place}", t=f"s{place}.sfumato_ledger").encode())
            server.execute("ALTER SEQUENCE called RESTART")  # an index is computed when it is made
            with pytest.raises(LedgerError, match=r"expected the (table|columns)"):
                Ledger.open(f"{address}?schema=s{place}")
        with pytest.raises(LedgerError, match="schema=NAME"):  # which of them is it?
            Ledger.open(address)
    assert not called(base)


def test_a_ledger_is_found_where_an_older_version_put_it(base: Callable[..., str]) -> None:
    import psycopg

    address = base("holder").replace("postgres://", "postgresql://")
    with psycopg.connect(base(), autocommit=True) as server:
        server.execute("CREATE SCHEMA holder AUTHORIZATION holder")
    with Ledger.open(f"{address}?schema=holder", budget=Budget(epsilon=1)) as ledger:
        ledger.verify()
    with Ledger.open(address) as found:
        assert found.budget.epsilon == 1


@pytest.mark.keeps_out(
    "A ledger's or a desk's table in PostgreSQL that another role owns, or has given a trigger or a rule"
)
def test_a_desk_whose_tables_others_have_changed_does_not_start(base: Callable[..., str]) -> None:
    import psycopg

    address = base("holder").replace("postgres://", "postgresql+psycopg://")
    Database(address).close()
    Database(address).close()
    with psycopg.connect(base()) as server:
        server.execute(SPY.encode())
        server.execute("CREATE TRIGGER t BEFORE INSERT ON trail FOR EACH ROW EXECUTE FUNCTION spying()")
    with pytest.raises(InvalidInput, match="trail as Sfumato made it"):
        Database(address)


@pytest.mark.keeps_out(
    "A function, operator or type of another role that PostgreSQL finds before its own, called with "
    "every name with the rights of the role that asks"
)
def test_a_pooler_that_drops_the_options_is_refused(
    base: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    whole = psycopg.connect
    monkeypatch.setattr(psycopg, "connect", lambda url, **options: whole(url, autocommit=True))
    with pytest.raises(DataUnavailable, match="search_path"):
        open_engine(replace(POLICY, source=base("holder")))
    with pytest.raises(LedgerError, match="search_path"):
        Ledger.open(base("holder").replace("postgres://", "postgresql://"), budget=Budget(epsilon=1))


def test_no_role_but_a_superuser_casts_between_built_in_types(base: Callable[..., str]) -> None:
    """Casts are found by their types and not by a path: this is why they need no pinning."""
    import psycopg

    with as_mallory(base) as server:
        server.execute("CREATE FUNCTION cast_it(varchar) RETURNS int8 LANGUAGE sql AS 'SELECT 1'")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            server.execute("CREATE CAST (varchar AS int8) WITH FUNCTION cast_it(varchar) AS IMPLICIT")


# --- Spark


@pytest.fixture
def on_spark(
    spark_engine: Any, clean_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, Answers]]:
    """A file, its answers, and a session with functions that raise, and its catalogue, under every name."""
    import pandas as pd
    from pyspark.sql import SparkSession

    place = str(tmp_path / "people.parquet")
    with duckdb.connect(str(clean_file), read_only=True) as connection:
        connection.execute(f"COPY people TO '{place}' (FORMAT parquet)")
    monkeypatch.setitem(globals(), "QUERIES", QUERIES[:3])
    hostile = spark_engine(pd.DataFrame({"x": [1]})).connection._session.newSession()
    functions, _, _ = names_in(compiled(place, "spark"), "spark")
    expected = answers(place, "spark")
    taken = []
    for name in sorted(functions):
        with contextlib.suppress(Exception):
            hostile.udf.register(name, lambda *values: 1 / 0)
            hostile.sql(f"CREATE FUNCTION `{name}` AS 'org.example.Spy'")
            taken.append(name)
    hostile.sql("CREATE TEMPORARY VIEW seen AS SELECT 1 AS n")
    hostile.conf.set("spark.sql.functionResolution.sessionOrder", "first")  # as before Spark 4.2
    assert len(taken) > 10
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", lambda self: hostile)
    yield place, expected
    for name in taken:
        hostile.sql(f"DROP FUNCTION default.`{name}`")


@pytest.mark.keeps_out("Functions of a running Spark session in place of Spark's own")
def test_functions_of_a_spark_session_are_not_called(
    on_spark: tuple[str, Answers], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from pyspark.sql import SparkSession

    place, expected = on_spark
    assert answers(place, "spark") == expected
    check_refused("seen", tmp_path, "spark")
    monkeypatch.setattr(SparkSession, "newSession", lambda self: self)  # sabotage: the session that was found
    with pytest.raises(SfumatoError):
        answers(place, "spark")


@pytest.mark.keeps_out("A Spark table over JSON or CSV files, where one row hides others or fails the query")
@pytest.mark.keeps_out("A file name that the engine takes for a pattern; links by which a person counts twice")
def test_spark_takes_names_as_they_are_and_tables_whose_rows_are_apart(
    spark_engine: Any, tmp_path: Path
) -> None:
    """A row of a table over JSON or CSV files hides others or fails the query; a name was a pattern."""
    import pandas as pd

    session = spark_engine(pd.DataFrame({"x": [1]})).connection._session
    rule = replace(
        POLICY, unit=replace(POLICY.unit, column=None, rows=1, groups=1), columns={"age": POLICY.columns["age"]}
    )
    folder = tmp_path / "a b" / "ü[c]{d}*"
    folder.mkdir(parents=True)
    pd.DataFrame({"age": [1, 2]}).to_parquet(folder / "t.parquet")
    pd.DataFrame({"age": [1, 2]}).to_csv(folder / "t.csv")
    for place in (folder, folder / "t.parquet", folder / "t.csv"):
        assert open_engine(replace(rule, source=str(place)), name="spark").raw.count().execute() == 2
    for provider in ("parquet", "orc", "json", "csv"):
        session.sql(f"DROP TABLE IF EXISTS apart_{provider}")
        session.sql(f"CREATE TABLE apart_{provider} USING {provider} AS SELECT 1 AS age")
        source = replace(rule, source=f"apart_{provider}")
        if provider in ("parquet", "orc"):
            assert open_engine(source, name="spark").raw.count().execute() == 1
        else:
            with pytest.raises(InvalidInput, match=f"got {provider}"):
                open_engine(source, name="spark")
        session.sql(f"DROP TABLE apart_{provider}")
    for nowhere in ("s3a://bucket/folder", "no such table", str(folder / "none.parquet")):
        with pytest.raises(DataUnavailable, match="Spark cannot read"):
            open_engine(replace(rule, source=nowhere), name="spark")
