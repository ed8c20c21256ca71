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
from sfumato.query.measures import CELL, ROWS, Counted, Integers
from sfumato.query.plan import AnyKey, Query, key_type, label
from sfumato.query.release import Noisy, NoisyEstimate
from sfumato.randomness import public_generator

Groups = list[tuple[Key, ...]]
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Exact:
    """An engine's rows before noise: sums for each group, and counts for each group and cell of each tree.

    `groups` are those that a selection has chosen already; the rows are of these alone.
    """

    sums: Rows
    cells: list[tuple[Counted, Rows]]
    groups: Groups | None = None


def public_groups(keys: Sequence[Sequence[Key]]) -> Groups:
    return list(itertools.product(*keys))


def _placed(found: Iterable[dict[str, Any]], groups: Groups, names: list[str]) -> Iterator[tuple[int, Any]]:
    """The engine's rows of the groups, each with the place of its group."""
    places = {group: position for position, group in enumerate(groups)}
    for row in found:
        place = places.get(tuple(row[name] for name in names))
        if place is not None:
            yield place, row


def by_group(found: Rows, groups: Groups, names: list[str]) -> Mapping[str, Integers]:
    """The engine's rows as one array for each sum; groups that do not occur have zeros."""
    if not found:
        return _Zeros(len(groups))
    columns = [name for name in found[0] if name not in names]
    exact: dict[str, Integers] = {name: np.zeros(len(groups), dtype=np.int64) for name in columns}
    for place, row in _placed(found, groups, names):
        for name in columns:
            exact[name][place] += int(row[name])
    return exact


class _Zeros(dict[str, Integers]):
    """Sums over no rows at all, under every name."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self._groups = groups

    def __missing__(self, name: str) -> Integers:
        return np.zeros(self._groups, dtype=np.int64)


def cells_by_group(found: Rows, groups: Groups, names: list[str], cells: int) -> Integers:
    """The counts of cells as an array: (groups, cells)."""
    counts = np.zeros((len(groups), cells), dtype=np.int64)
    for place, row in _placed(found, groups, names):
        counts[place, int(row[CELL])] = int(row[ROWS])
    return counts


def in_parts(exact: Exact, groups: Groups, names: list[str], size: int) -> Iterator[tuple[Groups, Exact]]:
    """So many groups at a time, each with the rows that an engine found of them."""
    if len(groups) <= size:
        yield groups, exact
        return

    def apart(rows: Rows) -> list[Rows]:
        found: list[Rows] = [[] for _ in range(-(-len(groups) // size))]
        for place, row in _placed(rows, groups, names):
            found[place // size].append(row)
        return found

    sums, cells = apart(exact.sums), [(tree, apart(rows)) for tree, rows in exact.cells]
    for place, found in enumerate(sums):
        yield (
            groups[place * size : (place + 1) * size],
            Exact(found, [(tree, rows[place]) for tree, rows in cells]),
        )


# ---- the rows of an answer

Cell = str | int | float | bool | None
Interval = tuple[float, float] | None
Shown = list[tuple[Cell, Interval]]


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
    estimates = [_shown_estimates(each) for each in zip(*found, strict=True)]
    keys = [_labels(key, [group[place] for group in groups], policy) for place, key in enumerate(plan.keys)]
    columns: list[Shown]
    if plan.post is None:
        waiting = iter(estimates)
        columns = [
            [(value, None) for value in keys[output.value]] if isinstance(output.value, int) else next(waiting)
            for output in plan.outputs
        ]
        names, order = tuple(output.name for output in plan.outputs), _ordered(plan, columns, len(groups))
    else:
        types = [key_type(key, policy) for key in plan.keys]
        simulated = [np.hstack(each) for each in zip(*drawn, strict=True)]
        order, columns = postprocessing.process(plan.post, keys, simulated, types)
        for place in range(len(columns)):
            origin = plan.post.origin(place) or ""
            if origin.startswith("a"):  # it has an interval of its own
                columns[place] = [estimates[int(origin[1:])][group] for group in order]
        names, order = plan.post.names, list(range(len(order)))
    return Shape(
        columns=names,
        rows=tuple(tuple(column[place][0] for column in columns) for place in order),
        intervals=tuple(tuple(column[place][1] for column in columns) for place in order),
    )


def _labels(key: AnyKey, values: Sequence[Key], policy: Policy) -> list[Key]:
    labels = {value: label(key, value, policy) for value in set(values)}
    return [labels[value] for value in values]


def _shown_estimates(parts: Sequence[NoisyEstimate]) -> Shown:
    return [
        (value.item(), (float(low), float(high)))
        for one in parts
        for value, low, high in zip(one.values, one.low, one.high, strict=True)
    ]


def _ordered(plan: Query, columns: Sequence[Shown], groups: int) -> list[int]:
    order = list(range(groups))
    for column, descending in reversed(plan.order):
        order.sort(key=lambda place: columns[column][place][0], reverse=descending)  # type: ignore[arg-type,return-value]
    return order[: plan.limit]


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
    return replace(item, tree=replace(item.tree, levels=tuple(map(add, item.tree.levels))))
