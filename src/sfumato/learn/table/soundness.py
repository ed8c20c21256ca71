"""Whether the arrays of a model file fit its declared columns, before a row is looked up in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato.learn.table import mlp
from sfumato.learn.table.boosted import GROUPS
from sfumato.learn.table.design import CENTRE_BITS
from sfumato.learn.table.encoding import Encoder
from sfumato.learn.table.target import Target
from sfumato.policy import Column

Arrays = Mapping[str, npt.NDArray[Any]]
_LARGEST = 2**46  # of a score, so that the scores of all columns can be added
_LARGEST_KEY = 2**63


def require(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"expected {what}")


def check_columns(columns: Sequence[Column]) -> None:
    """Columns that a policy could declare and a model can read."""
    require(bool(columns), "columns")
    for column in columns:
        require(isinstance(column.name, str) and column.lacks is None, "bounds or categories")
        keys = [key for key in column.categories or () if isinstance(key, int)]
        require(all(-_LARGEST_KEY <= key < _LARGEST_KEY for key in keys), "whole numbers that a table can hold")


def check_target(target: Target) -> None:
    require(target.classes is not None or target.column.bounds is not None, "classes or bounds of the target")
    require(target.classes is None or len(target.classes) > 1, "two classes")


def check_additive(encoders: Sequence[Encoder], target: Target, arrays: Arrays) -> None:
    """Every bin that a cell names has its features and its weights."""
    sizes = []
    for place, encoder in enumerate(encoders):
        bins = _whole(arrays, f"bins.{place}", (encoder.cells,), least=0, below=encoder.cells)
        sizes.append(int(bins.max()) + 1)
    total = sum(sizes)
    starts = _whole(arrays, "starts", (len(sizes),), least=0, below=total)
    require(starts.tolist() == np.cumsum([0, *sizes])[:-1].tolist(), "bins one after the other")
    _whole(arrays, "centre", (total,), least=0, below=(1 << CENTRE_BITS) + 1)
    _whole(arrays, "exponent", (total,), least=0, below=8)
    _whole(arrays, "trend", (total,), least=-_LARGEST, below=_LARGEST)
    _whole(arrays, "weights", (total, target.outputs), least=-_LARGEST, below=_LARGEST + 1)
    _whole(arrays, "constant", (target.outputs,), least=-_LARGEST, below=_LARGEST + 1)


def check_boosted(encoders: Sequence[Encoder], target: Target, arrays: Arrays) -> None:
    check_additive(encoders, target, arrays)
    for place, encoder in enumerate(encoders):
        _whole(arrays, f"groups.{place}", (encoder.cells,), least=0, below=GROUPS)
    count = len(arrays["pairs"])
    _whole(arrays, "pairs", (count, 2), least=0, below=len(encoders))
    _whole(arrays, "tables", (count, GROUPS**2, target.outputs), least=-_LARGEST, below=_LARGEST + 1)


def check_network(encoders: Sequence[Encoder], target: Target, arrays: Arrays) -> None:
    """The file holds all that the columns and the classes would have us allocate."""
    inputs, outputs = mlp.input_count(encoders), len(target.classes or "1")
    require(arrays["0.weight"].shape == (mlp.HIDDEN, inputs), "a weight for every input")
    require(arrays["2.weight"].shape == (outputs, mlp.HIDDEN), "a weight for every class")


def _whole(arrays: Arrays, name: str, shape: tuple[int, ...], *, least: int, below: int) -> npt.NDArray[Any]:
    found = arrays[name]
    require(found.dtype == np.int64 and found.shape == shape, f"{name} of shape {shape}")
    require(not found.size or (least <= int(found.min()) and int(found.max()) < below), f"smaller {name}")
    return found
