"""What an engine found, before noise, as arrays with a place for each group."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sfumato.policy import Key
from sfumato.query.measures import CELL, ROWS, Counted, Integers
from sfumato.query.shaping import Groups


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
    """Sums over no rows at all, under whatever name they are asked for."""

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
