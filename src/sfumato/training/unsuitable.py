"""Models and data that are refused by what they are, before they are run."""

from __future__ import annotations

import inspect
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree as pytree

from sfumato.errors import UnsupportedModel
from sfumato.training.capture import Pass
from sfumato.training.structure import hooks_on
from sfumato.trust import INSTALLED, is_trusted, is_trusted_class


def refuse_own_tensors(model: nn.Module) -> None:
    """A class of tensors sees every operation, those between two passes too, after which it is not put back."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if not is_trusted_class(type(tensor)):
            raise UnsupportedModel(
                f"expected parameters and buffers of torch's own classes, got {name} of "
                f"{type(tensor).__name__}, whose code would see every operation; use nn.Parameter(tensor)"
            )


def refuse_sparse(model: nn.Module) -> None:
    """What a model holds is copied and put back, which sparse tensors do not allow."""
    named = [(name, tensor) for name, tensor in (*model.named_parameters(), *model.named_buffers())]
    for prefix, module in model.named_modules():
        named += [(f"{prefix}.{name}".lstrip("."), one) for name, one in vars(module).items()]
    for name, one in named:
        if isinstance(one, Tensor) and one.layout != torch.strided:
            raise UnsupportedModel(
                f"expected dense tensors in the model, got {name} of layout {one.layout}; keep "
                "tensor.to_dense(), or its indices and values as two tensors"
            )


def refuse_hooks_on_weights(model: nn.Module) -> None:
    """Gradients of single rows pass no weight: a hook there would wait for nothing."""
    for name, parameter in model.named_parameters():
        for hook in hooks_on(parameter):
            if not is_trusted(hook, INSTALLED):
                raise UnsupportedModel(
                    f"expected no hook of your own on a weight, got one on {name}; gradients of single rows do "
                    "not pass there: remove it, and change what a step gives in the optimizer"
                )


def refuse_low_precision(model: nn.Module) -> None:
    """A unit has one coefficient for all of its gradients: they are of one type, which has enough digits."""
    learning = [(name, p.dtype) for name, p in model.named_parameters() if p.requires_grad]
    for name, dtype in learning:
        if dtype not in (torch.float32, torch.float64):
            raise UnsupportedModel(
                f"expected float32 parameters, got {name} of {dtype}; norms need more digits: "
                "call model.float()"
            )
    for (first_name, first_dtype), (name, dtype) in pairwise(learning):
        if dtype != first_dtype:
            raise UnsupportedModel(
                f"expected trainable parameters of one type, got {first_name} of {first_dtype} and {name} of "
                f"{dtype}; call model.float(), or model.double()"
            )


def refuse_low_precision_inside(passed: Pass) -> None:
    for call, gradients in passed.by_call():
        for gradient in gradients:
            if gradient is not None and gradient.dtype not in (torch.float32, torch.float64):
                raise UnsupportedModel(
                    f"expected layer {call.prefix.rstrip('.')!r} to compute in float32, got {gradient.dtype}; "
                    "clipping needs more digits: leave out autocast and casts to half precision"
                )


def refuse_batch_statistics(model: nn.Module) -> None:
    for name, module in model.named_modules():
        frozen = not module.training and not any(p.requires_grad for p in module.parameters(recurse=False))
        if isinstance(module, _BatchNorm) and not (frozen and module.track_running_stats):
            raise UnsupportedModel(
                f"expected no batch statistics, got {type(module).__name__} at {name!r}, which mixes "
                "examples; sfumato.models.replace_batchnorm(model) puts GroupNorm in its place"
            )
        if isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats:
            raise UnsupportedModel(
                f"expected no running statistics, got {type(module).__name__} at {name!r} with "
                "track_running_stats=True; set it to False"
            )
        if isinstance(module, nn.Embedding) and (module.max_norm is not None or module.scale_grad_by_freq):
            raise UnsupportedModel(
                f"expected a plain Embedding at {name!r}, got max_norm={module.max_norm}, "
                f"scale_grad_by_freq={module.scale_grad_by_freq}, which depend on the whole batch; unset both"
            )


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
