"""Whether code of the user's own runs beside private rows, and what certificates then say.

Code is the user's unless it comes from a package that is taken to keep nothing (`trust.TRUSTED`). It runs in a
model, loss, views or data set; in a class of columns that turns itself into arrays; and in whatever the
interpreter calls with every frame, such as a profiler, a debugger or a tool that measures coverage.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from torch import nn
from torch.utils import _pytree as pytree

from sfumato.training.memory import keeps_nothing
from sfumato.training.replaced import replaced
from sfumato.trust import is_class_of, is_trusted

OWN_CODE = (
    "code of the user's own ran beside the rows (model, loss, views or data set); it is taken to be honest, "
    "not written to deceive"
)
REPLACED = "code of the user's own stood in the place of a library's ({names}); it is taken to be honest"
_TABLES = frozenset(["pandas", "polars", "pyarrow"])  # whose columns turn into arrays by code of their own
_MOST_NAMES = 5
_TOOLS = range(6)  # identifiers that sys.monitoring gives away


def is_watched() -> bool:
    """Whether the interpreter calls code of the user's with every frame, in this thread or in those to come."""
    hooks = (sys.getprofile(), sys.gettrace(), threading.getprofile(), threading.gettrace())
    if any(hook is not None and not is_trusted(hook) for hook in hooks):
        return True
    monitoring = getattr(sys, "monitoring", None)  # from Python 3.12 on; it tells names, not whose code it is
    return monitoring is not None and any(monitoring.get_tool(tool) is not None for tool in _TOOLS)


def runs_with(model: nn.Module) -> bool:
    """Whether code of the user's sees the rows that a model is shown."""
    return not keeps_nothing(model) or is_watched()


def caveats_with(model: nn.Module) -> tuple[str, ...]:
    """What a certificate says of the code that sees the rows that a model is shown."""
    return ((OWN_CODE,) if runs_with(model) else ()) + caveats_of_replaced(list(replaced(model)))


def caveats_of_replaced(names: Sequence[str]) -> tuple[str, ...]:
    """Which names of libraries the user's code stood under."""
    more = len(names) - _MOST_NAMES
    said = [*names[:_MOST_NAMES], *([f"and {more} more"] if more > 0 else [])]
    return (REPLACED.format(names=", ".join(said)),) if names else ()


def brings(*data: Any) -> bool:
    """Whether rows come out of a class of the user's: what holds them, a column, or single values."""
    return not all(
        map(_is_library, {kind for one in (*data, *pytree.tree_leaves(data)) for kind in _kinds(one)})
    )


def _kinds(one: Any) -> Iterator[type]:
    """Its class, those of the arrays in a table of pandas, and those of what an array of objects holds."""
    yield type(one)
    pandas = sys.modules.get("pandas")  # whoever has not loaded it hands over none of its tables
    if pandas is not None and isinstance(one, pandas.DataFrame):
        for _, column in one.items():
            yield from _kinds(column)
    elif pandas is not None and isinstance(one, pandas.Series | pandas.Index):
        yield from _kinds(one.array)
    elif isinstance(one, np.ndarray):
        yield from map(type, one.flat if one.dtype == object else ())
    elif pandas is not None and isinstance(one, pandas.arrays.NumpyExtensionArray):
        yield from _kinds(one.to_numpy())


def _is_library(kind: type) -> bool:
    return all(is_trusted(one) or is_class_of(one, _TABLES) for one in kind.__mro__)
