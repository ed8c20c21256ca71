"""The tensors of a batch: one, a pair, or whatever nest a model takes."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree


def mapped_tree(function: Callable[..., Any], data: Any, *others: Any) -> Any:
    """`pytree.tree_map`, without its walk for what needs none: one tensor, or a tuple of what is handed here.

    >>> mapped_tree(len, ("ab", {"c": "def"}))
    (2, {'c': 3})
    """
    if isinstance(data, Tensor):
        return function(data, *others)
    if type(data) is tuple and all(type(other) is tuple and len(other) == len(data) for other in others):
        return tuple(mapped_tree(function, *parts) for parts in zip(data, *others, strict=True))
    return pytree.tree_map(function, data, *others)


def taken_apart(data: Any) -> tuple[list[Tensor], Hashable]:
    """The tensors of a nest, and what is left without them; None where that cannot be compared.

    >>> taken_apart({"a": 1, "b": None})
    ([], (<class 'dict'>, (('a', 1), ('b', None))))
    """
    found: list[Tensor] = []

    def rest(part: Any) -> Hashable:
        if type(part) is Tensor:
            found.append(part)
            return Tensor
        if type(part) in (tuple, list):
            return type(part), tuple(map(rest, part))
        if type(part) is dict:
            return dict, tuple((name, rest(value)) for name, value in part.items())
        if part is None or type(part) in (bool, int, float, str):
            return part
        raise TypeError

    try:
        return found, rest(data)
    except TypeError:
        return [], None
