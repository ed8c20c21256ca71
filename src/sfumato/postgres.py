"""Connections to PostgreSQL on which a name means PostgreSQL's own object, or ours by its schema.

Other roles of a database may create functions, operators and types beside ours. A connection searches for names
in `pg_catalog` alone, from its first statement on, so that none of theirs is called. `pg_temp` is named last,
as PostgreSQL would otherwise search it first. Code that is attached to a table itself (views, triggers, rules,
row security, expressions of indexes) runs under every path, and its owner may attach it at any time: the owners
of a table, its parts and its schema must be trusted, and so must those of the functions that they attached.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from sfumato.errors import DataUnavailable, InvalidInput, MissingExtra

if TYPE_CHECKING:
    import psycopg

PINNED = {
    "search_path": "pg_catalog,pg_temp",
    "row_security": "off",  # a table whose policies would apply is an error
    "constraint_exclusion": "off",  # the planner computes no constraint of a table
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
    "TimeZone": "UTC",
    "DateStyle": "ISO,MDY",
    "client_encoding": "UTF8",
    "default_transaction_isolation": "read committed",
    "quote_all_identifiers": "off",
    "lock_timeout": "1min",
    "statement_timeout": "0",
}
"""Settings by which a statement is understood, under all defaults of a role or a database."""

_BUILT_IN = (
    "bool", "int2", "int4", "int8", "float4", "float8", "numeric", "text", "varchar", "bpchar", "uuid", "date",
    "timestamp", "timestamptz",
)  # fmt: skip
# A table, its parts and its indexes may depend on these kinds of object, and on no function or operator.
_PLAIN = ("pg_class", "pg_namespace", "pg_constraint", "pg_opclass", "pg_collation", "pg_am", "pg_attrdef")
# A role's friends may make others its members: only memberships that an administrator granted count.
_TRUSTED = """
WITH RECURSIVE administrator AS (
    SELECT oid AS id FROM pg_roles WHERE rolsuper OR rolname = 'pg_database_owner'
    UNION SELECT datdba FROM pg_database WHERE datname = current_database()
), mine AS (
    SELECT oid AS id FROM pg_roles WHERE rolname = current_user
    UNION SELECT roleid FROM pg_auth_members JOIN mine ON member = mine.id
        WHERE grantor IN (SELECT id FROM administrator)
), trusted AS (
    SELECT id FROM administrator UNION SELECT id FROM mine
    UNION SELECT oid FROM pg_roles WHERE rolname = %(owner)s
)
"""
_FAULT = (
    _TRUSTED
    + """
, part AS (
    SELECT %(table)s::oid AS id UNION SELECT inhrelid FROM pg_inherits JOIN part ON inhparent = id
), owner AS (
    SELECT relowner AS id FROM pg_class WHERE oid IN (SELECT id FROM part)
    UNION SELECT nspowner FROM pg_namespace
        WHERE oid = (SELECT relnamespace FROM pg_class WHERE oid = %(table)s)
), object AS (
    SELECT 'pg_class'::regclass AS kind, id FROM part
    UNION ALL SELECT 'pg_class'::regclass, indexrelid FROM pg_index WHERE indrelid IN (SELECT id FROM part)
    UNION ALL SELECT 'pg_statistic_ext'::regclass, oid FROM pg_statistic_ext
        WHERE stxrelid IN (SELECT id FROM part)
    UNION ALL SELECT 'pg_attrdef'::regclass, oid FROM pg_attrdef WHERE %(own)s AND adrelid = %(table)s
    UNION ALL SELECT 'pg_constraint'::regclass, oid FROM pg_constraint WHERE %(own)s AND conrelid = %(table)s
)
SELECT CASE
    WHEN EXISTS (SELECT FROM pg_class WHERE oid IN (SELECT id FROM part) AND relkind NOT IN ('r', 'p', 'm'))
        THEN 'is no table, or has a part that is none'
    WHEN EXISTS (SELECT FROM owner WHERE id NOT IN (SELECT id FROM trusted))
        THEN 'is, or has a part or schema, of the role '
            || (SELECT min(id::regrole::text) FROM owner WHERE id NOT IN (SELECT id FROM trusted))
    WHEN row_security_active(%(table)s) THEN 'has row security for this role'
    WHEN EXISTS (SELECT FROM pg_depend JOIN object ON classid = kind AND objid = id
                 WHERE refclassid <> ALL (%(plain)s::regclass[]))
        THEN 'has an index, statistics, parts, a constraint, default or column by a function or type of others'
    WHEN %(own)s AND (
        (SELECT relhasrules FROM pg_class WHERE oid = %(table)s)
        OR EXISTS (SELECT FROM pg_inherits WHERE %(table)s IN (inhrelid, inhparent))
        OR EXISTS (SELECT FROM pg_trigger WHERE tgrelid = %(table)s AND NOT tgisinternal
                   AND (tgname <> ALL (%(triggers)s) OR tgtype & 5 <> 0))
    ) THEN 'has a rule, a part or a trigger of others'
