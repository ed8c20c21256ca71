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

    def in_whole_vectors(self, size: int, threads: int) -> bool:
        """Whether whole vectors of such a size hold all that is computed, but where that cannot matter.

        Torch's loops have other code for the elements that are left over, at the end and where a thread's share
        ends. Sums, products, quotients and roots are rounded correctly by either, choices and copies not at
        all; an exponential is not.
        """
        rounded = (arguments for func, arguments in self.found if _rounds(func))
        largest = {max(map(_elements, arguments), default=0) for arguments in rounded}
        return all(elements % size == 0 and _share(elements, threads) % size == 0 for elements in largest)

    def _alike(self, few: Steps) -> Callable[[Step, Step], bool]:
        def alike(mine: Step, other: Step) -> bool:
            same = mine[0] is other[0] and len(mine[1]) == len(other[1])
            return same and all(map(_grown(few.rows, self.rows), other[1], mine[1]))

        return alike


_GRAIN = 32768


def _share(elements: int, threads: int) -> int:
    """How many elements the first of torch's threads works on, where a loop is shared out at all."""
    return -(-elements // max(1, min(threads, -(-elements // _GRAIN))))


@lru_cache(maxsize=4096)
def _rounds(func: Any) -> bool:
    """Whether the rounding of an operation may depend on where in a vector an element is."""
    return func.overloadpacket.__name__.strip("_") not in _EXACT | _BY_THE_ROW


_EXACT = frozenset(
    [
        *("add", "sub", "mul", "div", "neg", "abs", "sqrt", "relu", "threshold", "threshold_backward", "clamp"),
        *("maximum", "minimum", "where", "masked_fill", "fill", "eq", "ne", "lt", "le", "gt", "ge"),
        *("bernoulli", "rand", "rand_like", "randn_like", "uniform", "normal", "native_dropout"),
        *(
            "copy",
            "to_copy",
            "clone",
            "ones_like",
            "zeros_like",
            "empty_like",
            "zeros",
            "ones",
            "empty",
            "full",
        ),
        *("new_zeros", "new_ones", "new_empty", "new_full", "arange", "scalar_tensor", "cat", "stack", "roll"),
        *(
            "constant_pad_nd",
            "reflection_pad2d",
            "replication_pad2d",
            "flip",
            "index",
            "index_select",
            "gather",
        ),
        *("view", "unsafe_view", "reshape_alias", "as_strided", "t", "expand", "detach", "alias", "permute"),
        *("transpose", "squeeze", "unsqueeze", "slice", "select", "split", "unbind", "diagonal", "unfold"),
        "sum",  # of all losses, where the backward pass begins; others are of a row
    ]
)
# Loops over rows, or over what belongs to one of them, however many there are: where an element is in a vector
# follows from its place in the row.
_BY_THE_ROW = frozenset(
    [
        *("convolution", "convolution_backward", "mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot"),
        *("max_pool2d_with_indices", "max_pool2d_with_indices_backward", "max_pool3d_with_indices"),
        *("max_pool3d_with_indices_backward", "avg_pool2d", "avg_pool2d_backward", "avg_pool3d"),
        *("avg_pool3d_backward", "adaptive_avg_pool2d", "adaptive_avg_pool2d_backward", "adaptive_avg_pool3d"),
        *("adaptive_max_pool2d", "adaptive_max_pool2d_backward", "mean"),
        *("native_layer_norm", "native_layer_norm_backward", "native_group_norm", "native_group_norm_backward"),
        *("log_softmax", "log_softmax_backward_data", "softmax", "softmax_backward_data"),
        *("nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward", "nll_loss2d_backward"),
        *(
            "embedding",
            "embedding_dense_backward",
            "linalg_vector_norm",
            "scaled_dot_product_flash_attention_for_cpu",
        ),
        "scaled_dot_product_flash_attention_for_cpu_backward",
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
