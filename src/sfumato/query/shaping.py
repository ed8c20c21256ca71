"""Exact sums as arrays with a place for each group, and noisy numbers as the rows of an answer."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sfumato.policy import Key, Policy
from sfumato.query import postprocessing
from sfumato.query.aggregates import estimate
from sfumato.query.keys import key_type, label
from sfumato.query.measures import CELL, ROWS, Counted, Integers
from sfumato.query.plan import Aggregate, Query
from sfumato.query.release import Noisy, NoisyEstimate, Tree
from sfumato.randomness import public_generator

Cell = str | int | float | bool | None
Interval = tuple[float, float] | None
Groups = list[tuple[Key, ...]]


@dataclass(frozen=True)
class Shape:
    """The table of an answer: names, and a row of values and one of intervals for each group."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    intervals: tuple[tuple[Interval, ...], ...]


def shaped(plan: Query, policy: Policy, groups: Groups, parts: Iterable[Sequence[Noisy]]) -> Shape:
    """The answer as the query wants to see it, from the noisy numbers of so many groups at a time."""
    found, drawn = [], []
    for noisy in parts:
        found.append([estimate(aggregate, noisy) for aggregate in plan.aggregates])
        if plan.post is not None:
            drawn.append(_with_draws(plan, noisy, found[-1], len(groups)))
    estimates = [_joined(each) for each in zip(*found, strict=True)]
    if plan.post is not None:
        return _processed(
            plan, policy, groups, [np.hstack(each) for each in zip(*drawn, strict=True)], estimates
        )
    labels = _labels(plan, policy, groups)
    shown = [_row(plan, labels, group, place, estimates) for place, group in enumerate(groups)]
    order = _ordered(plan, [row for row, _ in shown])
    return Shape(
        columns=tuple(output.name for output in plan.outputs),
        rows=tuple(shown[place][0] for place in order),
        intervals=tuple(shown[place][1] for place in order),
    )


def _joined(parts: Sequence[NoisyEstimate]) -> NoisyEstimate:
    each = ((one.values, one.low, one.high) for one in parts)
    return NoisyEstimate(*(np.concatenate(some) for some in zip(*each, strict=True)))


def _labels(plan: Query, policy: Policy, groups: Groups) -> list[dict[Key, Key]]:
    """How each value of each key is shown."""
    return [
        {value: label(key, value, policy) for value in {group[place] for group in groups}}
        for place, key in enumerate(plan.keys)
    ]


def _row(
    plan: Query,
    labels: list[dict[Key, Key]],
    group: tuple[Key, ...],
    place: int,
    estimates: list[NoisyEstimate],
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
            row.append(labels[output.value][group[output.value]])
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
    plan: Query,
    policy: Policy,
    groups: Groups,
    drawn: list[np.ndarray[Any, Any]],
    estimates: list[NoisyEstimate],
) -> Shape:
    post = plan.post
    assert post is not None
    keys = [[labels[group[i]] for group in groups] for i, labels in enumerate(_labels(plan, policy, groups))]
    found = postprocessing.process(post, keys, drawn, [key_type(key, policy) for key in plan.keys])
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
    draws = postprocessing.draws_for(groups, sum(item.measure.numbers for item in noisy))
    chance = public_generator(0)  # this noise protects no one
    found = [np.empty((1 + draws, len(item.values))) for item in estimates]
    for draw in range(1 + draws):
        again = [_renoised(item, chance) for item in noisy] if draw else []
        for place, aggregate in enumerate(plan.aggregates):
            found[place][draw] = (estimate(aggregate, again) if draw else estimates[place]).values
    return found


def _renoised(item: Noisy, chance: np.random.Generator) -> Noisy:
    def add(values: Integers) -> Integers:
        return values + np.rint(item.noise.imitated(chance, values.shape)).astype(np.int64)

    if item.tree is None:
        return replace(item, parts=add(item.parts))
    tree = Tree(item.tree.cells, tuple(add(level) for level in item.tree.levels), item.tree.noise)
    return replace(item, tree=tree)


@dataclass(frozen=True)
class Exact:
    """An engine's rows before noise: sums for each group, and counts for each group and cell of each tree.

    `groups` are those that a selection has chosen already; the rows are of these alone.
    """

    sums: list[dict[str, Any]]
    cells: list[tuple[Counted, list[dict[str, Any]]]]
    groups: Groups | None = None


def public_groups(keys: Sequence[Sequence[Key]]) -> Groups:
    return list(itertools.product(*keys))


def by_group(found: Sequence[Mapping[str, Any]], groups: Groups, names: list[str]) -> dict[str, Integers]:
    """The engine's rows as one array for each sum; groups that do not occur have zeros."""
    places = {group: position for position, group in enumerate(groups)}
    columns = [name for name in (found[0] if found else {}) if name not in names]
    exact: dict[str, Integers] = {name: np.zeros(len(groups), dtype=np.int64) for name in columns}
    for row in found:
        place = places.get(tuple(row[name] for name in names))
        if place is not None:
            for name in columns:
                exact[name][place] += int(row[name])
    return exact if found else _Zeros(len(groups))


def in_parts(exact: Exact, groups: Groups, names: list[str], size: int) -> Iterator[tuple[Groups, Exact]]:
    """So many groups at a time, each with the rows that an engine found of them."""
    if len(groups) <= size:
        yield groups, exact
        return
    places = {group: position // size for position, group in enumerate(groups)}

    def apart(rows: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
        found: list[list[dict[str, Any]]] = [[] for _ in range(-(-len(groups) // size))]
        for row in rows:
            place = places.get(tuple(row[name] for name in names))
            if place is not None:
                found[place].append(row)
        return found

    sums, cells = apart(exact.sums), [(tree, apart(rows)) for tree, rows in exact.cells]
    for place, found in enumerate(sums):
        yield (
            groups[place * size : (place + 1) * size],
            Exact(found, [(tree, rows[place]) for tree, rows in cells]),
        )


class _Zeros(dict[str, Integers]):
    """Sums over no rows at all, under every name."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self._groups = groups

    def __missing__(self, name: str) -> Integers:
        return np.zeros(self._groups, dtype=np.int64)


def cells_by_group(
    found: Sequence[Mapping[str, Any]], groups: Groups, names: list[str], cells: int
) -> Integers:
    places = {group: position for position, group in enumerate(groups)}
    counts = np.zeros((len(groups), cells), dtype=np.int64)
    for row in found:
        place = places.get(tuple(row[name] for name in names))
        if place is not None:
            counts[place, int(row[CELL])] = int(row[ROWS])
    return counts
