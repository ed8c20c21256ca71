"""The class that a model gives each of some private rows: by that row alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sfumato.models.rows_apart import Compute, height_apart
from sfumato.randomness import FreshGenerators
from sfumato.training.devices import CPU, device_of
from sfumato.training.trace import all_tensors, kept_as_it_was

NONE = -1  # the answer to a row that raises


def answers(model: nn.Module, rows: Tensor) -> npt.NDArray[np.int64]:
    """The class of the largest output for each row, in evaluation mode.

    *Guarantees*: each row is an input of its own to the model, mapped over blocks of a public height at which
    made-up rows have the same bits in any company, or shown alone where the model cannot be mapped. The model
    keeps nothing from block to block. Where a block raises, the others are shown again at that height, with
    zeros in the place of the row that does. Random draws are secret. A row that raises has the answer
    `NONE`, and the text of the error is not shown.

    Args:
        model: The model; its mode is put back as it was.
        rows: The rows, (rows, …).

    Returns:
        (rows,) classes.

    >>> answers(nn.Identity(), torch.tensor([[0.0, 1.0], [1.0, 0.0]])).tolist()
    [1, 0]
    """
    return answering(model)(rows)


def answering(model: nn.Module) -> Callable[[Tensor], npt.NDArray[np.int64]]:
    """How a model is asked for `answers`; one on two devices is refused here, before a charge."""
    device = device_of(model)

    def ask(rows: Tensor) -> npt.NDArray[np.int64]:
        was_training = [module.training for module in model.modules()]
        model.eval()
        try:
            with torch.no_grad(), FreshGenerators(device=device) as generators:
                return _of_all(*_forgetting(model, device, generators), rows)
        finally:
            for module, training in zip(model.modules(), was_training, strict=True):
                module.training = training

    return ask


def _forgetting(model: nn.Module, device: torch.device, generators: FreshGenerators) -> tuple[Compute, Compute]:
    """The outputs of a block, mapped and not, by tensors and attributes as they were before any block."""
    tensors: dict[str, Tensor] = {}

    def call(rows: Tensor) -> Tensor:
        found: Tensor = torch.func.functional_call(model, tensors, rows)
        return found

    def kept(compute: Compute) -> Compute:
        def outputs(rows: Tensor) -> Tensor:
            if not tensors or any(tensor._version for tensor in tensors.values()):
                tensors.update({name: each.detach().clone() for name, each in all_tensors(model).items()})
            try:
                with kept_as_it_was(model):
                    return compute(rows.to(device)).to(CPU)
            finally:
                generators.refresh()

        return outputs

    return kept(torch.vmap(lambda row: call(row[None])[0], randomness="different")), kept(call)


def _of_all(mapped: Compute, alone: Compute, rows: Tensor) -> npt.NDArray[np.int64]:
    try:
        height = height_apart(mapped, rows)
    except Exception:  # on made-up rows: the model asks for values, or cannot be mapped
        height = 1
    outputs = alone if height == 1 else mapped
    found = [_of_block(outputs, block, height) for block in torch.split(rows, height) if len(block)]
    return np.concatenate([np.empty(0, dtype=np.int64), *found])


def _of_block(outputs: Compute, rows: Tensor, height: int) -> npt.NDArray[np.int64]:
    """Answers to the rows of one block; where some raise, those are found by halving, at the same height."""
    found, waiting = np.full(len(rows), NONE, dtype=np.int64), [range(len(rows))]
    while waiting:
        some = waiting.pop()
        block = rows.new_zeros(height, *rows.shape[1:])
        block[some.start : some.stop] = rows[some.start : some.stop]
        classes = _classes(outputs, block)
        if classes is not None:
            found[some.start : some.stop] = classes[some.start : some.stop]
        elif len(some) > 1:
            half = len(some) // 2
            waiting += [some[:half], some[half:]]
    return found


def _classes(outputs: Compute, rows: Tensor) -> npt.NDArray[np.int64] | None:
    """None if a row raises, or if not every row has one answer."""
    try:
        found = outputs(rows).argmax(dim=1)
    except KeyboardInterrupt:  # stop
        raise
    except BaseException:  # its text may quote a row
        return None
    return found.reshape(-1).numpy() if found.numel() == len(rows) else None


def right_answers(estimator: Any, X: Any, y: Any) -> npt.NDArray[np.bool_]:
    """Which of some rows are answered rightly.

    *Guarantees*: earlier steps of a pipeline are shown one row at a time, and so is an estimator that is none
    of Sfumato's classifiers, which are asked as `answers` asks a model. Attributes that it sets on itself are
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
    from sklearn.pipeline import Pipeline

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
    """Ask for each row by itself; None where it raises."""
    from sklearn.utils import _safe_indexing

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
