"""A query's exact numbers apart from their noise: for sums over several holders, who add the noise themselves.

The same code as for one holder walks over the measures (`release.add_noise`). The stand-in for the noise
keeps the exact numbers on the way out, and puts the opened sums in their place on the way back.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sfumato.errors import InvalidInput
from sfumato.query.aggregates import measures_for
from sfumato.query.measures import Counted, DifferentValues, Integers
from sfumato.query.noise import Floats, WholeGaussian
from sfumato.query.plan import Query, public_keys, scope
from sfumato.query.pricing import Compiled, Price
from sfumato.query.reading import QueryRefused
from sfumato.query.release import Noisy
from sfumato.query.shaping import Exact, Groups, Shape, shaped
from sfumato.query.table import Table
from sfumato.randomness import Sampler


@dataclass(frozen=True)
class Numbers:
    """One array of whole numbers that is released as a whole.

    Attributes:
        shape: Its shape.
        sensitivity: By how much one unit moves it, in L2 norm.
        noise_multiplier: The noise that the query's ε gives it, over that sensitivity; only the proportion to
            the other arrays of the query counts.
    """

    shape: tuple[int, ...]
    sensitivity: float
    noise_multiplier: float


Take = Callable[[WholeGaussian, Integers], Integers]


@dataclass(frozen=True, kw_only=True)
class _Through(WholeGaussian):
    """Stand in for a noise: numbers are handed to `take`, and its answer goes on in their place."""

    take: Take

    def release(self, values: Integers, sampler: Sampler) -> Integers:
        return self.take(self, values)


@dataclass(frozen=True)
class Apart:
    """A query at one holder, whose numbers are summed with those of others before they are seen.

    *Guarantees*: `exact` gives numbers of which one unit moves each array by its declared sensitivity at most,
    as the query's own contribution bounds do; they are private. Shapes, sensitivities and groups come from the
    query and the policy alone.

    Args:
        table: The holder's table.
        query: The result of `parse_query`.
        epsilon: The ε of the answer.
        split: How ε is shared among the aggregates.
    """

    table: Table
    query: Query
    epsilon: float
    split: Sequence[float] | None = None
    _cost: Price = field(init=False)

    def __post_init__(self) -> None:
        policy = scope(self.query, self.table.policy)
        nearest = f"SELECT COUNT(*) FROM {self.table.policy.table}"
        if public_keys(self.query, policy) is None:
            raise QueryRefused(
                "the values of a GROUP BY column are not declared, and several holders cannot find out "
                "together which of them occur; every holder can declare the same categories",
                nearest=nearest,
            )
        if any(isinstance(measure, DifferentValues) for measure in measures_for(self.query, policy)):
            raise QueryRefused(
                "different values cannot be counted over several holders: the same one may be with two of them",
                nearest=nearest,
            )
        if not self.table.policy.budget.delta > 0:
            raise InvalidInput(
                "expected a delta > 0 in the policy's [budget], got 0; noise of several holders is Gaussian"
            )
        planned = self.table.plan(self.query, epsilon=self.epsilon, split=self.split, noise="gaussian")
        object.__setattr__(self, "_cost", planned.price)

    def numbers(self) -> list[Numbers]:
        """The arrays that are released, in order; no row is read."""
        found: list[Numbers] = []

        def seen(noise: WholeGaussian, values: Integers) -> Integers:
            distance = noise.sensitivity * noise.moved**0.5
            found.append(Numbers(values.shape, distance, noise.scale / distance))
            return values

        self._walk(None, seen)
        return found

    def compiled(self) -> Compiled:
        """The query as the holder's engine takes it; no row is read."""
        return self.table._compiled(self.query, secrets.token_hex(16))

    def exact(self, compiled: Compiled) -> list[Integers]:
        """This holder's numbers: private."""
        found: list[Integers] = []

        def kept(noise: WholeGaussian, values: Integers) -> Integers:
            found.append(values)
            return values

        self._walk(self.table._fetched(compiled), kept)
        return found

    def shape(self, totals: Sequence[Floats], deviations: Sequence[float]) -> Shape:
        """The rows of the answer, from opened sums and the standard deviation of the noise in each of them."""
        waiting, widths = iter(totals), list(deviations)

        def opened(noise: WholeGaussian, values: Integers) -> Integers:
            return np.rint(next(waiting)).astype(np.int64).reshape(values.shape)

        groups, noisy = self._walk(None, opened)
        wide = []
        for one in noisy:
            noise = replace(_gaussian(one.noise), scale=widths[0])
            del widths[: one.measure.levels]  # all levels of a tree have the same
            tree = None if one.tree is None else replace(one.tree, noise=noise)
            wide.append(replace(one, noise=noise, tree=tree))
        return shaped(self.query, scope(self.query, self.table.policy), groups, [wide])

    def _walk(self, exact: Exact | None, take: Take) -> tuple[Groups, tuple[Noisy, ...]]:
        """The numbers as `take` makes them; of no rows where there are none."""
        noises = tuple(_Through(**vars(_gaussian(noise)), take=take) for noise in self._cost.noises)
        if exact is None:
            exact = Exact([], [(one, []) for one in self._cost.measures if isinstance(one, Counted)])
        cost = replace(self._cost, noises=noises)
        groups, (noisy,) = self.table._release(self.query, cost, exact, at_once=None)  # as one array each
        return groups, noisy


def _gaussian(noise: object) -> WholeGaussian:
    assert isinstance(noise, WholeGaussian)  # as it was asked for
    return noise
