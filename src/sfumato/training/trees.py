"""The tensors of a batch: one, a pair, or whatever nest a model takes."""

from __future__ import annotations

from collections.abc import Callable
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
