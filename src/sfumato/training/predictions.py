"""The label that an estimator gives each of some private rows: by that row alone, whoever else is there."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing

from sfumato.randomness import FreshGenerators


def right_answers(estimator: Any, X: Any, y: Any) -> npt.NDArray[np.bool_]:
    """Which of some rows are answered rightly.

    *Guarantees*: earlier steps of a pipeline are shown one row at a time, and so is an estimator that is none
    of Sfumato's classifiers, which are asked as `answers` asks a model. What an estimator sets on itself is
    forgotten. A row that raises is answered wrongly, and the text of the error is not shown.
    """
    labels = np.asarray(y)
    steps, last = _in_steps(estimator)
    if not hasattr(last, "predict_apart"):
        found = _each(lambda row: np.asarray(copy.copy(estimator).predict(row)), X, len(labels))
        return np.array(
            [_is(answer, label) for answer, label in zip(found, labels, strict=True)], dtype=np.bool_
        )
    made = _each(lambda row: _stepped(steps, row), X, len(labels))
    right = np.zeros(len(labels), dtype=np.bool_)
    kept = [number for number, row in enumerate(made) if row is not None]
    if kept:
        answers = last.predict_apart(np.concatenate([made[number] for number in kept]))
        right[kept] = [bool(answer == label) for answer, label in zip(answers, labels[kept], strict=True)]
    return right


def _in_steps(estimator: Any) -> tuple[list[Any], Any]:
    if type(estimator) is not Pipeline:
        return [], estimator
    return [step for _name, step in estimator.steps[:-1]], estimator.steps[-1][1]


def _stepped(steps: list[Any], row: Any) -> npt.NDArray[np.float64]:
    for step in steps:
        row = row if step is None or isinstance(step, str) else copy.copy(step).transform(row)
    made = np.asarray(row, dtype=np.float64)
    if made.ndim != 2 or len(made) != 1 or not np.isfinite(made).all():
        raise ValueError
    return made


def _each(ask: Callable[[Any], npt.NDArray[Any]], X: Any, rows: int) -> list[npt.NDArray[Any] | None]:
    """What is made of each row by itself; None where it raises."""
    found: list[npt.NDArray[Any] | None] = []
    with FreshGenerators() as generators:
        for number in range(rows):
            try:
                found.append(ask(_safe_indexing(X, [number])))
            except Exception:  # its text may quote the row
                found.append(None)
            finally:
                generators.refresh()
    return found


def _is(answer: npt.NDArray[Any] | None, label: Any) -> bool:
    return answer is not None and answer.shape == (1,) and bool(answer[0] == label)
