"""The label that an estimator gives each of some private rows: by that row alone, whoever else is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing

from sfumato.errors import UnsupportedModel
from sfumato.randomness import FreshGenerators
from sfumato.training.answers import answering
from sfumato.training.known_steps import is_row_wise
from sfumato.training.memory import Memory
from sfumato.training.own_code import runs_with
from sfumato.trust import is_class_of

_LARGEST = 10**6  # entries of one thing that an estimator holds, and that is put back entry by entry
_OURS = frozenset(["sfumato"])

Right = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Predictions:
    """How an estimator is asked about private rows, one by one or as if it were.

    *Guarantees*: whether a row is answered rightly depends on that row, its label and the estimator. Steps that
    are known to be row-wise, and Sfumato's own classifiers, are asked as `answers` asks a model. Any other
    estimator may do with rows what it likes: it is shown one at a time, and made to forget it. A row that
    raises is answered wrongly, and nobody sees the text of the error.

    Attributes:
        right: Which of some rows are answered rightly, from the rows and their labels.
        own_code: Whether code runs with the rows that is not known to keep nothing.
    """

    right: Callable[[Any, Any], Right]
    own_code: bool


def predictions(estimator: Any) -> Predictions:
    """Make an estimator ready to be asked; what cannot be made to forget is refused here, before a charge."""
    steps, last = _in_steps(estimator)
    apart = getattr(type(last), "predict_apart", None)
    if apart is not None and is_class_of(type(last), _OURS) and all(map(is_row_wise, steps)):
        answering(last.module_)  # refuses what it could not ask
        return Predictions(_together(steps, last), own_code=runs_with(last.module_))
    return Predictions(_one_by_one(estimator), own_code=True)


def _in_steps(estimator: Any) -> tuple[list[Any], Any]:
    if type(estimator) is not Pipeline:
        return [], estimator
    return [step for _name, step in estimator.steps[:-1]], estimator.steps[-1][1]


def _together(steps: list[Any], last: Any) -> Callable[[Any, Any], Right]:
    def ask(X: Any, labels: npt.NDArray[Any]) -> Right:
        for step in steps:
            X = X if step is None or isinstance(step, str) else step.transform(X)
        return _same(type(last).predict_apart(last, X), labels)

    def right(X: Any, y: Any) -> Right:
        labels = np.asarray(y)
        try:
            return ask(X, labels)
        except (
            Exception
        ):  # one row may be at fault, and its text may quote it; the others have the same bits alone
            return _each(ask, X, labels)

    return right


def _one_by_one(estimator: Any) -> Callable[[Any, Any], Right]:
    memory = Memory(estimator, name="the estimator", largest=_LARGEST)

    def right(X: Any, y: Any) -> Right:
        memory.key_generators()
        with FreshGenerators() as generators:

            def ask(row: Any, label: npt.NDArray[Any]) -> Right:
                try:
                    return _same(np.asarray(estimator.predict(row)), label)
                finally:
                    memory.put_back()
                    generators.refresh()

            found = _each(ask, X, np.asarray(y))
            memory.compare_large()
            return found

    return right


def _each(ask: Callable[[Any, npt.NDArray[Any]], Right], X: Any, labels: npt.NDArray[Any]) -> Right:
    """What `ask` finds of each row by itself; False where it raises."""
    found = np.zeros(len(labels), dtype=np.bool_)
    for number in range(len(labels)):
        try:
            found[number] = ask(_safe_indexing(X, [number]), labels[number : number + 1])[0]
        except (KeyboardInterrupt, UnsupportedModel):  # somebody wants to stop, or something was kept of a row
            raise
        except BaseException:  # its text may quote the row
            continue
    return found


def _same(answers: npt.NDArray[Any], labels: npt.NDArray[Any]) -> Right:
    """One truth for each label; False where there is not one answer to each."""
    if answers.shape != labels.shape:
        return np.zeros(len(labels), dtype=np.bool_)
    return np.asarray(answers == labels, dtype=np.bool_)