END
"""
)
_COLUMNS = """
SELECT attname, format_type(atttypid, atttypmod),
    typnamespace = 'pg_catalog'::regnamespace AND typname = ANY (%(types)s) AND attgenerated IN ('', 's')
    AND (attcollation = 0 OR collnamespace = 'pg_catalog'::regnamespace AND collisdeterministic)
FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid
LEFT JOIN pg_collation ON pg_collation.oid = attcollation
WHERE attrelid = %(table)s AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
_PLACES = (
    _TRUSTED
    + """
SELECT nspname, array_agg(pg_class.oid::bigint), bool_and(relowner IN (SELECT id FROM trusted))
FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE relname = ANY (%(names)s) AND nspname = coalesce(%(schema)s, nspname)
AND nspname !~ '^pg_' AND nspname <> 'information_schema'
GROUP BY nspname HAVING count(*) = cardinality(%(names)s) ORDER BY nspname
"""
)


def connect(url: str) -> psycopg.Connection[Any]:
    """Connect to a database in UTF-8, with the pinned settings in force before the first statement.

    Raises:
        DataUnavailable: The server, or a pooler in front of it, does not keep the settings, or the database has
            another encoding, in which a row may hold bytes that raise, or that have another length.
    """
    options = " ".join(f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in PINNED.items())
    connection: psycopg.Connection[Any] = driver().connect(url, autocommit=True, options=options)
    for name, value in (PINNED | {"server_encoding": "UTF8"}).items():  # SHOW looks up no function
        (found,) = connection.execute(f"SHOW {name}".encode()).fetchone() or ("",)
        if found.replace(" ", "") != value.replace(" ", ""):
            connection.close()
            remedy = "connect to the server itself, or have the pooler pass the options of a connection on"
            if name == "server_encoding":
                remedy = "move the tables into a database that was made with ENCODING 'UTF8'"
            raise DataUnavailable(
                f"expected a connection to PostgreSQL with {name}={value}, got {found!r}; {remedy}"
            )
    # Where the server has it: views and foreign tables that are put in the place of a table are refused.
    connection.execute(
        "SELECT set_config(name, 'view, foreign-table', false) FROM pg_settings "
        "WHERE name = 'restrict_nonsystem_relation_kind'"
    )
    return connection


def answers(connection: psycopg.Connection[Any]) -> bool:
    """Return whether the server still answers on a connection."""
    try:
        connection.execute("SELECT")
    except driver().OperationalError:
        return False
    return True


def hindrance(connection: psycopg.Connection[Any], error: Exception) -> str | None:
    """Return the start of a sentence if a lock or a lost connection stopped a statement, and not its words."""
    if isinstance(error, driver().errors.LockNotAvailable):
        return f"another connection locked the table for longer than lock_timeout={PINNED['lock_timeout']}"
    return "the connection to the PostgreSQL server was lost" if connection.closed else None


