"""The one place where tensors are changed: a model whose parameters are views of a flat vector.

A workspace is borrowed by one visit after the other.  Its gradient is a flat vector too, so that
clipping, noise, projection and every optimizer are a handful of vector operations whatever the
model looks like.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn

from unwalk.core.errors import Corrupt
from unwalk.core.token import Layout, Token


class Workspace:
    """A model laid out flat, with room for moments, kept iterates and anchors."""

    def __init__(self, model: nn.Module, device: torch.device | str = "cpu") -> None:
        self.model = model.to(device)
        self.layout = Layout.of(self.model)
        trainable = [p for p in self.model.parameters() if p.requires_grad]
        self.parameters = torch.cat([p.detach().reshape(-1) for p in trainable])
        self.gradient = torch.zeros_like(self.parameters)
        views = self.layout.views(self.parameters)
        gradients = self.layout.views(self.gradient)
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                parameter.data = views[name]
                parameter.grad = gradients[name]
        self.buffers: dict[str, torch.Tensor] = dict(self.model.named_buffers())
        self.moments: dict[str, torch.Tensor] = {}
        self.kept: dict[str, torch.Tensor] = {}
        self.anchors: dict[str, torch.Tensor] = {"initial": self.parameters.clone()}
        self.optimizer_steps = 0

    @property
    def device(self) -> torch.device:
        return self.parameters.device

    def load(self, token: Token) -> None:
        """Copy a token's tensors in; its shapes must fit the model."""
        if token.parameters.shape != self.parameters.shape or set(token.buffers) != set(
            self.buffers
        ):
            raise Corrupt(
                f"the token has {token.parameters.numel()} parameters and buffers "
                f"{sorted(token.buffers)}; the model has {self.parameters.numel()} and "
                f"{sorted(self.buffers)}."
            )
        self.parameters.copy_(token.parameters)
        for name, buffer in self.buffers.items():
            buffer.copy_(token.buffers[name])
        self.moments = {k: v.to(self.device, copy=True) for k, v in token.moments.items()}
        self.kept = {k: v.to(self.device, copy=True) for k, v in token.kept.items()}
        self.optimizer_steps = token.optimizer_steps

    def token(self, *, hop: int, at: int, memory: Mapping[str, int]) -> Token:
        """The token that this workspace shows now (borrowed: clone it to keep it)."""
        return Token(
            parameters=self.parameters,
            buffers=self.buffers,
            moments=self.moments,
            kept=self.kept,
            optimizer_steps=self.optimizer_steps,
            hop=hop,
            at=at,
            memory=memory,
        )

    def anchor(self, name: str) -> torch.Tensor | None:
        """The centre of a ball; None stands for the origin."""
        return None if name == "origin" else self.anchors[name]

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers under the model's own names, copied to the CPU."""
        return {k: v.detach().to("cpu", copy=True) for k, v in self.model.state_dict().items()}


def build_model(factory: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Call ``factory`` with torch's global generator seeded, and put that generator back."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return factory()
