"""Models of a user's own of which a part is not trained, for tests that name them."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn

DIGITS, WORDS = 8, 12


class Base(nn.Module):
    """Random features that nobody trains, drawn from the seed of the run."""

    offset: torch.Tensor
    sign: torch.Tensor

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, DIGITS)
        self.register_buffer("offset", torch.zeros(DIGITS))
        self.register_buffer("sign", torch.randn(DIGITS).sign(), persistent=False)
        self.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(x) * self.sign + self.offset)


def head() -> nn.Module:
    """A head of 27 trained parameters on 56 frozen ones, for six inputs and three classes."""
    return nn.Sequential(nn.Flatten(), Base(6), nn.Linear(DIGITS, 3))


class Reader(nn.Module):
    """A network that takes words and a mask by name, with an adapter of low rank."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, DIGITS).requires_grad_(False)
        self.base = Base(DIGITS)
        self.down = nn.Parameter(torch.randn(2, DIGITS) / DIGITS)
        self.up = nn.Parameter(torch.zeros(3, 2))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> SimpleNamespace:
        mask = attention_mask.unsqueeze(2)
        mean = (self.words(input_ids) * mask).sum(1) / mask.sum(1).clamp(min=1)
        return SimpleNamespace(logits=self.base(mean) @ self.down.T @ self.up.T)
