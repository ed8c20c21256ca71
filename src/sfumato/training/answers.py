"""The class that a model gives each of some private rows: by that row alone, whoever else is there."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sfumato.models.rows_apart import rows_apart
from sfumato.randomness import FreshGenerators
from sfumato.training.devices import CPU, device_of
from sfumato.training.memory import Memory
from sfumato.training.own_code import runs_with

NONE = -1  # the answer to a row that raises


def answers(model: nn.Module, rows: Tensor) -> npt.NDArray[np.int64]:
    """The class of the largest output for each row, in evaluation mode.

    *Guarantees*: a row's answer is computed from that row and the model. Trusted code is shown blocks of a
    public height at which rows have the same bits in any company. Code of the user's may do in evaluation
    mode what no survey of training has seen: it is shown one row at a time, and made to forget it. What a
    model draws is secret, and what a row seeds is keyed anew before the next. A row that raises has the answer
    `NONE`, and nobody sees the text of the error.

    Args:
        model: The model; its mode is put back as it was.
        rows: The rows, (rows, …).

    Returns:
        (rows,) classes.

    >>> answers(nn.Identity(), torch.tensor([[0.0, 1.0], [1.0, 0.0]])).tolist()
    [1, 0]
    """
    was_training = [module.training for module in model.modules()]
    model.eval()
    try:
        with FreshGenerators(device=device_of(model)) as generators:
            found = None if runs_with(model) else _together(model, rows)
            return _one_by_one(model, rows, generators.refresh) if found is None else found
    finally:
        for module, training in zip(model.modules(), was_training, strict=True):
            module.training = training


def _together(model: nn.Module, rows: Tensor) -> npt.NDArray[np.int64] | None:
    """None if a row raises, or if not every row has an answer."""
    device = device_of(model)
    try:
        found = rows_apart(lambda some: model(some.to(device)).argmax(dim=1).to(CPU), rows)
    except Exception:  # its text may quote a row
        return None
    return found.numpy() if found.shape == (len(rows),) else None


@torch.no_grad()
def _one_by_one(model: nn.Module, rows: Tensor, refresh: Callable[[], None]) -> npt.NDArray[np.int64]:
    device, found = device_of(model), np.full(len(rows), NONE, dtype=np.int64)
    memory = Memory(model, name="the model")
    for number, row in enumerate(torch.split(rows, 1)):
        try:
            found[number] = int(model(row.to(device)).argmax(dim=1))
        except KeyboardInterrupt:  # somebody wants to stop
            raise
        except BaseException:  # its text may quote the row
            continue
        finally:
            memory.put_back()
            refresh()
    return found
