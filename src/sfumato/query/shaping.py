"""Noisy numbers → the columns, rows and intervals of an answer. All of it is post-processing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sfumato.policy import Key, Policy
from sfumato.query import postprocessing, quantiles
from sfumato.query.aggregates import estimate
from sfumato.query.keys import label
from sfumato.query.measures import Integers
from sfumato.query.plan import Aggregate, Query
from sfumato.query.release import Noisy, NoisyEstimate
from sfumato.randomness import public_generator

Cell = str | int | float | bool | None
Interval = tuple[float, float] | None
Groups = list[tuple[Key, ...]]


@dataclass(frozen=True)
class Shape:
    """What an answer shows: names, and a row of values and one of intervals for each group."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    intervals: tuple[tuple[Interval, ...], ...]


def shaped(plan: Query, policy: Policy, groups: Groups, noisy: Sequence[Noisy]) -> Shape:
    """The answer as the query wants to see it."""
    estimates = [estimate(aggregate, noisy) for aggregate in plan.aggregates]
    if plan.post is not None:
        return _processed(plan, policy, groups, noisy, estimates)
    shown = [_row(plan, policy, group, place, estimates) for place, group in enumerate(groups)]
    order = _ordered(plan, [row for row, _ in shown])
    return Shape(
        columns=tuple(output.name for output in plan.outputs),
        rows=tuple(shown[place][0] for place in order),
        intervals=tuple(shown[place][1] for place in order),
    )


def _row(
    plan: Query, policy: Policy, group: tuple[Key, ...], place: int, estimates: list[NoisyEstimate]
) -> tuple[tuple[Cell, ...], tuple[Interval, ...]]:
    row: list[Cell] = []
    intervals: list[Interval] = []
    waiting = iter(estimates)
    for output in plan.outputs:
        if isinstance(output.value, Aggregate):
            value, interval = _estimated(next(waiting), place)
            row.append(value)
            intervals.append(interval)
        else:
            row.append(label(plan.keys[output.value], group[output.value], policy))
            intervals.append(None)
    return tuple(row), tuple(intervals)


def _estimated(found: NoisyEstimate, place: int) -> tuple[Cell, Interval]:
    return found.values[place].item(), (float(found.low[place]), float(found.high[place]))


def _ordered(plan: Query, rows: Sequence[tuple[Any, ...]]) -> list[int]:
    order = list(range(len(rows)))
    for column, descending in reversed(plan.order):
        order.sort(key=lambda i: rows[i][column], reverse=descending)
    return order[: plan.limit]


def _processed(
    plan: Query, policy: Policy, groups: Groups, noisy: Sequence[Noisy], estimates: list[NoisyEstimate]
) -> Shape:
    post = plan.post
    assert post is not None
    keys = [[label(key, group[i], policy) for group in groups] for i, key in enumerate(plan.keys)]
    found = postprocessing.process(post, keys, _with_draws(plan, noisy, estimates, len(groups)))
    columns = [_column(post.origin(place), found, place, estimates) for place in range(len(post.outputs))]
    return Shape(
        columns=post.names,
        rows=tuple(tuple(column[i][0] for column in columns) for i in range(len(found.groups))),
        intervals=tuple(tuple(column[i][1] for column in columns) for i in range(len(found.groups))),
    )


def _column(
    origin: str | None, found: postprocessing.Processed, place: int, estimates: list[NoisyEstimate]
) -> list[tuple[Cell, Interval]]:
    """An aggregate that is shown as it is has its own interval; a key has none."""
    if origin is not None and origin[0] == "a":
        return [_estimated(estimates[int(origin[1:])], group) for group in found.groups]
    column = found.columns[place]
    if origin is not None:
        return [(value, None) for value in column.values]
    return list(zip(column.values, column.intervals, strict=True))


def _with_draws(
    plan: Query, noisy: Sequence[Noisy], estimates: list[NoisyEstimate], groups: int
) -> list[np.ndarray[Any, Any]]:
    """Each aggregate as (1 + draws, groups): the answer, and the answer with noise of its kind once more."""
    draws = postprocessing.draws_for(groups)
    chance = public_generator(0)  # this noise protects nobody
    again = [_renoised(item, draws, chance) for item in noisy]
    simulated = [estimate(aggregate, again).values for aggregate in plan.aggregates]
    return [
        np.concatenate([np.asarray(item.values, dtype=float)[None, :], values.reshape(draws, groups)])
        for item, values in zip(estimates, simulated, strict=True)
    ]


def _renoised(item: Noisy, draws: int, chance: np.random.Generator) -> Noisy:
    def add(values: Integers) -> Integers:
        tiled = np.tile(values, (draws, 1))
        return tiled + np.rint(item.noise.imitated(chance, tiled.shape)).astype(np.int64)

    if item.tree is None:
        return replace(item, parts=add(item.parts))
    tree = quantiles.Tree(item.tree.cells, tuple(add(level) for level in item.tree.levels), item.tree.noise)
    return replace(item, tree=tree)
