"""One whole step on public rows and on copies, before anything is charged for the real ones."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sfumato.errors import SfumatoError, UnsupportedModel
from sfumato.training.batches import TrainingData
from sfumato.training.clipping import Flat
from sfumato.training.gradient import clip_chunk
from sfumato.training.probe import Survey
from sfumato.training.rowwise import LossFunction


def try_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_fn: LossFunction,
    source: TrainingData,
    known: Survey,
) -> None:
    """Refuse what would break after the charge: a sum that cannot be made, an optimizer that cannot step.

    What cannot be copied is not tried.
    """
    _check_state(model)
    try:
        trial, stepping = copy.deepcopy((model, optimizer))
    except Exception:
        return
    try:
        rows = _whole_block(source.example, known)
        sums = clip_chunk(trial, loss_fn, *rows, Flat(norm=1.0), views=source.views, known=known).sums
        for name, parameter in trial.named_parameters():
            if parameter.requires_grad:
                parameter.grad = sums[name].to(parameter.dtype)
        stepping.step()
    except SfumatoError:
        raise
    except Exception as error:  # on public rows: its text tells nothing
        raise UnsupportedModel(
            f"expected a step on public rows to work, got {type(error).__name__}: {error}; nothing was charged"
        ) from error


def _whole_block(example: tuple[Any, Any], known: Survey) -> tuple[Any, Any]:
    """The public example as often as it fills a block, of a height that was looked at already."""
    times = 1 if known.alone else known.heights.reference_height(1)

    def repeated(leaf: Any) -> Any:
        return leaf.repeat(times, *[1] * (leaf.dim() - 1)) if isinstance(leaf, Tensor) and leaf.dim() else leaf

    inputs, targets = pytree.tree_map(repeated, example)
    return inputs, targets


def _check_state(model: nn.Module) -> None:
    strange = [name for name, value in model.state_dict().items() if not isinstance(value, Tensor)]
    if strange:
        raise UnsupportedModel(
            f"expected a state_dict of tensors, which can be saved without running code, got {strange[0]!r}; "
            "leave out get_extra_state"
        )
