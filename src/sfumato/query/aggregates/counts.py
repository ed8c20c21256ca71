"""COUNT(*), COUNT(x), COUNT_IF(condition), COUNT(DISTINCT person) and COUNT(DISTINCT x)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from sqlglot import exp
from sqlglot.expressions import Expr

from sfumato.policy import Policy
from sfumato.query.aggregates.base import Error, Function, linear, restricted, whole_number
from sfumato.query.expressions.base import Expression, condition, translated
from sfumato.query.expressions.conditions import Choice, Nothing
from sfumato.query.expressions.numbers import Number
from sfumato.query.intervals import Noise, reach, whole_reach
from sfumato.query.measures import DifferentValues, Measure, Moments, UnitCount, moments
from sfumato.query.names import Names
from sfumato.query.plan import Aggregate
from sfumato.query.reading import QueryRefused, constant, parts, shown
from sfumato.query.release import Noisy, NoisyEstimate


class Count(Function):
    names = ("count",)
    nodes: ClassVar[Mapping[type[Expr], str]] = {exp.Count: "count", exp.CountIf: "count"}
    examples = ("COUNT(*)", "COUNT(x)", "COUNT_IF(x > 3 AND b)", "COUNT(*) FILTER (WHERE b)")

    def parse(self, node: Expr, names: Names, only: Expression | None) -> Aggregate:
        if isinstance(node, exp.CountIf):
            counted = Choice(((condition(parts(node, "this")[0], names), Number(1.0)),), Nothing())
            return Aggregate("count", restricted(counted, only))
        (inside,) = parts(node, "this")
        if inside is None or isinstance(inside, exp.Star) or constant(inside) is not None:
            return Aggregate("count", None if only is None else restricted(Number(1.0), only))
        return Aggregate("count", restricted(translated(inside, names), only))

    def measure(self, aggregate: Aggregate, policy: Policy) -> Measure:
        return moments(aggregate.of, 0, policy)

    def answers(self, aggregate: Aggregate, measure: Measure) -> bool:
        if not isinstance(measure, Moments):
            return False
        return measure.of == aggregate.of or (aggregate.of is None and measure.missing)

    def estimate(self, aggregate: Aggregate, source: Noisy) -> NoisyEstimate:
        measure = source.measure
        assert isinstance(measure, Moments)
        if source.parts.shape[1] == 1:
            return whole_number(source)
        weights = np.full(source.parts.shape[1], 1 / measure.span)
        if measure.missing and aggregate.of is not None:
            weights[-1] = 0.0
        found = linear(source, weights.tolist())
        values = np.rint(found.values).astype(np.int64)
        width = _whole(float(reach([weights.tolist()], source.noise)[0]))
        return NoisyEstimate(values, *((values + end).astype(np.float64) for end in (-width, width)))

    def expected(self, aggregate: Aggregate, measure: Measure, noise: Noise, rows: float) -> Error:
        assert isinstance(measure, Moments)
        numbers = measure.degree + 1 + (measure.missing and aggregate.of is None)
        if numbers == 1:
            return Error(whole_reach(noise), rows, of_a_row=1.0)
        width = float(reach([[1.0] * numbers], noise)[0]) / measure.span
        return Error(_whole(width), rows, of_a_row=1.0)


def _whole(width: float) -> float:
    """How far a rounded estimate of a whole number lies from it, if before rounding it was within `width`."""
    return float(max(0, math.ceil(width - 0.5)))


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
