"""The meaning of the names in a query under a policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.expressions import Expr

from sfumato.policy import Column, Policy
from sfumato.query.reading import QueryRefused, Tally, parts, shown

_RESERVED = {name.upper() for name in DuckDB.Generator.RESERVED_KEYWORDS} | {"VALUES", "SELECT"}


@dataclass(frozen=True)
class Tables:
    """The names of joined tables, in lower case: each one's columns and where they are in the policy.

    `units` names the person column of those tables where every row has it, and `absent` in those that
    were joined with LEFT JOIN. `merged` holds the names that USING makes one column.
    """

    columns: Mapping[str, Mapping[str, str]]
    units: Mapping[str, str] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)
    merged: Mapping[str, str] = field(default_factory=dict)

    def places(self, table: str, name: str) -> list[str]:
        """The columns that a name may mean; `table` is empty where the query names none."""
        if not table and name in self.merged:
            return [self.merged[name]]
        tables = [self.columns[table]] if table else list(self.columns.values())
        return [columns[name] for columns in tables if name in columns]

    def is_unit(self, table: str, name: str) -> bool:
        if table:
            return self.units.get(table) == name
        return name in self.units.values() and not self.places("", name)


@dataclass(frozen=True, kw_only=True)
class Names:
    """The policy of the rows, and the alias of their table; with `tables`, it is a join of these.

    `source` is the text after FROM, for suggestions.
    """

    policy: Policy
    table: str
    tables: Tables | None = None
    source: str = ""
    tally: Tally = field(default_factory=Tally, compare=False)

    def repeated(self, expression: Any, *, times: int = 1) -> None:
        """Count an expression that stands so many times more in the plan than in the text."""
        self.tally.add(expression, times)

    def column(self, node: Expr) -> Column:
        """The declared column that a node names."""
        table, name = self._name(node)
        if self.is_unit(node):
            raise QueryRefused(
                f"column {name} says who a row belongs to; it can only be counted",
                nearest=self._people(node.sql(dialect="duckdb")),
            )
        column = self.policy.column(name) if self.tables is None else self._joined_column(table, name)
        if column is None:
            self._refuse_absent(table, name)
            known = self.policy.columns if self.tables is not None else map(quoted, self.policy.columns)
            raise QueryRefused(
                f"there is no column {name} in the policy, which has {', '.join(known)}",
                nearest=self.example_count(),
            )
        return column

    def _refuse_absent(self, table: str, name: str) -> None:
        """Refuse the person of a table after LEFT JOIN: whether there is a row shows in its other columns."""
        if self.tables is None or self.tables.absent.get(table) != name.lower():
            return
        other = f"{quoted(table)}.{quoted(next(iter(self.tables.columns[table])))}"
        raise QueryRefused(
            f"column {name} of {table} says who a row belongs to, and is neither compared nor counted after "
            f"LEFT JOIN; that there is no row shows in a column that no row lacks: {other} IS NULL",
            nearest=f"{self.example_count()} WHERE {other} IS NULL",
        )

    def _joined_column(self, table: str, name: str) -> Column | None:
        assert self.tables is not None
        places = self.tables.places(table, name.lower())
        if len(places) > 1:
            raise QueryRefused(f"column {name} is in several tables; write {' or '.join(places)}")
        return self.policy.columns[places[0]] if places else None

    def _name(self, node: Expr) -> tuple[str, str]:
        """The table, in lower case or empty, and the column that a node names."""
        if type(node) is not exp.Column:
            raise QueryRefused(f"expected a column, got {shown(node)}", nearest=self.example_count())
        identifier, table = parts(node, "this", "table")
        if type(identifier) is not exp.Identifier:
            raise QueryRefused(f"expected a column, got {shown(node)}", nearest=self.example_count())
        called = "" if table is None else str(parts(table, "this")[0]).lower()
        known = [self.table.lower()] if self.tables is None else list(self.tables.columns)
        if called and called not in known:
            raise QueryRefused(f"{shown(node)} is not in the table {', '.join(known)}")
        return called, str(parts(identifier, "this")[0])

    def is_unit(self, node: Expr) -> bool:
        if type(node) is not exp.Column:
            return False
        table, name = self._name(node)
        if self.tables is not None:
            return self.tables.is_unit(table, name.lower())
        unit = self.policy.unit.column
        return unit is not None and name.lower() == unit.lower()

    def example_count(self) -> str:
        return f"SELECT COUNT(*) FROM {self._from()}"

    def _from(self) -> str:
        return self.source or quoted(self.policy.table)

    def written(self, name: str) -> str:
        """A column of the policy as a query names it."""
        if self.tables is None:
            return quoted(name)
        table, column = next(
            (table, column)
            for table, columns in self.tables.columns.items()
            for column, place in columns.items()
            if place == name
        )
        return f"{quoted(table)}.{quoted(column)}"

    def example_people(self) -> str:
        unit = self.policy.unit.column
        if unit is None:
            return self.example_count()
        return self._people(quoted(unit) if self.tables is None else f"{quoted(self.table)}.{quoted(unit)}")

    def _people(self, unit: str) -> str:
        return f"SELECT COUNT(DISTINCT {unit}) FROM {self._from()}"

    def example_group_by(self) -> str:
        for column in self.policy.columns.values():
            if column.categories is not None:
                return self._grouped(column.name)
        return self.example_count()

    def example_for(self, name: str) -> str:
        """The nearest answerable query about one column."""
        column = self.policy.columns[name]
        if column.bounds is not None:
            return f"SELECT AVG({self.written(name)}) FROM {self._from()}"
        if column.type != "real" and (column.categories is not None or self.policy.budget.delta > 0):
            return self._grouped(name)
        return f"SELECT COUNT({self.written(name)}) FROM {self._from()}"

    def example_for_node(self, node: Expr) -> str:
        return self.example_for(self.column(node).name) if type(node) is exp.Column else self.example_count()

    def example_instead(self, node: Expr) -> str:
        """In place of a function that is not known: groups of the one column that it reads."""
        columns = list(node.find_all(exp.Column))
        if len(columns) != 1:
            return self.example_count()
        column = self.column(columns[0])
        written = self.written(column.name)
        if column.type == "date":
            return self._grouped_by(f"DATE_TRUNC('month', {written})")
        return (
            self.example_for(column.name) if column.bounds is None else self._grouped_by(f"BIN({written}, 10)")
        )

    def _grouped(self, name: str) -> str:
        return self._grouped_by(self.written(name))

    def _grouped_by(self, written: str) -> str:
        return f"SELECT {written}, COUNT(*) FROM {self._from()} GROUP BY {written}"


def quoted(name: str) -> str:
    """A name as SQL takes it, in quotes where it needs them."""
    plain = name.isascii() and name.isidentifier() and name.upper() not in _RESERVED
    return name if plain else exp.to_identifier(name, quoted=True).sql(dialect="duckdb")
