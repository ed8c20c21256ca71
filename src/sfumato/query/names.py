"""What the names in a query mean under a policy."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.expressions import Expr

from sfumato.policy import Column, Policy
from sfumato.query.reading import parts, shown
from sfumato.query.refusal import QueryRefused

_RESERVED = {name.upper() for name in DuckDB.Generator.RESERVED_KEYWORDS} | {"VALUES", "SELECT"}


@dataclass(frozen=True, kw_only=True)
class Names:
    """The policy, and what the query calls its table."""

    policy: Policy
    table: str

    def column(self, node: Expr) -> Column:
        """The declared column that a node names."""
        name = self._name(node)
        if self.is_unit(node):
            raise QueryRefused(
                f"column {name} says who a row belongs to; it can only be counted",
                nearest=self._people(name),
            )
        column = self.policy.column(name)
        if column is None:
            raise QueryRefused(
                f"there is no column {name} in the policy, which has {', '.join(self.policy.columns)}",
                nearest=self.example_count(),
            )
        return column

    def _name(self, node: Expr) -> str:
        if type(node) is not exp.Column:
            raise QueryRefused(f"expected a column, got {shown(node)}", nearest=self.example_count())
        identifier, table = parts(node, "this", "table")
        if type(identifier) is not exp.Identifier:
            raise QueryRefused(f"expected a column, got {shown(node)}", nearest=self.example_count())
        if table is not None and str(parts(table, "this")[0]).lower() != self.table.lower():
            raise QueryRefused(f"{shown(node)} is not in the table {self.policy.table}")
        return str(parts(identifier, "this")[0])

    def is_unit(self, node: Expr) -> bool:
        unit = self.policy.unit.column
        return unit is not None and type(node) is exp.Column and self._name(node).lower() == unit.lower()

    def example_count(self) -> str:
        return f"SELECT COUNT(*) FROM {quoted(self.policy.table)}"

    def example_people(self) -> str:
        unit = self.policy.unit.column
        return self.example_count() if unit is None else self._people(unit)

    def _people(self, unit: str) -> str:
        return f"SELECT COUNT(DISTINCT {quoted(unit)}) FROM {quoted(self.policy.table)}"

    def example_group_by(self) -> str:
        for column in self.policy.columns.values():
            if column.categories is not None:
                return self._grouped(column.name)
        return self.example_count()

    def example_for(self, name: str) -> str:
        """The nearest answerable query about one column."""
        column = self.policy.columns[name]
        if column.bounds is not None:
            return f"SELECT AVG({quoted(name)}) FROM {quoted(self.policy.table)}"
        if column.type != "real" and (column.categories is not None or self.policy.budget.delta > 0):
            return self._grouped(name)
        return f"SELECT COUNT({quoted(name)}) FROM {quoted(self.policy.table)}"

    def example_for_node(self, node: Expr) -> str:
        if type(node) is exp.Column and self.policy.column(node.name) is not None:
            return self.example_for(self.column(node).name)
        return self.example_count()

    def _grouped(self, name: str) -> str:
        return f"SELECT {quoted(name)}, COUNT(*) FROM {quoted(self.policy.table)} GROUP BY {quoted(name)}"


def quoted(name: str) -> str:
    """A name as SQL takes it, in quotes where it needs them."""
    plain = name.isascii() and name.isidentifier() and name.upper() not in _RESERVED
    return name if plain else exp.to_identifier(name, quoted=True).sql(dialect="duckdb")
