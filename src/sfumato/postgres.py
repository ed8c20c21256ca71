"""Connections to PostgreSQL on which a name means PostgreSQL's own object, or ours by its schema.

Other roles of a database may create functions, operators and types beside ours. A connection searches for names
in `pg_catalog` alone, from its first statement on, so that none of theirs is called. `pg_temp` is named last,
as PostgreSQL would otherwise search it first. What is attached to a table itself (views, triggers, rules, row
security, expressions of indexes) runs whatever the path: tables are checked against a closed list.
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
}
"""Settings by which a statement is understood, whatever defaults a role or a database has for them."""

_BUILT_IN = (
    "bool", "int2", "int4", "int8", "float4", "float8", "numeric", "text", "varchar", "bpchar", "uuid", "date",
    "timestamp", "timestamptz",
)  # fmt: skip
# A table, its parts and its indexes may depend on these kinds of object, and on no function or operator.
_PLAIN = (
    "pg_class", "pg_namespace", "pg_type", "pg_constraint", "pg_opclass", "pg_collation", "pg_am", "pg_attrdef",
)  # fmt: skip
_PARTS = """
WITH RECURSIVE part AS (
    SELECT %(table)s::oid AS id UNION SELECT inhrelid FROM pg_inherits JOIN part ON inhparent = id
), object AS (
    SELECT 'pg_class'::regclass AS kind, id FROM part
    UNION ALL SELECT 'pg_class'::regclass, indexrelid FROM pg_index WHERE indrelid IN (SELECT id FROM part)
    UNION ALL SELECT 'pg_statistic_ext'::regclass, oid FROM pg_statistic_ext
        WHERE stxrelid IN (SELECT id FROM part)
)
"""
_READABLE = (
    _PARTS
    + """
SELECT CASE
    WHEN EXISTS (SELECT FROM pg_class WHERE oid IN (SELECT id FROM part) AND relkind NOT IN ('r', 'p', 'm'))
        THEN 'is no table, or has a part that is none'
    WHEN row_security_active(%(table)s) THEN 'has row security for this role'
    WHEN EXISTS (SELECT FROM pg_depend JOIN object ON classid = kind AND objid = id
                 WHERE refclassid <> ALL (%(plain)s::regclass[]))
        THEN 'has an index, statistics or parts by a function'
END
"""
)
_OWN = (
    _PARTS
    + """
SELECT CASE
    WHEN relkind <> 'r' OR EXISTS (SELECT FROM pg_inherits WHERE oid IN (inhrelid, inhparent))
        THEN 'is no plain table'
    WHEN NOT (pg_has_role(relowner, 'USAGE')
              OR relowner = (SELECT datdba FROM pg_database WHERE datname = current_database())
              OR (SELECT rolsuper FROM pg_roles WHERE pg_roles.oid = relowner))
        THEN 'belongs to the role ' || relowner::regrole
    WHEN relrowsecurity THEN 'has row security'
    WHEN relhasrules THEN 'has rules'
    WHEN EXISTS (SELECT FROM pg_trigger WHERE tgrelid = pg_class.oid AND NOT tgisinternal
                 AND (tgname <> ALL (%(triggers)s) OR tgtype & 5 <> 0))
        THEN 'has a trigger of others'
    WHEN EXISTS (SELECT FROM pg_constraint WHERE conrelid = pg_class.oid
                 AND contype NOT IN ('p', 'u', 'f', 'n'))
        THEN 'has constraints of others'
    WHEN EXISTS (SELECT FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid
                 WHERE attrelid = pg_class.oid AND attnum > 0 AND NOT attisdropped
                 AND (attgenerated <> '' OR typnamespace <> 'pg_catalog'::regnamespace OR typtype <> 'b'))
        THEN 'has a column of a type of others, or a generated one'
    WHEN EXISTS (SELECT FROM pg_depend JOIN (
                     SELECT * FROM object
                     UNION ALL SELECT 'pg_attrdef'::regclass, oid FROM pg_attrdef WHERE adrelid = %(table)s
                 ) AS every ON classid = kind AND objid = id WHERE refclassid <> ALL (%(plain)s::regclass[]))
        THEN 'has an index, statistics or a default by a function of others'
END FROM pg_class WHERE oid = %(table)s
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
_PLACES = """
SELECT nspname, array_agg(pg_class.oid::bigint)
FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE relname = ANY (%(names)s) AND nspname = coalesce(%(schema)s, nspname)
AND nspname !~ '^pg_' AND nspname <> 'information_schema'
GROUP BY nspname HAVING count(*) = cardinality(%(names)s) ORDER BY nspname
"""


