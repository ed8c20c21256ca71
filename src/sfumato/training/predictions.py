"""The label that an estimator gives each of some private rows: by that row alone, whoever else is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing

from sfumato.randomness import FreshGenerators

Right = npt.NDArray[np.bool_]


def right_answers(estimator: Any, X: Any, y: Any) -> Right:
    """Which of some rows are answered rightly.

    *Guarantees*: Sfumato's own classifiers are asked as `answers` asks a model, after the earlier steps of a
    pipeline have made the rows. Any other estimator is shown one row at a time. A row that raises is answered
    wrongly, and the text of the error is not shown.
    """
    labels = np.asarray(y)
    steps, last = _in_steps(estimator)
    if not hasattr(last, "predict_apart"):
        return _each(lambda row, label: _same(np.asarray(estimator.predict(row)), label), X, labels)

    def ask(rows: Any, wanted: npt.NDArray[Any]) -> Right:
        for step in steps:
            rows = rows if step is None or isinstance(step, str) else step.transform(rows)
        return _same(last.predict_apart(rows), wanted)

    try:
        return ask(X, labels)
    except Exception:  # one row may be at fault, and its text may quote it; the others have the same bits alone
        return _each(ask, X, labels)


def _in_steps(estimator: Any) -> tuple[list[Any], Any]:
    if type(estimator) is not Pipeline:
        return [], estimator
    return [step for _name, step in estimator.steps[:-1]], estimator.steps[-1][1]


def _each(ask: Callable[[Any, npt.NDArray[Any]], Right], X: Any, labels: npt.NDArray[Any]) -> Right:
    """What `ask` finds of each row by itself; False where it raises."""
    found = np.zeros(len(labels), dtype=np.bool_)
    with FreshGenerators() as generators:
        for number in range(len(labels)):
            try:
                found[number] = ask(_safe_indexing(X, [number]), labels[number : number + 1])[0]
            except Exception:  # its text may quote the row
                continue
            finally:
                generators.refresh()
    return found


def _same(answers: npt.NDArray[Any], labels: npt.NDArray[Any]) -> Right:
    """One truth for each label; False where there is not one answer to each."""
    if answers.shape != labels.shape:
        return np.zeros(len(labels), dtype=np.bool_)
    return np.asarray(answers == labels, dtype=np.bool_)
