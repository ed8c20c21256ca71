"""Steps of a pipeline that are known to give each row its features by that row alone, to the last bit.

Everything else may mix rows, fitted or not: `FunctionTransformer(sklearn.preprocessing.scale)` keeps nothing,
and moves every row when one comes. So a step passes by its very class and settings, never by what it says of
itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import Binarizer, FunctionTransformer

from sfumato.training.scaling import BoundedScaler

_METHODS = ("fit", "transform", "fit_transform", "func")


def is_row_wise(step: Any) -> bool:
    """Whether a step of a pipeline is known to work on each row by itself and to keep nothing of it.

    Args:
        step: The step, as a pipeline holds it.

    Returns:
        False for whatever is not known.

    >>> is_row_wise(BoundedScaler(bounds=(0, 1))), is_row_wise(FunctionTransformer(abs))
    (True, False)
    """
    if step is None or (isinstance(step, str) and step == "passthrough"):
        return True
    kind, own = type(step), vars(step)
    if any(callable(own.get(name)) for name in _METHODS):  # a function, or a method that was put in its place
        return False
    if kind is Pipeline:
        return all(is_row_wise(each) for _name, each in step.steps)
    if kind is FunctionTransformer:
        return step.func is None
    if kind is SimpleImputer:
        return _fills_in_a_constant(step)
    if kind is ColumnTransformer:
        return _takes_named_columns(step)
    return kind in (BoundedScaler, Binarizer)


def _fills_in_a_constant(step: Any) -> bool:
    """Whether what is filled in was given, and each column stays, as one that is empty in all rows might not.

    Columns that say where something was missing are not known: there is one where any row misses something.
    """
    given = (step.fill_value, step.missing_values)
    return (
        step.strategy == "constant"
        and step.keep_empty_features is True
        and step.add_indicator is False
        and all(isinstance(value, int | float | str | np.generic) for value in given)
    )


def _takes_named_columns(step: Any) -> bool:
    """Whether each part is known, and its columns were named: a function would choose them by their cells."""
    parts = [*step.transformers, *vars(step).get("transformers_", ())]  # those that were given, and were fitted
    return (
        step.transformer_weights is None
        and _is_dropped_or_row_wise(step.remainder)
        and all(_is_dropped_or_row_wise(part) and _are_named(columns) for _name, part, columns in parts)
    )


def _is_dropped_or_row_wise(part: Any) -> bool:
    return (isinstance(part, str) and part == "drop") or is_row_wise(part)


def _are_named(columns: Any) -> bool:
    each = columns if type(columns) in (list, tuple) else [columns]
    return all(type(one) in (int, str) for one in each)
