"""How large a model with given marginals would be: decided from public sizes, never by the clock."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from sfumato.synthesis.counting import Clique


def model_cells(sizes: Mapping[str, int], cliques: Iterable[Clique]) -> int:
    """Cells of all cliques that come up when columns are eliminated, the one with the smallest clique first.

    Here a goes with its pair (2·3 cells), then b with its (3·4), and c alone (4).

    >>> model_cells({"a": 2, "b": 3, "c": 4}, [("a", "b"), ("b", "c")])
    22
    """
    neighbours = {name: {name} for name in sizes}
    for clique in cliques:
        for name in clique:
            neighbours[name] |= set(clique)
    cost = {name: _product(sizes, near) for name, near in neighbours.items()}
    total = 0
    while cost:
        name = min(cost, key=cost.__getitem__)
        total += cost.pop(name)
        near = neighbours.pop(name) - {name}
        for other in near:
            neighbours[other] = (neighbours[other] | near) - {name}
            cost[other] = _product(sizes, neighbours[other])
    return total


def _product(sizes: Mapping[str, int], names: Iterable[str]) -> int:
    return math.prod(sizes[name] for name in names)


def in_order(names: Iterable[str], order: Sequence[str]) -> Clique:
    """A clique in the order of the table's columns."""
    wanted = set(names)
    return tuple(name for name in order if name in wanted)


def connected(edges: Iterable[Clique], names: Iterable[str]) -> dict[str, str]:
    """For each column the name of the part of the graph that it is in."""
    part = {name: name for name in names}
    for edge in edges:
        first, *rest = (part[name] for name in edge)
        part = {name: first if place in rest else place for name, place in part.items()}
    return part
