"""What the names in a query mean under a policy."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp
from sqlglot.expressions import Expr

from sfumato.query.expressions import ColumnValue
from sfumato.query.plan import GroupKey
from sfumato.query.policy import Column, Policy
from sfumato.query.refusal import QueryRefused

_MOST_BINS = 10_000


@dataclass(frozen=True, kw_only=True)
class Names:
    """The policy, and what the query calls its table."""

    policy: Policy
    table: str

    def column(self, node: Expr) -> Column:
        """The declared column that a node names."""
        if not isinstance(node, exp.Column) or isinstance(node.this, exp.Star):
            raise QueryRefused(
                f"expected a column, got {node.sql(dialect='duckdb')}", nearest=self.example_count()
            )
        qualifiers = {node.table.lower(), self.table.lower()} - {""}
        if node.args.get("db") or len(qualifiers) > 1:
            raise QueryRefused(f"{node.sql(dialect='duckdb')} is not in the table {self.policy.table}")
        if self.is_unit(node):
            raise QueryRefused(
                f"column {node.name} says who a row belongs to; it can only be counted",
                nearest=f"SELECT COUNT(DISTINCT {node.name}) FROM {self.policy.table}",
            )
        column = self.policy.column(node.name)
        if column is None:
            raise QueryRefused(
                f"there is no column {node.name} in the policy, which has {', '.join(self.policy.columns)}",
                nearest=self.example_count(),
            )
        return column

    def is_unit(self, node: Expr) -> bool:
        unit = self.policy.unit.column
        return unit is not None and isinstance(node, exp.Column) and node.name.lower() == unit.lower()

    def countable(self, node: Expr) -> ColumnValue:
        """COUNT(x) counts where x is not NULL, whatever x's type."""
        return ColumnValue(self.column(node).name)

    def key(self, node: Expr, *, grouped: bool = True) -> GroupKey:
        """A column to group by; numbers with bounds but no categories go into bins instead."""
        column = self.column(node)
        if grouped and column.type == "real":
            raise QueryRefused(
                f"column {column.name} is real, and nearly every value is one person's",
                nearest=f"SELECT BIN({column.name}, 10), COUNT(*) FROM {self.policy.table} "
                f"GROUP BY BIN({column.name}, 10)",
            )
        return GroupKey(column.name)

    def binned(self, node: Expr, bins: Expr) -> GroupKey:
        column = self.column(node)
        if not column.numeric or column.bounds is None:
            raise QueryRefused(
                f"column {column.name} has no public bounds to divide into bins; "
                f"the holder can add lower and upper to columns.{column.name}",
                nearest=self.example_count(),
            )
        count = int(bins.name) if isinstance(bins, exp.Literal) and bins.name.isdigit() else 0
        if not 1 <= count <= _MOST_BINS:
            raise QueryRefused(f"the number of bins is a whole number from 1 to {_MOST_BINS}")
        return GroupKey(column.name, count)

    def example_count(self) -> str:
        return f"SELECT COUNT(*) FROM {self.policy.table}"

    def example_group_by(self) -> str:
        for column in self.policy.columns.values():
            if column.categories is not None:
                return f"SELECT {column.name}, COUNT(*) FROM {self.policy.table} GROUP BY {column.name}"
        return self.example_count()

    def example_for(self, name: str) -> str:
        """The nearest answerable query about one column."""
        column = self.policy.columns[name]
        if column.bounds is not None:
            return f"SELECT AVG({name}) FROM {self.policy.table}"
        if column.type != "real" and (column.categories is not None or self.policy.budget.delta > 0):
            return f"SELECT {name}, COUNT(*) FROM {self.policy.table} GROUP BY {name}"
        return f"SELECT COUNT({name}) FROM {self.policy.table}"
