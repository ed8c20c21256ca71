"""Models that went through torch.compile or TorchScript are traced as they were written."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from sfumato.errors import InvalidInput, UnsupportedModel


def as_written(model: Any) -> nn.Module:
    """The module inside a compiled one, which shares its weights; any other model as it is.

    Raises:
        InvalidInput: If it is no module: a class that was not called, a function, nothing.
        UnsupportedModel: If a part of the model was compiled by itself, or turned into TorchScript.
    """
    if not isinstance(model, nn.Module):
        got = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise InvalidInput(f"expected model to be a torch.nn.Module, got {got}; build one and pass it")
    inside: nn.Module = getattr(model, "_orig_mod", model)
    if isinstance(inside, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise UnsupportedModel(
            f"expected the model itself, got {type(inside).__name__} around it; give model.module, and "
            "peers=Peers.of_world() for several processes"
        )
    for name, module in inside.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise UnsupportedModel(
                f"expected a model as it was written, got {name or 'model'!r} in TorchScript, which runs past "
                "torch's modules; give the model before torch.jit.script or torch.jit.trace, and script it "
                "after training"
            )
        if "_orig_mod" in module._modules or getattr(module, "_compiled_call_impl", None) is not None:
            raise UnsupportedModel(
                f"expected a model that is not compiled, or compiled as a whole by torch.compile(model), got "
                f"{name or 'model'!r}, which was compiled by itself; compile it after training"
            )
    return inside
