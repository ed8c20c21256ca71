"""Whether rows came to the same in two passes of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from sfumato.errors import UnsupportedModel
from sfumato.training.capture import Pass
from sfumato.training.following import rows_of
from sfumato.training.public_rows import holds_rows


def check_same_rows(base: Pass, other: Pass, rows: Sequence[int], tolerance: float, what: str) -> None:
    if [call.prefix for call in base.calls] != [call.prefix for call in other.calls]:
        raise UnsupportedModel("expected the same layers to be called whatever the rows, but the calls differ")
    counts = len(base.losses), len(other.losses)
    outputs = zip(pytree.tree_leaves(base.outputs), pytree.tree_leaves(other.outputs), strict=True)
    pairs = [("the loss", base.losses, other.losses)]
    pairs += [("the output", b, a) for b, a in outputs if _can_hold(b, counts[0]) and _can_hold(a, counts[1])]
    for (call, before), (same, after) in zip(base.by_call(), other.by_call(), strict=True):
        where = f"layer {call.prefix.rstrip('.')!r}"
        pairs += [(where, b, a) for b, a in zip(rows_of(call, before), rows_of(same, after), strict=True)]
    chosen = torch.as_tensor(list(rows), device=base.losses.device)
    for where, mine, theirs in pairs:
        b, a = (_by_row(t, n, where)[chosen] for t, n in zip((mine, theirs), counts, strict=True))
        if torch.equal(b, a):
            continue
        scale = float(torch.nan_to_num(b).abs().amax()) if b.numel() else 0.0
        if b.shape != a.shape or not torch.allclose(b, a, rtol=0.0, atol=tolerance * scale, equal_nan=True):
            raise UnsupportedModel(
                f"expected rows to be independent, but {what} changed {where} of other rows; remove what mixes "
                "examples (batch statistics, sorting, a first dimension that is not the rows)"
            )


def _can_hold(leaf: Any, rows: int) -> bool:
    return holds_rows(leaf) and leaf.is_floating_point() and len(leaf) > 0 and len(leaf) % rows == 0


def _by_row(values: Tensor, rows: int, where: str) -> Tensor:
    if values.dim() == 0 or len(values) % rows or len(values) == 0:
        raise UnsupportedModel(
            f"expected {where} to keep rows in its first dimension, got shape {tuple(values.shape)} for {rows} "
            "rows; keep rows first (batch_first=True), and expand what rows share: "
            "positions.expand(len(inputs), -1)"
        )
    return values.detach().reshape(rows, -1)