def driver() -> ModuleType:
    try:
        import psycopg
    except ImportError as error:
        raise MissingExtra(package="psycopg", extra="postgres") from error
    return psycopg


def without_parameters(url: str, *names: str) -> tuple[str, dict[str, str]]:
    """Return the address without parameters of our own, and their values."""
    parts = urlsplit(url)
    query = parse_qsl(parts.query, keep_blank_values=True)
    rest = urlencode([(key, value) for key, value in query if key not in names])
    return urlunsplit(parts._replace(query=rest)), {key: value for key, value in query if key in names}


def found_in(
    connection: psycopg.Connection[Any],
    names: Sequence[str],
    schema: str | None,
    remedy: str,
    *,
    owner: str | None = None,
) -> tuple[str, list[int]] | None:
    """Return the one schema that holds relations of all these names, and their ids; None if there is none.

    Relations of other roles count only where there are none of trusted ones.

    Args:
        connection: A connection of `connect`.
        names: The names of relations.
        schema: The schema to look in; all of them if None.
        remedy: Words for how to choose one of several schemas.
        owner: A further role that is trusted.

    Raises:
        InvalidInput: Several schemas hold them.
    """
    values = {"names": list(names), "schema": schema, "owner": owner}
    every = connection.execute(_PLACES, values).fetchall()
    found = [row for row in every if row[2]] or every
    if len(found) > 1:
        schemas = ", ".join(repr(place) for place, *_ in found)
        raise InvalidInput(f"expected one schema with {names[0]}, got {schemas}; {remedy}")
    return (found[0][0], list(found[0][1])) if found else None


def check_own(connection: psycopg.Connection[Any], table: int, name: str, triggers: Sequence[str] = ()) -> None:
    """Refuse a table of ours to which other roles have attached code, or which is not in trusted hands.

    Trusted are the connection's own role and those of which an administrator made it a member, the owner of the
    database, and superusers.

    Raises:
        InvalidInput: The table is not as Sfumato made it.
    """
    values = {"table": table, "owner": None, "own": True, "plain": list(_PLAIN), "triggers": list(triggers)}
    (fault,) = connection.execute(_FAULT, values).fetchone() or (None,)
    if fault is not None:
        raise InvalidInput(
            f"expected the table {name} as Sfumato made it, but it {fault}; have its owner, or an "
            "administrator of the database, mend it, or add schema=NAME to the address for a schema of your own"
        )


def readable_columns(
    connection: psycopg.Connection[Any], name: str, owner: str | None = None
) -> tuple[str, str, dict[str, str | None]]:
    """Return a table's schema and name, and the type of each column; None for one that cannot be read safely.

    Args:
        connection: A connection of `connect`.
        name: The table's name, with its schema or without.
        owner: A role that the policy trusts with the table, besides those of `check_own`.

    Raises:
        InvalidInput: There is no such table, or none whose rows are read without running code of others.
    """
    schema, _, table = name.rpartition(".")
    remedy = "write table.name with its schema in the policy"
    found = found_in(connection, [table], schema or None, remedy, owner=owner)
    if found is None:
        raise InvalidInput(f"expected a table {name} in the database, got none; {remedy}")
    schema, (number,) = found
    values = {"table": number, "owner": owner, "own": False, "plain": [*_PLAIN, "pg_type"], "triggers": []}
    (fault,) = connection.execute(_FAULT, values).fetchone() or (None,)
    if fault is not None:
        raise InvalidInput(
            f"expected {name} to be a table whose rows are read without functions of others, but it {fault}; "
            "write its rows into a table or a materialized view of your own, or name an owner that you trust "
            "as table.owner in the policy"
        )
    rows = connection.execute(_COLUMNS, {"table": number, "types": list(_BUILT_IN)}).fetchall()
    return schema, table, {column: kind if safe else None for column, kind, safe in rows}
