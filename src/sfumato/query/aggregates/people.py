"""COUNT(DISTINCT person) and COUNT(DISTINCT x): how many people, how many different values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from sqlglot import exp
from sqlglot.expressions import Expr

from sfumato.policy import Policy
from sfumato.query.aggregates.base import Error, Function, restricted, whole_number
from sfumato.query.expressions.base import Expression, translated
from sfumato.query.intervals import Noise, whole_reach
from sfumato.query.measures import DifferentValues, Measure, UnitCount
from sfumato.query.names import Names
from sfumato.query.plan import Aggregate
from sfumato.query.reading import parts, shown
from sfumato.query.refusal import QueryRefused
from sfumato.query.release import Noisy, NoisyEstimate


class Different(Function):
    names = ("count_units", "count_distinct")
    nodes: ClassVar[Mapping[type[Expr], str]] = {
        exp.ApproxDistinct: "count_distinct"
    }  # and COUNT with DISTINCT in it
    examples = ("COUNT(DISTINCT person)", "COUNT(DISTINCT x)", "COUNT(DISTINCT x) FILTER (WHERE b)")

    def parse(self, node: Expr, names: Names, only: Expression | None) -> Aggregate:
        (inside,) = parts(node, "this")
        columns = parts(inside, "expressions")[0] if isinstance(inside, exp.Distinct) else [inside]
        if len(columns) != 1:
            raise QueryRefused(f"{shown(node)} is not answered: DISTINCT takes one expression")
        if not names.is_unit(columns[0]):
            return Aggregate("count_distinct", restricted(translated(columns[0], names), only))
        if only is not None:
            raise QueryRefused(
                "people are counted with WHERE in place of FILTER", nearest=names.example_people()
            )
        return Aggregate("count_units")

    def measure(self, aggregate: Aggregate, policy: Policy) -> Measure:
        if aggregate.function == "count_units":
            return UnitCount()
        assert aggregate.of is not None
        return DifferentValues(aggregate.of)

    def answers(self, aggregate: Aggregate, measure: Measure) -> bool:
        if aggregate.function == "count_units":
            return isinstance(measure, UnitCount)
        return isinstance(measure, DifferentValues) and measure.of == aggregate.of

    def estimate(self, aggregate: Aggregate, source: Noisy) -> NoisyEstimate:
        return whole_number(source)

    def expected(self, aggregate: Aggregate, measure: Measure, noise: Noise, rows: float) -> Error:
        return Error(whole_reach(noise), rows)
