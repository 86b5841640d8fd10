"""The workspace of a visit: a model whose parameters are views of one flat vector.

A workspace is borrowed by one visit after the other.  Its gradient is a flat vector too, so that
clipping, noise, projection and every optimizer are a handful of vector operations whatever the
model looks like.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import final

import torch
from torch import nn

from unwalk.core.errors import Corrupt
from unwalk.core.outside import Surroundings
from unwalk.core.token import Layout, Token


class State:
    """What a walk changes: parameters, buffers, moments, kept iterates, sums and anchors."""

    def __init__(
        self, layout: Layout, parameters: torch.Tensor, buffers: dict[str, torch.Tensor]
    ) -> None:
        self.layout = layout
        self.parameters = parameters
        self.buffers = buffers
        self.moments: dict[str, torch.Tensor] = {}
        self.kept: dict[str, torch.Tensor] = {}
        self.sums: dict[str, torch.Tensor] = {}
        self.initial_buffers = {k: v.clone() for k, v in buffers.items()}
        self.anchors: dict[str, torch.Tensor] = {"initial": parameters.clone()}
        self.optimizer_steps = 0
        self._model_bytes = parameters.nbytes + sum(b.nbytes for b in buffers.values())

    @property
    def device(self) -> torch.device:
        return self.parameters.device

    @property
    def nbytes(self) -> int:
        """Bytes of tensor data of the token that this state shows."""
        travelling = (*self.moments.values(), *self.kept.values(), *self.sums.values())
        return self._model_bytes + sum([t.nbytes for t in travelling])

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
        self.sums = {k: v.to(self.device, copy=True) for k, v in token.sums.items()}
        self.optimizer_steps = token.optimizer_steps

    def begin_anew(self) -> None:
        """Back to the public initial model, with nothing else left."""
        self.parameters.copy_(self.anchors["initial"])
        for name, buffer in self.buffers.items():
            buffer.copy_(self.initial_buffers[name])
        self.moments, self.kept, self.sums = {}, {}, {}
        self.optimizer_steps = 0

    def token(self, *, hop: int, at: int, memory: Mapping[str, int]) -> Token:
        """The token that this state shows now (borrowed: clone it to keep it)."""
        return Token(
            parameters=self.parameters,
            buffers=self.buffers,
            moments=self.moments,
            kept=self.kept,
            sums=self.sums,
            optimizer_steps=self.optimizer_steps,
            hop=hop,
            at=at,
            memory=memory,
        )

    def put_back(self, *, visited: bool = False) -> None:
        """Undo what a model keeps outside the token; there is no model here."""

    def anchor(self, name: str) -> torch.Tensor | None:
        """The centre of a ball; None stands for the origin."""
        return None if name == "origin" else self.anchors[name]


@final
class Workspace(State):
    """A state with the model that shows it: parameters and gradients are views of flat vectors."""

    def __init__(self, model: nn.Module, device: torch.device | str = "cpu") -> None:
        self.model = model.to(device)
        layout = Layout.of(self.model)
        trainable = [p for p in self.model.parameters() if p.requires_grad]
        parameters = torch.cat([p.detach().reshape(-1) for p in trainable])
        views = layout.views(parameters)
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                parameter.data = views[name]  # the model's own memory is free from here on
        super().__init__(layout, parameters, dict(self.model.named_buffers()))
        trained = [(p, views[n]) for n, p in self.model.named_parameters() if p.requires_grad]
        self.around = Surroundings(self.model, trained)
        self.gradient = torch.zeros_like(parameters)
        gradients = layout.views(self.gradient)
        self.gradients = [(p, gradients[n]) for n, p in self.model.named_parameters() if n in views]
        for parameter, gradient in self.gradients:
            parameter.grad = gradient

    def put_back(self, *, visited: bool = False) -> None:
        """The model as it was built, but for the tensors that travel.

        After a visit, buffers that the model has replaced by other tensors still travel.
        """
        if visited:
            self.around.keep_buffers()
        self.around.put_back()
        for parameter, gradient in self.gradients:
            if parameter.grad is not gradient:
                parameter.grad = gradient

    @contextmanager
    def looked_at(self) -> Iterator[nn.Module]:
        """The model, for somebody to run: what that does to it is undone afterwards.

        A model may change its buffers whenever it is called, and its parameters too (an embedding
        with ``max_norm`` does), and it is measured on the records to be forgotten.
        """
        parameters = self.parameters.clone()
        before = {name: buffer.clone() for name, buffer in self.buffers.items()}
        try:
            yield self.model
        finally:
            self.put_back()
            self.parameters.copy_(parameters)
            for name, buffer in self.buffers.items():
                buffer.copy_(before[name])

    def state_dict(self, token: Token) -> dict[str, torch.Tensor]:
        """Parameters and buffers of ``token`` under the model's own names, copied to the CPU.

        The model itself is asked for names and for parameters that are not trained.
        """
        views = self.layout.views(token.parameters)
        carried = {id(p): views[n] for n, p in self.model.named_parameters() if n in views}
        carried |= {id(buffer): token.buffers[n] for n, buffer in self.model.named_buffers()}
        named = self.model.state_dict(keep_vars=True)
        return {k: carried.get(id(v), v).detach().to("cpu", copy=True) for k, v in named.items()}


def build_model(factory: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Call ``factory`` with torch's global generator seeded, and put that generator back.

    It is the CPU's; ``torch.manual_seed`` would seed those of all devices as well, and is slow.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return factory()
