"""A BERT-like classifier of token sequences, whole or with low-rank adapters, for bench/step.py."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS, LAYERS, VOCABULARY, LENGTH, CLASSES, RANK = 256, 4, 4, 8000, 128, 2, 8


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, hidden: Tensor) -> Tensor:
        parts = (part(hidden).unflatten(2, (HEADS, -1)).transpose(1, 2) for part in self._parts())
        mixed = F.scaled_dot_product_attention(*parts)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def _parts(self) -> tuple[nn.Module, ...]:
        return self.query, self.key, self.value


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm, self.second_norm = Attention(), nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = self.norm(hidden + self.attention(hidden))
        return self.second_norm(hidden + self.narrow(F.gelu(self.wide(hidden))))


class Encoder(nn.Module):
    """4 layers of width 256 on 128 tokens of a vocabulary of 8,000."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1]).expand(len(tokens), -1)
        hidden = self.norm(self.tokens(tokens) + self.positions(places))
        return self.head(self.layers(hidden)[:, 0])


class Adapted(nn.Module):
    """A frozen linear layer plus a trained product of two narrow ones."""

    def __init__(self, frozen: nn.Linear) -> None:
        super().__init__()
        self.frozen = frozen
        self.down = nn.Linear(frozen.in_features, RANK, bias=False)
        self.up = nn.Linear(RANK, frozen.out_features, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.frozen(hidden) + self.up(self.down(hidden))


def with_adapters() -> nn.Module:
    """The encoder frozen but for its head, with adapters on queries and values."""
    model = Encoder().requires_grad_(False)
    model.head.requires_grad_(True)
    for layer in model.layers:
        attention = layer.attention
        attention.query, attention.value = Adapted(attention.query), Adapted(attention.value)
    return model


def sequences(rows: int) -> tuple[Tensor, Tensor]:
    return torch.randint(0, VOCABULARY, (rows, LENGTH)), torch.randint(0, CLASSES, (rows,))
