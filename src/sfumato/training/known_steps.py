"""Steps of a pipeline that are known to give each row its features by that row alone, to the last bit.

Everything else may mix rows, fitted or not: `FunctionTransformer(sklearn.preprocessing.scale)` keeps nothing,
and moves every row when one comes. So a step passes by its very class and settings, never by what it says of
itself.
"""

from __future__ import annotations

from typing import Any

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
    return kind in (BoundedScaler, Binarizer) or (kind is FunctionTransformer and step.func is None)
