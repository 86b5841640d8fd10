"""Networks of a user's own, for tests that name them as fixed features."""

from __future__ import annotations

import torch
from torch import nn


class Doubled(nn.Module):
    """Twice the input, and its square."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(1)
        return torch.cat([self.weight * flat, flat.square()], 1)


def doubled() -> nn.Module:
    return Doubled()


def drawn() -> nn.Module:
    """A random network: the same at every call, since the seed is settled."""
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh())


class Counting(nn.Module):
    """Features that depend on how many records came before."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(1)
        return x.flatten(1) * self.seen


class Remembering(nn.Module):
    """Features with the mean of all records so far, in attributes that no state dictionary holds.

    Asked again about a record, it gives the same answer.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []
        self.given: dict[bytes, torch.Tensor] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        name = x.numpy().tobytes()
        if name not in self.given:
            self.seen.append(x.flatten(1))
            self.given[name] = x.flatten(1) + torch.cat(self.seen).mean(0)
        return self.given[name]


def pairs() -> nn.Module:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x, x

    return Two()
