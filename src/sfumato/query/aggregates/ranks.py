"""MEDIAN, QUANTILE, PERCENTILE_CONT … WITHIN GROUP."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from sqlglot import exp
from sqlglot.expressions import Expr

from sfumato.policy import Policy
from sfumato.query.aggregates.base import Error, Function, level_of, restricted
from sfumato.query.expressions.base import Expression
from sfumato.query.expressions.numbers import number
from sfumato.query.intervals import Noise
from sfumato.query.measures import Cells, Measure, cells
from sfumato.query.names import Names
from sfumato.query.plan import Aggregate
from sfumato.query.reading import QueryRefused, parts, shown
from sfumato.query.release import Noisy, NoisyEstimate, quantile, spread_of


class Quantile(Function):
    names = ("quantile",)
    nodes: ClassVar[Mapping[type[Expr], str]] = {
        exp.Median: "quantile",
        exp.Quantile: "quantile",
        exp.ApproxQuantile: "quantile",
        exp.PercentileCont: "quantile",
        exp.PercentileDisc: "quantile",
        exp.WithinGroup: "quantile",
    }
    examples = ("MEDIAN(x)", "QUANTILE(y, 0.9)", "PERCENTILE_CONT(0.25) WITHIN GROUP (ORDER BY x DESC)")

    def parse(self, node: Expr, names: Names, only: Expression | None) -> Aggregate:
        if isinstance(node, exp.WithinGroup):
            return _within_group(node, names, only)
        of, quantile, expression = parts(node, "this", "quantile", "expression")
        level = (
            0.5 if isinstance(node, exp.Median) else level_of(quantile if quantile is not None else expression)
        )
        if 1 < level < 100:
            raise in_percent(level, f"QUANTILE({of.sql(dialect='duckdb')}, {level / 100:g})", names)
        return Aggregate("quantile", restricted(number(of, names), only), level)

    def measure(self, aggregate: Aggregate, policy: Policy) -> Measure:
        assert aggregate.of is not None
        return cells(aggregate.of, policy)

    def answers(self, aggregate: Aggregate, measure: Measure) -> bool:
        return isinstance(measure, Cells) and measure.of == aggregate.of

    def estimate(self, aggregate: Aggregate, source: Noisy) -> NoisyEstimate:
        assert source.tree is not None
        return NoisyEstimate(*quantile(source.tree, aggregate.level))

    def expected(self, aggregate: Aggregate, measure: Measure, noise: Noise, rows: float) -> Error:
        """As a share of the ranks."""
        assert isinstance(measure, Cells)
        children, depth = measure.shape
        nodes = (children - 1) * depth
        level = aggregate.level
        variance = spread_of(noise.family) * nodes * ((1 - level) ** 2 + level**2) / 2
        error = 1.96 * noise.scale * math.sqrt(variance)
        return Error(min(100.0, 100 * error / rows), 50.0, sized=True, in_units_of="percentiles")


def in_percent(level: float, instead: str, names: Names) -> QueryRefused:
    """The refusal of a level such as 25, with its share as the remedy."""
    return QueryRefused(
        f"a quantile's level lies between 0 and 1, got {level:g}; for {level:g}% write {level / 100:g}",
        nearest=names.example_count().replace("COUNT(*)", instead, 1),
    )


def _within_group(node: exp.WithinGroup, names: Names, only: Expression | None) -> Aggregate:
    inside, order = parts(node, "this", "expression")
    items = parts(order, "expressions")[0]
    if not isinstance(inside, exp.PercentileCont | exp.PercentileDisc) or len(items) != 1:
        raise QueryRefused(f"{shown(node)} is not answered: WITHIN GROUP goes with PERCENTILE_CONT")
    level = level_of(parts(inside, "this")[0])
    of, descending = parts(items[0], "this", "desc")
    if 1 < level < 100:
        share = 1 - level / 100 if descending else level / 100
        raise in_percent(level, f"QUANTILE({of.sql(dialect='duckdb')}, {share:g})", names)
    return Aggregate("quantile", restricted(number(of, names), only), 1 - level if descending else level)