def connect(url: str, **settings: str) -> psycopg.Connection[Any]:
    """Connect, with the pinned settings and further ones in force before the first statement.

    Raises:
        DataUnavailable: The server, or a pooler in front of it, does not keep the settings.
    """
    pinned = PINNED | settings
    options = " ".join(f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in pinned.items())
    connection: psycopg.Connection[Any] = driver().connect(url, autocommit=True, options=options)
    for name, value in PINNED.items():  # SHOW looks up no function
        (found,) = connection.execute(f"SHOW {name}".encode()).fetchone() or ("",)
        if found.replace(" ", "") != value:
            connection.close()
            raise DataUnavailable(
                f"expected a connection to PostgreSQL with {name}={value}, got {found!r}; connect to the "
                "server itself, or have the pooler pass the options of a connection on"
            )
    # Where the server has it: views and foreign tables that are put in the place of a table are refused.
    connection.execute(
        "SELECT set_config(name, 'view, foreign-table', false) FROM pg_settings "
        "WHERE name = 'restrict_nonsystem_relation_kind'"
    )
    return connection


def driver() -> ModuleType:
    try:
        import psycopg
    except ImportError as error:
        raise MissingExtra(package="psycopg", extra="postgres") from error
    return psycopg


def without_parameters(url: str, *names: str) -> tuple[str, dict[str, str]]:
    """The address without parameters of our own, and their values."""
    parts = urlsplit(url)
    query = parse_qsl(parts.query, keep_blank_values=True)
    rest = urlencode([(key, value) for key, value in query if key not in names])
    return urlunsplit(parts._replace(query=rest)), {key: value for key, value in query if key in names}


def found_in(
    connection: psycopg.Connection[Any], names: Sequence[str], schema: str | None, remedy: str
) -> tuple[str, list[int]] | None:
    """The one schema that holds relations of all these names, and their ids; None if there is none.

    Args:
        connection: A connection of `connect`.
        names: The names of relations.
        schema: The schema to look in; all of them if None.
        remedy: Words for how to choose one of several schemas.

    Raises:
        InvalidInput: Several schemas hold them.
    """
    found = connection.execute(_PLACES, {"names": list(names), "schema": schema}).fetchall()
    if len(found) > 1:
        schemas = ", ".join(repr(place) for place, _ in found)
        raise InvalidInput(f"expected one schema with {names[0]}, got {schemas}; {remedy}")
    return (found[0][0], list(found[0][1])) if found else None


def check_own(connection: psycopg.Connection[Any], table: int, name: str, triggers: Sequence[str] = ()) -> None:
    """Refuse a table of ours to which other roles have attached code, or which is not in trusted hands.

    Trusted are the connection's own role and those it belongs to, the owner of the database, and superusers.

    Raises:
        InvalidInput: The table is not as Sfumato made it.
    """
    values = {"table": table, "plain": list(_PLAIN), "triggers": list(triggers)}
    (fault,) = connection.execute(_OWN, values).fetchone() or ("is not there",)
    if fault is not None:
        raise InvalidInput(
            f"expected the table {name} as Sfumato made it, but it {fault}; have its owner, or an "
            "administrator of the database, mend it"
        )


def readable_columns(connection: psycopg.Connection[Any], name: str) -> tuple[str, str, dict[str, str | None]]:
    """A table's schema and name, and the type of each column; None for a column that cannot be read safely.

    Args:
        connection: A connection of `connect`.
        name: The table's name, with its schema or without.

    Raises:
        InvalidInput: There is no such table, or none whose rows are read without running code of others.
    """
    schema, _, table = name.rpartition(".")
    remedy = "write table.name with its schema in the policy"
    found = found_in(connection, [table], schema or None, remedy)
    if found is None:
        raise InvalidInput(f"expected a table {name} in the database, got none; {remedy}")
    schema, (number,) = found
    values = {"table": number, "plain": list(_PLAIN), "types": list(_BUILT_IN)}
    (fault,) = connection.execute(_READABLE, values).fetchone() or (None,)
    if fault is not None:
        raise InvalidInput(
            f"expected {name} to be a table whose rows are read without functions of others, but it {fault}; "
            "write its rows into a table, or make a materialized view of it"
        )
    rows = connection.execute(_COLUMNS, values).fetchall()
    return schema, table, {column: kind if safe else None for column, kind, safe in rows}
