"""Texts that the engine takes for one and readers for two: one row could rename, or wipe out, a group."""

from __future__ import annotations

from pathlib import Path

import duckdb
import ibis
import pytest

from sfumato.accounting import Budget
from sfumato.errors import InvalidInput
from sfumato.policy import Column, Policy
from sfumato.query import Table
from sfumato.query.engines import open_engine


def policy(source: str, table: str = "people") -> Policy:
    return Policy(
        table=table,
        source=source,
        columns={"ward": Column(name="ward", type="text", categories=("heart", "lung"))},
        budget=Budget(epsilon=3.0),
    )


@pytest.mark.keeps_out(
    "Texts that the engine takes for one and readers for two, so that one row renames or wipes out a group"
)
@pytest.mark.parametrize("collation", ["NOCASE", "NOACCENT.NOCASE"])
def test_a_collated_column_of_a_duckdb_file_is_compared_as_it_is_written(
    tmp_path: Path, collation: str
) -> None:
    with duckdb.connect(str(tmp_path / "people.duckdb")) as connection:
        connection.execute(f"CREATE TABLE people (ward VARCHAR COLLATE {collation}, collateral INT)")
        connection.execute("INSERT INTO people VALUES ('heart', 1), ('Heart', 2), ('lung', 3)")
    found = Table(policy(str(tmp_path / "people.duckdb")), None).exact_sums(
        "SELECT COUNT(*) FROM people WHERE ward = 'heart'", salt="s"
    )
    assert [row["rows"] for row in found.sums] == [1]


@pytest.mark.keeps_out(
    "Texts that the engine takes for one and readers for two, so that one row renames or wipes out a group"
)
def test_a_collation_of_postgresql_for_which_spellings_are_equal_is_refused(postgres_url: str) -> None:
    server = ibis.connect(postgres_url)
    for line in (
        "DROP TABLE IF EXISTS spelled; DROP TABLE IF EXISTS written",
        "CREATE COLLATION IF NOT EXISTS any_case (provider = icu, locale = 'und-u-ks-level2', "
        "deterministic = false)",
        "CREATE TABLE spelled (ward text COLLATE any_case)",
        "CREATE TABLE written (ward text)",
    ):
        server.raw_sql(line).close()
    with pytest.raises(InvalidInput, match="collation"):
        open_engine(policy(postgres_url, "spelled"))
    assert open_engine(policy(postgres_url, "written")).name == "postgres"
