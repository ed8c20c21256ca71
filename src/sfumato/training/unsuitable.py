"""What to do about rows that a model or a loss does not run on."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree


def other_number(model: nn.Module, inputs: Any) -> str:
    """What to do about inputs that the forward pass takes in another number or by other names."""
    named, several = isinstance(inputs, dict), isinstance(inputs, tuple | list)
    given: Any = () if named else inputs if several else (inputs,)
    try:
        inspect.signature(model.forward).bind(*given, **(inputs if named else {}))
    except TypeError:
        pass
    except Exception:  # a signature that cannot be read says nothing
        return ""
    else:
        return ""
    return (
        "; its forward takes other inputs than the items have: items ((a, b), target) call model(a, b), and "
        "items ({'a': …, 'b': …}, target) call model(a=…, b=…); change the items, or forward"
    )


def other_type(model: nn.Module, inputs: Any) -> str:
    """What to do about inputs whose type no weight has, should the model not run; int64 are tokens."""
    weights = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    given = {leaf.dtype for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor)}
    strangers = sorted(map(str, given - weights - {torch.int64, torch.bool}))
    if not strangers or not weights:
        return ""
    kind = str(next(iter(weights))).removeprefix("torch.")
    return f"; the inputs are {strangers[0]}: convert them with .to(torch.{kind}), as the weights are"


def other_targets(targets: Any) -> str:
    """What to do about targets that torch takes for neither classes nor numbers, should the loss not run."""
    given = {leaf.dtype for leaf in pytree.tree_leaves(targets) if isinstance(leaf, Tensor)}
    strangers = sorted(map(str, given - {torch.int64, torch.float32}))
    if not strangers:
        return ""
    return f"; the targets are {strangers[0]}: convert classes with .to(torch.int64), numbers with .float()"
