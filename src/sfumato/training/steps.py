"""What a pass does, operation by operation: whether code does the same whatever the number of rows.

The survey follows a few rows through a model. What it finds holds for a block of another height if the very
same operations run there, with sizes that are equal or grow with the rows.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Step: TypeAlias = tuple[Any, tuple[Any, ...]]  # an operation, and its arguments without values


class Steps(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within, notes every operation, those of the forward pass apart from those of loss and backward pass."""

    def __init__(self, rows: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rows = rows
        self.found: list[Step] = []
        self.forward = 0  # how many of them

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.note(func, args, kwargs)
        return func(*args, **kwargs)

    def note(self, func: Any, args: Any, kwargs: Any) -> None:
        self.found.append((func, (*map(_described, args), *map(_described, kwargs.values()))))

    def until(self, loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """The same loss; what runs before it is the forward pass."""

        def noted(outputs: Any, targets: Any) -> Tensor:
            self.forward = len(self.found)
            return loss(outputs, targets)

        return noted

    def like(self, few: Steps) -> bool:
        """Whether this pass did what the one with few rows did.

        The forward pass in the same order; a loss that is mapped by a loop runs once for each row, so that of
        the rest nothing new may be there.
        """
        mine, theirs = self.found[: self.forward], few.found[: few.forward]
        if len(mine) != len(theirs) or not all(map(self._alike(few), mine, theirs)):
            return False
        known: defaultdict[Any, list[Step]] = defaultdict(list)
        for step in few.found:
            known[step[0]].append(step)
        alike = self._alike(few)
        return all(
            any(alike(step, other) for other in known[step[0]]) for step in {*self.found[self.forward :]}
        )

    def in_whole_vectors(self, size: int) -> bool:
        """Whether whole vectors of such a size hold all that is computed, but where that cannot matter.

        Torch's loops have other code for the elements that are left over. Sums, products, quotients and roots
        are rounded correctly by either, choices and copies not at all; an exponential is not.
        """
        rounded = (arguments for func, arguments in self.found if _rounds(func))
        return all(max(map(_elements, arguments), default=0) % size == 0 for arguments in rounded)

    def _alike(self, few: Steps) -> Callable[[Step, Step], bool]:
        def alike(mine: Step, other: Step) -> bool:
            same = mine[0] is other[0] and len(mine[1]) == len(other[1])
            return same and all(map(_grown(few.rows, self.rows), other[1], mine[1]))

        return alike


@lru_cache(maxsize=4096)
def _rounds(func: Any) -> bool:
    """Whether the rounding of an operation may depend on where in a vector an element is."""
    return func.overloadpacket.__name__.strip("_") not in _EXACT


_EXACT = frozenset(
    [
        *("add", "sub", "mul", "div", "neg", "abs", "sqrt", "relu", "threshold", "threshold_backward", "clamp"),
        *("maximum", "minimum", "where", "masked_fill", "fill", "eq", "ne", "lt", "le", "gt", "ge"),
        *("copy", "to_copy", "clone", "ones_like", "zeros_like", "view", "unsafe_view", "reshape_alias", "t"),
        *("expand", "detach", "alias", "permute", "transpose", "squeeze", "unsqueeze", "slice", "select"),
        "sum",  # of all losses, where the backward pass begins
    ]
)


def _elements(described: Any) -> int:
    """Of a tensor that was described."""
    is_tensor = isinstance(described, tuple) and len(described) == 2 and isinstance(described[0], torch.dtype)
    return math.prod(described[1]) if is_tensor else 0


def _described(value: Any) -> Any:
    """A value that can be compared: of a tensor its type and shape."""
    if isinstance(value, Tensor):
        return value.dtype, tuple(value.shape)
    if isinstance(value, list | tuple):
        return tuple(map(_described, value))
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def _grown(few: int, many: int) -> Callable[[Any, Any], bool]:
    def fits(small: Any, large: Any) -> bool:
        if isinstance(small, tuple) and isinstance(large, tuple):
            return len(small) == len(large) and all(map(fits, small, large))
        if type(small) is int and type(large) is int:
            return small == large or small * many == large * few
        return type(small) is type(large) and (small == large or small != small)

    return fits
