"""Operations that put rows elsewhere by fixed numbers, of which a few rows do not tell what they do to many."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from torch import Tensor

from sfumato.training.dependence import ROWS, Labels, Operation, moved, rule_of, tried


def moves_rows(op: Operation) -> bool:
    """Whether an operation puts rows elsewhere by fixed numbers, so that it matters how many there are.

    To roll three rows by three places, or to pick the rows 0, 1 and 2, leaves three rows where they are, but
    not thirty. Only meant for rows with labels of one bit; what it does not understand moves rows.
    """
    try:
        return _moves(op)
    except Exception:
        return True


def _moves(op: Operation) -> bool:
    name = op.name.removesuffix("_copy")
    if name.startswith(("as_strided", "unfold", "diagonal")):
        return bool(_meets(_moved_labels(op).reshape(-1), 0))
    if name in _BY_INDEX:
        return any(_moved_by(op, index, dim) for index, dim in _indices(op))
    if name in _ALONG_ONE:
        return not _is_whole(op) and _meets(_moved_labels(op), op["dim"])
    labels = op.labels("self") if isinstance(op.get("self"), Tensor) else None
    if name in ("roll", "flip"):
        return any(_meets(labels, dim) for dim in op["dims"] or range(op["self"].dim()))
    if name == "constant_pad_nd":
        sides = len(op["pad"]) // 2
        return any(
            _meets(labels, -1 - side) for side in range(sides) if any(op["pad"][2 * side : 2 * side + 2])
        )
    if rule_of(op.func) in (tried, moved) and not (_STAYING.search(name) or _LAYING_OUT.match(name)):
        return any(_meets(each, dim) for each in op.all_labels() for dim in range(1, each.ndim))
    return False


_PICKING = frozenset(["index", "_unsafe_index", "index_select", "gather", "embedding"])
_BY_INDEX = _PICKING | frozenset(
    [
        *("index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put", "scatter", "scatter_"),
        *("scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_"),
    ]
)
_ALONG_ONE = frozenset(
    [
        *("select", "slice", "narrow", "split", "unsafe_split", "split_with_sizes", "unbind"),
        *("unsafe_split_with_sizes", "slice_backward", "slice_scatter", "select_scatter"),
    ]
)
_STAYING = re.compile("^repeat$|view|reshape|rnn|lstm|gru")  # by sizes alone, or within rows
_LAYING_OUT = re.compile("^(detach|alias|t|transpose|swapdims|swapaxes|(un)?squeeze|permute|expand)_?$")


def _meets(labels: Labels | None, dim: int) -> bool:
    """Whether several rows lie in one line along a dimension."""
    if labels is None or not labels.ndim or not -labels.ndim <= dim < labels.ndim:
        return False
    found = np.atleast_1d(np.bitwise_or.reduce(labels, axis=dim)) & np.uint8(ROWS)
    return bool((found & (found - np.uint8(1))).any())


def _moved_labels(op: Operation) -> Labels:
    name = next(name for name in ("self", "grad_output", "input") if name in op.arguments)
    return op.labels(name)


def _is_whole(op: Operation) -> bool:
    """A slice of everything."""
    if "step" not in op.arguments or "self" not in op.arguments or not op["self"].dim():
        return False
    end = op.get("end")
    length = op["self"].shape[op["dim"]]
    return not op.get("start") and op["step"] == 1 and (end is None or end >= length)


def _indices(op: Operation) -> Iterator[tuple[Tensor, int]]:
    """Tensors of places, and the dimension that each is about."""
    if "indices" not in op.arguments:
        yield op["index"], op["dim"]
    elif isinstance(op["indices"], Tensor):
        yield op["indices"], 0
    else:
        yield from ((index, dim) for dim, index in enumerate(op["indices"]) if index is not None)


def _moved_by(op: Operation, index: Tensor, dim: int) -> bool:
    """Whether constant places are those of several rows."""
    if op.labels_of(index).any():
        return False
    if op.name in _PICKING:
        return any(_meets(op.labels_of(tensor), dim) for tensor in op.sources() if tensor is not index)
    return any(_meets(labels, dim) for labels in rule_of(op.func)(op))
