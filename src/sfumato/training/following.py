"""Rows followed through a forward and a backward pass, whatever their values are and however many there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sfumato.training.capture import ExpandedCall, LayerCall, Wiring, count_rows, run
from sfumato.training.dependence import passes_for
from sfumato.training.rowwise import RowMap
from sfumato.training.shadow import Shadow, Told


def follow(
    model: nn.Module, loss: RowMap, wiring: Wiring, inputs: Any, targets: Any, *, part: int = 0
) -> tuple[Shadow, bool]:
    """The shadow of one pass, and whether each element that counts is of one row.

    Of more rows than a label has bits, those that differ in digit `part` of their number are told apart.
    """
    inputs, targets = pytree.tree_map(
        lambda leaf: leaf.clone() if isinstance(leaf, Tensor) and leaf.dim() else leaf, (inputs, targets)
    )
    shadow, rows = Shadow(model, part), count_rows(inputs)
    shadow.mark((inputs, targets))

    def followed(outputs: Any, targets: Any) -> Tensor:
        with shadow.not_heeding():
            losses = loss(outputs, targets)
            ones = torch.ones(rows, device=losses.device)
            shadow.mark(ones)  # so that each row's gradients are its own from the start
            return losses * ones

    with shadow, Told(shadow):
        passed = run(model, followed, inputs, targets, wiring)
        held = [rows_of(call, gradients) for call, gradients in passed.by_call()]
    counted = [passed.losses, *(values for of_call in held for values in of_call)]
    return shadow, all(shadow.apart(values, rows) for values in counted)


def stay_apart(model: nn.Module, loss: RowMap, wiring: Wiring, inputs: Any, targets: Any) -> bool:
    """Whether rows, as many as these, stay apart for certain."""
    for part in range(passes_for(count_rows(inputs))):
        shadow, apart = follow(model, loss, wiring, inputs, targets, part=part)
        if shadow.reads or not apart:
            return False
    return True


def rows_of(call: LayerCall | ExpandedCall, gradients: Sequence[Tensor | None]) -> list[Tensor]:
    """What went into a call, and its gradients, rows first.

    A gradient alone may hide what mixes: behind a saturated loss it is zero.
    """
    if isinstance(call, LayerCall):
        return [call.inputs, *(gradient for gradient in gradients if gradient is not None)]
    return list(call.stacked(gradients).values())
