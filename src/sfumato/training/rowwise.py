"""Functions of one row, mapped over many: a loss or a view is never shown two rows.

What a user hands over may look at whatever it is given. So it is given batches of one, by `torch.func.vmap`
where torch can map it and by a loop elsewhere; which of the two is decided on public rows. It cannot know other
rows, or how many there are; and what it remembers of a row is put back before it sees another (`memory`).
"""

from __future__ import annotations

import functools
import types
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from sfumato.errors import InvalidInput, UnsupportedModel
from sfumato.training.memory import Memory
from sfumato.training.views import moved_by_a_pixel

LossFunction: TypeAlias = Callable[[Any, Any], Tensor]
Views: TypeAlias = Callable[[Any], Any]
Axes: TypeAlias = tuple[int | None, ...]

_PLAIN = (Tensor, bool, int, float, str)
VMAP, LOOP, DIRECT = "vmap", "loop", "direct"
VIEWS = "views"
WANTED_OF_VIEWS = (
    "views(inputs) returns as many views of every row, beside each other, such as "
    "torch.stack([inputs, inputs.flip(-1)], 1)"
)


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The usual loss of a classifier, one value for each row.

    Args:
        outputs: (rows, classes, …) scores.
        targets: (rows, …) class numbers.

    Returns:
        (rows,) losses.

    Raises:
        InvalidInput: If there is one class only: this loss is then 0 whatever the scores are.

    >>> cross_entropy(torch.zeros(2, 2), torch.tensor([0, 1])).round(decimals=4).tolist()  # ln 2
    [0.6930999755859375, 0.6930999755859375]
    """
    if outputs.ndim > 1 and outputs.shape[1] == 1:
        raise InvalidInput(
            "expected outputs for two classes or more, got 1; pass a loss_fn, such as "
            "lambda outputs, targets: (outputs[:, 0] - targets) ** 2, or give each class an output"
        )
    return F.cross_entropy(outputs, targets, reduction="none")


def check_losses(losses: Any, rows: int) -> None:
    """Refuse what is not one value for each row."""
    if isinstance(losses, Tensor) and losses.shape == (rows,):
        return
    got = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
    several = isinstance(losses, Tensor) and losses.ndim > 1 and len(losses) == rows
    remedy = "average over what a row has: losses.flatten(1).mean(1)" if several else "use reduction='none'"
    raise InvalidInput(f"expected loss_fn to return one loss for each of the {rows} rows, got {got}; {remedy}")


def _is_known(function: Any) -> bool:
    """Whether each row's value is computed from that row alone, by definition: no map is needed."""
    if type(function) is functools.partial:  # a subclass may compute anything
        # A class of tensors may have code of its own.
        plain = not function.args and all(type(value) in _PLAIN for value in function.keywords.values())
        return function.func is F.cross_entropy and function.keywords.get("reduction") == "none" and plain
    return function is cross_entropy or function is moved_by_a_pixel


