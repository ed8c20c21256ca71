"""Linear layers with ReLU between them, for inputs of any shape."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import final

from torch import Tensor, nn

from sfumato import _validate


@final
class MLP(nn.Module):
    """Linear layers with ReLU between them, on flattened inputs.

    Args:
        in_features: How many values a row has.
        classes: How many outputs there are.
        hidden: The width of each hidden layer; none makes a logistic regression.

    >>> MLP(in_features=64, hidden=())
    MLP(...)
    """

    def __init__(self, *, in_features: int, classes: int = 10, hidden: Sequence[int] = (128,)) -> None:
        super().__init__()
        widths = [_validate.integer("in_features", in_features, least=1), *hidden]
        layers: list[nn.Module] = [nn.Flatten()]
        for narrow, wide in itertools.pairwise(widths):
            layers += [nn.Linear(narrow, wide), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], classes))

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.layers(inputs)
        return logits
