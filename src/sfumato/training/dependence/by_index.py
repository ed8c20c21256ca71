"""Rules of operations that pick or put by numbers: constant numbers name places, others may name any."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sfumato.training.dependence.operation import Labels, Operation, is_tensor, joined, numbers, over


def embedded(op: Operation) -> Iterable[Labels]:
    return [_picked_lines(op.labels("weight"), op["indices"], op.labels("indices"), 0)]


def selected(op: Operation) -> Iterable[Labels]:
    return [
        _picked_lines(op.labels("self"), op["index"].reshape(-1), op.labels("index").reshape(-1), op["dim"])
    ]


def _picked_lines(labels: Labels, index: Tensor, chosen_by: Labels, dim: int) -> Labels:
    """Lines of a table: constant places pick their own labels, others may pick any."""
    dim %= max(1, labels.ndim)
    constant = np.take(labels, numbers(index), axis=dim)
    anything = np.take(over(labels, [dim]), np.zeros(index.shape, np.intp), axis=dim)
    by = chosen_by.reshape(*chosen_by.shape, *[1] * (labels.ndim - dim - 1))
    return np.where(by != 0, anything | by, constant)


def gathered(op: Operation) -> Iterable[Labels]:
    labels, by, dim = op.labels("self"), op.labels("index"), op["dim"]
    if not labels.ndim:
        return [labels | by]
    index = numbers(op["index"])
    constant = labels[_line_places(index, dim % labels.ndim)]
    anything = over(labels, [dim])[_line_places(np.zeros_like(index), dim % labels.ndim)]
    return [np.where(by != 0, anything | by, constant)]


def scattered(op: Operation) -> Iterable[Labels]:
    """What is there stays, and what is put may lie anywhere in its line, unless its place is constant."""
    labels, by, dim = op.labels("self").copy(), op.labels("index"), op["dim"]
    source = next((op.labels(name) for name in ("src", "source", "value") if is_tensor(op.get(name))), None)
    put = by if source is None else by | source[tuple(map(slice, by.shape))] if source.ndim else by | source
    if not labels.ndim or by.any():
        spread = np.zeros(labels.shape, np.uint8)
        lines = over(put, [dim])
        spread[tuple(map(slice, lines.shape))] = lines
        return [labels | over(spread, [dim])]
    np.bitwise_or.at(labels, _line_places(numbers(op["index"]), dim % labels.ndim), put)
    return [labels]


def _line_places(index: npt.NDArray[Any], dim: int) -> tuple[Any, ...]:
    places: list[Any] = list(np.ogrid[tuple(map(slice, index.shape))])
    places[dim] = index
    return tuple(places)


def indexed(op: Operation) -> Iterable[Labels]:
    labels, places, by = _free_places(op, op.labels("self"))
    found = labels[places]
    return [found | _placed(by, places, found.ndim)]


def put_by_index(op: Operation) -> Iterable[Labels]:
    labels = op.labels("self")
    room, places, by = _free_places(op, np.zeros_like(labels))
    room = room.copy()
    np.bitwise_or.at(room, places, op.labels("values"))
    np.bitwise_or.at(room, places, _placed(by, places, room[places].ndim))
    return [labels | room]


class _NoRule(Exception):
    """What no rule covers counts as depending on everything."""


def _free_places(op: Operation, labels: Labels) -> tuple[Labels, tuple[Any, ...], Labels]:
    """Where an index is not constant it may be anything, so its dimension is united to one place."""
    places: list[Any] = [slice(None)] * labels.ndim
    by, dim = [np.zeros((), np.uint8)], 0
    for index in op["indices"]:
        if index is None:
            dim += 1
            continue
        mine = op.labels_of(index)
        constant = not mine.any()
        spans = index.dim() if index.dtype in (torch.bool, torch.uint8) else 1
        if spans > 1 or (not constant and index.dtype == torch.bool):
            raise _NoRule("a mask over several dimensions, or of rows")
        if not constant:
            labels = over(labels, [dim])
        places[dim] = numbers(index) if constant else np.zeros(index.shape, np.intp)
        by.append(mine if index.dtype not in (torch.bool, torch.uint8) else by[0])
        dim += 1
    return labels, tuple(places), joined(by)


def _placed(by: Labels, places: Sequence[Any], ndim: int) -> Labels:
    """Labels of indices where their dimensions come to lie in the result."""
    taken = [dim for dim, place in enumerate(places) if not isinstance(place, slice)]
    adjacent = not taken or taken == list(range(taken[0], taken[-1] + 1))
    before = taken[0] if taken and adjacent else 0
    return by.reshape(*by.shape, *[1] * (ndim - before - by.ndim)) if by.ndim else by
