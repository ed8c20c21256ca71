"""An aggregate: its reading, its measure, its estimate and its expected error.

To add one, write its class in a file beside this one and name it in `aggregates/__init__.py`;
the conformance tests find it there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from sqlglot import exp
from sqlglot.expressions import Expr

from sfumato.policy import Policy
from sfumato.query.expressions.base import Expression
from sfumato.query.expressions.conditions import Choice, Nothing
from sfumato.query.expressions.numbers import number
from sfumato.query.intervals import Noise, reach, whole_reach
from sfumato.query.measures import Measure
from sfumato.query.names import Names
from sfumato.query.plan import Aggregate
from sfumato.query.reading import QueryRefused, constant, parts, shown
from sfumato.query.release import Noisy, NoisyEstimate


@dataclass(frozen=True)
class Error:
    """Half the width of a 95% interval; `sized` if it is that of a group of so many rows.

    `covers_all` is half the width of an interval that holds every value that such a group can have by the
    policy. `of_a_row` is the most that one row adds to a total; 0 for other aggregates.
    """

    half_width: float
    covers_all: float
    sized: bool = False
    in_units_of: str = "value"
    of_a_row: float = 0.0


class Function(ABC):
    """One aggregate function, or a family that is measured alike."""

    names: ClassVar[tuple[str, ...]]
    """Its names in `Aggregate.function`; an example of each is in `examples`."""
    nodes: ClassVar[Mapping[type[Expr], str]]
    """Which nodes of the parser it answers, and under which of its names."""
    examples: ClassVar[tuple[str, ...]]
    """SQL of columns x, y (numbers), b (boolean) and person, for the conformance tests."""

    @abstractmethod
    def parse(self, node: Expr, names: Names, only: Expression | None) -> Aggregate:
        """The aggregate that a node asks for, of the rows where a condition holds."""

    @abstractmethod
    def measure(self, aggregate: Aggregate, policy: Policy) -> Measure:
        """The measure if nothing else is asked."""

    @abstractmethod
    def answers(self, aggregate: Aggregate, measure: Measure) -> bool:
        """Whether a measure, which may have absorbed that one, gives the answer."""

    @abstractmethod
    def estimate(self, aggregate: Aggregate, source: Noisy) -> NoisyEstimate:
        """The values and their intervals, from the noisy numbers."""

    @abstractmethod
    def expected(self, aggregate: Aggregate, measure: Measure, noise: Noise, rows: float) -> Error:
        """How wrong it will be, before anything is measured."""


def number_of(node: Expr, names: Names, only: Expression | None) -> Any:
    """The number that a node aggregates: its first argument, and nothing beside it."""
    (of,) = parts(node, "this")
    if isinstance(of, exp.Distinct):
        raise QueryRefused(
            f"{shown(node)} is not answered: which values occur is private", nearest=names.example_count()
        )
    return restricted(number(of, names), only)


def restricted(value: Expression, only: Expression | None) -> Expression:
    """NULL, which no aggregate counts, where the condition does not hold."""
    return value if only is None else Choice(((only, value),), Nothing())


def level_of(node: Expr | None) -> float:
    found = None if node is None else constant(node)
    if found is None:
        raise QueryRefused("a quantile's level is a number between 0 and 1")
    return found


def linear(source: Noisy, weights: Sequence[float]) -> NoisyEstimate:
    """Σ wᵢ eᵢ: its noise is the same in every group."""
    values = source.parts @ np.asarray(weights, dtype=float)
    width = reach([list(weights)], source.noise)[0]
    return NoisyEstimate(values, values - width, values + width)


def whole_number(source: Noisy) -> NoisyEstimate:
    values = source.parts[:, 0]
    width = whole_reach(source.noise)
    return NoisyEstimate(values, (values - width).astype(float), (values + width).astype(float))