@dataclass(frozen=True)
class RowMap:
    """`function`, which takes and returns batches, applied to each row as a batch of one.

    `axes` has 0 for every leaf of the arguments that holds one entry a row, None for what is no tensor or
    shared. `memory` is all that the function could remember; None where that is nothing. *Guarantees*: result n
    is computed from entry n of the rows and from nothing else that was passed, now or before.
    """

    function: Callable[..., Any]
    how: str
    axes: Axes
    name: str
    memory: Memory | None = None

    def __call__(self, *columns: Any) -> Any:
        if self.how == DIRECT:
            return self.function(*columns)
        leaves, tree = pytree.tree_flatten(columns)
        leaves = [leaf if isinstance(leaf, _PLAIN) else None for leaf in leaves]  # an object may hold all rows
        places = [place for place, axis in enumerate(self.axes) if axis is not None]

        def one(*row: Tensor) -> Any:
            filled = list(leaves)
            for place, entry in zip(places, row, strict=True):
                filled[place] = entry.unsqueeze(0)
            return pytree.tree_map(self._only_entry, self.function(*pytree.tree_unflatten(filled, tree)))

        entries = [leaves[place] for place in places]
        if self.how == VMAP:
            return self._forgetting(_mapped, one, entries)
        rows = range(len(entries[0]))
        # Copies: behind a view of a row lies the memory of all rows.
        results = [self._forgetting(one, *(entry[row].clone() for entry in entries)) for row in rows]
        return pytree.tree_map(lambda *parts: self._joined(parts), *results)

    def forgotten(self) -> RowMap:
        """How to map, without the function, which may hold on to much."""
        return replace(self, function=_nothing, memory=None)

    def of(self, function: Callable[..., Any], *, but: Iterable[Tensor]) -> RowMap:
        """The map of that function again; the tensors in `but` are looked after elsewhere."""
        return replace(self, function=function, memory=memory_of(function, self.name, but))

    def _forgetting(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        finally:
            self.forget()

    def forget(self) -> None:
        """Put the function where it was before it saw a row."""
        if self.memory is not None:
            self.memory.put_back()

    def _only_entry(self, result: Any) -> Tensor:
        if not isinstance(result, Tensor) or result.dim() == 0 or len(result) != 1:
            got = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
            raise InvalidInput(
                f"expected {self.name} to keep the rows in its first dimension, got {got} for a batch of one "
                f"row; {_remedy(self.name, result)}"
            )
        return result[0]

    def _joined(self, parts: Sequence[Tensor]) -> Tensor:
        if len({part.shape for part in parts}) > 1:
            raise InvalidInput(
                f"expected {self.name} to return the same shape for each row, got others; "
                f"{_remedy(self.name, parts)}"
            )
        return torch.stack(tuple(parts))


def _remedy(name: str, result: Any) -> str:
    if name == VIEWS:
        return WANTED_OF_VIEWS
    if result is None:  # the loss of a model of transformers, which gets no labels here
        how = "compute it from the outputs, or use sfumato.training.default_loss(model)"
    else:
        how = "use reduction='none'"
    return f"a loss returns one value for each row: {how}"


def check_views(seen: Any, rows: int, copies: int | None = None) -> int:
    """How many views each of so many rows has, which must be `copies` if given; refused if they differ."""
    leaves = [leaf for leaf in pytree.tree_leaves(seen) if isinstance(leaf, Tensor)]
    shapes = [tuple(leaf.shape) for leaf in leaves]
    found = {shape[1] if len(shape) > 1 and shape[0] == rows else 0 for shape in shapes}
    if len(found) == 1 and 0 not in found and copies in (None, *found):
        return found.pop()
    same = "" if copies is None else f", K = {copies} as before,"
    raise InvalidInput(
        f"expected views to return (rows, K, …){same} for {rows} rows, got {shapes or 'no tensor'}; "
        f"{WANTED_OF_VIEWS}"
    )


def memory_of(function: Callable[..., Any], name: str, but: Iterable[Tensor]) -> Memory | None:
    """What a function could remember; refused where it cannot be made to forget it."""
    return None if _is_known(function) else Memory(function, name=name, but=but)


def mapped(
    function: Callable[..., Any], columns: tuple[Any, ...], axes: Axes, *, name: str, but: Iterable[Tensor]
) -> RowMap:
    """The map of `function`: by vmap if that works on these public rows, with the values of a loop."""
    if _is_known(function):
        return RowMap(function, DIRECT, axes, name)
    loop = RowMap(function, LOOP, axes, name, memory_of(function, name, but))
    fast = replace(loop, how=VMAP)
    start = torch.get_rng_state()
    expected = loop(*columns)
    used_randomness = not torch.equal(torch.get_rng_state(), start)
    try:
        found = fast(*columns)
    except InvalidInput:
        raise
    except Exception as error:  # an operation that cannot be mapped, or a choice made in Python
        warnings.warn(
            f"{name} runs row by row in Python, which is slow: torch.func.vmap cannot map it "
            f"({type(error).__name__}); use torch operations only, without .item() or if on values",
            stacklevel=2,
        )
        return loop
    return fast if used_randomness or _alike(found, expected) else loop


def row_axes(few: Any, more: Any, rows: tuple[int, int], where: str) -> Axes:
    """Which leaves hold one entry a row: those whose length follows the number of rows, `rows` of the two.

    A tensor that all rows share keeps its length, whatever that is, and is never taken for rows.
    """
    pairs = zip(pytree.tree_leaves(few), pytree.tree_leaves(more), strict=True)
    return tuple(row_axis(a, b, rows, where) for a, b in pairs)


def row_axis(few: Any, more: Any, rows: tuple[int, int], where: str) -> int | None:
    """The dimension of a leaf that holds the rows, or None."""
    if not isinstance(few, Tensor) or few.shape == more.shape:
        return None
    changed = [d for d, (a, b) in enumerate(zip(few.shape, more.shape, strict=False)) if a != b]
    if few.dim() == more.dim() and len(changed) == 1:
        axis = changed[0]
        if few.shape[axis] * rows[1] == more.shape[axis] * rows[0]:
            return axis
    raise UnsupportedModel(
        f"expected {where} to have one dimension for the rows, got shapes {tuple(few.shape)} for {rows[0]} "
        f"rows and {tuple(more.shape)} for {rows[1]}; keep rows in a dimension of their own"
    )


def _nothing(*columns: Any) -> Any:
    raise AssertionError("a map that was kept without its function")


class Identity:
    """Recognises a function that was seen before, without keeping it or what it refers to alive.

    A lambda that is written in the body of a loop is the same function each time around as long as what it
    closes over is the same.
    """

    def __init__(self, function: Any) -> None:
        self._parts = [_reference(part) for part in _parts(function)]

    def __call__(self, function: Any) -> bool:
        parts = _parts(function)
        return len(parts) == len(self._parts) and all(
            known is not None and known(part) for known, part in zip(self._parts, parts, strict=True)
        )


def _parts(function: Any) -> Sequence[Any]:
    if isinstance(function, types.MethodType):
        return (function.__func__, function.__self__)
    if isinstance(function, functools.partial):
        return (*_parts(function.func), *function.args, *function.keywords, *function.keywords.values())
    if isinstance(function, types.FunctionType):
        cells = [cell.cell_contents for cell in function.__closure__ or () if _filled(cell)]
        named = (function.__kwdefaults__ or {}).values()
        return (function.__code__, *cells, *(function.__defaults__ or ()), *named)
    return (function,)


def _filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _reference(part: Any) -> Callable[[Any], bool] | None:
    """Whether something is this very part; None where nobody could tell later."""
    if part is None or isinstance(part, bool | int | float | str | types.CodeType):
        return lambda other: type(other) is type(part) and other == part
    try:
        known = weakref.ref(part)
    except TypeError:
        return None
    return lambda other: known() is other


def _mapped(one: Callable[..., Any], entries: Sequence[Tensor]) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")  # slow here is still correct
        return vmap(one, randomness="different")(*entries)


def _alike(found: Any, expected: Any) -> bool:
    pairs = zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True)
    return all(torch.allclose(a, b, rtol=1e-4, atol=1e-6, equal_nan=True) for a, b in pairs)
