"""Normalisation that treats each example by itself.

Batch normalisation mixes the examples of a batch, so that one person's record reaches everyone's loss; group
normalisation (Wu & He 2018) has the same parameters and does not.
"""

from __future__ import annotations

import copy
import math

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _LazyNormBase

from sfumato.errors import InvalidInput

_MOST_GROUPS = 32
_FEWEST_CHANNELS = 2  # in a group
_FEWEST_FEATURES = 16  # in a group that may have no positions; normalising one or two values leaves their signs


def group_norm(channels: int) -> nn.GroupNorm:
    """Group normalisation with at most 32 groups of at least two channels."""
    return nn.GroupNorm(_groups(channels, fewest=_FEWEST_CHANNELS), channels)


def replace_batchnorm(model: nn.Module) -> nn.Module:
    """A copy of any model with group normalisation wherever it had batch normalisation.

    Scales, shifts, ε, device, type and mode are kept; running averages are dropped. A layer used in several
    places is still one layer. The model handed in is left as it was.

    Args:
        model: Any model.

    Returns:
        The copy; with the same model if it had none.

    >>> replace_batchnorm(nn.BatchNorm2d(8)).num_groups
    4
    """
    for module in model.modules():
        if isinstance(module, _LazyNormBase):
            raise InvalidInput(
                f"expected {type(module).__name__} to know its number of channels; run the model once first"
            )
    return _converted(copy.deepcopy(model), {})


def _converted(module: nn.Module, done: dict[nn.Module, nn.Module]) -> nn.Module:
    if module not in done:
        done[module] = module  # known before its children are visited, in case they lead back to it
        if isinstance(module, _BatchNorm):
            done[module] = _from_batchnorm(module)
        for name, child in module._modules.items():  # named_children would skip a second name for one layer
            if child is not None:
                module._modules[name] = _converted(child, done)
    return done[module]


def _from_batchnorm(old: _BatchNorm) -> nn.GroupNorm:
    fewest = _FEWEST_FEATURES if isinstance(old, nn.BatchNorm1d) else _FEWEST_CHANNELS
    new = nn.GroupNorm(
        _groups(old.num_features, fewest=fewest), old.num_features, eps=old.eps, affine=old.affine
    )
    if old.affine:
        new.weight, new.bias = (
            old.weight,
            old.bias,
        )  # the copy's own: device, type and gradient flag stay
    return new.train(old.training)


def _groups(channels: int, *, fewest: int) -> int:
    groups = math.gcd(_MOST_GROUPS, channels)
    while groups > 1 and channels // groups < fewest:
        groups //= 2
    return groups
