"""The GPT that the demo, the benchmarks and the tests train: the usual pre-norm transformer, on
generated tokens."""

from __future__ import annotations

import dataclasses

import torch
from torch import nn
from torch.nn import functional


@dataclasses.dataclass(frozen=True)
class Shape:
    """Of a model and its batch."""

    layers: int
    width: int
    heads: int
    length: int
    batch: int
    vocabulary: int = 4096
    tied: bool = False
    """The head's weight is that of the tokens."""


SHAPES = {
    "tiny": Shape(layers=3, width=128, heads=4, length=256, batch=16, vocabulary=512),
    "small": Shape(layers=6, width=256, heads=8, length=256, batch=16),
    "medium": Shape(layers=12, width=768, heads=12, length=1024, batch=16),
    "large": Shape(layers=24, width=1024, heads=16, length=1024, batch=16, vocabulary=32768),
}


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.before_attention = nn.LayerNorm(shape.width)
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)
        self.before_mlp = nn.LayerNorm(shape.width)
        self.up = nn.Linear(shape.width, 4 * shape.width)
        self.down = nn.Linear(4 * shape.width, shape.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.before_attention(x)).chunk(3, dim=-1)
        split = (batch, length, self.heads, width // self.heads)
        query, key, value = (part.view(split).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.before_mlp(x))))


class Gpt(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.places = nn.Embedding(shape.length, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        if shape.tied:
            self.head.weight = self.tokens.weight

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        """For each token."""
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The loss of predicting each token from those before it."""
        logits = self.logits(tokens)[:, :-1]
        return functional.cross_entropy(
            logits.flatten(0, 1).float(), tokens[:, 1:].flatten(), reduction="mean"
        )


def batches(shape: Shape, count: int, device: torch.device) -> list[torch.Tensor]:
    """Tokens of a simple rule with noise, so that there is something to learn. Always the same."""
    made = torch.Generator().manual_seed(1)
    size = (shape.batch, shape.length)
    rows = []
    for _ in range(count):
        start = torch.randint(shape.vocabulary, (shape.batch, 1), generator=made)
        tokens = start + 7 * torch.arange(shape.length)
        noise = torch.rand(size, generator=made) < 0.1
        tokens[noise] = torch.randint(shape.vocabulary, size, generator=made)[noise]
        rows.append((tokens % shape.vocabulary).to(device))
    return rows
