"""y = table[index]."""

from __future__ import annotations

from torch import Tensor, nn

from sfumato.training.rules.registry import register
from sfumato.training.rules.terms import Contribution, Lookups


def _shapes(module: nn.Embedding) -> dict[str, tuple[int, ...]]:
    return {"weight": (module.num_embeddings, module.embedding_dim)}


@register(nn.Embedding, shapes=_shapes)
def embedding(module: nn.Embedding, inputs: Tensor, gradient: Tensor) -> dict[str, Contribution]:
    """∂table[i] = Σ of the gradients of the positions that looked up i; the padding entry gets none."""
    rows = inputs.shape[0]
    indices = inputs.reshape(rows, -1)
    gradients = gradient.reshape(rows, -1, module.embedding_dim)
    if module.padding_idx is not None:
        gradients = gradients.masked_fill((indices == module.padding_idx).unsqueeze(2), 0.0)
    return {"weight": Lookups(indices, gradients, module.num_embeddings)}
